"""Published benchmarks by name: where their rows stand, how they are read and split."""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from string import ascii_uppercase
from typing import Literal

from pydantic import ValidationInfo, field_validator

from debate_protocol.parsing import final_box
from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Question
from debate_train.data.question_rows import Fields, Reading
from debate_train.data.questions import RowSettings, rows_of
from debate_train.data.source import (
    DataSource,
    QuestionSource,
    Seeds,
    Split,
    divided,
    hold_out,
    read_questions,
)
from debate_train.interrupts import DataError

__all__ = ["BENCHMARKS", "Benchmark", "PublishedBenchmark"]


Row = Mapping[str, object]
ReadRow = Callable[[Row], Row]

_DAPO_BEFORE = re.compile(r"\ASolve the following math problem step by step\..*?\n\n", re.DOTALL)
_DAPO_AFTER = re.compile(
    r"\n\nRemember to put your answer on its own line after \"Answer:\"\.?\s*\Z"
)
_OPTIONS = re.compile(r"(?<!\s)\s*\nOptions:\s*\n(?=\(A\))(.*)\Z", re.DOTALL)
_OPTION = re.compile(r"^\(([A-Z])\)[ \t]*(.*)$", re.MULTILINE)
_INTEGER = re.compile(r"-?\d+")
_YES_NO = {"yes", "no", "true", "false"}
_LETTER = re.compile(r"\(([A-Z])\)")


def contest(row: Row) -> Row:
    """Return a problem whose answer is an integer; leading zeros and the `.0` of 27.0 go."""
    answer = str(row.get("answer", "")).strip().removesuffix(".0")
    read = {**row, "kind": "math"}
    return {**read, "answer": str(int(answer))} if _INTEGER.fullmatch(answer) else read


def gsm8k(row: Row) -> Row:
    """Return the number after the four hashes as the answer, what stands before as the solution."""
    solution, marked, answer = str(row.get("answer", "")).rpartition("####")
    if not marked:
        return row
    return {**row, "answer": answer.strip().replace(",", ""), "solution": solution.strip()}


def hendrycks_math(row: Row) -> Row:
    """Return the content of the last box of the solution as the answer."""
    solution = str(row.get("solution", ""))
    place = None if "answer" in row else final_box(solution)
    read = {**row, "subject": row.get("subject", row.get("type")), "kind": "math"}
    return read if place is None else read | {"answer": solution[place[0] : place[1]]}


def dapo_math(row: Row) -> Row:
    """Return the problem without the instructions around it."""
    prompt = row.get("prompt")
    if isinstance(prompt, list):
        prompt = "".join(str(one["content"]) for one in prompt)
    if not isinstance(prompt, str) or "question" in row:
        return {**row, "kind": "math"}
    text = _DAPO_AFTER.sub("", _DAPO_BEFORE.sub("", prompt)).strip()
    graded, info = row.get("reward_model"), row.get("extra_info")
    answer = graded.get("ground_truth") if isinstance(graded, Mapping) else row.get("label")
    identity = info.get("index") if isinstance(info, Mapping) else None
    return {"question": text, "answer": answer, "kind": "math", "id": identity}


def boolq(row: Row) -> Row:
    """Return the answer as yes or no."""
    answer = row.get("answer")
    said = ("no", "yes")[answer] if isinstance(answer, bool) else answer
    return {**row, "answer": said, "kind": "yes_no"}


def multiple_choice(row: Row) -> Row:
    """Return a row of MMLU, whose answers count choices from 0, or of ARC with its `answerKey`."""
    answer = row.get("answerKey", row.get("answer"))
    choices = row.get("choices")
    if isinstance(answer, int) and isinstance(choices, list) and 0 <= answer < len(choices):
        answer = ascii_uppercase[answer]
    return {**row, "answer": answer, "kind": "choice"}


def sciq(row: Row) -> Row:
    """Return the right answer among the distractors, at a place that follows from the question."""
    if "correct_answer" not in row:
        return multiple_choice(row)
    choices = [row["correct_answer"], *(row[f"distractor{n}"] for n in (1, 2, 3))]
    random.Random(str(row["question"])).shuffle(choices)
    answer = chr(ord("A") + choices.index(row["correct_answer"]))
    read = {"question": row["question"], "choices": choices, "answer": answer}
    return {**read, "kind": "choice", "subject": "science"}


