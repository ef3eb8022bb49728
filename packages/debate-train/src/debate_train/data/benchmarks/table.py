"""Published benchmarks: where their rows stand, and how they are read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from debate_train.data.benchmarks import rows
from debate_train.data.row_files import rows_of
from debate_train.errors import DataError

BBH_TASKS = [
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
]


@dataclass(frozen=True, slots=True)
class PublishedBenchmark:
    """Where a benchmark's rows stand, and what they are.

    `splits` are the hub's names of its training and test rows, None where it has none. With
    `shares` its one set of rows is divided within each subject, into test, dev and the rest.
    """

    hub: str | None
    read: rows.ReadRow
    splits: tuple[str | None, str | None]
    contract: str
    """The contract in which it is usually answered when no debate is held."""
    licence: str
    config: str | None = None
    configs: tuple[str, ...] = ()
    """The parts in which it is published, each a configuration; they become `subject`."""
    shares: tuple[float, float] | None = None

    @property
    def only_evaluates(self) -> bool:
        """Whether it has no rows to train on."""
        return self.splits[0] is None

    def rows(self, path: str | None, split: str, key: str, count: int | None) -> Iterator[rows.Row]:
        """Yield its rows from a file in the place of the hub, or from the hub."""
        if path is not None:
            yield from map(self.read, rows_of(path, self.config, split, key, count))
            return
        if self.hub is None:
            raise DataError(f"{key}: this benchmark is on no hub; expected a file of its rows")
        for config in self.configs or (self.config,):
            for row in rows_of(self.hub, config, split, key, count):
                yield self.read({"subject": config, **row} if self.configs else row)


_contest = partial(
    PublishedBenchmark,
    read=rows.contest,
    contract="answer_line",
    licence="problems: Mathematical Association of America",
)
_science = partial(PublishedBenchmark, contract="boxed", splits=("train", "test"))

BENCHMARKS: Mapping[str, PublishedBenchmark] = {
    "gsm8k": PublishedBenchmark(
        "openai/gsm8k", rows.gsm8k, ("train", "test"), "boxed", "MIT", config="main"
    ),
    "math": PublishedBenchmark(
        "DigitalLearningGmbH/MATH-lighteval",
        rows.hendrycks_math,
        ("train", "test"),
        "boxed",
        "MIT",
    ),
    "math500": PublishedBenchmark(
        "HuggingFaceH4/MATH-500", rows.hendrycks_math, (None, "test"), "boxed", "MIT"
    ),
    "aime24": _contest("HuggingFaceH4/aime_2024", splits=(None, "train")),
    "aime25": _contest("math-ai/aime25", splits=(None, "test")),
    "amc23": _contest("math-ai/amc23", splits=(None, "test")),
    "dapo_math": PublishedBenchmark(
        "BytedTsinghua-SIA/DAPO-Math-17k",
        rows.dapo_math,
        ("train", None),
        "answer_line",
        "Apache-2.0",
    ),
    "boolq": PublishedBenchmark(
        "google/boolq", rows.boolq, ("train", "validation"), "boxed", "CC BY-SA 3.0"
    ),
    "mmlu": PublishedBenchmark(
        "cais/mmlu",
        rows.multiple_choice,
        ("auxiliary_train", "test"),
        "boxed",
        "MIT",
        config="all",
    ),
    "bbh": PublishedBenchmark(
        "SaylorTwift/bbh",
        rows.big_bench_hard,
        ("test", None),
        "boxed",
        "MIT",
        configs=tuple(BBH_TASKS),
        shares=(0.25, 0.1),
    ),
    "sciq": _science("allenai/sciq", rows.sciq, licence="CC BY-NC 3.0: not for commerce"),
    "arc_challenge": _science(
        "allenai/ai2_arc", rows.multiple_choice, config="ARC-Challenge", licence="CC BY-SA 4.0"
    ),
    "arc_easy": _science(
        "allenai/ai2_arc", rows.multiple_choice, config="ARC-Easy", licence="CC BY-SA 4.0"
    ),
    "longwriter": PublishedBenchmark(
        "THUDM/LongWriter-6k", rows.open_prompt, ("train", None), "three_section", "Apache-2.0"
    ),
    "longbench_write": PublishedBenchmark(
        None, rows.open_prompt, (None, "test"), "three_section", "Apache-2.0"
    ),
}
"""All benchmarks by the names that recipes use."""
