"""The interface of trainers, and the `torch` trainer's settings."""

import math
import sys
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol

from pydantic import Field, NonNegativeFloat

from debate_protocol.forms import DebateForm
from debate_protocol.plugins import Config, Variants
from debate_rollout.engine import Weights
from debate_rollout.engines.transformers import Device
from debate_train.batches.row_types import (
    SHARED,
    TRUNK_TO_PACK,
    Batch,
    Share,
    minibatches,
    part_count,
    weigh,
)
from debate_train.losses import Loss
from debate_train.models import ModelConfig
from debate_train.models.loaded_model import LoadedModel, adapter_of
from debate_train.trainers.optimizers import (
    AdamW,
    AdamW8bit,
    Muon,
    OptimizerBase,
    TorchOptimizer,
)

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer

    from debate_train.batches.packs import Packs
    from debate_train.trainers.torch_session import TorchTrainerSession


Schedule = Literal["constant", "linear", "cosine"]
OPTIMIZERS: Variants[OptimizerBase] = Variants(
    None, OptimizerBase, AdamW, AdamW8bit, Muon, TorchOptimizer
)
_DEEPSPEED_BUCKET_SIZE = 500_000_000


class Trainer(Protocol):
    """Improves a policy on rows of tokens. Each phase opens a new trainer."""

    def step(self, batch: "Batch") -> dict[str, float]:
        """Make the updates of a batch, and collect metrics measured before them."""
        ...

    def score(self, batch: "Batch") -> list[float]:
        """Sum the policy's log-probabilities of each row's actions, without learning.

        They are at the temperature of the loss: 1 for supervised and preference losses.
        """
        ...

    @property
    def completed(self) -> int | None:
        """Number of the phase's steps in the weights; `None` in the middle of a step.

        A failure before the first changed weight leaves the number as it was.
        """
        ...

    def weights(self, version: int) -> Weights:
        """Export the policy's weights for an engine."""
        ...

    def save(self, directory: Path) -> None:
        """Write the state for `load`, and weights in the format of transformers or peft."""
        ...

    def load(self, directory: Path) -> None:
        """Restore the exact state of `save`."""
        ...

    def close(self) -> None:
        """Free the trainer's memory; the model keeps its weights."""
        ...


def bucket_size(trained: int) -> int:
    """Compute the number of gradients reduced together: all, and at most DeepSpeed's default.

    DeepSpeed allocates the whole bucket, even for a far smaller model.
    """
    return min(_DEEPSPEED_BUCKET_SIZE, trained)


@dataclass(frozen=True, slots=True)
class Sharding:
    """Division of a training state over processes: the ZeRO stage, and offloads to CPU memory."""

    stage: int
    offload_optimizer: bool = False
    offload_params: bool = False


