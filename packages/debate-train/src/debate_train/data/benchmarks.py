"""Published benchmarks by name: the addresses of their rows, how they are read and split."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import ValidationInfo, field_validator

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Question
from debate_train.data.benchmark_rows import (
    ReadRow,
    Row,
    big_bench_hard,
    boolq,
    contest,
    dapo_math,
    gsm8k,
    hendrycks_math,
    multiple_choice,
    open_prompt,
    sciq,
)
from debate_train.data.question_rows import Fields, Reading
from debate_train.data.questions import RowSettings
from debate_train.data.row_files import read_questions, rows_of
from debate_train.data.source import DataSource, QuestionSource, Seeds, Split
from debate_train.data.splits import divide, hold_out
from debate_train.errors import DataError

__all__ = ["BENCHMARKS", "Benchmark", "PublishedBenchmark"]

BBH_TASKS = (
    "boolean_expressions",
    "causal_judgement",
    "date_understanding",
    "disambiguation_qa",
    "dyck_languages",
    "formal_fallacies",
    "geometric_shapes",
    "hyperbaton",
    "logical_deduction_five_objects",
    "logical_deduction_seven_objects",
    "logical_deduction_three_objects",
    "movie_recommendation",
    "multistep_arithmetic_two",
    "navigate",
    "object_counting",
    "penguins_in_a_table",
    "reasoning_about_colored_objects",
    "ruin_names",
    "salient_translation_error_detection",
    "snarks",
    "sports_understanding",
    "temporal_sequences",
    "tracking_shuffled_objects_five_objects",
    "tracking_shuffled_objects_seven_objects",
    "tracking_shuffled_objects_three_objects",
    "web_of_lies",
    "word_sorting",
)


@dataclass(frozen=True, slots=True)
class PublishedBenchmark:
    """Address and shape of a benchmark's rows.

    `splits` are the hub's names of the training and test rows, `None` where there are no such rows.
    With `shares` a single set of rows is divided within each subject, into test, dev and the rest.
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
        """Yield the rows from a file in the place of the hub, or from the hub."""
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
    "math500": PublishedBenchmark("HuggingFaceH4/MATH-500", hendrycks_math, splits=(None, "test")),
    "aime24": PublishedBenchmark(
        "HuggingFaceH4/aime_2024", contest, splits=(None, "train"), contract="answer_line"
    ),
    "aime25": PublishedBenchmark(
        "math-ai/aime25", contest, splits=(None, "test"), contract="answer_line"
    ),
    "amc23": PublishedBenchmark(
        "math-ai/amc23", contest, splits=(None, "test"), contract="answer_line"
    ),
    "dapo_math": PublishedBenchmark(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        dapo_math,
        splits=("train", None),
        contract="answer_line",
    ),
    "boolq": PublishedBenchmark("google/boolq", boolq, splits=("train", "validation")),
    "mmlu": PublishedBenchmark(
        "cais/mmlu", multiple_choice, splits=("auxiliary_train", "test"), config="all"
    ),
    "bbh": PublishedBenchmark(
        "SaylorTwift/bbh",
        big_bench_hard,
        splits=("test", None),
        configs=BBH_TASKS,
        shares=(0.25, 0.1),
    ),
    "sciq": PublishedBenchmark("allenai/sciq", sciq),
    "arc_challenge": PublishedBenchmark("allenai/ai2_arc", multiple_choice, config="ARC-Challenge"),
    "arc_easy": PublishedBenchmark("allenai/ai2_arc", multiple_choice, config="ARC-Easy"),
    "longwriter": PublishedBenchmark(
        "THUDM/LongWriter-6k", open_prompt, splits=("train", None), contract="three_section"
    ),
    "longbench_write": PublishedBenchmark(
        None, open_prompt, splits=(None, "test"), contract="three_section"
    ),
}
"""All benchmarks by the names that recipes use."""


