"""Debate between language models: contract, parsing, prompts, forms and transcripts."""

__version__ = "0.1.0"
