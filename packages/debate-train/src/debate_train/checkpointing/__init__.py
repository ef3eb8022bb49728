"""Checkpoints: written aside, sealed with hashes, read without running anything in them."""
