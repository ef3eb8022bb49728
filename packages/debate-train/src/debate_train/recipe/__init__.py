"""The recipe: everything that one run is made of."""

from debate_train.recipe.recipe import PARTS, FolderName, Recipe, Recording

__all__ = ["PARTS", "FolderName", "Recipe", "Recording"]
