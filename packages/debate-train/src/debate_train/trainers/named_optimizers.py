"""Optimizers by the names of their classes in `torch.optim` and DeepSpeed."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from debate_train.errors import RecipeError
from debate_train.trainers.optimizers import Kept, OptimizerBase

if TYPE_CHECKING:
    from torch.nn import Parameter
    from torch.optim import Optimizer

_WHOLE_MATRICES = ("Muon",)
"""Those of torch that compute with rows and columns, which what they keep does not show."""


class _Named(OptimizerBase):
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


class TorchOptimizer(_Named):
    """Any other optimizer of `torch.optim`, by the name of its class."""

    type: Literal["torch"] = "torch"

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

    def kept(self) -> Kept:
        """Return what it keeps, as a step on parameters of 2 × 3 and of 3 numbers shows."""
        shapes = [(2, 3)] if self.name in _WHOLE_MATRICES else [(2, 3), (3,)]
        moments, found = set[str](), set[str]()
        for number, shape in enumerate(shapes):
            states = self._states(shape)
            alike = {name for name, found in states.items() if found == shape}
            moments = alike if number == 0 else moments & alike
            found |= states.keys()
        return Kept(tuple(sorted(moments)), tuple(sorted(found - moments)), 4.0 * len(moments))

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
            near = get_close_matches(self.name, classes, 1, 0.4) or ["AdamW"]
            raise ValueError(
                f"name: found {self.name!r}, which torch.optim does not have; expected one of its "
                f"classes; nearest: {near[0]}"
            )
        try:
            self.kept()
        except Exception as error:
            raise ValueError(
                f"name: found {self.name}, which makes no step on dense gradients with these args "
                f"({type(error).__name__}: {error}); expected arguments of torch.optim.{self.name}"
                ", or another optimizer"
            ) from error
        return self


_DEEPSPEED = {
    "FusedAdam": ("adam", ("exp_avg", "exp_avg_sq")),
    "DeepSpeedCPUAdam": ("adam", ("exp_avg", "exp_avg_sq")),
    "DeepSpeedCPUAdagrad": ("adagrad", ("exp_avg_sq",)),
    "FusedLion": ("lion", ("exp_avg",)),
    "DeepSpeedCPULion": ("lion", ("exp_avg",)),
}


class DeepSpeedOptimizer(_Named):
    """An optimizer of DeepSpeed, which compiles it at its first use; trainer `deepspeed` only."""

    needs_deepspeed: ClassVar[bool] = True

    type: Literal["deepspeed"] = "deepspeed"
    name: Literal[
        "FusedAdam", "DeepSpeedCPUAdam", "DeepSpeedCPUAdagrad", "FusedLion", "DeepSpeedCPULion"
    ]
    """The optimizer's class."""

    def make(self, parameters: "Mapping[str, Parameter]", learning_rate: float) -> "Optimizer":
        """Return the optimizer of these parameters.

        Raises:
            RecipeError: It cannot be compiled here, or does not take the arguments.
        """
        from importlib import import_module

        module = import_module(f"deepspeed.ops.{_DEEPSPEED[self.name][0]}")
        try:
            made: Optimizer = getattr(module, self.name)(
                list(parameters.values()), lr=learning_rate, **self.args
            )
        except Exception as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise RecipeError(
                f"trainer.optimizer: found {self.name}, which DeepSpeed cannot make here "
                f"({lines[-1][:200]}); expected a compiler for it (and nvcc on a GPU) and "
                "arguments of its class, or type: adamw, which needs none"
            ) from error
        return made

    def kept(self) -> Kept:
        """Return what it keeps of a parameter."""
        moments = _DEEPSPEED[self.name][1]
        return Kept(moments, bytes_each=4.0 * len(moments))
