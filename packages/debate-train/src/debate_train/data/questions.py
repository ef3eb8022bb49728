"""Questions from a file, or from a data set of a hub."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from debate_protocol.parsing import ContractKind
from debate_protocol.plugins import install_command
from debate_protocol.types import Question
from debate_rewards.answer_checking import check_many
from debate_train.data.question_rows import Fields, Reading, checked
from debate_train.data.source import (
    MOST_HELD_OUT,
    DataSettings,
    DataSource,
    QuestionSource,
    Seeds,
    Split,
    hold_out,
    read_questions,
    sample,
    unlabelled,
    without_overlap,
)
from debate_train.interrupts import DataError

__all__ = ["Fields", "Questions", "RowSettings"]


def rows_of(
    path: str, config: str | None, split: str, key: str, count: int | None
) -> Iterator[Mapping[str, object]]:
    """Return the rows of a file, or of one split of a hub data set.

    Args:
        path: The file, or the id of the data set.
        config: Configuration of a hub data set.
        split: Of a hub data set.
        key: Names the path in the recipe.
        count: The most rows that are read; None reads all.

    Raises:
        DataError: It cannot be read.
    """
    if path.endswith((".jsonl", ".json")):
        return islice(_json_rows(path, key), count)
    return islice(_set_rows(path, config, split, key, streaming=count is not None), count)


def _json_rows(path: str, key: str) -> Iterator[Mapping[str, object]]:
    """Yield the objects of a file: one a line, or all in the one list of a .json file."""
    is_list, number = path.endswith(".json"), 0
    try:
        with open(path, encoding="utf-8-sig") as file:
            for text in [file.read()] if is_list else file:
                number += 1
                if not text.strip():
                    continue
                found = json.loads(text)
                for row in found if is_list and isinstance(found, list) else [found]:
                    if not isinstance(row, dict):
                        raise ValueError(f"found {row!r:.40}")
                    yield row
    except (OSError, ValueError, RecursionError) as error:
        expected = "a list of objects" if is_list else "one object a line"
        line = f", line {number}" if number else ""
        raise DataError(
            f"{key}: {path!r:.300}{line}: {_first(error)}; expected {expected} as JSON in "
            "UTF-8, or the id of a hub data set such as openai/gsm8k"
        ) from error


def _set_rows(
    path: str, config: str | None, split: str, key: str, *, streaming: bool
) -> Iterator[Mapping[str, object]]:
    """Yield the rows of a .parquet file, or of a hub data set, downloaded as they come."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{key}: hub data sets and parquet files need the datasets package; "
            f"install it with: {install_command('debate-train[hub]')}"
        ) from error
    try:
        if path.endswith(".parquet"):
            yield from datasets.Dataset.from_parquet(path)
        else:
            yield from datasets.load_dataset(path, config, split=split, streaming=streaming)
    except Exception as error:
        raise DataError(
            f"{key}: {path!r:.300} could not be read ({_first(error)}); expected the id of a hub "
            "data set, or a file that ends in .jsonl, .json or .parquet"
        ) from error


def _first(error: Exception) -> str:
    """Return the first line of an error's text, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


_SPLITS: tuple[Split, ...] = ("train", "dev", "test")


def judged_answers(source: DataSource, form: ContractKind) -> tuple[list[str], bool]:
    """Check the answer of every question of all splits, written as the contract asks for it.

    Args:
        source: Of the questions.
        form: In what a response marks its final answer.

    Returns:
        How many count as right, split by split, and then each that does not; whether all do.
    """
    lines, others = list[str](), list[str]()
    for name in _SPLITS:
        asked = [q for q in source.split(name, MOST_HELD_OUT) if q.answer is not None]
        verdicts = check_many([(q, answered(q, form)) for q in asked])
        counts = Counter(one.verdict for one in verdicts)
        if asked:
            found = ", ".join(f"{counts[v]:,} {v}" for v in ("right", "wrong", "unverifiable"))
            lines.append(f"{name}: {len(asked):,} answers, checked against themselves: {found}")
        others += [
            f"{name}: question {q.id}: its own answer {q.answer!r:.80} "
            f"({q.meta.get('kind', 'math')}) counts as {one.verdict} ({one.reason})"
            for q, one in zip(asked, verdicts, strict=True)
            if one.verdict != "right"
        ]
    return [*lines, *others], not others


def answered(question: Question, form: ContractKind) -> str:
    r"""Return a response that gives the question's own answer; braces of a text are escaped."""
    answer = str(question.answer)
    if form == "answer_line":
        return f"Answer: {answer}"
    if question.meta.get("kind") == "text":
        answer = answer.replace("{", r"\{").replace("}", r"\}")
    return f"\\boxed{{{answer}}}"


_ALL = 10**9


