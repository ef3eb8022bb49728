"""Votes: of turns for each other, what they decide, and what one is worth."""
