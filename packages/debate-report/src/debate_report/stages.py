"""The phases of a run as far as they reported, and what became of each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

import yaml

from debate_report.json_values import as_mapping, finite
from debate_report.run_files import Row, RunFiles

ALARM_PREFIX = "health/alarm/"
MAX_STEP = 1e12
MAX_NAME_CHARS = 80
IMITATING_LOSSES = ("sft",)


@dataclass(frozen=True, slots=True)
class Stage:
    """A phase that reported.

    Attributes:
        name: Its name in the recipe.
        rows: Its rows of metrics.
        minimums: Measures of its exit criterion, each with its least value.
        met: The step of the evaluation that reached them; `None` without one.
        has_ended: Whether the phase is over.
        was_kept: Whether `keep_if` kept its weights; `None` without a `keep_if`.
        muted: Streams of weight 0.
        imitates: Whether it learns from worked replies instead of rewards.
        starts_measured: Whether the test split was measured just before its first step.
    """

    name: str
    rows: tuple[Row, ...]
    minimums: Mapping[str, float]
    met: float | None
    has_ended: bool
    was_kept: bool | None
    muted: frozenset[str]
    imitates: bool = False
    starts_measured: bool = False

    @property
    def steps(self) -> tuple[float, float]:
        """The first and the last step."""
        steps = [step_of(row) for row in self.rows]
        return min(steps), max(steps)

    @property
    def span(self) -> tuple[float, float]:
        """The steps on the axis; a measurement before the first step is a step earlier."""
        first, last = self.steps
        if self.starts_measured:
            first = max(0.0, first - 1)
        return first, last

    @property
    def outcome(self) -> str:
        """`good` where it met the criterion or was kept, `bad` where it failed at either."""
        has_missed = bool(self.minimums) and self.met is None and self.has_ended
        if has_missed or self.was_kept is False:
            return "bad"
        return "good" if self.met is not None or self.was_kept else ""

    @property
    def criterion(self) -> str:
        """The outcome of the exit criterion in words."""
        if not self.minimums:
            return ""
        conditions = ", ".join(f"{name} ≥ {minimum:g}" for name, minimum in self.minimums.items())
        if self.met is not None:
            return f"✓ met at step {self.met:,.0f}: {conditions}"
        return f"✗ missed: {conditions}" if self.has_ended else f"not yet met: {conditions}"

    @property
    def keeping(self) -> str:
        """The outcome of `keep_if` in words."""
        if self.was_kept is None:
            return ""
        return "✓ kept" if self.was_kept else "✗ taken back"

    @property
    def alarms(self) -> list[tuple[float, str]]:
        """Alarms of the health monitor: step and detector."""
        alarms = []
        for row in self.rows:
            detectors = [key for key in row if key.startswith(ALARM_PREFIX)]
            for key in detectors:
                alarms.append((step_of(row), key.removeprefix(ALARM_PREFIX)[:MAX_NAME_CHARS]))
        return alarms


def step_of(row: Row) -> float:
    """Read the step of a row, 0 where it is not known."""
    step = finite(row.get("step"))
    return step if step is not None and 0 <= step <= MAX_STEP else 0.0


def stages(run: RunFiles) -> list[Stage]:
    """List the phases of a run in the order of their first reports."""
    rows_by_phase: dict[str, list[Row]] = {}
    for row in run.rows:
        rows_by_phase.setdefault(str(row.get("phase", "")), []).append(row)
    recipe = recipe_of(run)
    results = run.results or {}
    exit_outcomes = as_mapping(results.get("exit_criteria"))
    kept_phases = as_mapping(results.get("kept"))
    last_phase = next(reversed(rows_by_phase), None)
    measured_phase = _measured_phase(recipe, results, list(rows_by_phase))
    run_stages = []
    for name, rows in rows_by_phase.items():
        phase = as_mapping(as_mapping(recipe.get("phases")).get(name))
        # A phase's own settings take the place of the recipe's, also where they are null.
        settings = phase if "exit_criterion" in phase else recipe
        minimums = _minimums(settings.get("exit_criterion"))
        exit_outcome = exit_outcomes.get(name)
        met = None
        # The results say of a missed criterion that it was, whatever the last evaluation has.
        if minimums and exit_outcome is not False:
            met = _step_that_met(minimums, rows)
        was_kept = kept_phases.get(name)
        recipe_loss = as_mapping(recipe.get("loss"))
        loss_type = as_mapping(phase.get("loss")).get("type", recipe_loss.get("type"))
        run_stages.append(
            Stage(
                name=name,
                rows=tuple(rows),
                minimums=minimums,
                met=met,
                has_ended=isinstance(exit_outcome, bool) or name != last_phase,
                was_kept=was_kept if isinstance(was_kept, bool) else None,
                muted=_muted_streams(recipe, phase),
                imitates=loss_type in IMITATING_LOSSES,
                starts_measured=name == measured_phase,
            )
        )
    return run_stages


def split_imitation(run_stages: Sequence[Stage]) -> tuple[list[Stage], list[Stage]]:
    """Divide phases into preparing imitation and all others.

    The first list is empty in a run of only imitation, and in a run measured from it on.
    """
    preparing = list(takewhile(lambda stage: stage.imitates, run_stages))
    is_all = len(preparing) == len(run_stages)
    if is_all or any(stage.starts_measured for stage in preparing):
        return [], list(run_stages)
    return preparing, list(run_stages[len(preparing) :])


def _measured_phase(
    recipe: Mapping[str, object], results: Mapping[str, object], reported_phases: Sequence[str]
) -> str | None:
    """Name the phase after the first measurement of the test split; `None` without any."""
    # A run that never came to this phase has the measurement of its end twice.
    if not results.get("before") or results["before"] == results.get("after"):
        return None
    phases = [str(name) for name in as_mapping(recipe.get("phases"))] or reported_phases
    named_phase = as_mapping(recipe.get("evaluation")).get("before")
    if isinstance(named_phase, str) and named_phase in phases:
        return named_phase
    return phases[-1]


def recipe_of(run: RunFiles) -> Mapping[str, object]:
    """Parse the recipe of a run, empty where it cannot be read."""
    try:
        return as_mapping(yaml.safe_load(run.recipe))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}


def _minimums(exit_criterion: object) -> dict[str, float]:
    criterion = as_mapping(exit_criterion)
    values = {str(criterion.get("metric")): criterion.get("at_least")}
    for name, value in as_mapping(criterion.get("also_at_least")).items():
        values[str(name)] = value
    minimums = {}
    for name, value in values.items():
        minimum = finite(value)
        if minimum is not None:
            minimums[name[:MAX_NAME_CHARS]] = minimum
    return minimums


def _step_that_met(minimums: Mapping[str, float], rows: Sequence[Row]) -> float | None:
    """Find the step of the last evaluation, where it reached all minimums."""
    evaluations = [row for row in rows if minimums.keys() <= row.keys()]
    if not evaluations:
        return None
    last = evaluations[-1]
    for name, minimum in minimums.items():
        if (finite(last[name]) or 0.0) < minimum:
            return None
    return step_of(last)


def _muted_streams(recipe: Mapping[str, object], phase: Mapping[str, object]) -> frozenset[str]:
    """List the streams of weight 0; a phase's own settings come before the recipe's."""
    weights: dict[str, object] = {}
    for settings in (recipe, phase):
        streams = as_mapping(as_mapping(settings.get("advantage")).get("streams"))
        for name, stream in streams.items():
            if "weight" in as_mapping(stream):
                weights[str(name)] = as_mapping(stream)["weight"]
    return frozenset(name for name, weight in weights.items() if weight == 0)