def big_bench_hard(row: Row) -> Row:
    """Return the options that stand in a question as its choices, and the kind of its answer."""
    text = str(row.get("question", row.get("input", "")))
    answer = str(row.get("answer", row.get("target", ""))).strip()
    read: dict[str, object] = {
        "question": text,
        "answer": answer,
        "subject": row.get("subject"),
        "id": row.get("id"),
    }
    listed = _OPTIONS.search(text)
    options = dict(_OPTION.findall(listed[1])) if listed else {}
    letter = _LETTER.fullmatch(answer)
    if listed and letter and letter[1] in options:
        question = text[: listed.start()].rstrip()
        chosen = {"question": question, "choices": options, "answer": letter[1]}
        return {**read, **chosen, "kind": "choice"}
    is_number = _INTEGER.fullmatch(answer) is not None
    kind = "yes_no" if answer.lower() in _YES_NO else "number" if is_number else "text"
    wrong = _exchanged(answer.split()) if kind == "text" else []
    return {**read, "kind": kind, "wrong_answers": wrong}


def _exchanged(words: list[str]) -> list[str]:
    """Return an order of words, or of brackets, with each two different neighbours exchanged."""
    return [
        " ".join((*words[:n], second, first, *words[n + 2 :]))
        for n, (first, second) in enumerate(pairwise(words))
        if first != second
    ]


def open_prompt(row: Row) -> Row:
    """Return a writing task, which has no answer."""
    messages = row.get("messages")
    text = row.get("question", row.get("prompt"))
    if isinstance(messages, list) and messages:
        text = messages[0]["content"]
    return {**row, "question": text, "answer": None, "kind": "text"}


_BBH_TASKS = """
boolean_expressions causal_judgement date_understanding disambiguation_qa dyck_languages
formal_fallacies geometric_shapes hyperbaton logical_deduction_five_objects
logical_deduction_seven_objects logical_deduction_three_objects movie_recommendation
multistep_arithmetic_two navigate object_counting penguins_in_a_table
reasoning_about_colored_objects ruin_names salient_translation_error_detection snarks
sports_understanding temporal_sequences tracking_shuffled_objects_five_objects
tracking_shuffled_objects_seven_objects tracking_shuffled_objects_three_objects web_of_lies
word_sorting
"""
BBH_TASKS = _BBH_TASKS.split()


@dataclass(frozen=True, slots=True)
class PublishedBenchmark:
    """Where a benchmark's rows stand, and what they are.

    `splits` are the hub's names of its training and test rows, None where it has none. With
    `shares` its one set of rows is divided within each subject, into test, dev and the rest.
    """

    hub: str | None
    read: ReadRow
    splits: tuple[str | None, str | None] = ("train", "test")
    contract: str = "boxed"
    """The contract in which it is usually answered when no debate is held."""
    config: str | None = None
    configs: tuple[str, ...] = ()
    """The parts in which it is published, each a configuration; they become `subject`."""
    shares: tuple[float, float] | None = None

    @property
    def only_evaluates(self) -> bool:
        """Whether it has no rows to train on."""
        return self.splits[0] is None

    def rows(self, path: str | None, split: str, key: str, count: int | None) -> Iterator[Row]:
        """Yield its rows from a file in the place of the hub, or from the hub."""
        if path is not None:
            yield from map(self.read, rows_of(path, self.config, split, key, count))
            return
        if self.hub is None:
            raise DataError(f"{key}: this benchmark is on no hub; expected a file of its rows")
        for config in self.configs or (self.config,):
            for row in rows_of(self.hub, config, split, key, count):
                yield self.read({"subject": config, **row} if self.configs else row)


BENCHMARKS: Mapping[str, PublishedBenchmark] = {
    "gsm8k": PublishedBenchmark("openai/gsm8k", gsm8k, config="main"),
    "math": PublishedBenchmark("DigitalLearningGmbH/MATH-lighteval", hendrycks_math),
    "math500": PublishedBenchmark("HuggingFaceH4/MATH-500", hendrycks_math, (None, "test")),
    "aime24": PublishedBenchmark(
        "HuggingFaceH4/aime_2024", contest, (None, "train"), "answer_line"
    ),
    "aime25": PublishedBenchmark("math-ai/aime25", contest, (None, "test"), "answer_line"),
    "amc23": PublishedBenchmark("math-ai/amc23", contest, (None, "test"), "answer_line"),
    "dapo_math": PublishedBenchmark(
        "BytedTsinghua-SIA/DAPO-Math-17k", dapo_math, ("train", None), "answer_line"
    ),
    "boolq": PublishedBenchmark("google/boolq", boolq, ("train", "validation")),
    "mmlu": PublishedBenchmark(
        "cais/mmlu", multiple_choice, ("auxiliary_train", "test"), config="all"
    ),
    "bbh": PublishedBenchmark(
        "SaylorTwift/bbh",
        big_bench_hard,
        ("test", None),
        configs=tuple(BBH_TASKS),
        shares=(0.25, 0.1),
    ),
    "sciq": PublishedBenchmark("allenai/sciq", sciq),
    "arc_challenge": PublishedBenchmark("allenai/ai2_arc", multiple_choice, config="ARC-Challenge"),
    "arc_easy": PublishedBenchmark("allenai/ai2_arc", multiple_choice, config="ARC-Easy"),
    "longwriter": PublishedBenchmark(
        "THUDM/LongWriter-6k", open_prompt, ("train", None), "three_section"
    ),
    "longbench_write": PublishedBenchmark(None, open_prompt, (None, "test"), "three_section"),
}
"""All benchmarks by the names that recipes use."""


