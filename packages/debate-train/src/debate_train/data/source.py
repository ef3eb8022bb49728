"""What every question source offers to the loop."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from pydantic import Field

from debate_protocol.config import Config
from debate_protocol.types import Ask, Question
from debate_train.errors import DataError

Split = Literal["train", "dev", "test"]
MOST_HELD_OUT = 20_000
"""Questions of a split that overlap is looked for in; made as needed, puzzles end at fewer."""


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


@dataclass(frozen=True, slots=True)
class Unread:
    """Questions that a check does not read: the key that names them, and why."""

    key: str
    why: str
    is_error: bool = False


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

    def leave_out(self, held: Callable[[], Sequence[Question]]) -> int:
        """Train on none of these questions; return how many there were.

        Sources that make questions as needed hold out by a rule that all of them share.
        """
        return 0

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


class DataConfig(Protocol):
    """Settings that open a source of questions: a pydantic model with a field `type`.

    `DataSettings` brings all but `type` and `open`.
    """

    @property
    def type(self) -> str:
        """The name by which recipes choose the source."""
        ...

    @property
    def batch_size(self) -> int:
        """Questions a step."""
        ...

    @property
    def dataset(self) -> str:
        """The name of the data in metrics."""
        ...

    def open(self, run_seed: int = 0) -> DataSource:
        """Return the source of a run with this seed; see `Seeds` for a seed of the data's own."""
        ...

    def unread(self) -> Unread | None:
        """Return why a check cannot read the questions, None where it can."""
        ...

    def summary(self, source: DataSource) -> str:
        """Return one line about the questions."""
        ...

    def looked_at(self, source: DataSource) -> Sequence[Question]:
        """Return the questions that a check looks at, all where they can be counted."""
        ...

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Return whether a training question may have an answer; None is a source not read."""
        ...


class DataSettings(Config):
    """What sources share; these defaults are those of questions that are made as needed."""

    batch_size: int = Field(64, ge=1)
    """Questions a step."""
    type: str

    @property
    def dataset(self) -> str:
        """The name of the data in metrics."""
        return self.type

    def unread(self) -> Unread | None:
        """Return why a check cannot read the questions."""
        return None

    def summary(self, source: DataSource) -> str:
        """Return one line about the questions."""
        return f"data: {self.type}, made as needed"

    def looked_at(self, source: DataSource) -> Sequence[Question]:
        """Return the questions of the first step."""
        return source.batch(0)

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Return whether a question of the first step has an answer."""
        return source is None or any(question.answer for question in source.batch(0))


def keep_apart(own: DataSource, others: Iterable[DataSource], data: DataConfig) -> str | None:
    """Leave out what other stages of a run hold out; return what is to be said of it, if anything.

    Args:
        own: The source of a stage.
        others: Those of the other stages.
        data: What `own` was opened from.

    Raises:
        DataError: There are such questions, and `overlap` refuses them.
    """

    def held() -> list[Question]:
        names: tuple[Split, ...] = ("dev", "test")
        return [q for one in others for name in names for q in one.split(name, MOST_HELD_OUT)]

    count = own.leave_out(held)
    if not count:
        return None
    said = f"data: {count:,} training questions of {data.dataset} are held out in another stage"
    if getattr(data, "overlap", "remove") == "refuse":
        raise DataError(f"{said}; expected none, or data.overlap=remove to leave them out")
    return f"{said}, and are not trained on"
