"""The optimizers that a recipe may pick, and what each keeps of a parameter."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator, model_validator

from debate_protocol.plugins import Config, did_you_mean, install_command
from debate_train.interrupts import RecipeError

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer


FUSED_DEVICES = frozenset({"cpu", "cuda"})
"""Where torch updates a parameter in one pass over its memory, without intermediate results."""


@dataclass(frozen=True, slots=True)
class StateLayout:
    """What an optimizer keeps of each parameter beside numbers such as a count of steps."""

    moments: tuple[str, ...]
    """Names of tensors of the parameter's shape."""
    others: tuple[str, ...] = ()
    """Names of tensors of other shapes, of which a parameter has some."""
    bytes_each: float = 0.0
    """Bytes a trained parameter where both are in their own precision, weights in float32."""


class OptimizerBase(Config, ABC):
    """What every optimizer of a recipe offers."""

    type: str
    """The name by which recipes choose it."""

    @abstractmethod
    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Return the optimizer of these parameters, by their names in the model."""

    @abstractmethod
    def state_layout(self) -> StateLayout:
        """Return what it keeps of a parameter."""

    @property
    def label(self) -> str:
        """Return how error texts call it."""
        return self.type

    @property
    def needs_whole(self) -> bool:
        """Return whether it must see parameters in their own shape, which ZeRO cuts up."""
        return bool(self.state_layout().others)


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

    def state_layout(self) -> StateLayout:
        """Return what it keeps of a parameter."""
        return StateLayout(("exp_avg", "exp_avg_sq"), bytes_each=8.0)

    def _settings(self, learning_rate: float) -> dict[str, Any]:
        return {
            "lr": learning_rate,
            "betas": (self.beta1, self.beta2),
            "eps": self.eps,
            "weight_decay": self.weight_decay,
        }


class _TorchAdam(AdamBase):
    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Return the optimizer of these parameters."""
        from torch import optim

        made = {"adamw": optim.AdamW, "adam": optim.Adam}[self.label]
        settings = self._settings(learning_rate)
        found: Optimizer = made(parameters.values(), **settings, fused=_can_fuse(parameters))
        return found


class AdamW(_TorchAdam):
    """AdamW (Loshchilov & Hutter 2019), fused where torch has it.

    torch's own choice on CUDA works on lists of tensors, whose intermediate results take 8 more
    bytes a parameter at the peak of a step.
    """

    type: Literal["adamw"] = "adamw"


class Adam(_TorchAdam):
    """Adam (Kingma & Ba 2015), fused where torch has it; `weight_decay` adds to the gradient."""

    type: Literal["adam"] = "adam"


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
                f"install it with: {install_command('debate-train[bitsandbytes]')}"
            ) from error
        found: Optimizer = AdamW8bit(list(parameters.values()), **self._settings(learning_rate))
        return found

    def state_layout(self) -> StateLayout:
        """Return what it keeps of a parameter: codes, their table, a scale for every 256."""
        pairs = [f"{name}{n}" for name in ("state", "absmax", "qmap") for n in (1, 2)]
        return StateLayout((), tuple(pairs), bytes_each=2 * (1 + 4 / 256))


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
        from debate_train.trainers.torch_session import MuonAndAdamW

        adamw = self._settings(learning_rate)
        muon = {name: adamw[name] for name in ("lr", "weight_decay")}
        muon |= {"momentum": self.momentum, "nesterov": self.nesterov}
        return MuonAndAdamW(parameters, muon | {"adjust_lr_fn": "match_rms_adamw"}, adamw)

    @property
    def needs_whole(self) -> bool:
        """It computes with rows and columns."""
        return True

    def state_layout(self) -> StateLayout:
        """Return what it keeps: the first of these of a matrix, the others of the rest."""
        return StateLayout((), ("momentum_buffer", "exp_avg", "exp_avg_sq"), bytes_each=4.0)


def _can_fuse(parameters: "Mapping[str, Parameter]") -> bool:
    return all(parameter.device.type in FUSED_DEVICES for parameter in parameters.values())


_WHOLE_MATRICES = ("Muon",)
"""Those of torch that compute with rows and columns, which what they keep does not show."""


class TorchOptimizer(OptimizerBase):
    """Any other optimizer of `torch.optim`, by the name of its class."""

    type: Literal["torch"] = "torch"
    name: str
    """The optimizer's class."""
    args: dict[str, Any] = Field(default_factory=dict)
    """Further arguments of its class, by their names there."""

    @property
    def label(self) -> str:
        """Return how error texts call it."""
        return self.name

    @field_validator("args")
    @classmethod
    def _rate_has_a_key(cls, args: dict[str, object]) -> dict[str, object]:
        if found := sorted({"lr", "params"} & args.keys()):
            raise ValueError(f"found {found[0]}; expected trainer.learning_rate to say it")
        # YAML has no tuples, and some of these classes compare theirs with one.
        return {k: tuple(v) if isinstance(v, list) else v for k, v in args.items()}

    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Return the optimizer of these parameters.

        Raises:
            RecipeError: It does not take them.
        """
        import torch

        try:
            made: Optimizer = getattr(torch.optim, self.name)(
                list(parameters.values()), lr=learning_rate, **self.args
            )
        except (TypeError, ValueError, RuntimeError) as error:
            raise RecipeError(
                f"trainer.optimizer: found {self.name}, which does not take the model's trained "
                f"parameters ({error}); expected another optimizer, such as adamw"
            ) from error
        return made

    @property
    def needs_whole(self) -> bool:
        """Return whether it must see parameters in their own shape, which ZeRO cuts up."""
        return self.name in _WHOLE_MATRICES or super().needs_whole

    def state_layout(self) -> StateLayout:
        """Return what it keeps, as a step on parameters of 2 × 3 and of 3 numbers shows."""
        shapes = [(2, 3)] if self.name in _WHOLE_MATRICES else [(2, 3), (3,)]
        moments, found = set[str](), set[str]()
        for number, shape in enumerate(shapes):
            states = self._states(shape)
            alike = {name for name, found in states.items() if found == shape}
            moments = alike if number == 0 else moments & alike
            found |= states.keys()
        return StateLayout(
            tuple(sorted(moments)), tuple(sorted(found - moments)), 4.0 * len(moments)
        )

    def _states(self, shape: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        import torch

        parameter = torch.nn.Parameter(torch.ones(shape))
        parameter.grad = torch.ones(shape)
        optimizer = getattr(torch.optim, self.name)([parameter], lr=0.1, **self.args)
        optimizer.step()
        state = optimizer.state[parameter]
        tensors = {k: v for k, v in state.items() if isinstance(v, torch.Tensor) and v.dim()}
        return {name: tuple(tensor.shape) for name, tensor in tensors.items()}

    @model_validator(mode="after")
    def _can_make_a_step(self) -> "TorchOptimizer":
        import torch

        classes = [n for n in torch.optim.__all__ if n[0].isupper() and n != "Optimizer"]
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
