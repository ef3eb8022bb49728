"""The file of a study: its arms, seeds, measures and what is compared."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, model_validator

from debate_protocol.config import Config
from debate_train.errors import UsageError
from debate_train.reading.folder_name import FolderName
from debate_train.reading.recipe_file import load_recipe
from debate_train.reading.recipe_source import read_yaml
from debate_train.reading.shipped_recipes import find_recipe

BEFORE = "start"
"""Stands for an arm's own measures before it."""


Arithmetic = Literal[
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_DYNAMIC",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS",
]
"""Variables that change how numbers are added up, and nothing else: a study may be a stranger's."""


class Start(Config):
    """Phases that several arms begin with, trained once for each seed."""

    recipe: str
    """A file, relative to that of the study that is run, or a name of `debate-train recipes`."""
    start: str | None = None
    """Another start that this one begins with; phases that both name are run again."""
    settings: tuple[str, ...] = ()
    """Of this run alone; they end it before the phase that the arms differ in."""
    phases: tuple[str, ...]
    """Those that the arms leave out."""


class Arm(Config):
    """What is compared: a run of each seed."""

    recipe: str
    """A file, relative to that of the study that is run, or a name of `debate-train recipes`."""
    start: str | None = None
    """The start whose last checkpoint it begins with."""
    settings: tuple[str, ...] = ()
    """They may hold {seed}, and {tpr} and {fpr}: `call_rates` of the judge that the start has."""
    seeds: tuple[NonNegativeInt, ...] | None = None
    """None: those of the study."""


class Compared(Config):
    """A difference that is tested: what an arm gained, or gained more than another."""

    arm: str
    """Whose measures count as they are."""
    over: str = BEFORE
    """`start`: after minus before; the name of an arm: after minus after, paired by seed."""
    measures: tuple[str, ...]
    """Names of the study's measures."""


class Levels(Config):
    """Gains of arms that differ in a level: the table says what and where they change sign."""

    name: str
    """In tables and plots."""
    measure: str
    """Name of one of the study's measures."""
    levels: dict[float, str] = Field(min_length=2)
    """Level: arm."""
    over: dict[float, str] | None = None
    """Level: arm whose gain is taken off, paired by seed."""
    place: str | None = None
    """Measure whose mean before stands in the place of the level, as judges reach it."""


class LevelPlot(Config):
    """A plot of mean gains by level, a line for each of some `by_level`, with intervals."""

    title: str
    """What stands above it."""
    across: str
    """What levels are levels of."""
    lines: tuple[str, ...] = Field(min_length=1)
    """Names of `by_level`."""
    even: bool = False
    """Whether levels are equally far from each other, as shares of labels should be."""


class Worth(Config):
    """What an arm with few labels gains, in labels that gain as much without what else it has."""

    name: str
    """In the table."""
    measure: str
    """Name of one of the study's measures."""
    arm: str
    """The arm with few labels."""
    share: float = Field(gt=0, le=1)
    """Of the questions whose labels the arm has."""
    line: dict[float, str] = Field(min_length=2)
    """Share of labels: the arm that has these alone."""


def _without_empty(arms: object) -> object:
    """Leave out arms that a study takes away from the one that it extends: `arm: null`."""
    given = arms if isinstance(arms, dict) else {}
    return {name: arm for name, arm in given.items() if arm is not None} or arms