class Benchmark(RowSettings):
    """A published benchmark by name, from the hub or from a file of its rows.

    Its authors say which rows are for training and which for testing. One that has only rows for
    training holds out a share for evaluation, or is evaluated on another benchmark (`test`); one
    that has only rows for evaluation cannot be trained on.
    """

    type: Literal["benchmark"] = "benchmark"
    name: str
    """Which published benchmark."""
    path: str | None = None
    """A .jsonl, .json or .parquet file in the place of the hub's rows."""
    test: str | None = None
    """Another benchmark, whose test rows figures are measured on."""
    test_path: str | None = None
    """A file in the place of the hub's test rows."""

    @field_validator("name", "test")
    @classmethod
    def _is_known(cls, name: str | None, info: ValidationInfo) -> str | None:
        is_test = info.field_name == "test"
        known = [n for n, one in BENCHMARKS.items() if one.splits[1] or not is_test]
        if name is not None and name not in known:
            which = " with test rows" if is_test else ""
            raise ValueError(
                f"found {name[:60]!r}; expected one{which} of {', '.join(known)}"
                f"{did_you_mean(name, known)}"
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

    @property
    def test_rows(self) -> tuple[str, str | None, str] | None:
        """The benchmark, the path and the key of the test rows; None where it holds out its own."""
        if self.test is not None or self.test_path is not None:
            return self.test or self.name, self.test_path, "data.test_path"
        if self.published.only_evaluates:
            return self.name, self.path, "data.path"
        own = self.path is None and self.published.splits[1] is not None
        return (self.name, None, "data.test_path") if own else None

    def paths(self) -> Mapping[str, str]:
        """Return the files or hub data sets of the training and the test rows."""
        found = {}
        if not self.published.only_evaluates:
            found["data.path"] = self.path or self.published.hub
        if self.test_rows is not None:
            name, path, key = self.test_rows
            found[key] = path or BENCHMARKS[name].hub
        return {key: path for key, path in found.items() if path is not None}

    def said_path(self) -> str:
        """Return the name of the benchmark and where its rows come from."""
        return f"{self.name} ({self.path or self.test_path or self.published.hub})"

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Return whether any training question may have an answer."""
        return self.published.read is not open_prompt and super().may_have_answers(source)


_Parts = tuple[list[Question], list[Question] | None, list[Question]]
"""Test, dev (None takes a share of the rest) and training questions."""


class BenchmarkSource(QuestionSource):
    """A benchmark's questions; what only evaluates reads no training rows."""

    def __init__(self, config: Benchmark, run_seed: int) -> None:
        self.config, self._run_seed = config, run_seed
        cannot_train = (
            f"data.name: {config.name} leaves no question to train on; expected a benchmark with "
            f"training rows ({', '.join(n for n, one in BENCHMARKS.items() if one.splits[0])}), "
            f"with data.test={config.name} to evaluate on this one"
        )
        seeds = Seeds.of(config.seed, run_seed)
        super().__init__({}, config.batch_size, seeds, cannot_train=cannot_train)

    def questions(self, name: Split) -> list[Question]:
        """Return all questions of a split; those for training are read where they are wanted."""
        if name == "test":
            return self._test
        if name not in self._splits:
            _, dev, train = self._own
            found = self.config.source(train, dev, self._test, self._run_seed, ())
            self._splits = {n: found.questions(n) for n in ("train", "dev")}
            self.notes += found.notes
        return self._splits[name]

    def _read(self, name: str, path: str | None, key: str, which: int) -> list[Question]:
        published = BENCHMARKS[name]
        split = published.splits[which] or "train"
        kept = published.rows(path, split, key, self.config.first_rows)
        where = path or published.hub or name
        reading = Reading(Fields(), None, None, choice_answers="label")
        questions, notes = read_questions(kept, reading, key, where)
        self.notes = (*self.notes, *notes)
        return questions

    @cached_property
    def _own(self) -> _Parts:
        """Its rows that may be trained on, and what is held out of them."""
        config, shares = self.config, self.config.published.shares
        if config.published.only_evaluates:
            return [], [], []
        rows = self._read(config.name, config.path, "data.path", 0)
        if config.test_rows is not None:
            return [], None, rows
        if shares is not None:
            test, dev, rest = divided(rows, shares, lambda q: str(q.meta.get("subject")))
            return test, dev, rest
        test, rest = hold_out(rows, config.holdout, 1)
        return test, None, rest

    @cached_property
    def _test(self) -> list[Question]:
        rows = self.config.test_rows
        return self._own[0] if rows is None else self._read(*rows, 1)
