"""The updates that a trainer makes of one batch: one, or several over parts of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch
from torch import Tensor, nn

from debate_train.losses import Loss
from debate_train.losses.references import Reference
from debate_train.packed_rows.packs import Pack
from debate_train.trainers.objective import KnownLogps, StepStats, accumulate, score


@dataclass(frozen=True, slots=True)
class Update:
    """What became of one optimizer step."""

    grad_norm: float
    """Before clipping; not finite where the step was skipped."""
    is_skipped: bool
    adapter_norms: Mapping[str, float] = field(default_factory=dict)
    """The same of each adapter that has a name."""


@dataclass(frozen=True, slots=True)
class Learning:
    """How a trainer learns from a batch. All processes make the same calls together."""

    model: nn.Module
    loss: Loss
    reference: Reference | None
    epochs: int
    backward: Callable[[Tensor], object]
    update: Callable[[], Update]
    """Clip, make the optimizer step unless the gradient is not finite, and drop the gradient."""

    def learn(self, parts: Sequence[Sequence[Pack]]) -> tuple[StepStats, list[Update]]:
        """Make `epochs` passes over the parts of a batch, an update for each.

        Args:
            parts: this process's packs of each part; as many for every process.

        Returns:
            What was measured of this process's packs, each time before their update.
        """
        known = self._known(parts)
        stats, made = StepStats(), list[Update]()
        for _ in range(self.epochs):
            for part, logps in zip(parts, known, strict=True):
                if part:
                    accumulate(self.model, part, self.loss, logps, self.backward, stats)
                    made.append(self.update())
        stats.epochs, stats.updates = self.epochs, len(made)
        return stats, made

    def _known(self, parts: Sequence[Sequence[Pack]]) -> list[list[KnownLogps]]:
        """Score what the loss compares with, before the first update."""
        nothing: list[list[Tensor | None]] = [[None] * len(part) for part in parts]
        olds, references = nothing, nothing
        if self.epochs * len(parts) > 1 and self.loss.ratio_against != "sampler":
            olds = self._scored(parts)
        if self.reference is not None:
            with self.reference.acting():
                references = self._scored(parts)
        return [
            [KnownLogps(*pair) for pair in zip(*both, strict=True)]
            for both in zip(olds, references, strict=True)
        ]

    @torch.no_grad()
    def _scored(self, parts: Sequence[Sequence[Pack]]) -> "list[list[Tensor | None]]":
        return [[score(self.model, pack, self.loss) for pack in part] for part in parts]


def row_logps(model: nn.Module, packs: Sequence[Pack], loss: Loss) -> dict[int, float]:
    """Return the sum of the log-probabilities of each row's actions, by the row's number."""
    found: dict[int, float] = {}
    with torch.no_grad():
        for pack in packs:
            logps = score(model, pack, loss).double().tolist()
            for row, logp in zip(pack.rows_A.tolist(), logps, strict=True):
                found[row] = found.get(row, 0.0) + logp
    return found


class Skips:
    """Counts updates that were skipped because their gradient was not finite."""

    def __init__(self, in_a_row: int = 0) -> None:
        self.in_a_row = in_a_row

    def metrics(self, made: Sequence[Update]) -> dict[str, float]:
        """Count the updates of a batch; return their number and mean norm as metrics."""
        for update in made:
            self.in_a_row = self.in_a_row + 1 if update.is_skipped else 0
        norms = [update.grad_norm for update in made]
        return {
            "optim/grad_norm": sum(norms) / max(1, len(norms)),
            "optim/updates": float(len(made)),
            "optim/skipped": float(sum(update.is_skipped for update in made)),
            "optim/skipped_in_a_row": float(self.in_a_row),
            **{
                f"optim/grad_norm/{name}": fmean(update.adapter_norms[name] for update in made)
                for name in (made[0].adapter_norms if made else ())
            },
        }
