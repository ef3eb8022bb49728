"""What every question source offers to the loop."""

from abc import ABC, abstractmethod
from typing import Literal

from debate_protocol.types import Ask, Question

Split = Literal["train", "dev", "test"]


class DataSource(ABC):
    """Questions by step and by split.

    Batches are a function of the step alone, so that the position in the data needs no state of
    its own: a resumed run asks for the step it is at.
    """

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