class Study(Config):
    """Arms of recipes over seeds, what is measured of them and what is compared."""

    name: FolderName
    """Names the folder of its runs, and their group in W&B."""
    about: str = ""
    """Markdown that its page begins with."""
    results: str | None = None
    """File of finished runs, relative to the study's; None is results.jsonl among the runs."""
    page: str | None = None
    """File of tables, relative to the study's, beside a plot; None is study.md among the runs."""
    seeds: tuple[NonNegativeInt, ...] = Field(min_length=1)
    """Of the arms that name none; each is the `seed` of its runs."""
    settings: tuple[str, ...] = ()
    """Of every run; they may hold {seed}, as in data.seed={seed}."""
    environment: dict[Arithmetic, str] = Field(default_factory=dict)
    """Variables that every run has beside the caller's; those of another arithmetic alone."""
    starts: dict[FolderName, Start] = Field(default_factory=dict)
    """By name."""
    arms: Annotated[dict[FolderName, Arm], BeforeValidator(_without_empty)] = Field(min_length=1)
    """By name; null takes away one of the study that this one extends."""
    measures: dict[str, str] = Field(min_length=1)
    """Name in tables: name in results.json."""
    curves: dict[str, str] = Field(default_factory=dict)
    """Name: name in metrics.jsonl, kept step by step."""
    compared: tuple[Compared, ...] = ()
    """Differences that are tested."""
    by_level: tuple[Levels, ...] = ()
    """Gains by level."""
    worths: tuple[Worth, ...] = ()
    """What arms are worth in labels."""
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
            if name == BEFORE:
                raise ValueError(f"arms.{name}: means the measures before; expected another name")
            if name in self.starts:
                raise ValueError(f"arms.{name}: is the name of a start, too; expected another")
            if arm.start is not None and arm.start not in self.starts:
                raise ValueError(f"arms.{name}.start: {arm.start!r} is not among the starts")
        for one in self.compared:
            self._check("compared", {one.arm, one.over} - {BEFORE}, *one.measures)
        for measure in set(self.plot) - set(self.measures) - set(self.curves):
            raise ValueError(f"plot: {measure!r} is among neither the measures nor the curves")
        return self

    @model_validator(mode="after")
    def _levels_are_known(self) -> Self:
        for one in self.by_level:
            if one.over is not None and one.over.keys() != one.levels.keys():
                raise ValueError(f"by_level: {one.name!r} has other levels in over")
            arms = {*one.levels.values(), *(one.over or {}).values()}
            self._check("by_level", arms, one.measure, one.place)
        for plot in self.level_plots:
            for name in {*plot.lines} - {one.name for one in self.by_level}:
                raise ValueError(f"level_plots: {name!r} is not among by_level")
            placed = [one.name for one in self.by_level if one.place and one.name in plot.lines]
            if plot.even and placed:
                raise ValueError(f"level_plots: {placed[0]!r} has a place; expected even: false")
        for worth in self.worths:
            self._check("worths", {worth.arm, *worth.line.values()}, worth.measure)
        return self

    def _check(self, key: str, arms: set[str], *measures: str | None) -> None:
        for name in arms - set(self.arms):
            raise ValueError(f"{key}: {name!r} is not among the arms")
        for measure in {*measures} - {None, *self.measures}:
            raise ValueError(f"{key}: {measure!r} is not among the measures")

    @property
    def has_plot(self) -> bool:
        """Whether anything is drawn."""
        return bool(self.plot or self.level_plots)

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
    """Read the file of a study, with `extends: FILE` on top of another.

    Files of results and tables are never those of the study that it extends.

    Raises:
        UsageError: It is not one.
    """
    if not file.is_file():
        raise UsageError(f"{file}: found no such file; expected that of a study (.yaml)")
    study = load_recipe(file, model=Study).recipe
    own = read_yaml(file).data
    if "name" not in own:
        raise UsageError(f"{file}: name: missing; expected a name of its own, as its runs have")
    kept = {name: getattr(study, name) if name in own else None for name in ("results", "page")}
    return study.model_copy(update=kept)


def made_by(study: Study, name: str) -> str:
    """Return a hash of what decides about the runs of an arm: recipes and settings, no seed."""
    arm = study.arms[name]
    decisive: list[object] = [arm.recipe, study.settings, arm.settings, study.environment]
    start = arm.start
    while start is not None:
        own = study.starts[start]
        decisive += [own.recipe, own.settings, own.phases]
        start = own.start
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:12]


def recipe_file(recipe: str, folder: Path) -> Path:
    """Return the file of a recipe that a study in this folder names.

    Raises:
        RecipeError: There is none.
    """
    beside = folder / recipe
    return (beside if beside.is_file() else find_recipe(recipe)).resolve()


def without_scratch(settings: Sequence[str]) -> list[str]:
    """Return settings without those of a model from scratch, which a checkpoint does not take."""
    from debate_train.models import PretrainedModel

    def holds(setting: str) -> bool:
        first, *rest = setting.partition("=")[0].strip().split(".")
        return first != "model" or (bool(rest) and rest[0] in PretrainedModel.model_fields)

    return [setting for setting in settings if holds(setting)]


def filled(setting: str, values: Mapping[str, float]) -> str:
    """Return a setting with numbers, six digits of fractions, in the place of names in braces."""
    for name, value in values.items():
        shown = f"{value:.6f}" if isinstance(value, float) else str(value)
        setting = setting.replace(f"{{{name}}}", shown)
    return setting
