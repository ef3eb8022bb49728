"""What DeepSpeed's engine keeps of each parameter, read and written whole. All ranks call alike."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed
from torch import Tensor, nn

from debate_train.checkpointing.trainer_state import ParameterState, scalars_of, tensors_of
from debate_train.ranks.processes import Processes

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

    from debate_train.trainers.deepspeed.settings import DeepSpeedSettings

Stored = tuple[Tensor, dict[str, Tensor] | None]
"""A parameter's value, and its moments where it has any."""


class EngineState:
    """Masters, moments and numbers that an engine's optimizer keeps."""

    def __init__(
        self,
        config: "DeepSpeedSettings",
        processes: Processes,
        engine: "DeepSpeedEngine",
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._config, self._processes, self._engine = config, processes, engine
        self._kept = config.optimizer.kept()
        self._stage = config.zero_stage
        self._has_moments = False
        # Of some optimizers DeepSpeed makes another of the same class, on its own parts.
        inner = getattr(engine.optimizer, "optimizer", None)
        self.optimizer = inner if isinstance(inner, torch.optim.Optimizer) else optimizer

    def numbers(self) -> tuple[int, dict[str, int | float]]:
        """Return how many steps were made, 0 where nothing is kept, and other numbers by name.

        All parameters are stepped together, so they are alike.
        """
        states = [state for state in self.optimizer.state.values() if tensors_of(state)]
        numbers = scalars_of(states[0]) if states else {}
        return (int(numbers.pop("step", 1)) if states else 0), numbers

    def of(self, parameter: nn.Parameter) -> ParameterState:
        """Return the whole master and moments of a parameter."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        if self._stage == 0:
            return ParameterState(tensors_of(self.optimizer.state[parameter]))
        master = safe_get_full_fp32_param(parameter)
        moments = {m: safe_get_full_optimizer_state(parameter, m) for m in self._kept.moments}
        return ParameterState(moments, master if self._config.bf16 else None)

    def prepare(self, steps: int, numbers: Mapping[str, float]) -> None:
        """Make optimizer state exist, unless there were no steps, and set its numbers."""
        self._has_moments = steps > 0
        if self._has_moments:
            self._make_moments()
        for state in self.optimizer.state.values():
            for name, value in {"step": steps, **numbers}.items():
                held = state.get(name)
                if isinstance(held, Tensor):  # Where the optimizer reads it.
                    held.fill_(value)
                elif held is not None:
                    state[name] = type(held)(value)

    def put(
        self, parameter: nn.Parameter, value: Tensor | None, moments: dict[str, Tensor] | None
    ) -> None:
        """Write rank 0's value and moments of a parameter, on every rank what it holds of them."""
        shape = shape_of(parameter)
        master = self.from_rank_0(value, shape)
        with torch.no_grad(), self.whole(parameter, modifier_rank=0):
            parameter.copy_(master)
        if self._stage > 0:
            self._set_share(parameter, master)
        if not self._has_moments:
            return
        if self._stage == 0:  # In their own types and places: all ranks have made them alike.
            for name, tensor in sorted(tensors_of(self.optimizer.state[parameter]).items()):
                tensor.copy_(moments[name]) if moments else tensor.zero_()
                if self._processes.place.size > 1:
                    torch.distributed.broadcast(tensor, 0)
            return
        for moment in self._kept.moments:
            whole = self.from_rank_0(None if moments is None else moments[moment], shape)
            self._set_share(parameter, whole, moment)

    def _set_share(self, parameter: Any, whole: Tensor, moment: str | None = None) -> None:
        """Set this rank's share of a parameter's float32 value, or of a moment of it."""
        if self._stage < 3:
            parameter.set_full_hp_param(whole, moment)
            return
        # DeepSpeed's own call for whole tensors fails where they do not divide by the ranks.
        size, rank = parameter.ds_tensor.numel(), self._processes.place.rank
        share = torch.zeros(size, dtype=whole.dtype, device=whole.device)
        own = whole.flatten()[rank * size : (rank + 1) * size]
        share[: own.numel()] = own
        parameter._z3_optimizer.set_local_hp_param(share, parameter, moment)

    def from_rank_0(self, value: Tensor | None, shape: torch.Size) -> Tensor:
        """Return rank 0's tensor in float32, on the engine's device."""
        if value is None:
            value = torch.zeros(shape)
        tensor = value.to(self._engine.device, torch.float32).contiguous()
        if self._processes.place.size > 1:
            torch.distributed.broadcast(tensor, 0)
        return tensor

    def whole(
        self, parameter: nn.Parameter, modifier_rank: int | None = None
    ) -> AbstractContextManager[object]:
        """Hold a parameter whole; what this rank then writes to it goes to all."""
        import deepspeed

        found: AbstractContextManager[object] = deepspeed.zero.GatheredParameters(
            [parameter], modifier_rank=modifier_rank, enabled=self._stage == 3
        )
        return found

    def _make_moments(self) -> None:
        """Make an empty step; it still decays weights and copies masters to them."""
        self._engine.eval()
        tokens = torch.zeros(1, 1, dtype=torch.long, device=self._engine.device)
        nothing = self._engine.module(input_ids=tokens, use_cache=False).logits.sum() * 0
        self._engine.backward(nothing, scale_wrt_gas=False)
        self._engine.step()


def shape_of(parameter: nn.Parameter) -> torch.Size:
    """Return a parameter's shape; one in shards has none of its own."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape
