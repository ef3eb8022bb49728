"""Questions of a published benchmark."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Literal

from pydantic import field_validator

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Ask, Question
from debate_train.data.benchmarks import rows
from debate_train.data.benchmarks.table import BENCHMARKS, PublishedBenchmark
from debate_train.data.question_rows import Fields, Reading
from debate_train.data.question_source import QuestionSource, divided, hold_out, read_questions
from debate_train.data.questions import RowSettings, unread_path
from debate_train.data.source import DataSource, Split, Unread
from debate_train.errors import DataError


class Benchmark(RowSettings):
    """A published benchmark by name, from the hub or from a file of its rows.

    Training and test rows are those of its authors. One that has only rows for training holds out
    a share for evaluation, or is evaluated on another benchmark (`test`); one that has only rows
    for evaluation cannot be trained on.
    """

    type: Literal["benchmark"] = "benchmark"
    name: str
    """Which published benchmark."""
    path: str | None = None
    """A .jsonl, .json or .parquet file in the place of the hub's rows."""
    test: str | None = None
    """Another benchmark whose test rows are those of figures."""
    test_path: str | None = None
    """A file in the place of the hub's test rows."""

    @field_validator("name", "test")
    @classmethod
    def _is_known(cls, name: str | None) -> str | None:
        if name is not None and name not in BENCHMARKS:
            known = ", ".join(BENCHMARKS)
            raise ValueError(
                f"found {name[:60]!r}; expected one of {known}{did_you_mean(name, BENCHMARKS)}"
            )
        return name

    def open(self, run_seed: int = 0) -> "BenchmarkSource":
        """Return the source in a run with this seed; rows are read when they are asked for."""
        return BenchmarkSource(self, run_seed)

    @property
    def dataset(self) -> str:
        """The name of the data in metrics."""
        return self.name

    @property
    def published(self) -> PublishedBenchmark:
        """Where its rows stand."""
        return BENCHMARKS[self.name]

    def unread(self) -> Unread | None:
        """Return why a check cannot read the rows: it downloads nothing and reads text."""
        evaluated = BENCHMARKS[self.test or self.name]
        own_test = self.test is not None or (self.path is None and not self.published.shares)
        train = None if self.published.only_evaluates else self.path or self.published.hub
        test = self.test_path or (evaluated.hub if own_test else None)
        if self.published.only_evaluates and self.path and not self.test_path:
            test = self.path
        for key, path in (("data.path", train), ("data.test_path", test)):
            if path is not None and (found := unread_path(key, path)):
                return found
        return None

    def said_path(self) -> str:
        """Return the name of the benchmark and where its rows come from."""
        return f"{self.name} ({self.path or self.test_path or self.published.hub})"

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Return whether any training question may have an answer."""
        return self.published.read is not rows.open_prompt and super().may_have_answers(source)


class BenchmarkSource(DataSource):
    """A benchmark's questions; what only evaluates reads no training rows."""

    def __init__(self, config: Benchmark, run_seed: int) -> None:
        self.config, self._run_seed = config, run_seed
        self._notes: list[str] = []

    @property
    def notes(self) -> tuple[str, ...]:  # type: ignore[override]
        """What `--check` says of how the rows that were asked for were read."""
        return tuple(dict.fromkeys(self._notes))

    def _read(self, name: str, path: str | None, which: int, key: str) -> list[Question]:
        config, published = self.config, BENCHMARKS[name]
        split = published.splits[which] or "train"
        where = path or published.hub or name
        kept = published.rows(path, split, key, config.first_rows)
        read = read_questions(kept, Reading(Fields(), None, None), key, where)
        self._notes += read.notes
        return read.questions

    @cached_property
    def _rows(self) -> list[Question]:
        """The rows of `path`, whatever they are for."""
        which = 1 if self.config.published.only_evaluates else 0
        return self._read(self.config.name, self.config.path, which, "data.path")

    @cached_property
    def _divided(self) -> tuple[list[Question], list[Question] | None, list[Question]]:
        """(test, dev or None, rest) of rows that are not split by their authors."""
        published, config = self.config.published, self.config
        if published.shares is not None:
            parts = divided(self._rows, published.shares, _subject)
            return parts[0], parts[1], parts[2]
        test, rest = hold_out(self._rows, config.holdout, 1)
        return test, None, rest

    @property
    def _is_divided(self) -> bool:
        """Whether test questions come out of the rows that are trained on."""
        config = self.config
        named = config.test is not None or config.test_path is not None
        own = config.path is None and config.published.splits[1] is not None
        return not named and not own

    @cached_property
    def _test(self) -> list[Question]:
        config = self.config
        if config.published.only_evaluates and config.test is None and config.test_path is None:
            return self._rows
        if self._is_divided:
            return self._divided[0]
        name = config.test or config.name
        if BENCHMARKS[name].splits[1] is None and config.test_path is None:
            raise DataError(
                f"data.test: {name} has no test rows of its own; expected data.test_path, or "
                f"one of {', '.join(n for n, one in BENCHMARKS.items() if one.splits[1])}"
            )
        return self._read(name, config.test_path, 1, "data.test_path")

    @cached_property
    def _held(self) -> QuestionSource:
        """The test questions alone."""
        return self.config.source([], [], self._test, self._run_seed, ((), self._cannot_train))

    @cached_property
    def _all(self) -> QuestionSource:
        config = self.config
        if config.published.only_evaluates:
            return self._held
        _, dev, train = self._divided if self._is_divided else ([], None, self._rows)
        found = config.source(train, dev, self._test, self._run_seed, ((), self._cannot_train))
        self._notes += found.notes
        return found

    @property
    def _cannot_train(self) -> str:
        return (
            f"data.name: {self.config.name} leaves no question to train on; expected a benchmark "
            f"with training rows ({', '.join(_trainable())}), with data.test={self.config.name} to "
            "evaluate on this one"
        )

    def batch(self, step: int) -> list[Question]:
        """Return the training questions of a step.

        Raises:
            DataError: The benchmark only evaluates.
        """
        return self._all.batch(step)

    def split(self, name: Split, size: int) -> list[Question]:
        """Return up to `size` questions of a split, always the same ones."""
        return (self._held if name == "test" else self._all).split(name, size)

    def leave_out(self, held: Callable[[], Sequence[Question]]) -> int:
        """Train on none of these questions; return how many there were."""
        return self._all.leave_out(held)

    @property
    def can_demonstrate(self) -> bool:
        """Whether every training question brings a worked solution."""
        return self._all.can_demonstrate

    def demonstrate(self, ask: Ask, *, errors: bool = True) -> str:
        """Return the question's worked solution as a first turn of the ask's contract."""
        return self._all.demonstrate(ask, errors=errors)


def _subject(question: Question) -> str:
    return str(question.meta.get("subject"))


def _trainable() -> Sequence[str]:
    return [name for name, one in BENCHMARKS.items() if not one.only_evaluates]
