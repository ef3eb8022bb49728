"""Which measures of a run are drawn together, phase by phase."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from debate_train.health.watch import alarms_of
from debate_train.report.charts import Form, Series, line_chart, write_duration, write_value
from debate_train.report.render import render
from debate_train.report.run_files import finite

ROW_KEYS = ("phase", "step", "time_s")
MAX_PHASES = 20
MAX_MEASURES = 500
MAX_STEP = 1e12


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart: title, what its axis means, and the (measure, label) pairs it draws."""

    title: str
    note: str
    form: Form
    lines: tuple[tuple[str, str], ...]


PANELS = (
    Panel("Loss", "", "number", (("loss", "loss"),)),
    Panel(
        "Reward",
        "mean over turns with a value",
        "number",
        (
            ("reward/total", "total"),
            ("reward/gen/mean", "generator"),
            ("reward/judge/mean", "judge"),
        ),
    ),
    Panel(
        "Accuracy in training",
        "turns of the last round",
        "share",
        (("train/correct", "correct"),),
    ),
    Panel(
        "Held-out accuracy",
        "share of questions",
        "share",
        (
            ("eval/direct/accuracy", "direct"),
            ("eval/majority/accuracy", "majority"),
            ("eval/peer_vote/accuracy", "peer vote"),
        ),
    ),
    Panel(
        "Judge accuracy",
        "right against wrong, = is ½",
        "share",
        (("judge/accuracy", "training"), ("eval/judge/accuracy", "held out")),
    ),
    Panel(
        "Votes",
        "made of those expected; equal",
        "share",
        (("v2/comparisons_made", "made"), ("judge/equal_share", "equal")),
    ),
    Panel(
        "Valid format",
        "share of turns",
        "share",
        (("train/format", "training"), ("eval/format", "held out")),
    ),
    Panel("Entropy", "nats a token", "number", (("optim/entropy", "entropy"),)),
    Panel("KL to the reference", "nats a token", "small", (("optim/kl_reference", "KL"),)),
    Panel(
        "KL, sampler to trainer",
        "nats a token",
        "small",
        (("optim/kl_sample_train_v1", "KL"),),
    ),
    Panel("Gradient norm", "before clipping", "number", (("optim/grad_norm", "norm"),)),
    Panel("Learning rate", "", "small", (("optim/learning_rate", "rate"),)),
    Panel("Speed", "tokens a second", "count", (("tokens_per_s", "tokens/s"),)),
)

OWN_FIGURES = frozenset(
    {
        *("direct", "majority", "peer_vote", "judge", "last_round", "comparisons_made", "pass@k"),
        *("diversity", "format", "bradley_terry", "confidence", "cons@k", "maj", "flips", "tokens"),
        *("agreement", "accuracy", "drift", "improvement", "rho", "n_eff", "right", "wrong"),
    }
)
"""What follows `eval/` in names of figures; of a mode that a recipe names, its name does."""


def curves(rows: Sequence[Mapping[str, object]]) -> Markup:
    """Return a section a phase, in the order they ran: its charts, then all measures folded."""
    phases: dict[str, list[Mapping[str, object]]] = {}
    for row in rows:
        phases.setdefault(str(row.get("phase", "")), []).append(row)
    shown = list(phases.items())
    left_out = max(0, len(shown) - MAX_PHASES)
    before = MAX_PHASES // 2
    if left_out:
        shown = shown[:before] + shown[before + left_out :]
    return render(
        "curves.html",
        phases=[_phase(name, measured) for name, measured in shown],
        left_out=left_out,
        before_left_out=before,
    )


def _phase(name: str, rows: Sequence[Mapping[str, object]]) -> dict[str, object]:
    known = series_of(rows)
    steps = {_step(row) for row in rows}
    return {
        "name": name,
        "note": f"{len(steps):,} steps measured{_took(rows)}{_alarms(rows)}",
        "charts": [
            line_chart(panel.title, panel.note, drawn, panel.form)
            for panel in (*PANELS, *_mode_panels(known), *_time_panels(known))
            if (drawn := list(_drawn(panel, known)))
        ],
        "measured": len(known),
        "measures": [_measure(name, known[name]) for name in sorted(known)[:MAX_MEASURES]],
    }


def series_of(rows: Sequence[Mapping[str, object]]) -> dict[str, dict[float, float]]:
    """Return value by step of every measure that can be drawn; the last row of a step wins."""
    known: dict[str, dict[float, float]] = {}
    for row in rows:
        for name, value in row.items():
            number = None if name in ROW_KEYS else finite(value)
            if number is not None:
                known.setdefault(name, {})[_step(row)] = number
    return known


def _step(row: Mapping[str, object]) -> float:
    step = finite(row.get("step"))
    return step if step is not None and 0 <= step <= MAX_STEP else 0.0


def _drawn(panel: Panel, known: Mapping[str, Mapping[float, float]]) -> Iterator[Series]:
    for name, label in panel.lines:
        points = known.get(name, {})
        if len(points) > 1:
            yield Series(label, tuple(sorted(points.items())))


def _mode_panels(known: Mapping[str, Mapping[float, float]]) -> Iterator[Panel]:
    """Yield one panel for each evaluation mode that a recipe names."""
    modes: dict[str, list[tuple[str, str]]] = {}
    for name in known:
        kind, _, rest = name.partition("/")
        mode, _, figure = rest.partition("/")
        # What is of one round or counted in tokens would hide the few that say how good it is.
        detail = "round_" in name or "tokens" in name
        if kind == "eval" and figure and mode not in OWN_FIGURES and not detail:
            modes.setdefault(mode, []).append((name, figure))
    for mode, lines in modes.items():
        values = [value for name, _ in lines for value in known[name].values()]
        form: Form = "share" if min(values) >= 0 and max(values) <= 1 else "number"
        yield Panel(f"Held out: {mode[:40]}", "", form, tuple(lines))


def _time_panels(known: Mapping[str, Mapping[float, float]]) -> Iterator[Panel]:
    """Yield one panel of the parts of a step that take longest."""
    names = [name for name in known if name.startswith("time/") and name.endswith("_s")]
    names.sort(key=lambda name: -sum(known[name].values()))
    if names:
        lines = tuple((name, name[len("time/") : -len("_s")]) for name in names)
        yield Panel("Time a step", "the longest parts", "seconds", lines)


def _measure(name: str, points: Mapping[float, float]) -> list[str | int]:
    values = [value for _, value in sorted(points.items())]
    numbers = (values[0], values[-1], min(values), max(values))
    return [name, *map(_exact, numbers), len(values)]


def _exact(value: float) -> str:
    return write_value(value, "count") if abs(value) >= 1000 else f"{value:.4g}"


def seconds_of(rows: Sequence[Mapping[str, object]]) -> list[float]:
    """Return how long the run had taken, in seconds, at each row that says so."""
    times = (finite(row.get("time_s")) for row in rows)
    return [time for time in times if time is not None and 0 <= time <= MAX_STEP]


def _alarms(rows: Sequence[Mapping[str, object]]) -> str:
    """Return which detectors of the health watch gave an alarm, and when."""
    found = [f"{one['detector']} at step {one['step']}" for one in alarms_of(rows)]
    return f"; health alarms: {', '.join(found)[:MAX_MEASURES]}" if found else ""


def _took(rows: Sequence[Mapping[str, object]]) -> str:
    times = seconds_of(rows)
    if len(times) < 2:
        return ""
    return f" in {write_duration(times[-1] - times[0])}"
