"""Reading a recipe: files, overrides, schema, and what is wrong with it."""
