"""The optimizers of recipes, and their state for each parameter."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from debate_protocol.plugins import Config, did_you_mean, install_command
from debate_train.errors import RecipeError

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer


FUSED_DEVICES = frozenset({"cpu", "cuda"})
"""Devices on which torch updates a parameter in one pass over its memory."""
# Optimizers of torch that compute with rows and columns; the shapes of their state do not show it.
_MATRIX_OPTIMIZERS = ("Muon",)


@dataclass(frozen=True, slots=True)
class StateLayout:
    """Tensors of an optimizer for each parameter, beside scalars such as a step count."""

    moments: tuple[str, ...]
    """Names of tensors of the parameter's shape."""
    others: tuple[str, ...] = ()
    """Names of tensors of other shapes; a parameter need not have all of them."""
    bytes_each: float = 0.0
    """Bytes a trained parameter, for float32 weights and state in its usual precision."""


class OptimizerBase(Config, ABC):
    """An optimizer in a recipe."""

    type: str
    """The name by which recipes choose it."""

    @abstractmethod
    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Make the optimizer of these parameters, keyed by their names in the model."""

    @abstractmethod
    def state_layout(self) -> StateLayout:
        """Describe the state of a parameter."""

    @property
    def label(self) -> str:
        """Name of the optimizer in error messages."""
        return self.type

    @property
    def needs_whole(self) -> bool:
        """Whether it needs parameters in their own shape; ZeRO cuts them up."""
        return bool(self.state_layout().others)


class AdamBase(OptimizerBase):
    """Shared settings and state of the variants of Adam."""

    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay of the mean of gradients."""
    beta2: float = Field(0.95, ge=0, lt=1)
    """Decay of the mean of squared gradients."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(0.0, ge=0)
    """Share of the weights that is taken off, times the learning rate."""

    def state_layout(self) -> StateLayout:
        """Describe the two moments, in float32."""
        return StateLayout(moments=("exp_avg", "exp_avg_sq"), bytes_each=8.0)

    def _settings(self, learning_rate: float) -> dict[str, Any]:
        return {
            "lr": learning_rate,
            "betas": (self.beta1, self.beta2),
            "eps": self.eps,
            "weight_decay": self.weight_decay,
        }


class AdamW(AdamBase):
    """AdamW (Loshchilov & Hutter 2019), fused where torch has it.

    torch's own choice on CUDA works on lists of tensors; intermediate results then take 8 more
    bytes a parameter at the peak of a step.
    """

    type: Literal["adamw"] = "adamw"

    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Make the optimizer of these parameters."""
        from torch import optim

        # torch refuses `fused` where any parameter is on another device.
        can_fuse = all(p.device.type in FUSED_DEVICES for p in parameters.values())
        return optim.AdamW(parameters.values(), **self._settings(learning_rate), fused=can_fuse)


