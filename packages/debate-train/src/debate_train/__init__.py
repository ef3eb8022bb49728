"""Train and measure language models on debate: recipes, trainers, the loop, evaluation and reports."""

__version__ = "0.1.0"
