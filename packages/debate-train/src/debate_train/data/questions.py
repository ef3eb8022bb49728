"""Questions from a file, or from a data set of a hub."""

import json
import os.path
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from types import ModuleType
from typing import Literal, cast

from pydantic import Field, field_validator

from debate_protocol.parsing import ContractKind
from debate_protocol.types import Question
from debate_rewards.answer_checking import Verdict, check_many
from debate_train.data.question_rows import Fields, Reading, checked
from debate_train.data.source import (
    DataSettings,
    DataSource,
    QuestionSource,
    ReadQuestions,
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


FILE_ENDINGS = (".jsonl", ".json", ".parquet")


def is_file(path: str) -> bool:
    """Return whether a path names a file (by its ending) rather than a hub data set."""
    return path.endswith(FILE_ENDINGS)


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
    if is_file(path):
        return islice(read_rows(path, key), count)
    return islice(hub_rows(path, config, split, key, streaming=count is not None), count)


def read_rows(path: str, key: str) -> Iterator[Mapping[str, object]]:
    """Yield the rows of a .jsonl, .json or .parquet file.

    Raises:
        DataError: There is no such file, or it holds something else.
    """
    # Unlike Path.is_file, this takes a name that is too long or holds NUL for no file.
    if not os.path.isfile(path):
        raise DataError(
            f"{key}: there is no file {path!r:.300}; expected a .jsonl, .json or .parquet file, "
            "or the id of a hub data set such as openai/gsm8k"
        )
    if path.endswith(".parquet"):
        datasets = _datasets(key)
        try:
            yield from datasets.Dataset.from_parquet(path)
        except Exception as error:
            raise DataError(f"{key}: {path}: not readable as parquet ({_first(error)})") from error
        return
    try:
        yield from _json_rows(Path(path), key)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{key}: {path}: not readable as UTF-8 text ({error})") from error


def hub_rows(
    path: str, config: str | None, split: str, key: str, *, streaming: bool = False
) -> Iterator[Mapping[str, object]]:
    """Yield the rows of one split of a hub data set; streaming, they are downloaded as they come.

    Raises:
        DataError: It could not be loaded.
    """
    datasets = _datasets(key)
    try:
        yield from datasets.load_dataset(path, config, split=split, streaming=streaming)
    except Exception as error:
        raise DataError(
            f"{key}: the hub data set {path!r:.300} could not be read ({_first(error)}); "
            "a local file must end in .jsonl, .json or .parquet"
        ) from error


def _first(error: Exception) -> str:
    """Return the first line of an error's text, or its type where it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _json_rows(path: Path, key: str) -> Iterator[Mapping[str, object]]:
    with path.open(encoding="utf-8-sig") as file:
        numbered: Iterable[tuple[int, object]]
        if path.suffix == ".json":
            rows = _json(file.read(), f"{key}: {path}", "a list of objects")
            if not isinstance(rows, list):
                raise DataError(f"{key}: {path}: expected a list of objects, found {rows!r:.40}")
            numbered = enumerate(rows, start=1)
        else:
            lines = ((n, line) for n, line in enumerate(file, start=1) if line.strip())
            numbered = ((n, _json(x, f"{key}: {path}:{n}", "one object a line")) for n, x in lines)
        for number, row in numbered:
            if not isinstance(row, dict):
                raise DataError(f"{key}: {path}:{number}: expected an object, found {row!r:.40}")
            yield row


def _json(text: str, where: str, expected: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({_first(error)}); expected {expected}") from error


def _datasets(key: str) -> ModuleType:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{key}: hub data sets and parquet files need the datasets package; "
            "install it with: pip install 'debate-train[hub]'"
        ) from error
    return cast(ModuleType, datasets)


_MOST = 20_000
"""Questions of a split that are checked; puzzles that are made as needed end at fewer."""
_SPLITS: tuple[Split, ...] = ("train", "dev", "test")


@dataclass(frozen=True, slots=True)
class JudgedAnswer:
    """A question of a split, and what the checker says of its own answer."""

    split: Split
    question: Question
    verdict: Verdict

    @property
    def is_right(self) -> bool:
        """Whether the answer counts as right."""
        return self.verdict.verdict == "right"

    def __str__(self) -> str:
        question, verdict = self.question, self.verdict
        kind = question.meta.get("kind", "math")
        return (
            f"{self.split}: question {question.id}: its own answer {question.answer!r:.80} "
            f"({kind}) counts as {verdict.verdict} ({verdict.reason})"
        )


def judged_answers(source: DataSource, form: ContractKind) -> list[JudgedAnswer]:
    """Check the answer of every question of all splits, written as the contract asks for it.

    Args:
        source: Of the questions.
        form: In what a response marks its final answer.
    """
    asked = [
        (name, question)
        for name in _SPLITS
        for question in source.split(name, _MOST)
        if question.answer is not None
    ]
    verdicts = check_many([(q, answered(q, form)) for _, q in asked])
    pairs = zip(asked, verdicts, strict=True)
    return [JudgedAnswer(name, question, verdict) for (name, question), verdict in pairs]


def answered(question: Question, form: ContractKind) -> str:
    r"""Return a response that gives the question's own answer; braces of a text are escaped."""
    answer = str(question.answer)
    if form == "answer_line":
        return f"Answer: {answer}"
    if question.meta.get("kind") == "text":
        answer = answer.replace("{", r"\{").replace("}", r"\}")
    return f"\\boxed{{{answer}}}"


def said_of(judged: list[JudgedAnswer]) -> Iterator[str]:
    """Yield how many answers count as right, split by split, and then each that does not."""
    for name in _SPLITS:
        verdicts = Counter(one.verdict.verdict for one in judged if one.split == name)
        if count := verdicts.total():
            found = ", ".join(f"{verdicts[v]:,} {v}" for v in ("right", "wrong", "unverifiable"))
            yield f"{name}: {count:,} answers, checked against themselves: {found}"
    yield from (str(one) for one in judged if not one.is_right)


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
    overlap: Literal["remove", "refuse"] = "remove"
    """What becomes of training questions that stand among the test questions, too, whatever their
    case, white space and punctuation; they are counted."""
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

        Raises:
            DataError: Training questions overlap with those held out, and that is refused.
        """
        seeds = Seeds.of(self.seed, run_seed)
        kept, both = without_overlap(train, [*test, *(dev or ())])
        notes = list(notes)
        if both:
            said = f"data: {both:,} training questions are held-out questions, too"
            if self.overlap == "refuse":
                raise DataError(f"{said}; expected none, or data.overlap=remove to leave them out")
            notes.append(f"{said}, and are not trained on")
        if dev is None:
            dev, kept = hold_out(kept, self.holdout, 0)
        kept = sample(kept, self.limit, seeds.held_out, "limit")
        kept = self._with_labels(kept, seeds.held_out)
        splits: dict[Split, list[Question]] = {"train": kept, "dev": list(dev), "test": list(test)}
        return QuestionSource(splits, self.batch_size, seeds, tuple(notes))

    def _with_labels(self, train: list[Question], seed: int) -> list[Question]:
        """Return the questions without the answers that may not be used."""
        marked = [q for q in train if q.meta.get("labelled") is not False]
        if self.labelled == 1 and len(marked) == len(train):
            return train
        return unlabelled(
            train, sample(marked, round(self.labelled * len(marked)), seed, "labelled")
        )

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
    answer_pattern: str | None = None
    r"""Regular expression whose first group is the answer, such as `####\s*(.+)`."""
    kind: Literal["math", "choice", "yes_no", "number", "text"] | None = None
    """How answers are compared; None leaves it to the row, see `question_rows.with_kinds`."""

    @field_validator("answer_pattern")
    @classmethod
    def _pattern_has_a_group(cls, pattern: str | None) -> str | None:
        return pattern if pattern is None else checked(pattern)

    def open(self, run_seed: int = 0) -> QuestionSource:
        """Read the rows and return the source in a run with this seed."""
        read = self._read(self.path, self.split, "data.path")
        rest, notes = read.questions, [*read.notes]
        if self.test_path is not None or not self.is_file:
            where = self.test_path or self.path
            held = self._read(where, self.test_split, "data.test_path")
            test = held.questions
            notes += held.notes
        else:
            test, rest = hold_out(rest, self.holdout, 1)
        source = self.source(rest, None, test, run_seed, notes)
        if not source.split("train", 1):
            raise DataError(
                f"data.path: {self.path!r} leaves no question to train on "
                f"({len(read.questions)} distinct rows read); expected at least one beside those "
                "held out"
            )
        return source

    def _read(self, path: str, split: str, key: str) -> ReadQuestions:
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
        """Whether `path` names a file rather than a hub data set."""
        return is_file(self.path)

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
