"""Who speaks for a role besides the policy that is trained: weights and engines that stay."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from debate_protocol.plugins import Config, Variants
from debate_rollout.engine import Engine, EngineSettings
from debate_rollout.engines import ENGINES
from debate_train.interrupts import UsageError
from debate_train.models import ModelChoice, ModelConfig
from debate_train.models.loaded_model import LoadedModel
from debate_train.models.model_files import is_folder, is_meant_as_path

START = "start"
"""The policy of the weights that a run begins with, there without being declared."""
EngineChoice = Annotated[EngineSettings, ENGINES]


@dataclass(frozen=True, slots=True)
class Trained:
    """The policy that is trained, as other policies refer to it: its engine, model and seed."""

    engine: EngineSettings
    model: ModelConfig
    seed: int


def _engine_problems(engine: EngineSettings) -> list[str]:
    if engine.is_sampled:
        return []
    return [f"engine.type: found {engine.type}; expected an engine that samples"]


def folder_problems(model: ModelConfig, *, with_tokenizer: bool = True) -> list[str]:
    """Return what is wrong with the directory that a model names, if it names one."""
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


class PolicyConfig(Config):
    """The base class of policies that are not trained; by default in the engine of the trained."""

    type: str
    """The name by which recipes choose it."""
    engine: EngineChoice | None = None
    """Where it is sampled; None takes the settings of `rollout.engine`."""

    def engine_config(self, trained: Trained) -> EngineSettings:
        """Return the settings of the engine that samples from it."""
        return trained.engine if self.engine is None else self.engine

    @abstractmethod
    def sampled_model(self, trained: Trained) -> ModelConfig | None:
        """Return the model that it samples from, None where its engine brings its own."""

    @abstractmethod
    def open(self, trained: Trained, loaded: LoadedModel) -> Engine:
        """Return an engine of its own that samples from it; nobody loads weights into it.

        Args:
            trained: the policy that is trained.
            loaded: the model that is trained, before its first step.
        """

    @abstractmethod
    def described(self, trained: Trained) -> str:
        """Return what it is, in a few words."""

    def problems(self, trained: Trained, *, with_tokenizer: bool = True) -> list[str]:
        """Return what keeps it from speaking, each with the key that it is about.

        Without its tokenizer, a model in a directory needs a configuration alone.
        """
        return _engine_problems(self.engine_config(trained))


class StartPolicy(PolicyConfig):
    """A frozen copy of the weights that the run begins with."""

    type: Literal["start"] = "start"

    def sampled_model(self, trained: Trained) -> ModelConfig:
        """Return the model that is trained."""
        return trained.model

    def open(self, trained: Trained, loaded: LoadedModel) -> Engine:
        """Return an engine on a copy of the weights."""
        return open_on(self.engine_config(trained), trained.model, loaded)

    def described(self, trained: Trained) -> str:
        """Return what it is."""
        return f"the weights of the start, engine {self.engine_config(trained).type}"


class ModelPolicy(PolicyConfig):
    """Another model or checkpoint, with its own tokenizer; its weights stay as they are."""

    type: Literal["model"] = "model"
    model: ModelChoice
    """`{type: pretrained, name: …}` takes a checkpoint's folder, LoRA adapters included."""

    def sampled_model(self, trained: Trained) -> ModelConfig:
        """Return the model."""
        return self.model

    def open(self, trained: Trained, loaded: LoadedModel) -> Engine:
        """Load the model and return an engine on it."""
        # Loaded for this engine alone, which need not copy it.
        own = self.model.load(trained.seed)
        return open_on(self.engine_config(trained).alone(), self.model, own)

    def described(self, trained: Trained) -> str:
        """Return what it is."""
        source = self.model.source or "a model made from scratch"
        return f"{source}, engine {self.engine_config(trained).type}"

    def problems(self, trained: Trained, *, with_tokenizer: bool = True) -> list[str]:
        """Return what keeps it from speaking."""
        engine = self.engine_config(trained)
        problems = _engine_problems(engine)
        if "tokens" not in engine.capabilities:
            problems.append(
                f"engine.type: found {engine.type}, which takes messages, so the model would be "
                "loaded for nothing; expected type: engine with this engine, or another engine"
            )
        return problems + folder_problems(self.model, with_tokenizer=with_tokenizer)


class EnginePolicy(PolicyConfig):
    """An engine that brings its own model, such as an endpoint, or that has none."""

    type: Literal["engine"] = "engine"
    engine: EngineChoice
    """Where and how its replies are sampled."""

    def sampled_model(self, trained: Trained) -> None:
        """Return nothing: the engine brings its own."""
        return None

    def open(self, trained: Trained, loaded: LoadedModel) -> Engine:
        """Return the engine."""
        tokenizer: Any = loaded.tokenizer if "tokens" in self.engine.capabilities else None
        return self.engine.open(None, tokenizer, loaded.template_kwargs)

    def described(self, trained: Trained) -> str:
        """Return what it is."""
        return f"engine {self.engine.type}"

    def problems(self, trained: Trained, *, with_tokenizer: bool = True) -> list[str]:
        """Return what keeps it from speaking."""
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


def brings_model(policy: PolicyConfig, trained: Trained) -> bool:
    """Return whether its engine is opened without any model, such as an endpoint's."""
    engine = policy.engine_config(trained)
    return policy.sampled_model(trained) is None and "tokens" not in engine.capabilities


def open_on(config: EngineSettings, chosen: ModelConfig, loaded: LoadedModel) -> Engine:
    """Return an engine on a model that was loaded, or on its folder where it takes one."""
    model: object = loaded.model
    if config.takes_folders and (path := chosen.folder()) is not None:
        # What the engine can read where it is need not be written again.
        model, config = path, config.for_checkpoint(chosen.dtype)
    return config.open(model, loaded.tokenizer, loaded.template_kwargs)
