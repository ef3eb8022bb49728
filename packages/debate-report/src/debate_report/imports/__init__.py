"""Rollouts of other programs: a small reader for each format."""
