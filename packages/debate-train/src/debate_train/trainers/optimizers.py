"""The optimizers that a recipe may pick, and what each keeps of a parameter."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from debate_protocol.config import Config
from debate_train.errors import RecipeError

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer

FUSED_DEVICES = frozenset({"cpu", "cuda"})
"""Where torch updates a parameter in one pass over its memory, without intermediate results."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What an optimizer keeps of each parameter beside numbers such as a count of steps."""

    moments: tuple[str, ...]
    """Names of tensors of the parameter's shape."""
    others: tuple[str, ...] = ()
    """Names of tensors of other shapes, of which a parameter has some."""
    bytes_each: float = 0.0
    """Bytes a trained parameter where both are in their own precision, weights in float32."""


class OptimizerBase(Config, ABC):
    """What every optimizer of a recipe offers."""

    needs_deepspeed: ClassVar[bool] = False
    """Whether only a trainer that runs DeepSpeed can use it."""

    @abstractmethod
    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Return the optimizer of these parameters, by their names in the model."""

    @abstractmethod
    def kept(self) -> Kept:
        """Return what it keeps of a parameter."""

    @property
    def label(self) -> str:
        """Return how error texts call it."""
        return str(getattr(self, "type"))  # noqa: B009

    @property
    def needs_whole(self) -> bool:
        """Return whether it must see parameters in their own shape, which ZeRO cuts up."""
        return bool(self.kept().others)


class AdamBase(OptimizerBase):
    """What the variants of Adam have in common."""

    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the mean of gradients."""
    beta2: float = Field(0.95, ge=0, lt=1)
    """Decay of the mean of squared gradients."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Share of the weights that is taken off, times the learning rate."""

    def kept(self) -> Kept:
        """Return what it keeps of a parameter."""
        return Kept(("exp_avg", "exp_avg_sq"), bytes_each=8.0)

    def _settings(self, learning_rate: float) -> dict[str, Any]:
        return {
            "lr": learning_rate,
            "betas": (self.beta1, self.beta2),
            "eps": self.eps,
            "weight_decay": self.weight_decay,
        }


class AdamW(AdamBase):
    """AdamW (Loshchilov & Hutter 2019), fused where torch has it.

    torch's own choice on CUDA works on lists of tensors, whose intermediate results take 8 more
    bytes a parameter at the peak of a step.
    """

    type: Literal["adamw"] = "adamw"

    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Return the optimizer of these parameters."""
        from torch.optim import AdamW

        settings = self._settings(learning_rate)
        return AdamW(parameters.values(), **settings, fused=_can_fuse(parameters))


class Adam(AdamBase):
    """Adam (Kingma & Ba 2015), fused where torch has it; `weight_decay` adds to the gradient."""

    type: Literal["adam"] = "adam"

    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Return the optimizer of these parameters."""
        from torch.optim import Adam

        settings = self._settings(learning_rate)
        return Adam(parameters.values(), **settings, fused=_can_fuse(parameters))


class AdamW8bit(AdamBase):
    """AdamW whose moments take one byte a number (Dettmers et al. 2022), of bitsandbytes.

    Parameters of fewer than 4,096 numbers keep float32 moments.
    """

    type: Literal["adamw_8bit"] = "adamw_8bit"

    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Return the optimizer of these parameters.

        Raises:
            RecipeError: bitsandbytes is not installed.
        """
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError as error:
            raise RecipeError(
                f"trainer.optimizer.type: found adamw_8bit, and no bitsandbytes ({error}); "
                'expected it to be installed, as with pip install "debate-train[bitsandbytes]"'
            ) from error
        found: Optimizer = AdamW8bit(list(parameters.values()), **self._settings(learning_rate))
        return found

    def kept(self) -> Kept:
        """Return what it keeps of a parameter: codes, their table, a scale for every 256."""
        pairs = [f"{name}{n}" for name in ("state", "absmax", "qmap") for n in (1, 2)]
        return Kept((), tuple(pairs), bytes_each=2 * (1 + 4 / 256))


class Muon(AdamBase):
    """Muon (Jordan et al. 2024) for matrices; AdamW for embeddings, output heads and vectors.

    Muon replaces the momentum of a matrix by the nearest matrix with orthonormal rows or columns.
    Its steps are scaled by 0.2 · √(the longer side), as large as AdamW's (Liu et al. 2025), so that
    one learning rate serves both.
    """

    type: Literal["muon"] = "muon"
    momentum: float = Field(0.95, ge=0, lt=1)
    """Decay of the mean of a matrix's gradients."""
    nesterov: bool = True
    """Look ahead along the momentum."""

    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Return the optimizer of these parameters."""
        from debate_train.trainers.muon import MuonAndAdamW

        adamw = self._settings(learning_rate)
        muon = {name: adamw[name] for name in ("lr", "weight_decay")}
        muon |= {"momentum": self.momentum, "nesterov": self.nesterov}
        return MuonAndAdamW(parameters, muon | {"adjust_lr_fn": "match_rms_adamw"}, adamw)

    @property
    def needs_whole(self) -> bool:
        """It computes with rows and columns."""
        return True

    def kept(self) -> Kept:
        """Return what it keeps: the first of these of a matrix, the others of the rest."""
        return Kept((), ("momentum_buffer", "exp_avg", "exp_avg_sq"), bytes_each=4.0)


class Sgd(OptimizerBase):
    """Stochastic gradient descent, fused where torch has it."""

    type: Literal["sgd"] = "sgd"
    momentum: float = Field(0.0, ge=0, lt=1)
    """Decay of the sum of gradients."""
    dampening: float = Field(0.0, ge=0, le=1)
    """Share of the gradient that the momentum does not take."""
    nesterov: bool = False
    """Look ahead along the momentum."""
    weight_decay: float = Field(0.0, ge=0)
    """Share of the weights that is added to the gradient."""

    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Return the optimizer of these parameters."""
        from torch.optim import SGD

        settings = self.model_dump(exclude={"type"}) | {"lr": learning_rate}
        return SGD(parameters.values(), **settings, fused=_can_fuse(parameters))

    def kept(self) -> Kept:
        """Return what it keeps of a parameter."""
        return Kept(("momentum_buffer",), bytes_each=4.0) if self.momentum else Kept(())

    @model_validator(mode="after")
    def _nesterov_has_momentum(self) -> "Sgd":
        if self.nesterov and (not self.momentum or self.dampening):
            raise ValueError(
                f"nesterov: found true with momentum {self.momentum:g} and dampening "
                f"{self.dampening:g}; expected a momentum and no dampening"
            )
        return self


def _can_fuse(parameters: "Mapping[str, Parameter]") -> bool:
    return all(parameter.device.type in FUSED_DEVICES for parameter in parameters.values())
