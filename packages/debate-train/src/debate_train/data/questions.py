"""Questions from a file, or from a data set of a hub."""

import hashlib
import os.path
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import PurePath
from typing import Literal

from pydantic import Field, field_validator

from debate_protocol.types import Ask, Question
from debate_train.data.answer_pattern import checked
from debate_train.data.question_rows import Fields, Reading, read_question, with_kinds
from debate_train.data.row_files import hub_rows, is_file, read_rows
from debate_train.data.source import DataSettings, DataSource, Seeds, Split, Unread
from debate_train.errors import DataError

__all__ = ["Fields", "QuestionSource", "Questions"]

_ALL = 10**9
_SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class Questions(DataSettings):
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
    fields: Fields = Fields()
    answer_pattern: str | None = None
    r"""Regular expression whose first group is the answer, such as `####\s*(.+)`."""
    kind: Literal["math", "choice", "yes_no", "number", "text"] | None = None
    """How answers are compared; None leaves it to the row, see `question_rows.with_kinds`."""
    batch_size: int = Field(16, ge=1)
    """Questions a step."""
    limit: int | None = Field(None, ge=1)
    """Use only this many training questions, drawn by `seed` wherever they stand in the file."""
    holdout: float = Field(0.1, gt=0, lt=0.5)
    """Share of `path` for each of dev and test when there is no `test_path`."""
    seed: int | None = None
    """Seed of the order of questions, see `debate_train.data.source.Seeds`."""

    @field_validator("answer_pattern")
    @classmethod
    def _pattern_has_a_group(cls, pattern: str | None) -> str | None:
        return pattern if pattern is None else checked(pattern)

    def open(self, run_seed: int = 0) -> "QuestionSource":
        """Read the rows and return the source in a run with this seed."""
        return QuestionSource(self, Seeds.of(self.seed, run_seed))

    @property
    def dataset(self) -> str:
        """The name of the data in metrics: of the file, or the last part of a hub id."""
        name = PurePath(self.path)
        return re.sub(r"[^\w.-]+", "_", name.stem if self.is_file else name.name) or "data"

    @property
    def is_file(self) -> bool:
        """Whether `path` names a file rather than a hub data set."""
        return is_file(self.path)

    def unread(self) -> Unread | None:
        """Return why a check cannot read the questions: it downloads nothing and reads text."""
        for key, path in (("data.path", self.path), ("data.test_path", self.test_path)):
            if path is not None and not path.endswith((".jsonl", ".json")):
                return _unread(key, path)
        return None

    def summary(self, source: DataSource) -> str:
        """Return how many questions each split has."""
        train, dev, test = (len(source.split(name, _ALL)) for name in ("train", "dev", "test"))
        return f"data: {self.path}: {train:,} train, {dev:,} dev, {test:,} test questions"

    def looked_at(self, source: DataSource) -> Sequence[Question]:
        """Return all questions."""
        return [q for name in _SPLITS for q in source.split(name, _ALL)]

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Return whether any training question may have an answer."""
        if source is None:
            return self.fields.answer is not None
        return any(question.answer for question in source.split("train", _ALL))


def _unread(key: str, path: str) -> Unread:
    parquet = path.endswith(".parquet")
    if parquet and not os.path.isfile(path):
        return Unread(key, f"there is no file {path!r:.300}", is_error=True)
    if not parquet and (os.path.exists(path) or path.startswith((".", "/", "~"))):
        return Unread(
            key,
            f"found {path!r:.300}; expected a file that ends in .jsonl, .json or .parquet, or "
            "the id of a hub data set such as openai/gsm8k",
            is_error=True,
        )
    what = "parquet file, not read here" if parquet else "hub dataset, not checked here"
    return Unread(key, f"{path} ({what})")


class QuestionSource(DataSource):
    """Questions in a shuffled order that repeats with another order each epoch."""

    def __init__(self, config: Questions, seeds: Seeds) -> None:
        self.config = config
        self._seeds = seeds
        self.notes: tuple[str, ...] = ()
        rows = self._read(config.path, config.split, "data.path")
        if config.test_path is not None or not config.is_file:
            where = config.test_path or config.path
            test = self._read(where, config.test_split, "data.test_path")
            known = {q.text for q in test}
            train = [q for q in rows if q.text not in known]
            dev, train = _hold_out(train, config.holdout, 0)
        else:
            test, rest = _hold_out(rows, config.holdout, 1)
            dev, train = _hold_out(rest, config.holdout, 0)
        self._splits: dict[Split, list[Question]] = {
            "train": _limited(train, config.limit, self._seeds.held_out),
            "dev": dev,
            "test": test,
        }
        if not self._splits["train"]:
            raise DataError(
                f"data.path: {config.path!r} leaves no question to train on "
                f"({len(rows)} distinct rows read); expected at least one beside those held out"
            )

    def _read(self, path: str, split: str, key: str) -> list[Question]:
        """Return the distinct questions of a file or hub data set, and note how they were read."""
        config = self.config
        reading = Reading(config.fields, config.kind, config.answer_pattern)
        rows = read_rows(path, key) if is_file(path) else hub_rows(path, config.config, split, key)
        placed = [
            read_question(row, reading, f"{key}: {path!r}, row {number}")
            for number, row in enumerate(rows, start=1)
        ]
        if not placed:
            raise DataError(f"{key}: {path!r} is empty; expected one question a line")
        questions = with_kinds(placed)
        self.notes += (f"{key}: {_kinds(questions)}",)
        if missed := sum(one.pattern_missed for one in placed):
            self.notes += (
                f"{key}: data.answer_pattern is not found in {missed:,} of {len(placed):,} rows, "
                "whose answers are taken whole",
            )
        return _distinct(questions)

    def batch(self, step: int) -> list[Question]:
        """Return the questions of a step, going through shuffled epochs."""
        train, size = self._splits["train"], self.config.batch_size
        chosen: list[Question] = []
        while len(chosen) < size:
            epoch, index = divmod(step * size + len(chosen), len(train))
            order = list(range(len(train)))
            random.Random(f"epoch/{self._seeds.training}/{epoch}").shuffle(order)
            chosen += [train[i] for i in order[index : index + size - len(chosen)]]
        return chosen

    def split(self, name: Split, size: int) -> list[Question]:
        """Return up to `size` questions of a split, always the same ones."""
        questions = list(self._splits[name])
        random.Random(f"split/{name}/{self._seeds.held_out}").shuffle(questions)
        return questions[:size]

    @property
    def can_demonstrate(self) -> bool:
        """Whether every training question brings a worked solution."""
        return all("solution" in question.meta for question in self._splits["train"])

    def demonstrate(self, ask: Ask, *, errors: bool = True) -> str:
        """Return the question's worked solution as a first turn of the ask's contract."""
        solution = str(ask.question.meta["solution"])
        contract = ask.contract
        if contract is None or contract.kind != "xml":
            return solution
        said = {contract.answer_section: solution, "consensus": "NO"}
        return "\n".join(
            f"<{name}>\n{said.get(name, 'N/A')}\n</{name}>" for name in contract.sections
        )


def _kinds(questions: Sequence[Question]) -> str:
    """Return how the answers of questions are compared, as `--check` says it."""
    answered = Counter(q.meta.get("kind", "math") for q in questions if q.answer is not None)
    said = [f"{kind} {count:,}" for kind, count in answered.most_common()]
    if without := len(questions) - answered.total():
        said.append(f"no answer {without:,}")
    return f"answers are compared as: {', '.join(said)}"


def _limited(questions: list[Question], limit: int | None, seed: int) -> list[Question]:
    """Return a sample that depends on the texts and the seed, not on the order in the file."""
    if limit is None or limit >= len(questions):
        return questions

    def place(question: Question) -> bytes:
        return hashlib.sha256(f"limit/{seed}/{question.text}".encode()).digest()

    kept = {question.text for question in sorted(questions, key=place)[:limit]}
    return [question for question in questions if question.text in kept]


def _hold_out(
    questions: list[Question], share: float, salt: int
) -> tuple[list[Question], list[Question]]:
    """Return (held out, rest); a question's side follows from its text."""
    held = [q for q in questions if zlib.crc32(f"{salt}{q.text}".encode()) / 2**32 < share]
    out = {q.text for q in held}
    return held, [q for q in questions if q.text not in out]


def _distinct(questions: Iterable[Question]) -> list[Question]:
    """Return one question for each text; an id that stands twice is made different."""
    found: dict[str, Question] = {}
    ids: set[str] = set()
    for question in questions:
        if question.text in found:
            continue
        if question.id in ids:
            question = replace(
                question, id=f"{question.id}-{zlib.crc32(question.text.encode()):08x}"
            )
        ids.add(question.id)
        found[question.text] = question
    return list(found.values())
