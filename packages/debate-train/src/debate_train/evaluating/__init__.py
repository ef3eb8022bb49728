"""`debate-eval`: policies measured in the modes of a recipe, kept so that they can be compared."""