class RowSettings(DataSettings):
    """What all sources that read rows share."""

    batch_size: int = Field(16, ge=1)
    """Questions a step."""
    limit: int | None = Field(None, ge=1)
    """Use only this many training questions, drawn by `seed` wherever they stand in the file."""
    first_rows: int | None = Field(None, ge=1)
    """Read only this many rows of each file; of a hub data set no more is downloaded."""
    holdout: float = Field(0.1, gt=0, lt=0.5)
    """Share of the training rows for dev, and for test where nothing else is named for it."""
    labelled: float = Field(1.0, ge=0, le=1)
    """Share of the training questions whose answers may be used; the others lose theirs."""
    seed: int | None = None
    """Seed of the order of questions, see `debate_train.data.source.Seeds`."""

    def source(
        self,
        train: Sequence[Question],
        dev: Sequence[Question] | None,
        test: Sequence[Question],
        run_seed: int,
        notes: Sequence[str],
    ) -> QuestionSource:
        """Return the source of questions that were read.

        Args:
            train: To train on, but for what is held out here.
            dev: Held-out questions for exit criteria and evaluations on the way; None takes a
                share of `train`.
            test: Held-out questions of figures.
            run_seed: Of the run.
            notes: What `--check` says of how they were read.
        """
        seeds = Seeds.of(self.seed, run_seed)
        kept, both = without_overlap(train, [*test, *(dev or ())])
        notes = list(notes)
        if both:
            said = f"data: {both:,} training questions are held-out questions, too, "
            notes.append(f"{said}and are not trained on")
        if dev is None:
            dev, kept = hold_out(kept, self.holdout, 0)
        kept = sample(kept, self.limit, seeds.held_out, "limit")
        kept = self._with_labels(kept, seeds.held_out)
        splits: dict[Split, list[Question]] = {"train": kept, "dev": list(dev), "test": list(test)}
        return QuestionSource(splits, self.batch_size, seeds, tuple(notes))

    def _with_labels(self, train: list[Question], seed: int) -> list[Question]:
        """Return the questions without the answers that may not be used."""
        marked = [q for q in train if q.meta.get("labelled") is not False]
        kept = sample(marked, round(self.labelled * len(marked)), seed, "labelled")
        return unlabelled(train, kept)

    def summary(self, source: DataSource) -> str:
        """Return how many questions each split has."""
        train, dev, test = (len(source.split(name, _ALL)) for name in ("train", "dev", "test"))
        return f"data: {self.said_path()}: {train:,} train, {dev:,} dev, {test:,} test questions"

    def said_path(self) -> str:
        """Return where the training questions come from, in a few words."""
        return self.type

    def looked_at(self, source: DataSource) -> Sequence[Question]:
        """Return all questions."""
        return [q for name in _SPLITS for q in source.split(name, _ALL)]

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Return whether any training question may have an answer."""
        if source is None:
            return self.labelled > 0
        return any(question.answer for question in source.split("train", _ALL))


class Questions(RowSettings):
    """Rows with a question and perhaps an answer.

    Questions that stand more than once are used once. Those of `test_path` are never trained on,
    even when they stand in `path` too; without `test_path` a share of `path` is held out.
    """

    type: Literal["questions"] = "questions"
    path: str
    """A .jsonl, .json or .parquet file, or the id of a hub data set."""
    test_path: str | None = None
    """The same for evaluation; None holds out `holdout` of `path`."""
    config: str | None = None
    """Configuration of a hub data set."""
    split: str = "train"
    """Split of a hub data set."""
    test_split: str = "test"
    """The split of a hub data set that is evaluated on."""
    fields: Fields = Fields()
    """Which key of a row holds what."""
    answer_pattern: Annotated[str, AfterValidator(checked)] | None = None
    r"""Regular expression whose first group is the answer, such as `####\s*(.+)`."""
    kind: Literal["math", "choice", "yes_no", "number", "text"] | None = None
    """How answers are compared; None leaves it to the row, see `question_rows.with_kinds`."""

    def open(self, run_seed: int = 0) -> QuestionSource:
        """Read the rows and return the source in a run with this seed."""
        read, notes = self._read(self.path, self.split, "data.path")
        rest = read
        if self.test_path is not None or not self.is_file:
            where = self.test_path or self.path
            test, more = self._read(where, self.test_split, "data.test_path")
            notes += more
        else:
            test, rest = hold_out(rest, self.holdout, 1)
        source = self.source(rest, None, test, run_seed, notes)
        if not source.split("train", 1):
            raise DataError(
                f"data.path: {self.path!r} leaves no question to train on "
                f"({len(read)} distinct rows read); expected at least one beside those "
                "held out"
            )
        return source

    def _read(self, path: str, split: str, key: str) -> tuple[list[Question], list[str]]:
        reading = Reading(self.fields, self.kind, self.answer_pattern)
        rows = rows_of(path, self.config, split, key, self.first_rows)
        return read_questions(rows, reading, key, path)

    @property
    def dataset(self) -> str:
        """The name of the data in metrics: of the file, or the last part of a hub id."""
        name = PurePath(self.path)
        return re.sub(r"[^\w.-]+", "_", name.stem if self.is_file else name.name) or "data"

    @property
    def is_file(self) -> bool:
        """Whether `path` names a file (by its ending) rather than a hub data set."""
        return self.path.endswith((".jsonl", ".json", ".parquet"))

    def paths(self) -> Mapping[str, str]:
        """Return the files or hub data sets of the training and the test questions."""
        own = {"data.path": self.path}
        return own if self.test_path is None else own | {"data.test_path": self.test_path}

    def said_path(self) -> str:
        """Return the path of the training questions."""
        return self.path

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Return whether any training question may have an answer."""
        named = source is not None or self.fields.answer is not None
        return named and super().may_have_answers(source)
