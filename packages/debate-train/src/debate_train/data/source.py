"""What every question source offers to the loop, and sources that hold questions in memory."""

import hashlib
import json
import math
import os.path
import random
import re
import unicodedata
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, Self

from pydantic import Field

from debate_protocol.plugins import Config
from debate_protocol.types import Question, TurnRequest
from debate_rewards.answer_checking import check
from debate_train.data.demonstrations import worked_turn
from debate_train.data.question_rows import Placed, Reading, read_question, with_kinds
from debate_train.interrupts import DataError

__all__ = ["QuestionSource"]


Split = Literal["train", "dev", "test"]
MOST_HELD_OUT = 20_000
"""Questions of a split that are looked at; made as needed, puzzles end at fewer."""


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


def unread_path(key: str, path: str) -> str | None:
    """Return what a key names that a check cannot read, None where it can.

    Raises:
        DataError: It is neither a file that is there nor the id of a data set.
    """
    if path.endswith((".jsonl", ".json")):
        return None
    if path.endswith(".parquet"):
        if os.path.isfile(path):
            return f"{key}: {path} (parquet file, not read here)"
    elif not os.path.exists(path) and not path.startswith((".", "/", "~")):
        return f"{key}: {path} (hub dataset, not checked here)"
    raise DataError(
        f"{key}: there is no file {path!r:.300}; expected one that ends in .jsonl, .json or "
        ".parquet, or the id of a hub data set such as openai/gsm8k"
    )


class DataSource(ABC):
    """Questions by step and by split.

    Batches are a function of the step alone, so that the position in the data needs no state of
    its own: a resumed run asks for the step it is at.
    """

    notes: tuple[str, ...] = ()
    """What `--check` says of how the data was read, one finding each."""

    def __new__(cls, *_: object, **__: object) -> Self:
        """Refuse a class of which a method is missing."""
        if missing := sorted(cls.__abstractmethods__):
            said = f"data: {cls.__name__} has no {', '.join(missing)}"
            raise DataError(f"{said}; expected what its base asks for")
        return super().__new__(cls)

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
        return all(question.answer is not None for question in self.batch(0))

    def demonstrate(self, request: TurnRequest, *, errors: bool = True) -> str:
        """Return a turn to imitate.

        Args:
            ask: what a model would be asked.
            errors: let some first proposals be wrong where the source can, so that there is
                something to find.
        """
        return worked_turn(request, errors=errors)


