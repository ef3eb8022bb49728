"""Interface of every question source, and sources with all questions in memory."""

import os.path
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import ClassVar, Literal, Self

from pydantic import Field

from debate_protocol.forms import ProposalProblem
from debate_protocol.plugins import Config
from debate_protocol.types import Question, TurnRequest
from debate_train.data.demonstrations import worked_turn
from debate_train.data.splits import without_overlap
from debate_train.errors import DataError

__all__ = ["QuestionSource"]

Split = Literal["train", "dev", "test"]
HELD_OUT_SPLITS: tuple[Split, ...] = ("dev", "test")
MOST_HELD_OUT = 20_000
"""Most questions of a split that are compared with others; puzzles have fewer."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """Seeds of the training order and of the held-out questions.

    By default runs with different `seed` train on questions in another order and are measured on
    the same held-out questions, for a comparison question by question. A `data.seed` fixes the
    order of training and draws other held-out questions: the spread over several such seeds
    includes the noise of the test questions.
    """

    training: int
    held_out: int

    @classmethod
    def of(cls, data_seed: int | None, run_seed: int) -> "Seeds":
        """Derive the seeds from `data.seed` (`None` where a recipe leaves it out) and `seed`."""
        if data_seed is None:
            return cls(training=run_seed, held_out=0)
        return cls(training=data_seed, held_out=data_seed)


class DataSource(ABC):
    """Questions by step and by split.

    Batches are a function of the step alone, so the position in the data is no state to save: a
    resumed run requests the batch of the next step.
    """

    notes: tuple[str, ...] = ()
    """Notes of `--check` on how the data was read, one finding each."""

    def __new__(cls, *_: object, **__: object) -> Self:
        """Refuse a class with a missing method as a fault of the data, not as a TypeError."""
        missing = sorted(cls.__abstractmethods__)
        if missing:
            raise DataError(
                f"data: {cls.__name__} has no {', '.join(missing)}; expected what its base asks for"
            )
        return super().__new__(cls)

    @abstractmethod
    def batch(self, step: int) -> list[Question]:
        """Select the training questions of a step (from 0)."""

    @abstractmethod
    def split(self, name: Split, size: int) -> list[Question]:
        """Select up to `size` questions of a split, always the same questions."""

    @property
    def split_rule(self) -> Callable[[str], Split] | None:
        """The rule from a question's text to a split; `None` without a rule.

        Splits by a rule share no question, and need no comparison.
        """
        return None

    def is_empty(self, name: Split) -> bool:
        """Whether a split holds no question."""
        return not self.split(name, 1)

    def held_out(self, num_measured: int) -> list[Question]:
        """List the questions to leave out of the training of other stages.

        Args:
            num_measured: Most questions of a split that the run measures.
        """
        questions = []
        for name in HELD_OUT_SPLITS:
            questions += self.split(name, MOST_HELD_OUT)
        return questions

    def leave_out(self, held: Callable[[], Sequence[Question]]) -> int:
        """Leave these questions out of training; return how many there were.

        Sources of questions made as needed all hold out by the same rule.
        """
        return 0

    @property
    def can_demonstrate(self) -> bool:
        """Whether `demonstrate` writes turns for this source's questions."""
        return all(question.answer is not None for question in self.batch(0))

    def check_proposal(self, text: str) -> Question | ProposalProblem:
        """Read an agent's question, or say why it is refused.

        Raises:
            DataError: The settings do not say `checks_proposals`.
        """
        raise DataError(f"data: {type(self).__name__} cannot check questions that agents write")

    def demonstrate(self, request: TurnRequest, *, errors: bool = True) -> str:
        """Write a turn to imitate.

        Args:
            request: the turn request for a model.
            errors: let some first proposals be wrong where the source can, for judges to find.
        """
        return worked_turn(request, errors=errors)


