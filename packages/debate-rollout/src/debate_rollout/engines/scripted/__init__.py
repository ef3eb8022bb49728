"""Replies that are written beforehand, for tests."""
