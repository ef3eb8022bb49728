"""Rewards that need no labels, or those of some questions."""
