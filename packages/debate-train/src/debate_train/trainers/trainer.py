"""What every trainer offers to the loop, and the `torch` trainer's settings."""

import math
import sys
from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Protocol

from pydantic import Field

from debate_protocol.forms import DebateForm
from debate_protocol.plugins import Config, Variants
from debate_rollout.engine import Weights
from debate_rollout.engines.transformers import Device
from debate_train.batches.row_types import SHARED, Batch, Share, minibatches, part_count, weigh
from debate_train.losses import Loss
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers.optimizers import (
    Adam,
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
    None, OptimizerBase, AdamW, Adam, AdamW8bit, Muon, TorchOptimizer
)


class Trainer(Protocol):
    """Improves one policy on rows of tokens. Open one per phase."""

    def step(self, batch: "Batch") -> dict[str, float]:
        """Make one optimizer step; return metrics measured before it."""
        ...

    def score(self, batch: "Batch") -> list[float]:
        """Return for each row the log-probability of its actions together, under the policy.

        Log-probabilities are those of the loss: of supervised and preference losses at
        temperature 1. Nothing is learned.
        """
        ...

    @property
    def completed(self) -> int | None:
        """Steps of the phase that the weights stand after; None in the middle of one.

        A step that failed before it changed a weight leaves the number as it was.
        """
        ...

    def weights(self, version: int) -> Weights:
        """Return the policy's weights for an engine."""
        ...

    def save(self, directory: Path) -> None:
        """Write all that `load` needs, and weights that transformers or peft load directly."""
        ...

    def load(self, directory: Path) -> None:
        """Go on exactly where `save` was called."""
        ...

    def close(self) -> None:
        """Free what the trainer holds; the model keeps its weights."""
        ...


def bucket_size(trained: int) -> int:
    """Return how many gradients are reduced together: all, and at most DeepSpeed's default."""
    return min(500_000_000, trained)


@dataclass(frozen=True, slots=True)
class Sharding:
    """What several processes hold in parts: the ZeRO stage, and what lies in CPU memory."""

    stage: int
    offload_optimizer: bool = False
    offload_params: bool = False


class TrainerSettings(Config):
    """The optimizer, its schedule, and how a batch becomes updates.

    The base class of every trainer, those of other packages included: they add a field `type` and
    `open`, and override what is said here of one plain process.
    """

    several_processes: ClassVar[bool] = False
    """Whether it trains in several processes, too."""
    widens_adapters: ClassVar[bool] = True
    """Whether LoRA adapters are trained in float32 whatever the model's type."""
    adapters_at_once: ClassVar[int] = 0
    """Most adapters with names that it trains together; 0 where it knows none by name."""

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
    """Rows of an update: a batch is split at random into parts of about so many; null: all."""
    max_skipped: int = Field(5, ge=1)
    """Updates skipped in a row, as their gradient was not finite, at which the run stops."""
    tokens_per_micro_batch: int = Field(8192, ge=1)
    """Most tokens in one forward and backward pass; changes speed and memory, not results.

    Rows that begin alike may take more: up to twice the longest row."""
    gradient_checkpointing: bool = False
    """Compute each layer again for its gradient: less memory, a third more work, same results."""
    use_liger_kernel: bool = False
    """Compute norms, rotary angles and MLPs by the kernels of the liger-kernel package; CUDA."""
    packing: Share = "prefix"
    """`prefix`: common beginnings of rows computed once; `rows`: nothing shared; `none`: padded."""

    @abstractmethod
    def open(self, loaded: "LoadedModel", loss: "Loss", total_steps: int) -> Trainer:
        """Return a trainer of this model; the reference policy is the model as it is now."""

    def most_tokens(self, row: int, form: DebateForm) -> int:
        """Return the most tokens of a pack, by those of the longest row of a form's debates."""
        shares = self.packing == "prefix" and getattr(form, "conversation", "") == "shared"
        return max(self.tokens_per_micro_batch, row * (SHARED if shares else 1))

    @property
    def makes_several(self) -> bool:
        """Whether a batch may make several updates."""
        return self.epochs > 1 or self.minibatch_size is not None

    def update_count(self, rows: int) -> int:
        """Return how many updates a batch of so many rows makes."""
        return self.epochs * part_count(rows, self.minibatch_size)

    @property
    def keeps_masters(self) -> bool:
        """Whether float32 weights are kept beside those that are trained in bfloat16."""
        return False

    def named_device(self) -> str:
        """Return the device to train on, `auto` where none is named."""
        return "auto"

    def sharding(self) -> Sharding | None:
        """Return how processes share what they hold, None where each holds all."""
        return None

    def type_problem(self, dtypes: Collection[str]) -> str | None:
        """Return what is wrong with training weights of these types, None for nothing."""
        return None

    def plan(self, batch: "Batch", loss: "Loss", ranks: int = 1) -> "list[list[Packs]]":
        """Return for every rank its packs of each minibatch."""
        parts = [self.packs(part, loss, ranks) for part in minibatches(batch, self.minibatch_size)]
        return [list(own) for own in zip(*parts, strict=True)]

    def packs(self, batch: "Batch", loss: "Loss", ranks: int = 1) -> "list[Packs]":
        """Return the packs of an update for every rank."""
        from debate_train.batches.packs import pack

        batch, weights = weigh(batch, loss.aggregation)
        budget = self.tokens_per_micro_batch
        return pack(batch, weights, budget, ranks=ranks, share=self.packing)

    def rate_factor(self, step: int, total_steps: int) -> float:
        """Return what the learning rate is multiplied by at a step (from 0)."""
        if step < self.warmup_steps:
            return (step + 1) / self.warmup_steps
        if self.schedule == "constant":
            return 1.0
        done = min(1.0, (step - self.warmup_steps) / max(1, total_steps - self.warmup_steps))
        fall = 1.0 - done if self.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
        return self.min_lr_ratio + (1 - self.min_lr_ratio) * fall

    def make_optimizer(self, parameters: "Mapping[str, Parameter]") -> "Optimizer":
        """Return the optimizer of these parameters, by name, at the full learning rate."""
        return self.optimizer.make(parameters, self.learning_rate)


class TorchTrainer(TrainerSettings):
    """Plain PyTorch in this process."""

    adapters_at_once: ClassVar[int] = sys.maxsize

    type: Literal["torch"] = "torch"
    device: Device = "auto"
    """Where the model is trained; `auto` takes a CUDA device where there is one, else the CPU."""

    def named_device(self) -> str:
        """Return the device to train on."""
        return self.device

    def open(self, loaded: LoadedModel, loss: Loss, total_steps: int) -> "TorchTrainerSession":
        """Return a trainer of this model; the reference policy is the model as it is now."""
        from debate_train.trainers.torch_session import TorchTrainerSession

        return TorchTrainerSession(self, loaded, loss, total_steps)
