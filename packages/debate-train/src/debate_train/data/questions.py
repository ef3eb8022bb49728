"""Questions from a file, or from a data set of a hub."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from debate_protocol.parsing import ContractKind
from debate_protocol.types import Question
from debate_rewards.answer_checking import check_many
from debate_train.data.question_rows import Fields, Reading, check_pattern
from debate_train.data.row_files import read_questions, rows_of
from debate_train.data.source import (
    MOST_HELD_OUT,
    DataSettings,
    DataSource,
    QuestionSource,
    Seeds,
    Split,
)
from debate_train.data.splits import hold_out, sample, unlabelled, without_overlap
from debate_train.errors import DataError

__all__ = ["Fields", "Questions", "RowSettings"]

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
ALL_QUESTIONS = 10**9


def judged_answers(source: DataSource, form: ContractKind) -> tuple[list[str], bool]:
    """Check the gold answer of every question of all splits, written as the contract asks for it.

    Args:
        source: Of the questions.
        form: How a response marks the final answer.

    Returns:
        A line for each split, then a line for each gold answer with another verdict than right;
        whether all are right.
    """
    split_lines: list[str] = []
    refused_lines: list[str] = []
    for name in SPLITS:
        questions = [q for q in source.split(name, MOST_HELD_OUT) if q.answer is not None]
        if not questions:
            continue
        verdicts = check_many([(question, answered(question, form)) for question in questions])
        num_by_verdict = Counter(verdict.verdict for verdict in verdicts)
        split_lines.append(
            f"{name}: {len(questions):,} answers, checked against themselves: "
            f"{num_by_verdict['right']:,} right, {num_by_verdict['wrong']:,} wrong, "
            f"{num_by_verdict['unverifiable']:,} unverifiable"
        )
        for question, verdict in zip(questions, verdicts, strict=True):
            if verdict.verdict != "right":
                refused_lines.append(
                    f"{name}: question {question.id}: its own answer {question.answer!r:.80} "
                    f"({question.meta.get('kind', 'math')}) counts as {verdict.verdict} "
                    f"({verdict.reason})"
                )
    return split_lines + refused_lines, not refused_lines


def answered(question: Question, form: ContractKind) -> str:
    r"""Write a response with the gold answer; braces of a text are escaped."""
    answer = str(question.answer)
    if form == "answer_line":
        return f"Answer: {answer}"
    if question.meta.get("kind") == "text":
        # An unbalanced brace would end the box too early.
        answer = answer.replace("{", r"\{").replace("}", r"\}")
    return f"\\boxed{{{answer}}}"


class RowSettings(DataSettings):
    """Settings of all sources with rows."""

    batch_size: int = Field(16, ge=1)
    """Questions a step."""
    limit: int | None = Field(None, ge=1)
    """Use only this many training questions, drawn by `seed` from the whole file."""
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
        """Build the source of questions from rows.

        Args:
            train: Training questions, with the questions to hold out here.
            dev: Held-out questions for exit criteria and evaluations on the way; `None` takes a
                share of `train`.
            test: Held-out questions of figures.
            run_seed: Of the run.
            notes: Notes of `--check` on how they were read.
        """
        seeds = Seeds.of(self.seed, run_seed)
        notes = list(notes)
        # Before anything is drawn: limit and shares count only questions that can be trained on.
        num_questions = len(train)
        train, _ = without_overlap(train, test)
        if dev is None:
            dev, train = hold_out(train, self.holdout, 0)
            num_questions -= len(dev)
        # Questions of dev may return in another spelling.
        train, _ = without_overlap(train, dev)
        num_overlapping = num_questions - len(train)
        if num_overlapping:
            notes.append(
                f"data: {num_overlapping:,} training questions are held-out questions, too, and "
                "are not trained on"
            )
        train = sample(train, self.limit, seeds.held_out, "limit")
        # A row may say itself that its answer must not be used; the share is of the others.
        labelled = [q for q in train if q.meta.get("labelled") is not False]
        num_labelled = round(self.labelled * len(labelled))
        labelled = sample(labelled, num_labelled, seeds.held_out, "labelled")
        return QuestionSource(
            splits={"train": unlabelled(train, labelled), "dev": list(dev), "test": list(test)},
            batch_size=self.batch_size,
            seeds=seeds,
            notes=tuple(notes),
        )

    def summary(self, source: DataSource) -> str:
        """Count the questions of each split."""
        counts = [f"{len(source.split(name, ALL_QUESTIONS)):,} {name}" for name in SPLITS]
        return f"data: {self.path_label()}: {', '.join(counts)} questions"

    def path_label(self) -> str:
        """Name the origin of the training questions in a few words."""
        return self.type

    def checked_questions(self, source: DataSource) -> Sequence[Question]:
        """List all questions of all splits."""
        questions = []
        for name in SPLITS:
            questions += source.split(name, ALL_QUESTIONS)
        return questions

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Say whether any training question may have an answer."""
        if source is None:
            return self.labelled > 0
        return any(question.answer for question in source.split("train", ALL_QUESTIONS))


class Questions(RowSettings):
    """Rows with a question and perhaps an answer.

    Repeated questions are used once. Questions of `test_path` are never trained on, even if `path`
    has them, too; without `test_path` a share of `path` is held out.
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
    answer_pattern: Annotated[str, AfterValidator(check_pattern)] | None = None
    r"""Regular expression whose first group is the answer, such as `####\s*(.+)`."""
    kind: Literal["math", "choice", "yes_no", "number", "text"] | None = None
    """How answers are compared; None leaves it to the row, see `question_rows.with_kinds`."""

    def open(self, run_seed: int = 0) -> QuestionSource:
        """Read the rows and build the source of a run with this seed."""
        questions, notes = self._read(self.path, self.split, "data.path")
        if self.test_path is not None or not self.is_file:
            test_path = self.test_path or self.path
            test, test_notes = self._read(test_path, self.test_split, "data.test_path")
            train = questions
            notes += test_notes
        else:
            # Another salt than dev's, or dev would be empty: it is drawn from the rest.
            test, train = hold_out(questions, self.holdout, 1)
        source = self.source(train, None, test, run_seed, notes)
        if not source.split("train", 1):
            raise DataError(
                f"data.path: {self.path!r} leaves no question to train on "
                f"({len(questions)} distinct rows read); expected at least one beside those "
                "held out"
            )
        return source

    def _read(self, path: str, split: str, key: str) -> tuple[list[Question], list[str]]:
        reading = Reading(fields=self.fields, kind=self.kind, answer_pattern=self.answer_pattern)
        rows = rows_of(path, self.config, split, key, self.first_rows)
        return read_questions(rows, reading, key, path)

    @property
    def dataset(self) -> str:
        """The name of the data in metrics: of the file, or the last part of a hub id."""
        path = PurePath(self.path)
        name = path.stem if self.is_file else path.name
        return re.sub(r"[^\w.-]+", "_", name) or "data"

    @property
    def is_file(self) -> bool:
        """Whether `path` names a file (by the ending) rather than a hub data set."""
        return self.path.endswith((".jsonl", ".json", ".parquet"))

    def paths(self) -> Mapping[str, str]:
        """List the files or hub data sets of the training and the test questions."""
        paths = {"data.path": self.path}
        if self.test_path is not None:
            paths["data.test_path"] = self.test_path
        return paths

    def path_label(self) -> str:
        """Name the path of the training questions."""
        return self.path

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Say whether any training question may have an answer."""
        if source is None and self.fields.answer is None:
            return False
        return super().may_have_answers(source)