class DataSettings(Config):
    """Settings that open a source of questions: the base class of all of them.

    Its defaults fit questions that are made as needed.
    """

    type: str = ""
    batch_size: int = Field(64, ge=1)
    """Questions a step."""

    @abstractmethod
    def open(self, run_seed: int = 0) -> DataSource:
        """Return the source of a run with this seed; see `Seeds` for a seed of the data's own."""

    @property
    def dataset(self) -> str:
        """The name of the data in metrics."""
        return self.type

    def paths(self) -> Mapping[str, str]:
        """Return the files and hub data sets that hold the questions, by their keys."""
        return {}

    def unread(self) -> str | None:
        """Return what a check cannot read of the questions: it downloads nothing and reads text.

        Raises:
            DataError: A path is neither a file that is there nor the id of a data set.
        """
        found = (unread_path(key, path) for key, path in self.paths().items())
        return next((one for one in found if one is not None), None)

    def summary(self, source: DataSource) -> str:
        """Return one line about the questions."""
        return f"data: {self.type}, made as needed"

    def looked_at(self, source: DataSource) -> Sequence[Question]:
        """Return the questions of the first step."""
        return source.batch(0)

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Return whether a question of the first step has an answer."""
        return source is None or any(question.answer for question in source.batch(0))


def keep_apart(own: DataSource, others: Iterable[DataSource], data: DataSettings) -> str | None:
    """Leave out what other stages of a run hold out; return what is to be said of it, if anything.

    Args:
        own: The source of a stage.
        others: Those of the other stages.
        data: What `own` was opened from.
    """

    def held() -> list[Question]:
        names: tuple[Split, ...] = ("dev", "test")
        return [q for one in others for name in names for q in one.split(name, MOST_HELD_OUT)]

    count = own.leave_out(held)
    if not count:
        return None
    said = f"data: {count:,} training questions of {data.dataset} are held out in another stage, "
    return f"{said}and are not trained on"


def read_questions(
    rows: Iterable[Mapping[str, object]], reading: Reading, key: str, path: str
) -> tuple[list[Question], list[str]]:
    """Return the distinct questions of rows, and how they were read.

    Args:
        rows: In order.
        reading: How they are read.
        key: Names them in the recipe.
        path: Where they stand, for messages.

    Raises:
        DataError: There is none, or one cannot be read.
    """
    placed: dict[str, Placed] = {}
    number = missed = num_dialogues = 0
    for number, row in enumerate(rows, start=1):
        row_question = read_question(row, reading, f"{key}: {path!r}, row {number}")
        missed += row_question.pattern_missed
        num_dialogues += row_question.has_earlier_messages
        placed.setdefault(identity(row_question.question), row_question)
    if not placed:
        raise DataError(f"{key}: {path!r} is empty; expected one question a line")
    questions = _with_wrong_answers(with_kinds(list(placed.values()), reading.choice_answers))
    notes = [f"{key}: {_kinds(questions)}"]
    if repeats := number - len(placed):
        notes.append(f"{key}: {repeats:,} of {number:,} rows repeat a question and are left out")
    if num_dialogues:
        notes.append(
            f"{key}: {num_dialogues:,} of {number:,} rows have a system message or earlier turns, "
            "which agents are shown before the question"
        )
    if missed:
        notes.append(
            f"{key}: data.answer_pattern holds nothing in {missed:,} of {number:,} rows, "
            "whose answers are taken whole"
        )
    return _with_own_ids(questions), notes


def _kinds(questions: Sequence[Question]) -> str:
    """Return how the answers of questions are compared, as `--check` says it."""
    answered = Counter(q.meta.get("kind", "math") for q in questions if q.answer is not None)
    said = [f"{kind} {count:,}" for kind, count in answered.most_common()]
    if without := len(questions) - answered.total():
        said.append(f"no answer {without:,}")
    return f"answers are compared as: {', '.join(said)}"


def _with_wrong_answers(questions: Sequence[Question]) -> list[Question]:
    """Return the questions; free text without wrong answers gets another question's answer.

    It is one of the same subject that the checker finds wrong; a question that has none, as where
    all have the same answer, stays without.
    """
    pools: dict[object, list[str]] = {}
    texts = [q for q in questions if q.answer and q.meta.get("kind") == "text"]
    for subject, answer in dict.fromkeys((q.meta.get("subject"), str(q.answer)) for q in texts):
        pools.setdefault(subject, []).append(answer)
    named: dict[int, Question] = {}
    for question in texts:
        pool = pools[question.meta.get("subject")]
        start = zlib.crc32(identity(question).encode()) % len(pool)
        for step in () if "wrong_answers" in question.meta else range(len(pool)):
            other = pool[(start + step) % len(pool)]
            if check(question, other).verdict == "wrong":
                meta = {**question.meta, "wrong_answers": [other]}
                named[id(question)] = replace(question, meta=meta)
                break
    return [named.get(id(question), question) for question in questions]


def _with_own_ids(questions: Iterable[Question]) -> list[Question]:
    """Return the questions; an id that stands twice is made different."""
    found: list[Question] = []
    ids: set[str] = set()
    for question in questions:
        if question.id in ids:
            mark = f"{zlib.crc32(identity(question).encode()):08x}"
            question = replace(question, id=f"{question.id}-{mark}")
        ids.add(question.id)
        found.append(question)
    return found


def identity(question: Question) -> str:
    """Return all that is asked: the text, and with it the passage and the choices where it has any.

    "Which of these is true?" is another question with other choices.
    """
    more = [question.meta[key] for key in ("passage", "choices") if question.meta.get(key)]
    return json.dumps([question.text, *more]) if more else question.text


def hold_out(
    questions: Sequence[Question], share: float, salt: int
) -> tuple[list[Question], list[Question]]:
    """Return (held out, rest); a question's side follows from what it asks."""
    held: list[Question] = []
    rest: list[Question] = []
    for question in questions:
        place = zlib.crc32(f"{salt}{identity(question)}".encode()) / 2**32
        (held if place < share else rest).append(question)
    return held, rest


