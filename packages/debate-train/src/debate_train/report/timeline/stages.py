"""What a run's files say of its phases: their steps, exit criteria, outcomes and alarms."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import yaml

from debate_train.health.watch import alarms_of
from debate_train.report.run_files import RunFiles, finite

Row = Mapping[str, object]
MAX_STEP = 1e12


@dataclass(frozen=True, slots=True)
class Stage:
    """A phase that reported.

    Attributes:
        name: As the recipe calls it.
        rows: Its rows of metrics.
        wanted: Measures of its exit criterion, each with the least that is wanted.
        met: The step of the look that reached them; None where none did.
        ended: Whether the phase is over.
        kept: Whether `keep_if` kept its weights; None where it did not ask.
        muted: Streams of weight 0.
    """

    name: str
    rows: tuple[Row, ...]
    wanted: Mapping[str, float]
    met: float | None
    ended: bool
    kept: bool | None
    muted: frozenset[str]

    @property
    def steps(self) -> tuple[float, float]:
        """The first and the last step."""
        found = [step_of(row) for row in self.rows]
        return min(found), max(found)

    @property
    def outcome(self) -> str:
        """`good` where all that was asked of it came true, `bad` where not, else nothing."""
        missed = bool(self.wanted) and self.met is None and self.ended
        if missed or self.kept is False:
            return "bad"
        return "good" if self.met is not None or self.kept else ""

    @property
    def criterion(self) -> str:
        """What became of its exit criterion, in words."""
        if not self.wanted:
            return ""
        asked = ", ".join(f"{name} ≥ {least:g}" for name, least in self.wanted.items())
        if self.met is not None:
            return f"✓ met at step {self.met:,.0f}: {asked}"
        return f"✗ missed: {asked}" if self.ended else f"not yet met: {asked}"

    @property
    def keeping(self) -> str:
        """Whether its weights were kept, in words."""
        return {True: "✓ kept", False: "✗ taken back", None: ""}[self.kept]

    @property
    def alarms(self) -> list[tuple[float, str]]:
        """Alarms of the health watch: step and detector."""
        return [(step_of(one), str(one["detector"])[:80]) for one in alarms_of(self.rows)]


def step_of(row: Row) -> float:
    """Return the step of a row, 0 where that is not known."""
    step = finite(row.get("step"))
    return step if step is not None and 0 <= step <= MAX_STEP else 0.0


def stages(run: RunFiles) -> list[Stage]:
    """Return the phases of a run in the order they first reported."""
    rows: dict[str, list[Row]] = {}
    for row in run.rows:
        rows.setdefault(str(row.get("phase", "")), []).append(row)
    recipe = recipe_of(run)
    results = run.results or {}
    outcomes, kept = (_mapping(results.get(key)) for key in ("exit_criteria", "kept"))
    found: list[Stage] = []
    for place, (name, own) in enumerate(rows.items()):
        phase = _mapping(_mapping(recipe.get("phases")).get(name))
        wanted = _wanted(phase["exit_criterion"] if "exit_criterion" in phase
                         else recipe.get("exit_criterion"))  # fmt: skip
        said = outcomes.get(name)
        met = None if said is False or not wanted else _met(wanted, own)
        is_kept = kept.get(name)
        found.append(
            Stage(
                name=name,
                rows=tuple(own),
                wanted=wanted,
                met=met,
                ended=isinstance(said, bool) or place + 1 < len(rows),
                kept=is_kept if isinstance(is_kept, bool) else None,
                muted=frozenset(_muted(recipe, phase)),
            )
        )
    return found


def recipe_of(run: RunFiles) -> Mapping[str, object]:
    """Return the recipe of a run, empty where it cannot be read."""
    try:
        return _mapping(yaml.safe_load(run.recipe))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}


def _wanted(criterion: object) -> dict[str, float]:
    found = _mapping(criterion)
    asked = {str(found.get("metric")): found.get("at_least")}
    asked |= {str(name): least for name, least in _mapping(found.get("also_at_least")).items()}
    return {name[:80]: least for name, value in asked.items()
            if (least := finite(value)) is not None}  # fmt: skip


def _met(wanted: Mapping[str, float], rows: Sequence[Row]) -> float | None:
    """Return the step of the last look, where that reached all that is wanted."""
    looks = [row for row in rows if set(wanted) <= set(row)]
    if not looks:
        return None
    values = ((finite(looks[-1][name]), least) for name, least in wanted.items())
    return step_of(looks[-1]) if all((v or 0.0) >= least for v, least in values) else None


def _muted(recipe: Mapping[str, object], phase: Mapping[str, object]) -> Iterator[str]:
    """Yield the streams whose weight is 0; a phase's own settings come before the recipe's."""
    weights: dict[str, object] = {}
    for settings in (recipe, phase):
        streams = _mapping(_mapping(settings.get("advantage")).get("streams"))
        for name, stream in streams.items():
            if "weight" in _mapping(stream):
                weights[str(name)] = _mapping(stream)["weight"]
    yield from (name for name, weight in weights.items() if weight == 0)


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, Mapping) else {}
