"""The recipe: everything that one run is made of."""

from debate_train.recipe.recipe import FolderName as FolderName
from debate_train.recipe.recipe import Recipe as Recipe
