"""Answers: taken from replies, written alike, compared."""
