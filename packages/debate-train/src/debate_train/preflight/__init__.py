"""`debate-preflight`: whether a recipe's start can learn from its debates, measured on a few."""
