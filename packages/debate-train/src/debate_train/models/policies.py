"""Frozen policies for roles: their weights and engines do not change."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from debate_protocol.plugins import Config, Variants
from debate_rollout.engine import Engine, EngineSettings
from debate_rollout.engines import ENGINES
from debate_train.errors import UsageError
from debate_train.models import ModelChoice, ModelConfig
from debate_train.models.loaded_model import LoadedModel
from debate_train.models.model_files import is_folder, is_meant_as_path

START = "start"
"""The policy of the weights that a run begins with, available without being declared."""
EngineChoice = Annotated[EngineSettings, ENGINES]


@dataclass(frozen=True, slots=True)
class TrainedPolicy:
    """The trained policy, as other policies refer to it: engine, model and seed."""

    engine: EngineSettings
    model: ModelConfig
    seed: int


class PolicyConfig(Config):
    """Base class of frozen policies; by default in the trained policy's engine."""

    type: str
    """The name by which recipes choose it."""
    engine: EngineChoice | None = None
    """Where it is sampled; None takes the settings of `rollout.engine`."""

    def engine_config(self, trained: TrainedPolicy) -> EngineSettings:
        """Select the settings of the policy's engine."""
        return trained.engine if self.engine is None else self.engine

    @abstractmethod
    def sampled_model(self, trained: TrainedPolicy) -> ModelConfig | None:
        """Select the model to sample from, `None` where the engine brings a model."""

    @abstractmethod
    def open(self, trained: TrainedPolicy, loaded: LoadedModel) -> Engine:
        """Open a separate engine for the policy; the weights never change.

        Args:
            trained: the trained policy.
            loaded: the trained model, before the first step.
        """

    @abstractmethod
    def described(self, trained: TrainedPolicy) -> str:
        """Describe it in a few words."""

    def problems(self, trained: TrainedPolicy, *, with_tokenizer: bool = True) -> list[str]:
        """List the reasons why it cannot speak, each with a key.

        Without a tokenizer, a model in a directory needs a configuration alone.
        """
        return _engine_problems(self.engine_config(trained))


class StartPolicy(PolicyConfig):
    """A frozen copy of the run's first weights."""

    type: Literal["start"] = "start"

    def sampled_model(self, trained: TrainedPolicy) -> ModelConfig:
        """Select the trained model."""
        return trained.model

    def open(self, trained: TrainedPolicy, loaded: LoadedModel) -> Engine:
        """Open an engine on a copy of the weights."""
        return open_on(self.engine_config(trained), trained.model, loaded)

    def described(self, trained: TrainedPolicy) -> str:
        """Describe it in a few words."""
        return f"the weights of the start, engine {self.engine_config(trained).type}"


class ModelPolicy(PolicyConfig):
    """Another model or checkpoint, with a separate tokenizer; the weights stay as they are."""

    type: Literal["model"] = "model"
    model: ModelChoice
    """`{type: pretrained, name: …}` takes a checkpoint's folder, LoRA adapters included."""

    def sampled_model(self, trained: TrainedPolicy) -> ModelConfig:
        """Select the policy's model."""
        return self.model

    def open(self, trained: TrainedPolicy, loaded: LoadedModel) -> Engine:
        """Load the model and open an engine on it."""
        own_model = self.model.load(trained.seed)
        # Loaded for this engine alone, which need not copy it.
        engine = self.engine_config(trained).alone()
        return open_on(engine, self.model, own_model)

    def described(self, trained: TrainedPolicy) -> str:
        """Describe it in a few words."""
        source = self.model.source or "a model made from scratch"
        return f"{source}, engine {self.engine_config(trained).type}"

    def problems(self, trained: TrainedPolicy, *, with_tokenizer: bool = True) -> list[str]:
        """List the reasons why it cannot speak."""
        engine = self.engine_config(trained)
        problems = _engine_problems(engine)
        if "tokens" not in engine.capabilities:
            problems.append(
                f"engine.type: found {engine.type}, which takes messages, so the model would be "
                "loaded for nothing; expected type: engine with this engine, or another engine"
            )
        return problems + folder_problems(self.model, with_tokenizer=with_tokenizer)


class EnginePolicy(PolicyConfig):
    """An engine with a built-in model, such as an endpoint, or without a model."""

    type: Literal["engine"] = "engine"
    engine: EngineChoice
    """Where and how its replies are sampled."""

    def sampled_model(self, trained: TrainedPolicy) -> None:
        """Select no model: the engine brings a model."""
        return None

    def open(self, trained: TrainedPolicy, loaded: LoadedModel) -> Engine:
        """Open the engine without a model."""
        # An engine of tokens without a model, such as `scripted`, encodes as the run does.
        tokenizer: Any = loaded.tokenizer if "tokens" in self.engine.capabilities else None
        return self.engine.open(None, tokenizer, loaded.template_kwargs)

    def described(self, trained: TrainedPolicy) -> str:
        """Describe it in a few words."""
        return f"engine {self.engine.type}"

    def problems(self, trained: TrainedPolicy, *, with_tokenizer: bool = True) -> list[str]:
        """List the reasons why it cannot speak."""
        if self.engine.needs_model:
            return [
                f"engine: found {self.engine.type}, which is opened with a model; expected one "
                "that brings its own, such as an endpoint with engine.model, or type: model with "
                "this engine"
            ]
        return _engine_problems(self.engine)


POLICIES: Variants[PolicyConfig] = Variants(
    None, PolicyConfig, StartPolicy, ModelPolicy, EnginePolicy
)
PolicyChoice = Annotated[PolicyConfig, POLICIES]
"""Any policy that stays as it is; recipes choose by `type`."""


def _engine_problems(engine: EngineSettings) -> list[str]:
    if engine.serves_trainer is not None:
        return [
            f"engine.type: found {engine.type}, which samples from the trained policy alone; "
            "expected an engine for this policy, such as {type: transformers}"
        ]
    if engine.is_sampled:
        return []
    return [f"engine.type: found {engine.type}; expected an engine that samples"]


def folder_problems(model: ModelConfig, *, with_tokenizer: bool = True) -> list[str]:
    """List the problems of a model's directory, if there is a directory."""
    if model.source is None:
        return []
    if is_folder(model.source):
        try:
            model.check_directory(with_tokenizer=with_tokenizer)
        except UsageError as error:
            return [str(error)]
    elif is_meant_as_path(model.name):
        return [
            f"model.name: there is no directory {model.name!r}; expected one written by "
            "save_pretrained, or a hub id such as Qwen/Qwen3-8B"
        ]
    return []


def brings_model(policy: PolicyConfig, trained: TrainedPolicy) -> bool:
    """Say whether a policy's engine is opened without any model, such as an endpoint's."""
    engine = policy.engine_config(trained)
    return policy.sampled_model(trained) is None and "tokens" not in engine.capabilities


def open_on(engine: EngineSettings, model: ModelConfig, loaded: LoadedModel) -> Engine:
    """Open an engine on a loaded model, or on the model's folder where the engine takes folders.

    Args:
        engine: Settings of the engine.
        model: Settings of the model.
        loaded: The model, loaded by these settings.
    """
    folder = model.folder() if engine.takes_folders else None
    if folder is not None:
        # The engine can read the weights in this folder: they need not be written again.
        engine = engine.for_checkpoint(model.dtype)
        return engine.open(folder, loaded.tokenizer, loaded.template_kwargs)
    return engine.open(loaded.model, loaded.tokenizer, loaded.template_kwargs)