def divided(
    questions: Sequence[Question], shares: Sequence[float], group: Callable[[Question], str]
) -> list[list[Question]]:
    """Return parts that hold these shares of every group, and last the rest.

    What rounding leaves of one group goes to the next, so that small groups have their share of
    the whole, too. A question's part follows from what all questions ask.
    """
    groups: dict[str, list[Question]] = {}
    for question in sorted(questions, key=lambda q: _digest("share", q)):
        groups.setdefault(group(question), []).append(question)
    part_of: dict[str, int] = {}
    owed = [0.0] * len(shares)
    for _, members in sorted(groups.items()):
        at = 0
        for part, share in enumerate(shares):
            owed[part] += share * len(members)
            count = min(math.floor(owed[part] + 0.5), len(members) - at)
            owed[part] -= count
            part_of |= {identity(question): part for question in members[at : at + count]}
            at += count
    parts: list[list[Question]] = [[] for _ in range(len(shares) + 1)]
    for question in questions:
        parts[part_of.get(identity(question), len(shares))].append(question)
    return parts


def sample(questions: list[Question], count: int | None, seed: int, what: str) -> list[Question]:
    """Return a sample that depends on what is asked and the seed, not on the order in the file."""
    if count is None or count >= len(questions):
        return questions
    first = sorted(questions, key=lambda question: _digest(f"{what}/{seed}", question))[:count]
    kept = set(map(identity, first))
    return [question for question in questions if identity(question) in kept]


def _digest(salt: str, question: Question) -> bytes:
    return hashlib.sha256(f"{salt}/{identity(question)}".encode()).digest()


def without_overlap(
    train: Sequence[Question], held: Sequence[Question]
) -> tuple[list[Question], int]:
    """Return the training questions that are not among those held out, and how many were.

    Two texts are one question when they differ only in case, white space, punctuation and
    compatible characters.
    """
    known = {normalised(identity(question)) for question in held}
    kept = [question for question in train if normalised(identity(question)) not in known]
    return kept, len(train) - len(kept)


def normalised(text: str) -> str:
    """Return a text without differences of case, white space, quotes and punctuation."""
    words = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(re.sub(r"[\s.,;:!?'\"`“”‘’]+", " ", words).split())


def unlabelled(questions: Sequence[Question], labelled: Sequence[Question]) -> list[Question]:
    """Return the questions without the answers of all but the labelled ones.

    How their answers are asked for stays as it was, so that no prompt says which is labelled;
    `meta["labelled"]` is false.
    """
    kept = set(map(identity, labelled))
    return [q if identity(q) in kept else _without_answer(q) for q in questions]


def _without_answer(question: Question) -> Question:
    if question.answer is None:
        return question
    meta = {"kind": "math", **question.meta, "labelled": False}
    for key in ("solution", "wrong_answers"):
        meta.pop(key, None)
    return replace(question, answer=None, meta=meta)


class QuestionSource(DataSource):
    """Questions in a shuffled order that repeats with another order each epoch.

    Args:
        splits: The questions of each.
        batch_size: Questions a step.
        seeds: What they are drawn with.
        notes: What `--check` says of how they were read.
        cannot_train: Why a step has no questions, where there is none to train on.
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
        self._batch_size, self._seeds = batch_size, seeds
        self._cannot_train = cannot_train
        self.notes = notes
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def questions(self, name: Split) -> list[Question]:
        """Return all questions of a split."""
        return self._splits[name]

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(len(self.questions("train"))))
        random.Random(f"epoch/{self._seeds.training}/{epoch}").shuffle(order)
        return order

    def batch(self, step: int) -> list[Question]:
        """Return the questions of a step, going through shuffled epochs.

        Raises:
            DataError: There is none to train on.
        """
        train, size = self.questions("train"), self._batch_size
        if not train:
            raise DataError(self._cannot_train)
        chosen: list[Question] = []
        while len(chosen) < size:
            epoch, index = divmod(step * size + len(chosen), len(train))
            chosen += [train[i] for i in self._order(epoch)[index : index + size - len(chosen)]]
        return chosen

    def split(self, name: Split, size: int) -> list[Question]:
        """Return up to `size` questions of a split, always the same ones."""
        questions = list(self.questions(name))
        random.Random(f"split/{name}/{self._seeds.held_out}").shuffle(questions)
        return questions[:size]

    def leave_out(self, held: Callable[[], Sequence[Question]]) -> int:
        """Train on none of these questions; return how many there were."""
        self._splits["train"], count = without_overlap(self.questions("train"), held())
        self._order.cache_clear()
        return count

    @property
    def can_demonstrate(self) -> bool:
        """Whether every training question has an answer."""
        train = self.questions("train")
        return bool(train) and all(question.answer is not None for question in train)
