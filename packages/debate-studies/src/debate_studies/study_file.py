"""The file of a study: its arms, seeds, measures, comparisons, and whether they can be run."""

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    field_validator,
    model_validator,
)

from debate_protocol.plugins import Config
from debate_train.errors import UsageError
from debate_train.models import ModelConfig
from debate_train.recipe import FolderName, Recipe
from debate_train.recipe.files import LoadedRecipe, find_recipe, load_recipe
from debate_train.recipe.reading import read_yaml

BEFORE = "start"
"""In a comparison: an arm's measures before its run."""

Arithmetic = Literal[
    "ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "DNNL_MAX_CPU_ISA", "MKL_CBWR",
    "MKL_DYNAMIC", "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE", "OPENBLAS_NUM_THREADS",
]  # fmt: skip
"""Variables that change only how numbers are added up: a study may come from a stranger."""

_EXPECTED_RATES = {"tpr": 0.9, "fpr": 0.2}
"""Rates of a judge that is not trained yet."""
_EXPECTED_CHECKPOINT = ("model.type=pretrained", "model.name=start", "model.dtype=float32")
"""Settings of a start's checkpoint that is not written yet."""


def _leave_the_seed(settings: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a fixed seed, with which all runs of an arm would be the same run."""
    for setting in settings:
        key, _, value = setting.partition("=")
        if key.strip() == "seed" and "{seed}" not in value:
            raise ValueError(f"found {setting!r}; expected seeds, which the study gives its runs")
    return settings


def _once_each(seeds: tuple[int, ...] | None) -> tuple[int, ...] | None:
    if seeds is not None and len(set(seeds)) < len(seeds):
        raise ValueError(f"found {', '.join(map(str, seeds))}; expected each seed once")
    return seeds


Settings = Annotated[tuple[str, ...], AfterValidator(_leave_the_seed)]


class Run(Config):
    """The common settings of starts and arms."""

    recipe: str
    """A file, relative to the study's, or a name of `debate-train recipes`."""
    start: str | None = None
    """The run begins with this start's last checkpoint; phases that two starts name run again."""
    settings: Settings = ()
    """Settings with {seed}, and in arms {tpr} and {fpr}: `call_rates` of the start's judge."""


class StartingRun(Run):
    """Phases that several arms begin with, trained once for each seed."""

    phases: tuple[str, ...]
    """Phases that the arms leave out."""


class Arm(Run):
    """A variant in the comparison, run once for each seed."""

    seeds: Annotated[tuple[NonNegativeInt, ...] | None, AfterValidator(_once_each)] = None
    """None takes the seeds of the study."""


class Compared(Config):
    """A difference to test: the gain of an arm, or its gain over another arm."""

    arm: str
    """The arm whose measures count with a plus."""
    over: str = BEFORE
    """`start`: after minus before; the name of an arm: after minus after, paired by seed."""
    gains: bool = False
    """Compare the gains of both, for arms that begin with different weights."""
    measures: tuple[str, ...]
    """Names of the study's measures."""
    expected: float | None = None
    """The expected difference, other than 0: tables count the seeds that would show it."""

    @field_validator("expected")
    @classmethod
    def _expected_is_a_difference(cls, expected: float | None) -> float | None:
        if expected == 0:
            raise ValueError("found 0; expected a difference other than 0, or null")
        return expected


def _without_empty(arms: object) -> object:
    """Remove arms of an extended study: `arm: null`."""
    if not isinstance(arms, dict):
        return arms
    remaining = {name: arm for name, arm in arms.items() if arm is not None}
    # Without any arm, the validation error shows the arms as written.
    return remaining or arms


class Study(Config):
    """Arms of recipes over seeds, with their measures and comparisons."""

    name: FolderName
    """Name of the folder of its runs, and of their group in W&B."""
    about: str = ""
    """Markdown at the top of its page."""
    results: str | None = None
    """File of finished runs, relative to the study's; None is results.jsonl among the runs."""
    page: str | None = None
    """File of tables, relative to the study's, beside a plot; None is study.md among the runs."""
    seeds: Annotated[tuple[NonNegativeInt, ...], AfterValidator(_once_each)] = Field(min_length=1)
    """Seeds of the arms that name none; each is the `seed` of its runs."""
    settings: Settings = ()
    """Settings of every run; they may have {seed}, as in data.seed={seed}."""
    environment: dict[Arithmetic, str] = Field(default_factory=dict)
    """Environment variables of every run that choose its arithmetic."""
    starts: dict[FolderName, StartingRun] = Field(default_factory=dict)
    """By name."""
    arms: Annotated[dict[FolderName, Arm], BeforeValidator(_without_empty)] = Field(min_length=1)
    """By name; null removes an arm of the extended study."""
    measures: dict[str, str] = Field(min_length=1)
    """Name in tables: name in results.json."""
    curves: dict[str, str] = Field(default_factory=dict)
    """Name: name in metrics.jsonl, recorded step by step."""
    totals: dict[str, str] = Field(default_factory=dict)
    """Name: name in metrics.jsonl, summed over the steps of an arm, such as a cost."""
    compared: tuple[Compared, ...] = ()
    """Differences to test."""
    plot: tuple[str, ...] = ()
    """Measures of the plot, or curves."""

    @model_validator(mode="after")
    def _names_are_known(self) -> Self:
        # A start begins only with one above it, so that starts never form a circle.
        starts_above: list[str] = []
        for name, start in self.starts.items():
            if start.start is not None and start.start not in starts_above:
                raise ValueError(f"starts.{name}.start: {start.start!r} is no start above it")
            starts_above.append(name)
        for name, arm in self.arms.items():
            if name == BEFORE:
                raise ValueError(f"arms.{name}: means the measures before; expected another name")
            if name in self.starts:
                raise ValueError(f"arms.{name}: is the name of a start, too; expected another")
            if arm.start is not None and arm.start not in self.starts:
                raise ValueError(f"arms.{name}.start: {arm.start!r} is not among the starts")
        for comparison in self.compared:
            if comparison.arm == comparison.over:
                raise ValueError(f"compared: found {comparison.arm!r} over itself")
            for name in {comparison.arm, comparison.over} - {BEFORE, *self.arms}:
                raise ValueError(f"compared: {name!r} is not among the arms")
            for measure in set(comparison.measures) - set(self.measures):
                raise ValueError(f"compared: {measure!r} is not among the measures")
        for measure in set(self.plot) - set(self.measures) - set(self.curves):
            raise ValueError(f"plot: {measure!r} is among neither the measures nor the curves")
        return self

    def left_out(self, name: str) -> set[str]:
        """List the phases left out by runs from a start."""
        start = self.starts[name]
        phases = set(start.phases)
        if start.start:
            phases |= self.left_out(start.start)
        return phases

    def all_seeds(self) -> list[int]:
        """List the seeds of all arms, in order of their first mention."""
        seeds = list(self.seeds)
        for arm in self.arms.values():
            seeds += arm.seeds or ()
        return list(dict.fromkeys(seeds))

    def arms_of(self, seed: int) -> dict[str, Arm]:
        """Select the arms with this seed."""
        return {name: arm for name, arm in self.arms.items() if seed in (arm.seeds or self.seeds)}


def read_study(file: Path) -> Study:
    """Read the file of a study, with `extends: FILE` on top of another.

    Raises:
        UsageError: The file is no study.
    """
    if not file.is_file():
        raise UsageError(f"{file}: found no such file; expected that of a study (.yaml)")
    study = load_recipe(file, model=Study).recipe
    file_values = read_yaml(file).data
    if "name" not in file_values:
        raise UsageError(f"{file}: name: missing; expected a name of its own, as its runs have")
    # A study never writes into the files of the study that it extends.
    return study.model_copy(
        update={
            "results": study.results if "results" in file_values else None,
            "page": study.page if "page" in file_values else None,
        }
    )


def made_by(study: Study, name: str) -> str:
    """Hash the recipes and settings of an arm and its starts, without the seed."""
    arm = study.arms[name]
    decisive: list[object] = [arm.recipe, study.settings, arm.settings, study.environment]
    start_name = arm.start
    while start_name is not None:
        start = study.starts[start_name]
        decisive += [start.recipe, start.settings, start.phases]
        start_name = start.start
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()[:12]


def recipe_file(recipe: str, folder: Path) -> Path:
    """Find the file of a recipe that a study in this folder names.

    Raises:
        RecipeError: There is none.
    """
    file = folder / recipe
    if not file.is_file():
        file = find_recipe(recipe)
    return file.resolve()


def without_scratch(settings: Sequence[str]) -> list[str]:
    """Remove the settings of a model from scratch; a checkpoint takes no such settings."""
    from debate_train.models import PretrainedModel

    remaining = []
    for setting in settings:
        section, *keys = setting.partition("=")[0].strip().split(".")
        fits_checkpoint = bool(keys) and keys[0] in PretrainedModel.model_fields
        if section != "model" or fits_checkpoint:
            remaining.append(setting)
    return remaining


def filled(setting: str, values: Mapping[str, float]) -> str:
    """Replace names in braces by numbers, fractions with six digits."""
    for name, value in values.items():
        number = f"{value:.6f}" if isinstance(value, float) else str(value)
        setting = setting.replace(f"{{{name}}}", number)
    return setting


def loaded_runs(
    study: Study, folder: Path
) -> Iterator[tuple[str, LoadedRecipe[Recipe], ModelConfig]]:
    """Yield the key of each start and arm with the recipe, and the model to begin with.

    An arm's recipe names the start's checkpoint, not written yet.

    Args:
        study: The study.
        folder: Folder of the study's file.

    Raises:
        UsageError: A run is no recipe, lacks a phase, or lacks a measure.
    """
    models: dict[str | None, ModelConfig] = {}
    measures_by_arm: dict[str, Collection[str]] = {}
    for name, start in study.starts.items():
        loaded = _loaded(f"starts.{name}", start, study, folder, study.left_out(name))
        models[name] = models.get(start.start, loaded.recipe.model)
        yield f"starts.{name}", loaded, models[name]
    for name, arm in study.arms.items():
        left_out = study.left_out(arm.start) if arm.start else set[str]()
        loaded = _loaded(f"arms.{name}", arm, study, folder, left_out)
        if arm.start is not None:
            _refuse_late_measurement(f"arms.{name}", loaded, left_out)
        measures_by_arm[name] = loaded.recipe.evaluated().measured()
        yield f"arms.{name}", loaded, models.get(arm.start, loaded.recipe.model)
    _refuse_measures(study, measures_by_arm)


def output_problems(study: Study, folder: Path) -> Iterator[str]:
    """Yield why the files named by a study must not be written.

    A study may come from a stranger: it must not replace other files. New files go below the
    study's folder, or into a folder beside it, as benchmarks/data is beside benchmarks/studies.
    """
    outputs = (
        ("page", study.page, ".md", f"# Study {study.name}\n"),
        ("results", study.results, ".jsonl", '{"arm"'),
    )
    for key, file_name, suffix, beginning in outputs:
        if file_name is None:
            continue
        path = folder / file_name
        if path.suffix != suffix:
            yield f"{key}: found {file_name!r}; expected a name that ends in {suffix}"
            continue
        if path.is_file() and not path.is_symlink():
            text = path.read_bytes()
            if text and not text.startswith(beginning.encode()):
                yield f"{key}: found {file_name!r}, a file that this study has not made"
            continue
        is_taken = os.path.lexists(path)
        plot_is_taken = key == "page" and path.with_suffix(".svg").exists()
        if is_taken or plot_is_taken or not _is_within_reach(path, folder):
            yield (
                f"{key}: found {file_name!r}; expected a new file below {folder}, or in a folder "
                "beside it"
            )


def _is_within_reach(path: Path, folder: Path) -> bool:
    """Whether a file is below the study's folder, or in an existing folder beside it."""
    file, studies = path.resolve(), folder.resolve()
    is_beside = file.parent.parent == studies.parent and file.parent.is_dir()
    return is_beside or file.is_relative_to(studies)


def _loaded(
    key: str, run: StartingRun | Arm, study: Study, folder: Path, left_out: set[str]
) -> LoadedRecipe[Recipe]:
    """Load the recipe of a run, and check the recipe for the phases to leave out."""
    seeds = study.all_seeds()
    values: dict[str, float] = {"seed": seeds[0]}
    if run.start is not None:
        values |= _EXPECTED_RATES
    settings = [filled(setting, values) for setting in study.settings]
    if run.start is not None:
        settings = [*without_scratch(settings), *_EXPECTED_CHECKPOINT]
    # The name with the largest seed is the longest.
    settings.append(f"name={key.partition('.')[2]}-{max(seeds)}")
    settings += [filled(setting, values) for setting in run.settings]
    try:
        loaded = load_recipe(recipe_file(run.recipe, folder), settings, model=Recipe)
        if loaded.recipe.evaluation.questions == 0:
            # Without an evaluation it would write no results.
            raise UsageError("evaluation.questions: found 0; expected at least 1")
        for phase in sorted(left_out - {*loaded.phases}):
            known = ", ".join(loaded.phases) or "none"
            raise UsageError(f"found no phase {phase!r}; expected one of the recipe's: {known}")
        return loaded
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from error


def _refuse_late_measurement(key: str, loaded: LoadedRecipe[Recipe], left_out: set[str]) -> None:
    """Refuse an arm that learns from its start before it is measured for the first time."""
    before = loaded.recipe.evaluation.before
    learning_phases = [
        name for name, phase in loaded.phases.items() if name not in left_out and phase.steps != 0
    ]
    if before is False or not learning_phases:
        return
    # Without a name the last phase is meant, which may be one without steps.
    measured_phase = before if isinstance(before, str) else list(loaded.phases)[-1]
    all_phases = list(loaded.phases)
    first_phase = learning_phases[0]
    if all_phases.index(measured_phase) > all_phases.index(first_phase):
        raise UsageError(
            f"{key}: evaluation.before: found {measured_phase!r}, until whose start phase "
            f"{first_phase!r} learns; expected {first_phase!r}, as all arms of a start are "
            "compared with it"
        )


def _refuse_measures(study: Study, measures_by_arm: Mapping[str, Collection[str]]) -> None:
    """Refuse a measure missing in all arms, or in a compared arm."""
    all_measures = sorted(set().union(*measures_by_arm.values()))
    for name, measure in study.measures.items():
        compared_arms: set[str] = set()
        for comparison in study.compared:
            if name in comparison.measures:
                compared_arms |= {comparison.arm, comparison.over}
        for arm in sorted(compared_arms - {BEFORE}):
            if measure not in measures_by_arm[arm]:
                raise UsageError(
                    f"arms.{arm}: measures.{name}: found {measure!r}, which the arm does not "
                    f"measure; expected one of {', '.join(measures_by_arm[arm])}"
                )
        if measure not in all_measures:
            raise UsageError(
                f"measures.{name}: found {measure!r}, which no arm measures; expected one of "
                f"{', '.join(all_measures)}"
            )
