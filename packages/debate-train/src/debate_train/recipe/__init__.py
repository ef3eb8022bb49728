"""The recipe of a run: its keys, files and checks."""

from debate_train.recipe.recipe import FolderName as FolderName
from debate_train.recipe.recipe import Recipe as Recipe
