"""Several optimizers of different parameters as one."""

from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

from torch.nn import Parameter
from torch.optim import Optimizer


class CombinedOptimizer(Optimizer):
    """Steps its parts, and has the groups and states of all of them.

    Args:
        parts: optimizers before their first step.
    """

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = tuple(parts)
        # The parts' own groups, not copies: schedules set rates here.
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.share_state(self.state)

    def share_state(self, state: MutableMapping[Parameter, Any]) -> None:
        """Let all parts read and write one state: checkpoints restore it as a whole."""
        self.state: Any = state
        for part in self.parts:
            if isinstance(part, CombinedOptimizer):
                part.share_state(state)
            else:
                part.state = state  # type: ignore[assignment]

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Make a step of every part."""
        loss = None if closure is None else closure()
        for part in self.parts:
            part.step()
        return loss
