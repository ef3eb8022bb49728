"""What every question source offers to the loop."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

from debate_protocol.types import Ask, Question

Split = Literal["train", "dev", "test"]


@dataclass(frozen=True, slots=True)
class Seeds:
    """What the questions of a run are drawn with.

    By default runs that differ only in `seed` train on questions in another order and are measured
    on the same held-out questions, so that they can be compared question by question. A
    `data.seed` fixes the order of training and draws other held-out questions, so that the spread
    over several of them holds the noise of the test questions, too.
    """

    training: int
    held_out: int

    @classmethod
    def of(cls, data_seed: int | None, run_seed: int) -> "Seeds":
        """Return the seeds for `data.seed` (None where a recipe leaves it out) and `seed`."""
        return cls(run_seed, 0) if data_seed is None else cls(data_seed, data_seed)


class DataSource(ABC):
    """Questions by step and by split.

    Batches are a function of the step alone, so that the position in the data needs no state of
    its own: a resumed run asks for the step it is at.
    """

    notes: tuple[str, ...] = ()
    """What `--check` says of how the data was read, one finding each."""

    @abstractmethod
    def batch(self, step: int) -> list[Question]:
        """Return the training questions of a step (from 0)."""

    @abstractmethod
    def split(self, name: Split, size: int) -> list[Question]:
        """Return up to `size` questions of a split, always the same ones."""

    @property
    def can_demonstrate(self) -> bool:
        """Whether `demonstrate` writes turns for this source's questions."""
        return False

    def demonstrate(self, ask: Ask, *, errors: bool = True) -> str:
        """Return a turn to imitate.

        Args:
            ask: what a model would be asked.
            errors: let some first proposals be wrong where the source can, so that there is
                something to find.
        """
        raise LookupError(f"{type(self).__name__} has no demonstrations")
