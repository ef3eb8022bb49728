"""Variants of debate settings, found by their entry points."""
