"""Opening a run's engine on the policy that is trained."""

from pathlib import Path
from typing import Any

from debate_rollout.engine import Engine
from debate_rollout.engines.vllm_settings import VllmSettings
from debate_train.checks.check_engines import engine_errors, missing_library
from debate_train.errors import RecipeError
from debate_train.merged_adapters import is_adapter
from debate_train.models import LoadedModel, PretrainedModel
from debate_train.recipe import Demonstrations, Recipe


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
    assert not isinstance(config, Demonstrations)
    model: Any = loaded.model
    if isinstance(config, VllmSettings) and (path := _on_disk(recipe)) is not None:
        # vLLM reads files: what it can read where they are need not be written again.
        model = path
        if getattr(config, "url", None) is None and config.dtype == "auto":
            config = config.model_copy(update={"dtype": recipe.model.dtype})
    engine: Engine = config.open(model, loaded.tokenizer, loaded.template_kwargs)
    return engine


def _on_disk(recipe: Recipe) -> str | None:
    """Return where the policy's first weights are, None for a model made or merged here.

    What a run has trained since reaches the engine as every refresh does.
    """
    model = recipe.model
    if not isinstance(model, PretrainedModel) or is_adapter(model.name):
        return None
    is_folder = Path(model.name).is_dir()
    return model.name if is_folder or model.revision is None else None
