"""Questions from a file, or from a data set of a hub."""

import json
import random
import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator

from debate_protocol.config import Config
from debate_protocol.types import Ask, Question
from debate_train.data.source import DataSource, Seeds, Split
from debate_train.errors import DataError

QUESTION_KEYS = ("question", "problem", "prompt")
FILE_ENDINGS = (".jsonl", ".json", ".parquet")
_META_KEYS = ("kind", "choices", "passage", "subject", "level", "length")


class Fields(Config):
    """Which key of a row holds what."""

    question: str | None = None
    """None takes the first of question, problem and prompt that a row has."""
    answer: str | None = "answer"
    """None for open-ended questions."""
    solution: str | None = "solution"
    """A worked solution, for supervised phases; rows may lack it."""
    id: str = "id"


class Questions(Config):
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
    """How answers are compared; None leaves it to the row, and to mathematics last."""
    batch_size: int = Field(16, ge=1)
    """Questions a step."""
    limit: int | None = Field(None, ge=1)
    """Use only this many training questions."""
    holdout: float = Field(0.1, gt=0, lt=0.5)
    """Share of `path` for each of dev and test when there is no `test_path`."""
    seed: int | None = None
    """Seed of the order of questions, see `debate_train.data.source.Seeds`."""

    @field_validator("answer_pattern")
    @classmethod
    def _pattern_has_a_group(cls, pattern: str | None) -> str | None:
        if pattern is None:
            return None
        try:
            groups = re.compile(pattern).groups
        except re.error as error:
            raise ValueError(f"found {pattern!r}, no regular expression: {error}") from error
        if groups == 0:
            raise ValueError(f"found {pattern!r}; expected a group (…) around the answer")
        return pattern

    def open(self, run_seed: int = 0) -> "QuestionSource":
        """Read the rows and return the source in a run with this seed."""
        return QuestionSource(self, Seeds.of(self.seed, run_seed))

    @property
    def is_file(self) -> bool:
        """Whether `path` names a file rather than a hub data set."""
        return is_file(self.path)


def is_file(path: str) -> bool:
    """Return whether a path names a file (by its ending) rather than a hub data set."""
    return path.endswith(FILE_ENDINGS)


class QuestionSource(DataSource):
    """Questions in a shuffled order that repeats with another order each epoch."""

    def __init__(self, config: Questions, seeds: Seeds) -> None:
        self.config = config
        self._seeds = seeds
        rows = _distinct(_questions(config, config.path, config.split, "data.path"))
        if config.test_path is not None or not config.is_file:
            where = config.test_path or config.path
            held = _questions(config, where, config.test_split, "data.test_path")
            test = _distinct(held)
            known = {q.text for q in test}
            train = [q for q in rows if q.text not in known]
            dev, train = _hold_out(train, config.holdout, 0)
        else:
            test, rest = _hold_out(rows, config.holdout, 1)
            dev, train = _hold_out(rest, config.holdout, 0)
        self._splits: dict[Split, list[Question]] = {
            "train": train[: config.limit],
            "dev": dev,
            "test": test,
        }
        if not self._splits["train"]:
            raise DataError(
                f"data.path: {config.path!r} leaves no question to train on "
                f"({len(rows)} distinct rows read); expected at least one beside those held out"
            )

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


def _hold_out(
    questions: list[Question], share: float, salt: int
) -> tuple[list[Question], list[Question]]:
    """Return (held out, rest); a question's side follows from its text."""
    held = [q for q in questions if zlib.crc32(f"{salt}{q.text}".encode()) / 2**32 < share]
    out = {q.text for q in held}
    return held, [q for q in questions if q.text not in out]


def _distinct(questions: Iterator[Question]) -> list[Question]:
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


def _questions(config: Questions, path: str, split: str, key: str) -> Iterator[Question]:
    rows = read_rows(path, key) if is_file(path) else _hub_rows(path, config.config, split, key)
    number = 0
    for number, row in enumerate(rows, start=1):
        yield _question(row, config, f"{key}: {path!r}, row {number}")
    if number == 0:
        raise DataError(f"{key}: {path!r} is empty; expected one question a line")


def _question(row: Mapping[str, Any], config: Questions, where: str) -> Question:
    fields = config.fields
    keys = QUESTION_KEYS if fields.question is None else (fields.question,)
    text = next((row[key] for key in keys if row.get(key)), None)
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"{where}: no text under {' or '.join(keys)} (found keys: "
            f"{', '.join(map(str, row))}); expected a question, or set data.fields.question"
        )
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DataError(f"{where}: the question holds half of a character (a lone surrogate)")
    answer = None if fields.answer is None else row.get(fields.answer)
    if answer is not None:
        answer = str(answer)
        if config.answer_pattern and (match := re.search(config.answer_pattern, answer)):
            answer = match.group(1).strip()
    meta = {k: row[k] for k in _META_KEYS if row.get(k) is not None}
    if fields.solution is not None and row.get(fields.solution):
        meta["solution"] = str(row[fields.solution])
    if config.kind is not None:
        meta["kind"] = config.kind
    identity = str(row.get(fields.id) or f"{zlib.crc32(text.encode()):08x}")
    return Question(identity, text, answer, meta)


def read_rows(path: str, key: str) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a .jsonl, .json or .parquet file."""
    if not Path(path).is_file():
        raise DataError(
            f"{key}: there is no file {path!r}; expected a .jsonl, .json or .parquet file, "
            "or the id of a hub data set such as openai/gsm8k"
        )
    if path.endswith(".parquet"):
        yield from _datasets(key).Dataset.from_parquet(path)
        return
    try:
        yield from _json_rows(Path(path), key)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{key}: {path}: not readable as UTF-8 text ({error})") from error


def _json_rows(path: Path, key: str) -> Iterator[Mapping[str, Any]]:
    with path.open(encoding="utf-8-sig") as file:
        numbered: Iterator[tuple[int, Any]]
        if path.suffix == ".json":
            rows = _json(file.read(), f"{key}: {path}", "a list of objects")
            if not isinstance(rows, list):
                raise DataError(f"{key}: {path}: expected a list of objects, found {rows!r:.40}")
            numbered = enumerate(rows, start=1)
        else:
            numbered = (
                (number, _json(line, f"{key}: {path}:{number}", "one object a line"))
                for number, line in enumerate(file, start=1)
                if line.strip()
            )
        for number, row in numbered:
            if not isinstance(row, dict):
                raise DataError(f"{key}: {path}:{number}: expected an object, found {row!r:.40}")
            yield row


def _json(text: str, where: str, expected: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        reason = getattr(error, "msg", "nested too deeply")
        raise DataError(f"{where}: not JSON ({reason}); expected {expected}") from error


def _hub_rows(path: str, config: str | None, split: str, key: str) -> Iterator[Mapping[str, Any]]:
    try:
        yield from _datasets(key).load_dataset(path, config, split=split)
    except (OSError, ValueError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{key}: the hub data set {path!r} could not be read ({reason}); "
            "a local file must end in .jsonl, .json or .parquet"
        ) from error


def _datasets(key: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{key}: hub data sets and parquet files need the datasets package; "
            "install it with: pip install 'debate-train[hub]'"
        ) from error
    return datasets
