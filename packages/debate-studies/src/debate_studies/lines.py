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
from debate_train.errors import UsageError

TAIL = 0.025
ROUNDING = 1e-9
"""Differences of measures (six digits) are equal up to this."""


class FinishedRun(Config):
    """The line of a run in the study's results."""

    arm: str
    seed: int
    made_by: str | None = None
    """Hash of the recipe and settings; other settings give other runs."""
    start_met: bool
    """Whether the arm was trained; else `before` and `after` are of a failed start."""
    steps: int
    """Steps of all phases."""
    seconds: float | None = None
    """Seconds of steps and evaluations."""
    warnings: dict[str, int] | None = None
    """Step of the first warning of each detector of the health monitor."""
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
    """List the seeds of the runs of these arms, in order."""
    return sorted({seed for arm, seed in runs if arm in arms})


class Lines:
    """A file of finished runs; an unfinished last line does not count.

    Args:
        file: JSON Lines; it need not exist yet.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self) -> list[FinishedRun]:
        """Read the runs.

        Raises:
            UsageError: A line is not a finished run, or contradicts another of its run.
        """
        text = self.file.read_bytes() if self.file.is_file() else b""
        runs: dict[tuple[str, int], FinishedRun] = {}
        for number, line in enumerate(_whole_lines(text).splitlines(), 1):
            if not line.strip():
                continue
            run = self._read(number, line)
            # Files that were joined may have a run twice, but not with other results.
            if run != runs.setdefault((run.arm, run.seed), run):
                raise UsageError(
                    f"{self.file}: arm {run.arm}, seed {run.seed}: found lines that differ; "
                    "expected one"
                )
        return [*runs.values()]

    def _read(self, number: int, line: bytes) -> FinishedRun:
        try:
            values = json.loads(line)
            if isinstance(values, dict) and "sha256" in values:  # Earlier versions wrote none.
                values = as_written(line)
                if values is None:
                    raise UsageError(
                        f"{self.file}:{number}: is not as it was written (SHA-256 differs); put "
                        "the line back, or remove it to run its arm and seed again"
                    )
            return FinishedRun.model_validate(values)
        except ValidationError as error:
            first_error = error.errors()[0]
            field = ".".join(map(str, first_error["loc"]))
            raise UsageError(
                f"{self.file}:{number}: {field}: {first_error['msg']}; expected a finished run"
            ) from error

    def done(self) -> set[tuple[str, int]]:
        """List arm and seed of each finished run."""
        return {(run.arm, run.seed) for run in self.read()}

    def add(self, run: FinishedRun) -> None:
        """Append a run at once, unless another process has written it."""
        line = json.dumps(with_hash(run.model_dump(exclude_defaults=True))) + "\n"
        with self.file.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # Until it is closed.
            if (run.arm, run.seed) in self.done():
                return
            text = self.file.read_bytes()
            whole = _whole_lines(text)
            # Cut a broken last line off, or end an unended one: `whole` is shorter or longer.
            file.truncate(min(len(whole), len(text)))
            file.write(whole[len(text) :] + line.encode())


def _whole_lines(text: bytes) -> bytes:
    """Cut off the unfinished last line of a killed process; end all other lines."""
    *lines, last_line = text.split(b"\n")
    with suppress(ValueError):
        json.loads(last_line)
        lines.append(last_line)
    return b"".join(line + b"\n" for line in lines)


def table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> list[str]:
    """Format the lines of a Markdown table."""

    def line(cells: Sequence[object]) -> str:
        return f"| {' | '.join(map(str, cells))} |"

    return [line(head), "|---" * len(head) + "|", *map(line, rows)]


def interval(values: Sequence[float]) -> tuple[float, float, float | None, float | None]:
    """Compute Student's t interval and test of a mean over seeds.

    Returns:
        mean, standard error, half width of the 95 % interval, and p of a mean of 0. One seed has
        no half width and no p. Equal differences have no spread to test a mean by: their p is
        `None`, or 1 if all are 0.
    """
    num_seeds = len(values)
    mean = fmean(values)
    if num_seeds < 2:
        return mean, math.nan, None, None
    if max(values) - min(values) < ROUNDING:
        return mean, 0.0, 0.0, 1.0 if abs(mean) < ROUNDING else None
    standard_error = stdev(values) / math.sqrt(num_seeds)
    half_width = float(t.ppf(1 - TAIL, num_seeds - 1)) * standard_error
    p_value = 2 * float(t.sf(abs(mean) / standard_error, num_seeds - 1))
    return mean, standard_error, half_width, p_value


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number, by Holm's step-down procedure.

    Source: Holm, "A simple sequentially rejective multiple test procedure", 1979.

    Args:
        p_values: Of all tests of a family.

    Returns:
        Adjusted p-values, in the order of `p_values`; values up to .05 survive at level .05.
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
    """Format the mean with the interval in brackets; a single seed has no interval."""
    mean, _, half_width, _ = interval(values)
    if half_width is None:
        return f"{mean:+.3f}"
    return f"{mean:+.3f} [{mean - half_width:+.3f}, {mean + half_width:+.3f}]"
