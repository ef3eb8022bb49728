"""Rows of a step as packs: prefixes stand once, and attention knows."""
