"""A generate loop of our own on models of transformers."""
