"""What a recipe would do and need, said before it is run."""