class DataSettings(Config):
    """Base class of the settings of sources of questions.

    The defaults fit questions made as needed.
    """

    type: str = ""
    batch_size: int = Field(64, ge=1)
    """Questions a step."""

    checks_proposals: ClassVar[bool] = False
    """Whether the source checks questions of agents (`DataSource.check_proposal`)."""

    @abstractmethod
    def open(self, run_seed: int = 0) -> DataSource:
        """Open the source of a run with this seed; see `Seeds` for a seed of the data's own."""

    @property
    def dataset(self) -> str:
        """The name of the data in metrics."""
        return self.type

    def paths(self) -> Mapping[str, str]:
        """List the files and hub data sets of the questions, by key."""
        return {}

    def unread(self) -> str | None:
        """Describe the first path beyond the reach of a check: it reads text and downloads no data.

        Raises:
            DataError: A path is neither an existing file nor the id of a data set.
        """
        for key, path in self.paths().items():
            description = unread_path(key, path)
            if description is not None:
                return description
        return None

    def summary(self, source: DataSource) -> str:
        """Describe the questions in a line."""
        return f"data: {self.type}, made as needed"

    def checked_questions(self, source: DataSource) -> Sequence[Question]:
        """Select the questions for a check: the questions of the first step."""
        return source.batch(0)

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Say whether a question of the first step has an answer."""
        return source is None or any(question.answer for question in source.batch(0))


def unread_path(key: str, path: str) -> str | None:
    """Describe a path beyond the reach of a check, `None` for a readable path.

    Raises:
        DataError: It is neither an existing file nor the id of a data set.
    """
    if path.endswith((".jsonl", ".json")):
        return None
    if path.endswith(".parquet"):
        if os.path.isfile(path):
            return f"{key}: {path} (parquet file, not read here)"
    elif not os.path.exists(path) and not path.startswith((".", "/", "~")):
        return f"{key}: {path} (hub dataset, not checked here)"
    if os.path.isdir(path):
        found = "a folder"
    elif os.path.exists(path):
        found = "a file of another kind"
    else:
        found = "no file"
    raise DataError(
        f"{key}: found {found} {path!r:.300}; expected a file that ends in .jsonl, .json or "
        ".parquet, or the id of a hub data set such as openai/gsm8k"
    )


def keep_apart(
    source: DataSource, others: Iterable[DataSource], data: DataSettings, num_measured: int
) -> str | None:
    """Leave out the held-out questions of other sources; describe how many, if any.

    Args:
        source: The source of a stage, or of a part of a mixture.
        others: The sources of the other stages or parts.
        data: The settings of `source`.
        num_measured: Most questions of a split that the run measures.
    """

    @cache
    def held_out_elsewhere() -> list[Question]:
        questions = []
        for other in others:
            questions += other.held_out(num_measured)
        return questions

    # Sources that make questions as needed never call it, and need no other source read.
    num_left_out = source.leave_out(held_out_elsewhere)
    if not num_left_out:
        return None
    return (
        f"data: {num_left_out:,} training questions of {data.dataset} are held out in other "
        "data, and are not trained on"
    )


class QuestionSource(DataSource):
    """Questions in a shuffled order, another in each epoch.

    Args:
        splits: The questions of each.
        batch_size: Questions a step.
        seeds: Seeds of the order and of the held-out questions.
        notes: Notes of `--check` on how they were read.
        cannot_train: Message for a step when there is no question to train on.
    """

    def __init__(
        self,
        splits: Mapping[Split, list[Question]],
        batch_size: int,
        seeds: Seeds,
        notes: tuple[str, ...] = (),
        cannot_train: str = "",
    ) -> None:
        self._splits: dict[Split, list[Question]] = dict(splits)
        self._batch_size = batch_size
        self._seeds = seeds
        self._cannot_train = cannot_train
        self.notes = notes
        # A batch that crosses the end of an epoch needs the orders of both.
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def questions(self, name: Split) -> list[Question]:
        """List all questions of a split."""
        return self._splits[name]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self.questions("train"))))
        random.Random(f"epoch/{self._seeds.training}/{epoch}").shuffle(order)
        return order

    def batch(self, step: int) -> list[Question]:
        """Select the questions of a step, going through shuffled epochs.

        Raises:
            DataError: There is no question to train on.
        """
        train = self.questions("train")
        if not train:
            raise DataError(self._cannot_train)
        batch: list[Question] = []
        # A batch may be larger than an epoch, and then repeats questions.
        while len(batch) < self._batch_size:
            num_before = step * self._batch_size + len(batch)
            epoch, start = divmod(num_before, len(train))
            num_missing = self._batch_size - len(batch)
            indices = self._order(epoch)[start : start + num_missing]
            batch += [train[index] for index in indices]
        return batch

    def split(self, name: Split, size: int) -> list[Question]:
        """Select up to `size` questions of a split, always the same questions."""
        # Shuffled whole, then cut: a smaller sample is the beginning of a larger sample.
        questions = list(self.questions(name))
        random.Random(f"split/{name}/{self._seeds.held_out}").shuffle(questions)
        return questions[:size]

    def leave_out(self, held: Callable[[], Sequence[Question]]) -> int:
        """Leave these questions out of training; return how many there were."""
        # `held` is called here only: other sources read their files at this call.
        train, num_left_out = without_overlap(self.questions("train"), held())
        self._splits["train"] = train
        self._order.cache_clear()
        return num_left_out

    @property
    def can_demonstrate(self) -> bool:
        """Whether every training question has an answer."""
        train = self.questions("train")
        return bool(train) and all(question.answer is not None for question in train)