class AdamW8bit(AdamBase):
    """AdamW with moments of a byte a number (Dettmers et al. 2022), from bitsandbytes.

    Parameters of fewer than 4,096 numbers keep float32 moments.
    """

    type: Literal["adamw_8bit"] = "adamw_8bit"

    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Make the optimizer of these parameters.

        Raises:
            RecipeError: bitsandbytes is not installed.
        """
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError as error:
            raise RecipeError(
                f"trainer.optimizer.type: found adamw_8bit, and no bitsandbytes ({error}); "
                f"install it with: {install_command('debate-train[bitsandbytes]')}"
            ) from error
        settings = self._settings(learning_rate)
        optimizer: Optimizer = AdamW8bit(list(parameters.values()), **settings)
        return optimizer

    def state_layout(self) -> StateLayout:
        """Describe two moments of codes, each with a table and a float32 scale for every 256."""
        return StateLayout(
            moments=(),
            others=("state1", "state2", "absmax1", "absmax2", "qmap1", "qmap2"),
            bytes_each=2 * (1 + 4 / 256),
        )


class Muon(AdamBase):
    """Muon (Jordan et al. 2024) for matrices; AdamW for embeddings, output heads and vectors.

    Muon replaces the momentum of a matrix by the nearest matrix with orthonormal rows or columns.
    Steps are scaled by 0.2 · √(the longer side), as large as AdamW's (Liu et al. 2025), so the same
    learning rate serves both.
    """

    type: Literal["muon"] = "muon"
    removed_keys: ClassVar[Mapping[str, str]] = {"nesterov": "no such key: steps look ahead"}
    momentum: float = Field(0.95, ge=0, lt=1)
    """Decay of the mean of a matrix's gradients; a step looks ahead along it (Nesterov)."""

    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Make both optimizers as a single object."""
        from debate_train.trainers.muon import MuonAndAdamW

        adamw_settings = self._settings(learning_rate)
        muon_settings = {
            "lr": adamw_settings["lr"],
            "weight_decay": adamw_settings["weight_decay"],
            "momentum": self.momentum,
            "nesterov": True,
            "adjust_lr_fn": "match_rms_adamw",
        }
        return MuonAndAdamW(parameters, muon_settings, adamw_settings)

    @property
    def needs_whole(self) -> bool:
        """Muon computes with rows and columns."""
        return True

    def state_layout(self) -> StateLayout:
        """Describe the momentum of a matrix, or the two moments of another parameter."""
        # Most parameters are in matrices, which have one float32 tensor.
        return StateLayout(
            moments=(),
            others=("momentum_buffer", "exp_avg", "exp_avg_sq"),
            bytes_each=4.0,
        )


class TorchOptimizer(OptimizerBase):
    """Any other optimizer of `torch.optim`, by class name."""

    type: Literal["torch"] = "torch"
    name: str
    """The optimizer's class."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of its class, by their names there."""

    @property
    def label(self) -> str:
        """The class's name."""
        return self.name

    @field_validator("args")
    @classmethod
    def _rate_has_a_key(cls, args: dict[str, object]) -> dict[str, object]:
        reserved = sorted({"lr", "params"} & args.keys())
        if reserved:
            raise ValueError(f"found {reserved[0]}; expected trainer.learning_rate to say it")
        # YAML has no tuples, and some of these classes compare theirs with one.
        converted = {}
        for name, value in args.items():
            converted[name] = tuple(value) if isinstance(value, list) else value
        return converted

    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Make the optimizer of these parameters.

        Raises:
            RecipeError: It does not take them.
        """
        import torch

        optimizer_class = getattr(torch.optim, self.name)
        try:
            optimizer: Optimizer = optimizer_class(
                list(parameters.values()), lr=learning_rate, **self.args
            )
        except (TypeError, ValueError, RuntimeError) as error:
            raise RecipeError(
                f"trainer.optimizer: found {self.name}, which does not take the model's trained "
                f"parameters ({error}); expected another optimizer, such as adamw"
            ) from error
        return optimizer

    @property
    def needs_whole(self) -> bool:
        """Some classes of torch compute with rows and columns."""
        return self.name in _MATRIX_OPTIMIZERS or super().needs_whole

    def state_layout(self) -> StateLayout:
        """Observe the state after a step on parameters of 2 × 3 and of 3 numbers."""
        shapes: list[tuple[int, ...]] = [(2, 3)]
        # Muon refuses vectors.
        if self.name not in _MATRIX_OPTIMIZERS:
            shapes.append((3,))
        names: set[str] = set()
        moments: set[str] | None = None
        for shape in shapes:
            state_shapes = self._state_shapes(shape)
            names |= state_shapes.keys()
            same_shape = {name for name, state in state_shapes.items() if state == shape}
            # Adafactor's variance has a vector's shape, but comes in factors for a matrix: it is
            # no moment, as a moment has the shape of every parameter.
            moments = same_shape if moments is None else moments & same_shape
        assert moments is not None
        return StateLayout(
            moments=tuple(sorted(moments)),
            others=tuple(sorted(names - moments)),
            bytes_each=4.0 * len(moments),
        )

    def _state_shapes(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        import torch

        parameter = torch.nn.Parameter(torch.ones(shape))
        parameter.grad = torch.ones(shape)
        optimizer = getattr(torch.optim, self.name)([parameter], lr=0.1, **self.args)
        optimizer.step()
        shapes = {}
        for name, value in optimizer.state[parameter].items():
            # Tensors without dimensions are scalars, such as the step count.
            if isinstance(value, torch.Tensor) and value.dim():
                shapes[name] = tuple(value.shape)
        return shapes

    @model_validator(mode="after")
    def _can_make_a_step(self) -> "TorchOptimizer":
        import torch

        classes = []
        for name in torch.optim.__all__:
            # `__all__` also lists submodules, such as `lr_scheduler`, in lower case.
            if name[0].isupper() and name != "Optimizer":
                classes.append(name)
        if self.name not in classes:
            raise ValueError(
                f"name: found {self.name!r}, which torch.optim does not have; expected one of its "
                f"classes, such as AdamW{did_you_mean(self.name, classes)}"
            )
        try:
            self.state_layout()
        except Exception as error:
            raise ValueError(
                f"name: found {self.name}, which makes no step on dense gradients with these args "
                f"({type(error).__name__}: {error}); expected arguments that it takes"
            ) from error
        return self
