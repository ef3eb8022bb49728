"""The file of a study: its arms, seeds, measures and what is compared."""

from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import Field, model_validator

from debate_protocol.config import Config


class Start(Config):
    """Phases that several arms begin with."""

    recipe: str
    start: str | None = None
    """Another start that this one goes on from; phases of both are gone through again."""
    settings: tuple[str, ...] = ()
    """Of this run alone; they end it before the phase that the arms differ in."""
    phases: tuple[str, ...]
    """Those that the arms leave out."""


class Arm(Config):
    """A run of each seed."""

    recipe: str
    start: str | None = None
    settings: tuple[str, ...] = ()
    """They may hold {tpr} and {fpr}: `call_rates` of the judge that the start has."""
    seeds: tuple[int, ...] | None = None
    """None: those of the study."""


class Compared(Config):
    """A difference that is tested: what an arm gained, or gained more than another."""

    arm: str
    over: str = "start"
    """`start`: after minus before; the name of an arm: after minus after, paired by seed."""
    measures: tuple[str, ...]


class Levels(Config):
    """Gains of arms that differ in a level: the table says what and where they change sign."""

    name: str
    measure: str
    levels: dict[float, str] = Field(min_length=2)
    """Level: arm."""
    over: dict[float, str] | None = None
    """Level: arm whose gain is taken off, paired by seed."""
    place: str | None = None
    """Measure whose mean before stands in the place of the level, as judges reach it."""


class LevelPlot(Config):
    """A plot of mean gains by level, a line for each of some `by_level`, with intervals."""

    title: str
    across: str
    """What levels are levels of."""
    lines: tuple[str, ...] = Field(min_length=1)
    even: bool = False
    """Whether levels are equally far from each other, as shares of labels should be."""


class Worth(Config):
    """What an arm with few labels gains, in labels that gain as much without what else it has."""

    name: str
    measure: str
    arm: str
    share: float = Field(gt=0, le=1)
    """Of the questions whose labels the arm has."""
    line: dict[float, str] = Field(min_length=2)
    """Share of labels: the arm that has these alone."""


class Study(Config):
    """A file of benchmarks/studies/."""

    name: str
    seeds: tuple[int, ...] = Field(min_length=1)
    settings: tuple[str, ...] = ()
    """Of every run."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Variables that every run has beside the caller's, such as for another arithmetic."""
    starts: dict[str, Start] = Field(default_factory=dict)
    arms: dict[str, Arm] = Field(min_length=1)
    measures: dict[str, str] = Field(min_length=1)
    """Name in tables: name in results.json."""
    curves: dict[str, str] = Field(default_factory=dict)
    """Name: name in metrics.jsonl, kept step by step."""
    compared: tuple[Compared, ...] = ()
    by_level: tuple[Levels, ...] = ()
    worths: tuple[Worth, ...] = ()
    plot: tuple[str, ...] = ()
    """Measures of the plot, or curves."""
    level_plots: tuple[LevelPlot, ...] = ()
    """What stands above these."""

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        earlier: list[str] = []
        for name, start in self.starts.items():
            if start.start is not None and start.start not in earlier:
                raise ValueError(f"starts.{name}.start: {start.start!r} is no start above it")
            earlier.append(name)
        for name, arm in self.arms.items():
            if arm.start is not None and arm.start not in self.starts:
                raise ValueError(f"arms.{name}.start: {arm.start!r} is not among the starts")
        for one in self.compared:
            for name in {one.arm, one.over} - {"start"}:
                if name not in self.arms:
                    raise ValueError(f"compared: {name!r} is not among the arms")
            for measure in set(one.measures) - set(self.measures):
                raise ValueError(f"compared: {measure!r} is not among the measures")
        for measure in set(self.plot) - set(self.measures) - set(self.curves):
            raise ValueError(f"plot: {measure!r} is among neither the measures nor the curves")
        return self

    @model_validator(mode="after")
    def _levels_are_known(self) -> Self:
        for one in self.by_level:
            if one.over is not None and one.over.keys() != one.levels.keys():
                raise ValueError(f"by_level: {one.name!r} has other levels in over")
            self._check({*one.levels.values(), *(one.over or {}).values()}, one.measure, one.place)
        for plot in self.level_plots:
            for name in {*plot.lines} - {one.name for one in self.by_level}:
                raise ValueError(f"level_plots: {name!r} is not among by_level")
        for worth in self.worths:
            self._check({worth.arm, *worth.line.values()}, worth.measure)
        return self

    def _check(self, arms: set[str], *measures: str | None) -> None:
        for name in arms - set(self.arms):
            raise ValueError(f"by_level or worths: {name!r} is not among the arms")
        for measure in {*measures} - {None, *self.measures}:
            raise ValueError(f"by_level or worths: {measure!r} is not among the measures")

    def left_out(self, name: str) -> set[str]:
        """Return the phases that runs from a start leave out."""
        start = self.starts[name]
        return {*start.phases} | (self.left_out(start.start) if start.start else set())

    def all_seeds(self) -> list[int]:
        """Return the seeds of all arms, in order of their first mention."""
        each = [self.seeds, *(arm.seeds or () for arm in self.arms.values())]
        return list(dict.fromkeys(seed for seeds in each for seed in seeds))

    def arms_of(self, seed: int) -> dict[str, Arm]:
        """Return the arms that have this seed."""
        found = self.arms.items()
        return {name: arm for name, arm in found if seed in (arm.seeds or self.seeds)}


def read_study(file: Path) -> Study:
    """Read the file of a study.

    With `like: FILE`, a study beside it, it has all keys of that one that it does not have itself.

    Raises:
        ValueError: It is not one (pydantic's ValidationError).
    """
    return Study.model_validate(_keys(file))


def _keys(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    like = found.pop("like", None)
    return found if like is None else _keys(file.parent / like) | found
