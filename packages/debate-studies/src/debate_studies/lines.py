"""Finished runs of a study, a line each, and intervals over their seeds."""

import fcntl
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, stdev

from pydantic import Field, ValidationError
from scipy.stats import t

from debate_protocol.plugins import Config
from debate_train.checkpoints.run_directory import as_written, with_hash
from debate_train.interrupts import UsageError


class FinishedRun(Config):
    """What is kept of a run."""

    arm: str
    """Of the study."""
    seed: int
    """Of the run."""
    made_by: str | None = None
    """Of the recipe and settings, a hash; other settings give other runs."""
    start_met: bool
    """Whether it began; else `before` and `after` are both those of a start that missed."""
    steps: int
    """Of all its phases."""
    seconds: float | None = None
    """Of its steps and evaluations."""
    warnings: dict[str, int] | None = None
    """Detectors of the health watch that spoke, each with the step of its first word."""
    before: dict[str, float]
    """The study's measures on test questions before the run."""
    after: dict[str, float]
    """The same after it."""
    curves: dict[str, tuple[tuple[int, float], ...]] = Field(default_factory=dict)
    """Step and value of each of the study's curves."""
    totals: dict[str, float] = Field(default_factory=dict)
    """The study's totals."""


Runs = Mapping[tuple[str, int], FinishedRun]
"""By arm and seed."""


def seeds_of(runs: Runs, arms: Sequence[str]) -> list[int]:
    """Return the seeds that some of these arms were run with, in order."""
    return sorted({seed for arm, seed in runs if arm in arms})


class Lines:
    """A file of finished runs; an unfinished last line does not count.

    Args:
        file: JSON Lines; it need not be there yet.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self) -> list[FinishedRun]:
        """Return the runs.

        Raises:
            UsageError: A line is not one, or contradicts another of its run.
        """
        text = self.file.read_bytes() if self.file.is_file() else b""
        lines = enumerate(_whole(text).splitlines(), 1)
        each = [self._read(number, line) for number, line in lines if line.strip()]
        found = {(run.arm, run.seed): run for run in each}
        for run in each:
            if run != found[run.arm, run.seed]:
                said = f"arm {run.arm}, seed {run.seed}: found lines that differ; expected one"
                raise UsageError(f"{self.file}: {said}")
        return [*found.values()]

    def _read(self, number: int, line: bytes) -> FinishedRun:
        try:
            found = json.loads(line)
            if isinstance(found, dict) and "sha256" in found:  # Earlier versions wrote none.
                found = as_written(line)
                if found is None:
                    raise UsageError(
                        f"{self.file}:{number}: is not as it was written (SHA-256 differs); put "
                        "the line back, or remove it to run its arm and seed again"
                    )
            return FinishedRun.model_validate(found)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(
                f"{self.file}:{number}: {where}: {first['msg']}; expected a finished run"
            ) from error

    def done(self) -> set[tuple[str, int]]:
        """Return the arm and the seed of each."""
        return {(run.arm, run.seed) for run in self.read()}

    def add(self, run: FinishedRun) -> None:
        """Write a line at the end, at once, unless another call has written one of its run."""
        line = json.dumps(with_hash(run.model_dump(exclude_defaults=True))) + "\n"
        with self.file.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # Until it is closed.
            if (run.arm, run.seed) not in self.done():
                text = self.file.read_bytes()
                kept = _whole(text)
                file.truncate(min(len(kept), len(text)))
                file.write(kept[len(text) :] + line.encode())


def _whole(text: bytes) -> bytes:
    """Leave out a last line that was being written when its process was killed; end all others."""
    *lines, last = text.split(b"\n")
    with suppress(ValueError):
        json.loads(last)
        lines.append(last)
    return b"".join(line + b"\n" for line in lines)


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """Return the lines of a Markdown table."""
    cells = ([str(cell) for cell in row] for row in (head, *rows))
    first, *others = (f"| {' | '.join(row)} |" for row in cells)
    return [first, "|---" * len(head) + "|", *others]


TAIL = 0.025
ROUNDING = 1e-9
"""Differences of measures, which have six digits, are equal up to this."""


def interval(values: Sequence[float]) -> tuple[float, float, float | None, float | None]:
    """Return mean, standard error, half width of the interval and p; None of one seed.

    Equal differences have no spread to test a mean by, so their p is None, or 1 if all are 0.
    """
    if len(values) < 2:
        return fmean(values), math.nan, None, None
    mean, error = fmean(values), stdev(values) / math.sqrt(len(values))
    freedom = len(values) - 1
    half = float(t.ppf(1 - TAIL, freedom)) * error
    if max(values) - min(values) < ROUNDING:
        return mean, 0.0, 0.0, 1.0 if abs(mean) < ROUNDING else None
    return mean, error, half, 2 * float(t.sf(abs(mean) / error, freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for how many there are, by Holm's step-down procedure.

    Source: Holm, "A simple sequentially rejective multiple test procedure", 1979.

    Args:
        p_values: Of all tests of a family.

    Returns:
        Adjusted p-values, in the order of `p_values`; those up to .05 survive at level .05.
    """
    num_tests = len(p_values)
    smallest_first = sorted(range(num_tests), key=lambda test: p_values[test])
    adjusted = [1.0] * num_tests
    largest_so_far = 0.0
    for rank, test in enumerate(smallest_first):
        # A test that comes later never survives where an earlier one does not.
        largest_so_far = max(largest_so_far, (num_tests - rank) * p_values[test])
        adjusted[test] = min(1.0, largest_so_far)
    return adjusted


def with_interval(values: Sequence[float]) -> str:
    """Return the mean with its interval in brackets; one seed has none."""
    mean, _, half, _ = interval(values)
    ends = "" if half is None else f" [{mean - half:+.3f}, {mean + half:+.3f}]"
    return f"{mean:+.3f}{ends}"
