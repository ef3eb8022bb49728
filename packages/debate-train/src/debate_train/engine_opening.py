"""Opening a run's engine on the policy that is trained."""

from typing import Any

from debate_rollout.engine import Engine
from debate_train.checks.check_engines import engine_errors, missing_library
from debate_train.errors import RecipeError
from debate_train.loaded_model import LoadedModel
from debate_train.recipe import Recipe


def refuse_unusable_engine(recipe: Recipe) -> None:
    """Refuse an engine that cannot be opened, before a model is loaded for it.

    Raises:
        RecipeError: Its library is missing, or it has not what training needs.
    """
    missing = missing_library(recipe)
    errors = [*engine_errors(recipe), *([] if missing is None else [missing])]
    if errors:
        raise RecipeError("\n".join(errors))


def open_engine(recipe: Recipe, loaded: LoadedModel) -> Engine:
    """Return the engine that samples from the policy."""
    config = recipe.rollout.engine
    model: Any = loaded.model
    if config.takes_folders and (path := recipe.model.folder()) is not None:
        # What the engine can read where it is need not be written again.
        model, config = path, config.for_checkpoint(recipe.model.dtype)
    return config.open(model, loaded.tokenizer, loaded.template_kwargs)