class Benchmark(RowSettings):
    """A published benchmark by name, from the hub or from a file of its rows.

    The authors divide the rows into training and test rows. Without test rows a share of the
    training rows is held out for evaluation, or another benchmark evaluates (`test`). Without
    training rows a benchmark only evaluates.
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
        names = list(BENCHMARKS)
        condition = ""
        if info.field_name == "test":
            names = [n for n, benchmark in BENCHMARKS.items() if benchmark.splits[1]]
            condition = " with test rows"
        if name is not None and name not in names:
            raise ValueError(
                f"found {name[:60]!r}; expected one{condition} of {', '.join(names)}"
                f"{did_you_mean(name, names)}"
            )
        return name

    def open(self, run_seed: int = 0) -> "BenchmarkSource":
        """Open the source in a run with this seed; rows are read when a split is used."""
        return BenchmarkSource(self, run_seed)

    @property
    def dataset(self) -> str:
        """The name of the data in metrics."""
        return self.name

    @property
    def published(self) -> PublishedBenchmark:
        """Address and shape of the rows."""
        return BENCHMARKS[self.name]

    @property
    def test_rows(self) -> tuple[str, str | None, str] | None:
        """The benchmark, the path and the key of the test rows; `None` if a share is held out."""
        if self.test is not None or self.test_path is not None:
            return self.test or self.name, self.test_path, "data.test_path"
        if self.published.only_evaluates:
            return self.name, self.path, "data.path"
        # A file in the place of the hub has the rows of one split.
        has_test_rows = self.path is None and self.published.splits[1] is not None
        return (self.name, None, "data.test_path") if has_test_rows else None

    def paths(self) -> Mapping[str, str]:
        """List the files or hub data sets of the training and the test rows."""
        paths = {}
        if not self.published.only_evaluates:
            paths["data.path"] = self.path or self.published.hub
        if self.test_rows is not None:
            name, path, key = self.test_rows
            paths[key] = path or BENCHMARKS[name].hub
        return {key: path for key, path in paths.items() if path is not None}

    def path_label(self) -> str:
        """Name the benchmark and the origin of the rows."""
        return f"{self.name} ({self.path or self.test_path or self.published.hub})"

    def may_have_answers(self, source: DataSource | None) -> bool:
        """Say whether any training question may have an answer."""
        if self.published.read is open_prompt:
            return False
        return super().may_have_answers(source)


@dataclass(frozen=True, slots=True)
class _TrainingRows:
    """The questions of a benchmark's training rows, and the share held out of them."""

    train: list[Question]
    dev: list[Question] | None = None
    """None takes a share of `train`."""
    test: list[Question] | None = None
    """None where the test rows are others."""


class BenchmarkSource(QuestionSource):
    """A benchmark's questions; without training no training rows are read."""

    def __init__(self, config: Benchmark, run_seed: int) -> None:
        self.config = config
        self._run_seed = run_seed
        trainable = [name for name, benchmark in BENCHMARKS.items() if benchmark.splits[0]]
        cannot_train = (
            f"data.name: {config.name} leaves no question to train on; expected a benchmark with "
            f"training rows ({', '.join(trainable)}), "
            f"with data.test={config.name} to evaluate on this one"
        )
        super().__init__(
            splits={},
            batch_size=config.batch_size,
            seeds=Seeds.of(config.seed, run_seed),
            cannot_train=cannot_train,
        )

    def questions(self, name: Split) -> list[Question]:
        """List all questions of a split; training rows are read at the first use."""
        if name == "test":
            return self._test_questions
        # Train and dev are drawn together, and only when one of them is used.
        if name not in self._splits:
            rows = self._training_rows
            source = self.config.source(
                rows.train, rows.dev, self._test_questions, self._run_seed, notes=()
            )
            self._splits = {"train": source.questions("train"), "dev": source.questions("dev")}
            self.notes += source.notes
        return self._splits[name]

    @cached_property
    def _training_rows(self) -> _TrainingRows:
        config = self.config
        shares = config.published.shares
        if config.published.only_evaluates:
            return _TrainingRows(train=[], dev=[])
        questions = self._read(config.name, config.path, "data.path", 0)
        if config.test_rows is not None:
            return _TrainingRows(train=questions)
        if shares is not None:
            test, dev, train = divide(questions, shares, lambda q: str(q.meta.get("subject")))
            return _TrainingRows(train=train, dev=dev, test=test)
        # The salt of `Questions`: the same rows as a file hold out the same questions.
        test, train = hold_out(questions, config.holdout, 1)
        return _TrainingRows(train=train, test=test)

    @cached_property
    def _test_questions(self) -> list[Question]:
        if self.config.test_rows is None:
            return self._training_rows.test or []
        name, path, key = self.config.test_rows
        return self._read(name, path, key, 1)

    def _read(self, name: str, path: str | None, key: str, split_index: int) -> list[Question]:
        published = BENCHMARKS[name]
        split = published.splits[split_index] or "train"
        rows = published.rows(path, split, key, self.config.first_rows)
        # The functions that read a benchmark's rows write its choices as labels.
        reading = Reading(fields=Fields(), kind=None, answer_pattern=None, choice_answers="label")
        questions, notes = read_questions(rows, reading, key, path or published.hub or name)
        self.notes = (*self.notes, *notes)
        return questions
