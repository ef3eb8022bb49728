"""Finished runs of a study, a line each, and what their levels say."""

import fcntl
import json
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING

from pydantic import Field, ValidationError
from scipy.stats import t

from debate_protocol.plugins import Config
from debate_train.checkpoints.run_directory import as_written, with_hash
from debate_train.checkpoints.whole_files import open_plain
from debate_train.interrupts import UsageError

if TYPE_CHECKING:
    from debate_studies.study_file import Levels, Study, Worth


class Finished(Config):
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


Runs = Mapping[tuple[str, int], Finished]
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

    def read(self) -> list[Finished]:
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

    def _read(self, number: int, line: bytes) -> Finished:
        try:
            found = json.loads(line)
            if isinstance(found, dict) and "sha256" in found:  # Earlier versions wrote none.
                found = as_written(line)
                if found is None:
                    raise UsageError(
                        f"{self.file}:{number}: is not as it was written (SHA-256 differs); put "
                        "the line back, or remove it to run its arm and seed again"
                    )
            return Finished.model_validate(found)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise UsageError(
                f"{self.file}:{number}: {where}: {first['msg']}; expected a finished run"
            ) from error

    def done(self) -> set[tuple[str, int]]:
        """Return the arm and the seed of each."""
        return {(run.arm, run.seed) for run in self.read()}

    def add(self, run: Finished) -> None:
        """Write a line at the end, at once, unless another call has written one of its run."""
        line = json.dumps(with_hash(run.model_dump(exclude_defaults=True))) + "\n"
        number = open_plain(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        with os.fdopen(number, "a+b") as file:
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


Point = tuple[float, float]
RESAMPLES = 2000
TAIL = 0.025


def interval(values: Sequence[float]) -> tuple[float, float, float | None, float | None]:
    """Return mean, standard error, half width of the interval and p; None of one seed."""
    if len(values) < 2:
        return fmean(values), math.nan, None, None
    mean, error = fmean(values), stdev(values) / math.sqrt(len(values))
    freedom = len(values) - 1
    half = float(t.ppf(1 - TAIL, freedom)) * error
    p = 2 * float(t.sf(abs(mean) / error, freedom)) if error else float(mean == 0)
    return mean, error, half, p


def with_interval(values: Sequence[float]) -> str:
    """Return the mean with its interval in brackets; one seed has none."""
    mean, _, half, _ = interval(values)
    ends = "" if half is None else f" [{mean - half:+.3f}, {mean + half:+.3f}]"
    return f"{mean:+.3f}{ends}"


def counted(one: "Levels", runs: Runs) -> Runs:
    """Return the runs that gains by level are made of.

    A start that missed its criterion gives arms a gain of 0; where levels have a place, such as
    the accuracy that judges were to reach, it has not reached its level, and is left out.
    """
    return {key: run for key, run in runs.items() if run.start_met or one.place is None}


def level_tables(study: "Study", runs: Runs) -> list[str]:
    """Return the tables that a study asks for."""
    found: list[str] = []
    if study.by_level:
        found += [
            "",
            "| gain by level | measure | mean | sign changes at [95 %] | over all levels [95 %] |",
            "|---|---|---|---|---|",
        ]
        found += [_sign_row(one, counted(one, runs)) for one in study.by_level]
    if study.worths:
        found += ["", "| arm | measure | worth [95 %] |", "|---|---|---|"]
        found += [_worth_row(one, runs) for one in study.worths]
    return found


def sign_change(points: Sequence[Point]) -> float | None:
    """Return the first place at which a curve of straight lines changes sign; None without one.

    Args:
        points: Place and value, by place. A value of 0 has no sign: a curve that touches 0 and
            turns back does not change it, one that goes on does so where it is first 0.
    """
    for here in range(1, len(points)):
        x, y = points[here]
        earlier = [number for number in range(here) if points[number][1]]
        if not y or not earlier or y * points[earlier[-1]][1] > 0:
            continue
        if earlier[-1] + 1 < here:
            return points[earlier[-1] + 1][0]
        return _zero(points[here - 1], (x, y))
    return None


def reached(points: Sequence[Point], value: float) -> float:
    """Return the least place at which a curve of straight lines is at least a value.

    It is −inf where the curve is above the value from its first point on, inf where it never is.
    """
    for here, (x, y) in enumerate(points):
        if y >= value:
            if here == 0:
                return x if y == value else -math.inf
            before = points[here - 1]
            return _zero((before[0], before[1] - value), (x, y - value))
    return math.inf


def resampled(seeds: Sequence[int], figure: Callable[[Sequence[int]], float | None]) -> list[float]:
    """Return a figure of resampled seeds, sorted, where there is one."""
    draws = random.Random(0)
    found = (figure(draws.choices(seeds, k=len(seeds))) for _ in range(RESAMPLES))
    return sorted(one for one in found if one is not None)


def _zero(low: Point, high: Point) -> float:
    return low[0] + (high[0] - low[0]) * low[1] / (low[1] - high[1])


def _gain(runs: Runs, arm: str, measure: str, seed: int) -> float | None:
    run = runs.get((arm, seed))
    if run is None or not run.start_met:
        return None if run is None else 0.0
    known = measure in run.before and measure in run.after
    return run.after[measure] - run.before[measure] if known else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [one for one in values if one is not None]
    return fmean(known) if known else None


def gains(one: "Levels", runs: Runs, seeds: Sequence[int]) -> list[tuple[float, list[float]]]:
    """Return the gain of each seed that reached a level, for each level at its place."""
    found = []
    for level, arm in one.levels.items():
        known = list[tuple[int, float]]()  # Seeds that are resampled come several times.
        for seed in seeds:
            gain = _gain(runs, arm, one.measure, seed)
            base = _gain(runs, one.over[level], one.measure, seed) if one.over else 0.0
            if gain is not None and base is not None:
                known.append((seed, gain - base))
        if known:
            starts = [runs[arm, seed].before for seed, _ in known]
            places = [start[one.place] for start in starts if one.place in start]
            found.append((fmean(places) if places else level, [value for _, value in known]))
    return sorted(found)


def _points(one: "Levels", runs: Runs, seeds: Sequence[int]) -> list[Point]:
    return [(place, fmean(values)) for place, values in gains(one, runs, seeds)]


def _sign_row(one: "Levels", runs: Runs) -> str:
    seeds = seeds_of(runs, [*one.levels.values()])
    points = _points(one, runs, seeds)
    shown = ", ".join(f"{place:.3f}: {value:+.3f}" for place, value in points) or "–"
    where = sign_change(points)
    if where is not None:
        drawn = resampled(seeds, lambda some: sign_change(_points(one, runs, some)))
        text = f"{where:.3f}" + _shown(drawn, seeds, "{:.3f}".format)
        if len(drawn) < RESAMPLES:
            text += f"; no change in {1 - len(drawn) / RESAMPLES:.0%} of resamples"
    elif points:
        signs = {value > 0 for _, value in points if value}
        text = "no change of sign: " + _side(signs)
    else:
        text = "no finished run"
    return f"| {one.name} | {one.measure} | {shown} | {text} | {_over_levels(one, runs, seeds)} |"


def _over_levels(one: "Levels", runs: Runs, seeds: Sequence[int]) -> str:
    """Return the mean over levels, of the seeds that have all, with Student's interval."""
    each = [[values for _, values in gains(one, runs, [seed])] for seed in seeds]
    means = [fmean(own[0] for own in gain) for gain in each if len(gain) == len(one.levels)]
    if not means:
        return "–"
    return f"{with_interval(means)}, {len(means)} seed{'s' if len(means) > 1 else ''}"


def _side(signs: set[bool]) -> str:
    if not signs:
        return "0 at every level"
    return "nowhere below 0" if signs == {True} else "nowhere above 0"


def _worth_row(one: "Worth", runs: Runs) -> str:
    seeds = seeds_of(runs, [one.arm, *one.line.values()])

    def worth(some: Sequence[int]) -> float | None:
        value = _mean([_gain(runs, one.arm, one.measure, seed) for seed in some])
        line = [
            (share, gain)
            for share, arm in sorted(one.line.items())
            if (gain := _mean([_gain(runs, arm, one.measure, seed) for seed in some])) is not None
        ]
        return reached(line, value) / one.share if value is not None and line else None

    def said(times: float) -> str:
        if math.isinf(times):
            end = max(one.line) if times > 0 else min(one.line)
            return f"{'more' if times > 0 else 'less'} than {end / one.share:.2f}"
        return f"{times:.2f}"

    times = worth(seeds) if seeds else None
    if times is None:
        return f"| {one.name} | {one.measure} | no finished run |"
    text = f"{said(times)}{_shown(resampled(seeds, worth), seeds, said)} times the labels"
    return f"| {one.name} | {one.measure} | {text} |"


def _shown(drawn: Sequence[float], seeds: Sequence[int], said: Callable[[float], str]) -> str:
    """Return the interval in brackets; one seed has none."""
    if len(seeds) < 2 or not drawn:
        return ""
    last = len(drawn) - 1
    return f" [{said(drawn[round(TAIL * last)])}, {said(drawn[round((1 - TAIL) * last)])}]"