class TrainerSettings(Config):
    """Settings of the optimizer, the schedule, and the division of batches into updates.

    The base class of every trainer, also in other packages: trainers add a field `type` and `open`,
    and override the methods below, which describe a single plain process.
    """

    several_processes: ClassVar[bool] = False
    """Whether it can train in several processes."""
    widens_adapters: ClassVar[bool] = True
    """Whether LoRA adapters are trained in float32 whatever the model's type."""
    adapters_at_once: ClassVar[int] = 0
    """Most named adapters that it trains together; 0 where it knows no names."""
    with_trunks: ClassVar[bool] = False
    """Whether what the rows of several packs begin with is computed once for all of them."""

    removed_keys: ClassVar[Mapping[str, str]] = {
        "max_skipped": "no such key: the run stops after 5 skipped updates in a row"
    }

    type: str = ""
    """The name by which recipes choose the trainer."""
    learning_rate: float = Field(1e-5, ge=0)
    """Learning rate after the warm-up."""
    warmup_steps: int = Field(0, ge=0)
    """Updates over which the learning rate rises from 0."""
    schedule: Schedule = "constant"
    """After the warm-up: stay, or fall along a line or a cosine over the phase's `steps`."""
    min_lr_ratio: float = Field(0.0, ge=0, le=1)
    """Share of the learning rate that a falling schedule ends at, and stays at."""
    optimizer: Annotated[OptimizerBase, OPTIMIZERS] = AdamW()
    """The rule of an update."""
    max_grad_norm: float = Field(1.0, gt=0, allow_inf_nan=True)
    """Gradients are scaled down to this norm; .inf leaves them as they are."""
    epochs: int = Field(1, ge=1)
    """Passes over each batch; an update for each minibatch of each pass."""
    minibatch_size: int | None = Field(None, ge=1)
    """Rows of an update: a batch is split at random into parts of about this size; null: all."""
    tokens_per_micro_batch: int = Field(8192, ge=1)
    """Most tokens in one forward and backward pass; changes speed and memory, not results.

    Rows that begin alike may take more: up to twice the longest row, with `torch` nine eighths."""
    gradient_checkpointing: bool = False
    """Compute each layer again for its gradient: less memory, a third more work, same results."""
    use_liger_kernel: bool = False
    """Compute norms, rotary angles and MLPs by the kernels of the liger-kernel package; CUDA."""
    packing: Share = "prefix"
    """`prefix`: common beginnings of rows computed once; `rows`: nothing shared; `none`: padded."""

    @abstractmethod
    def open(self, loaded: "LoadedModel", loss: "Loss", total_steps: int) -> Trainer:
        """Open a trainer of this model; the reference policy is the model as it is now."""

    def load_model(self, model: ModelConfig, seed: int) -> LoadedModel:
        """Load the run's model; trainers on a server leave its weights there."""
        return model.load(seed)

    def most_tokens(self, row: int, form: DebateForm) -> int:
        """Bound the tokens of a pack by `row`, the length of a form's longest row."""
        # Rows of a shared conversation begin alike, and such packs may grow beyond one row.
        shares_prefixes = self.packing == "prefix"
        if shares_prefixes and getattr(form, "conversation", "") == "shared":
            row = math.ceil(row * (1 + 1 / TRUNK_TO_PACK)) if self.with_trunks else row * SHARED
        return max(self.tokens_per_micro_batch, row)

    @property
    def makes_several(self) -> bool:
        """Whether a batch may make several updates."""
        return self.epochs > 1 or self.minibatch_size is not None

    def update_count(self, rows: int) -> int:
        """Count the updates that a batch of `rows` rows makes."""
        return self.epochs * part_count(rows, self.minibatch_size)

    @property
    def keeps_masters(self) -> bool:
        """Whether float32 masters are kept beside bfloat16 weights."""
        return False

    def named_device(self) -> str:
        """Look up the device to train on; `auto` lets the trainer choose."""
        return "auto"

    def num_threads(self) -> int | None:
        """Look up the CPU threads of each operation; `None` for torch's default."""
        return None

    def named_rates(self) -> "Mapping[str, float]":
        """Look up the learning rates of adapters that have one of their own."""
        return {}

    def sharding(self) -> Sharding | None:
        """Describe the division of the state over processes; `None` for no division."""
        return None

    def type_problem(self, dtypes: Collection[str]) -> str | None:
        """Explain why weights of these types cannot be trained; `None` if they can."""
        return None

    def plan(self, batch: "Batch", loss: "Loss", ranks: int = 1) -> "list[list[Packs]]":
        """Pack each minibatch for every rank; the outer list is by rank."""
        plan: list[list[Packs]] = [[] for _ in range(ranks)]
        for minibatch in minibatches(batch, self.minibatch_size):
            packs_of_ranks = self.packs(minibatch, loss, ranks)
            for rank_plan, packs in zip(plan, packs_of_ranks, strict=True):
                rank_plan.append(packs)
        return plan

    def packs(self, batch: "Batch", loss: "Loss", ranks: int = 1) -> "list[Packs]":
        """Pack the rows of an update for every rank."""
        # Recipes are read without torch, which packs need.
        from debate_train.batches.packs import pack

        weighed_batch, weights = weigh(batch, loss.aggregation)
        return pack(
            weighed_batch,
            weights,
            self.tokens_per_micro_batch,
            ranks=ranks,
            share=self.packing,
            with_trunks=self.with_trunks,
        )

    def rate_factor(self, step: int, total_steps: int) -> float:
        """Compute the factor of the learning rate at a step (from 0)."""
        # The first step already learns: a factor of 0 would waste its debates.
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        falling_steps = max(1, total_steps - self.warmup_steps)
        progress = min(1.0, (step - self.warmup_steps) / falling_steps)
        if self.schedule == "linear":
            remaining = 1.0 - progress
        else:
            remaining = 0.5 * (1.0 + math.cos(math.pi * progress))
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * remaining

    def make_optimizer(self, parameters: "Mapping[str, Parameter]") -> "Optimizer":
        """Make the optimizer of these parameters, keyed by name, at the full learning rate."""
        return self.optimizer.make(parameters, self.learning_rate)


class TorchTrainer(TrainerSettings):
    """Plain PyTorch in this process."""

    adapters_at_once: ClassVar[int] = sys.maxsize
    with_trunks: ClassVar[bool] = True

    type: Literal["torch"] = "torch"
    device: Device = "auto"
    """Where the model is trained; `auto` takes a CUDA device where there is one, else the CPU."""
    threads: int | None = Field(None, ge=1)
    """CPU threads of each operation of the process, sampling included; null: one a core. Small
    models are fastest with 1, and then their digits do not depend on the number of cores."""
    learning_rates: dict[str, NonNegativeFloat] = Field(default_factory=dict)
    """Learning rates of named adapters; the others have `learning_rate`."""

    def named_device(self) -> str:
        """The key `device`."""
        return self.device

    def num_threads(self) -> int | None:
        """The key `threads`."""
        return self.threads

    def named_rates(self) -> "Mapping[str, float]":
        """The key `learning_rates`."""
        return self.learning_rates

    def make_optimizer(self, parameters: "Mapping[str, Parameter]") -> "Optimizer":
        """Make the optimizer; with named rates, of a part for each adapter."""
        if not self.learning_rates:
            return super().make_optimizer(parameters)
        from debate_train.trainers.combined_optimizer import CombinedOptimizer

        parameters_of_adapter: dict[str | None, dict[str, Parameter]] = {}
        for name, parameter in parameters.items():
            parameters_of_adapter.setdefault(adapter_of(name), {})[name] = parameter
        parts = []
        for adapter, adapter_parameters in parameters_of_adapter.items():
            rate = self.learning_rates.get(adapter or "", self.learning_rate)
            parts.append(self.optimizer.make(adapter_parameters, rate))
        return CombinedOptimizer(parts)

    def open(self, loaded: LoadedModel, loss: Loss, total_steps: int) -> "TorchTrainerSession":
        """Open a session in this process."""
        from debate_train.trainers.torch_session import TorchTrainerSession

        return TorchTrainerSession(self, loaded, loss, total_steps)
