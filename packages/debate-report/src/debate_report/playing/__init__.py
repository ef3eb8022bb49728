"""A run's debaters as data for its page, whose script samples them: weights, words and prompts."""
