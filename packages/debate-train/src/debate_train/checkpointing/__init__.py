"""Checkpoints: complete or absent, sealed with hashes, read without running anything in them."""
