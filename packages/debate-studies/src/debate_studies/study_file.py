"""The file of a study: its arms, seeds, measures, comparisons, and whether they can be run."""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, NonNegativeInt, model_validator

from debate_protocol.plugins import Config
from debate_train.errors import UsageError
from debate_train.models import ModelConfig
from debate_train.recipe import FolderName, Recipe
from debate_train.recipe.files import LoadedRecipe, find_recipe, load_recipe
from debate_train.recipe.reading import read_yaml

BEFORE = "start"
"""Stands for an arm's own measures before it."""


Arithmetic = Literal[
    "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "DNNL_MAX_CPU_ISA", "MKL_CBWR",
    "MKL_DYNAMIC", "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS",
]  # fmt: skip
"""Variables that change how numbers are added up, and nothing else: a study may be a stranger's."""


class Run(Config):
    """What starts and arms have in common."""

    recipe: str
    """A file, relative to that of the study that is run, or a name of `debate-train recipes`."""
    start: str | None = None
    """The start whose last checkpoint it begins with; phases that two starts name run again."""
    settings: tuple[str, ...] = ()
    """May hold {seed}, and in arms {tpr} and {fpr}: `call_rates` of the judge of the start."""


class StartingRun(Run):
    """Phases that several arms begin with, trained once for each seed."""

    phases: tuple[str, ...]
    """Those that the arms leave out."""


class Arm(Run):
    """What is compared: a run of each seed."""

    seeds: tuple[NonNegativeInt, ...] | None = None
    """None takes the seeds of the study."""


class Compared(Config):
    """A difference that is tested: what an arm gained, or gained more than another."""

    arm: str
    """Whose measures count as they are."""
    over: str = BEFORE
    """`start`: after minus before; the name of an arm: after minus after, paired by seed."""
    gains: bool = False
    """Compare what both have gained, where they do not begin with the same weights."""
    measures: tuple[str, ...]
    """Names of the study's measures."""


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
    starts: dict[FolderName, StartingRun] = Field(default_factory=dict)
    """By name."""
    arms: Annotated[dict[FolderName, Arm], BeforeValidator(_without_empty)] = Field(min_length=1)
    """By name; null takes away one of the study that this one extends."""
    measures: dict[str, str] = Field(min_length=1)
    """Name in tables: name in results.json."""
    curves: dict[str, str] = Field(default_factory=dict)
    """Name: name in metrics.jsonl, kept step by step."""
    totals: dict[str, str] = Field(default_factory=dict)
    """Name: name in metrics.jsonl, summed over the steps of an arm: what it took."""
    compared: tuple[Compared, ...] = ()
    """Differences that are tested."""
    plot: tuple[str, ...] = ()
    """Measures of the plot, or curves."""

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
            for name in {one.arm, one.over} - {BEFORE, *self.arms}:
                raise ValueError(f"compared: {name!r} is not among the arms")
            for measure in {*one.measures} - {*self.measures}:
                raise ValueError(f"compared: {measure!r} is not among the measures")
        for measure in set(self.plot) - set(self.measures) - set(self.curves):
            raise ValueError(f"plot: {measure!r} is among neither the measures nor the curves")
        return self

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

    It never shares files of results and tables with the study that it extends.

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


_RATES = {"tpr": 0.9, "fpr": 0.2}
"""Those of a judge, before there is one."""
_CHECKPOINT = ("model.type=pretrained", "model.name=start", "model.dtype=float32")


def loaded_runs(
    study: Study, folder: Path
) -> Iterator[tuple[str, LoadedRecipe[Recipe], ModelConfig]]:
    """Yield the key of each start and arm with its recipe, and the model that it is made from.

    An arm's recipe names the checkpoint of its start, which there is not yet.

    Args:
        study: Whose runs are read.
        folder: Of its file.

    Raises:
        UsageError: A run is not a recipe, has no such phase, or does not measure what it should.
    """
    models: dict[str | None, ModelConfig] = {}
    measured: dict[str, Collection[str]] = {}
    for name, start in study.starts.items():
        loaded = _loaded(f"starts.{name}", start, study, folder, study.left_out(name))
        models[name] = models.get(start.start, loaded.recipe.model)
        yield f"starts.{name}", loaded, models[name]
    for name, arm in study.arms.items():
        left_out = study.left_out(arm.start) if arm.start else set[str]()
        loaded = _loaded(f"arms.{name}", arm, study, folder, left_out)
        measured[name] = loaded.recipe.evaluated().measured()
        yield f"arms.{name}", loaded, models.get(arm.start, loaded.recipe.model)
    _refuse_measures(study, measured)


def output_problems(study: Study, folder: Path) -> Iterator[str]:
    """Yield why files that a study names must not be written: it may be somebody else's."""
    begin = {"page": (".md", f"# Study {study.name}\n"), "results": (".jsonl", '{"arm"')}
    for key, (suffix, first) in begin.items():
        if (named := getattr(study, key)) is None:
            continue
        path = folder / named
        if path.suffix != suffix:
            yield f"{key}: found {named!r}; expected a name that ends in {suffix}"
        elif path.is_file() and not path.is_symlink():
            text = path.read_bytes()
            if text and not text.startswith(first.encode()):
                yield f"{key}: found {named!r}, a file that this study has not made"
        elif (
            os.path.lexists(path)
            or not path.resolve().is_relative_to(folder.resolve())
            or (key == "page" and path.with_suffix(".svg").exists())
        ):
            yield f"{key}: found {named!r}; expected a new file below {folder}"


def _loaded(
    key: str, run: StartingRun | Arm, study: Study, folder: Path, left_out: set[str]
) -> LoadedRecipe[Recipe]:
    """Return a run's recipe, of whose phases some are left out."""
    values = {"seed": study.all_seeds()[0]} | ({} if run.start is None else _RATES)
    named = f"name={key.partition('.')[2]}-{max(study.all_seeds())}"
    own = [named, *(filled(setting, values) for setting in run.settings)]
    shared = [filled(setting, values) for setting in study.settings]
    if run.start is not None:
        shared = [*without_scratch(shared), *_CHECKPOINT]
    try:
        loaded = load_recipe(recipe_file(run.recipe, folder), [*shared, *own], model=Recipe)
        if loaded.recipe.evaluation.questions == 0:  # It would write no results.
            raise UsageError("evaluation.questions: found 0; expected at least 1")
        for phase in sorted(left_out - {*loaded.phases}):
            known = ", ".join(loaded.phases) or "none"
            raise UsageError(f"found no phase {phase!r}; expected one of the recipe's: {known}")
        return loaded
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from error


def _refuse_measures(study: Study, measured: Mapping[str, Collection[str]]) -> None:
    """Refuse a measure that no arm has, or that an arm has not which is compared by it."""
    known = sorted({name for names in measured.values() for name in names})
    for name, measure in study.measures.items():
        compared = [
            {one.arm, one.over} - {BEFORE} for one in study.compared if name in one.measures
        ]
        for arm in sorted({arm for arms in compared for arm in arms}):
            if measure not in measured[arm]:
                raise UsageError(
                    f"arms.{arm}: measures.{name}: found {measure!r}, which the arm does not "
                    f"measure; expected one of {', '.join(measured[arm])}"
                )
        if measure not in known:
            raise UsageError(
                f"measures.{name}: found {measure!r}, which no arm measures; expected one of "
                f"{', '.join(known)}"
            )
