"""Published benchmarks by name: where their rows stand, how they are read and split."""

from debate_train.data.benchmarks.source import Benchmark
from debate_train.data.benchmarks.table import BENCHMARKS, PublishedBenchmark

__all__ = ["BENCHMARKS", "Benchmark", "PublishedBenchmark"]
