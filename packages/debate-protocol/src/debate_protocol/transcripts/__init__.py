"""Transcripts: as JSON Lines, as XML, as text, and what may be wrong with them."""
