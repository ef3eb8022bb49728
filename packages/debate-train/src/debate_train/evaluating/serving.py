"""One engine for several policies: their weights are loaded into it one after the other."""

import os
from contextlib import suppress
from pathlib import Path

from debate_rollout.engine import Engine
from debate_train.checkpointing.policy_files import load_policy
from debate_train.data import DataSource
from debate_train.errors import ModelError, UsageError
from debate_train.evaluating.policies import NamedPolicy
from debate_train.models import PretrainedModel
from debate_train.models.loaded_model import LoadedModel
from debate_train.models.policy import export_weights
from debate_train.recipe import Recipe
from debate_train.running.engine_opening import open_engine, open_sampling


class Serving:
    """Serves policies of a recipe; close it, or use it in `with`.

    Checkpoints of the recipe's model are loaded into one engine. A model of another shape is opened
    in an engine of its own, after that before it is closed.

    Args:
        recipe: Whose model, engine and other policies are used.
        source: Its questions.
        alone: Whether nothing but the recipe's own model is measured.
    """

    def __init__(self, recipe: Recipe, source: DataSource, *, alone: bool) -> None:
        self._recipe, self._source, self._alone = recipe, source, alone
        self._engine: Engine | None = None
        self._loaded: LoadedModel | None = None
        self._is_own = False
        """Whether the model in memory has the recipe's own weights."""
        self._is_other = False
        """Whether the engine is that of a model of another shape."""

    def serve(self, policy: NamedPolicy, version: int) -> Engine:
        """Return the engine, which samples from this policy; `version` marks its weights.

        Raises:
            ModelError: The weights cannot be loaded.
        """
        if self._alone:
            if self._engine is None:
                self._engine = open_sampling(self._recipe, self._source)
            return self._engine
        loaded = self._own_model(policy)
        if policy.model is not None and not self._fits(Path(policy.model), loaded):
            return self._serve_other(policy.model)
        if self._is_other:
            self.close()
        if self._engine is None:
            # Roles that the start speaks for begin with the recipe's model, whoever comes first.
            opened = loaded if self._is_own else self._fresh()
            self._engine = open_engine(self._recipe, opened)
        self._engine.load(export_weights(loaded, version))
        return self._engine

    def close(self) -> None:
        """Close the engine."""
        if self._engine is not None:
            self._engine.close()
            self._engine, self._is_other = None, False

    def __enter__(self) -> "Serving":
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _own_model(self, policy: NamedPolicy) -> LoadedModel:
        if self._loaded is None or (policy.model is None and not self._is_own):
            self._loaded, self._is_own = self._fresh(), True
        return self._loaded

    def _fresh(self) -> LoadedModel:
        import torch

        if not torch.cuda.is_available():  # Keeps DeepSpeed, which transformers imports, quiet.
            os.environ.setdefault("DS_ACCELERATOR", "cpu")
        return self._recipe.model.load(self._recipe.seed)

    def _fits(self, folder: Path, loaded: LoadedModel) -> bool:
        """Load a checkpoint of the recipe's model; return whether it is one."""
        if not folder.is_dir():
            return False
        self._is_own = False
        with suppress(ModelError):
            load_policy(folder, loaded)
            return True
        return False

    def _serve_other(self, name: str) -> Engine:
        model = self._recipe.model
        other = PretrainedModel(
            name=name, dtype=model.dtype, template_kwargs=dict(model.template_kwargs)
        )
        try:
            loaded = other.load(self._recipe.seed)
        except UsageError as error:
            text = str(error).removeprefix("model.name: ")
            raise ModelError(f"--policy: {text}") from error
        self.close()
        self._loaded = None
        self._engine = open_engine(self._recipe.model_copy(update={"model": other}), loaded)
        self._is_other = True
        return self._engine
