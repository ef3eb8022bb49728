"""Train and measure language models on debate."""

__version__ = "0.1.0"
