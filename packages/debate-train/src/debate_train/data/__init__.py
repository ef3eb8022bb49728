"""Where questions come from."""

from typing import Annotated

from debate_protocol.plugins import Variants
from debate_train.data.benchmarks import Benchmark
from debate_train.data.gym import ReasoningGym
from debate_train.data.mixture import Mixture
from debate_train.data.questions import Questions
from debate_train.data.signs_puzzle import SignsPuzzle
from debate_train.data.source import DataSettings, DataSource, Seeds, Split

DATA: Variants[DataSettings] = Variants(
    "debate_train.data", DataSettings, Questions, Benchmark, ReasoningGym, Mixture, SignsPuzzle
)
"""All sources of questions, those of other installed packages included."""

DataChoice = Annotated[DataSettings, DATA]
"""Any source of questions; recipes choose by `type`."""

__all__ = [
    "DATA",
    "Benchmark",
    "DataChoice",
    "DataSettings",
    "DataSource",
    "Mixture",
    "Questions",
    "ReasoningGym",
    "Seeds",
    "SignsPuzzle",
    "Split",
]
