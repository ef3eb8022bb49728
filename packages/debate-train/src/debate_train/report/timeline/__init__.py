"""A run's phases on one time line, and what is drawn over it."""
