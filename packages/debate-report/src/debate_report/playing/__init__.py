"""A run's debaters as data for the page's script, to sample them: weights, words and prompts."""
