"""The health watch: what is judged while a policy trains, what is alarming, and what can start."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, sqrt
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from debate_protocol.plugins import Config, Variants, did_you_mean
from debate_train.checkpoints.run_directory import plain
from debate_train.interrupts import RunFailure
from debate_train.monitoring.detectors import (
    GUIDED,
    OWN,
    Detector,
    Due,
    Facts,
    History,
    Metric,
    PairSides,
    PairTruth,
    Row,
    derived,
)

DETECTORS: Variants[Detector] = Variants("debate_train.detectors", Detector, Metric, *OWN)
"""All detectors, those of other installed packages included."""

DetectorChoice = Annotated[Detector, DETECTORS]
"""Any detector; recipes choose by `type`."""


class Health(Config):
    """What is watched while a phase learns from samples or pairs, and what stops it."""

    enabled: bool = True
    """Whether anything is watched."""
    window: int = Field(8, ge=2)
    """Steps whose mean is judged, and steps at a phase's start that it is compared with."""
    stop_on: tuple[str, ...] = ()
    """Names of detectors whose first alarm ends the run, with a checkpoint and exit code 1."""
    detectors: dict[str, DetectorChoice | None] = Field(default_factory=dict)
    """Detectors by name, beside ours, each under the name of its type; null leaves one of these
    out, another one of the name takes its place. `type` may be left out where the name is one."""

    def chosen(self) -> Mapping[str, Detector]:
        """Return the detectors that are on, by name."""
        if not self.enabled:
            return {}
        ours: dict[str, Detector | None] = {one.type: one for one in (model() for model in OWN)}
        named = {**ours, **self.detectors}
        return {name: one for name, one in named.items() if one is not None}

    @field_validator("detectors", mode="before")
    @classmethod
    def _names_are_types(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        return {
            name: {"type": name, **one} if isinstance(one, Mapping) and name in DETECTORS else one
            for name, one in given.items()
        }

    @model_validator(mode="after")
    def _stops_are_watched(self) -> "Health":
        known = self.chosen()
        for name in self.stop_on:
            if name not in known:
                raise ValueError(
                    f"stop_on: found {name!r}, expected one of {', '.join(known)}"
                    f"{did_you_mean(name, known)}"
                )
        return self


PREFIX = "health/"
ALARM = "health/alarm/"


class HealthWatch:
    """The watch over one phase. It keeps nothing of its own: a resumed one reads the rows again.

    Phases that imitate are not watched.

    Args:
        name: The phase.
        health: What is watched.
        facts: What detectors need to know of the phase.
        rows: All rows of the run so far, in order.
        start: How many steps the run had made before the phase.
    """

    def __init__(
        self, name: str, health: Health, facts: Facts, rows: Iterable[Row], start: int
    ) -> None:
        self._detectors = {} if facts.imitates else dict(health.chosen())
        self._name, self._stop_on, self._start = name, health.stop_on, start
        self._seen = History(health.window, facts)
        self._said: set[str] = set()
        self._stop: str | None = None
        for row in rows if self._detectors else ():
            due: Due = "evaluation" if is_evaluation(row) else "step"
            if row["step"] > start:
                self._seen.add(derived(row), due)
                self._said |= {key.removeprefix(ALARM) for key in row if key.startswith(ALARM)}
            elif row["step"] == start and due == "evaluation":
                self._seen.start = derived(row)

    def know_start(self, measured: Mapping[str, float]) -> None:
        """Take the evaluation of the phase's start, which has no row in the metrics."""
        self._seen.start = derived({"step": self._start, **measured})

    def see(self, step: int, metrics: Row, due: Due = "step") -> tuple[dict[str, float], list[str]]:
        """Take a new row; return what is added to it, and a line for each new alarm.

        Args:
            step: of the whole run.
            metrics: of the step, or of an evaluation on the dev split.
            due: which of the two it is.
        """
        found: dict[str, float] = {}
        said: list[str] = []
        if not self._detectors:
            return found, said
        where = f"{self._name} {step}"
        if due == "step" and step == self._start + 1:
            lines = first_step_warnings(self._seen.facts, metrics)
            said += [f"warning: {where}: {line}" for line in lines]
        # As the file holds it, which a resumed run reads.
        row = {"step": step} | {key: plain(v) for key, v in metrics.items()}
        self._seen.add(derived(row), due)
        for name, detector in list(self._detectors.items()):
            try:
                finding = detector.judge(self._seen) if detector.due == due else None
            except Exception as error:  # One of another package: the run is worth more.
                del self._detectors[name]
                said.append(f"warning: health: {name} is off: {type(error).__name__}: {error}")
                continue
            if finding is None:
                continue
            found[PREFIX + name] = finding.value
            if finding.alarm is not None and name not in self._said:
                self._said.add(name)
                found[ALARM + name] = 1.0
                what = f"{detector.metric} {finding.alarm}".strip()
                line = f"{where}: health: {name}: {what}"
                said.append(f"warning: {line}" + (f"; {detector.advice}" * bool(detector.advice)))
                if (name in self._stop_on or detector.stops) and self._stop is None:
                    self._stop = line
        return found, said

    def refuse_alarms(self) -> None:
        """Stop the run where an alarm came that the recipe stops on.

        Raises:
            RunFailure: One came.
        """
        if self._stop is not None:
            raise RunFailure(
                f"{self._stop}; the run ends here (health.stop_on, or stops of the detector); "
                "--resume goes on past this alarm"
            )


def is_evaluation(row: Row) -> bool:
    """Return whether a row of metrics comes from an evaluation on the dev split."""
    return any(key.startswith("eval/") for key in row)


def alarms_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the alarms that rows of metrics hold: phase, step, detector and its figure."""
    return [
        {
            "phase": row.get("phase"),
            "step": row.get("step"),
            "detector": key.removeprefix(ALARM),
            "value": row.get(PREFIX + key.removeprefix(ALARM)),
        }
        for row in rows
        for key in row
        if key.startswith(ALARM)
    ]


Status = Literal["red", "amber", "green"]
Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Check:
    """A figure of a start and its bounds: beyond `red` do not start, beyond `amber` look first."""

    name: str
    metrics: tuple[str, ...]
    """The first that is measured counts."""
    advice: str
    red: float | None = None
    amber: float | None = None
    above: bool = False
    """Whether what lies above the bounds is bad, instead of what lies below."""
    when: str = ""
    """The one of `Facts` without which it does not apply."""


_DIRECT = ("eval/direct/accuracy", "train/accuracy/round_0")
_JUDGED = ("judge/accuracy",)
_FOR_AGENT_0 = ("train/judged/for_agent_0",)
_ERRORS, _MERGED = "judge/error_correlation", "rollout/merged_turn_fraction"
_CONSENSUS = "v2/self_consensus_fraction"
_FORM = "warm-start on demonstrations, or look at rollout.max_tokens and the contract"
_FEW = "a consensus of one judge is its own verdict: take 5 or more agents, or judge weight 0"
_ALIKE = "judges err together: use personas, other temperatures or other models as judges"
_SIGNAL = "most samples teach nothing: take more agents, or other questions"
_LONG = "raise rollout.max_tokens, or teach shorter replies (reward overlong)"
_ROOM = "lower rollout.max_tokens, or set debate.history_rounds: 1 or max_chars_per_field"
_ROWS = "prompts do not extend each other, so each turn is a row: see the chat template"
_MEMORY = "lower trainer.tokens_per_micro_batch, train model.lora, or use ZeRO: --plan"
_WARM = "warm-start judging, or mix in correctness (reward.type: mixed)"
_ONE_SIDED = "judges nearly always decide for one agent: try debate.both_orders, or warm-start"
_UNGUIDED = "replies do not follow their guidance: look at the prompts that guide, or warm-start"
_SIDES, _TRUTH = PairSides(), PairTruth()
CHECKS = (
    Check("direct accuracy", _DIRECT, "take easier questions or a stronger model", 0.05, 0.10),
    Check("head-room", _DIRECT, "take harder questions", amber=0.95, above=True),
    Check("one of N is right", ("train/pass@k",), "take easier questions or more agents", 0.20),
    Check("valid comparisons", ("train/comparisons_made",), _FORM, red=0.80, when="votes"),
    Check("judge accuracy", _JUDGED, _WARM, red=0.50, when="votes"),
    Check("judge accuracy, votes alone", _JUDGED, _WARM, amber=0.60, when="peers_alone"),
    Check("judges' TPR - FPR", ("judge/youden",), _WARM, red=0.0, amber=0.2, when="votes"),
    Check("judges' Matthews coefficient", ("train/judged/mcc",), _WARM, red=0.0, amber=0.2),
    # Of a judge that always says the same, the coefficient is not defined. This is of rivals alone:
    # of a single proposal, "agent 0" means "right", which may well be so nearly always.
    Check("judges decide for agent 0, too", _FOR_AGENT_0, _ONE_SIDED, 0.02, 0.10),
    Check("judges decide for others, too", _FOR_AGENT_0, _ONE_SIDED, 0.98, 0.90, True),
    Check("correlation of judges' errors", (_ERRORS,), _ALIKE, None, 0.5, True, "votes"),
    Check("judges of a pair", ("v2/judges_per_pair",), _FEW, amber=2.0, when="judges_learn"),
    Check("pairs with one judge", (_CONSENSUS,), _FEW, None, 0.5, True, "judges_learn"),
    Check("agents criticised in a debate", ("conl/critiques",), _FORM, red=0.2, amber=1.0),
    Check("valid format", ("train/format_all",), _FORM, red=0.30, amber=0.60),
    Check("questions with a signal", ("signal/value",), _SIGNAL, red=0.05, amber=0.20),
    Check("smaller side of the pairs", ("pairs/smaller_side",), _SIDES.advice, _SIDES.below),
    Check("pairs for the truth", ("pairs/truth",), _TRUTH.advice, _TRUTH.below),
    Check("value gained by guiding to the right", ("pairs/gained",), _UNGUIDED, red=0.0),
    Check("value lost by guiding to the wrong", ("pairs/lost",), _UNGUIDED, red=0.0),
    Check("replies cut off", ("rollout/truncated_fraction",), _LONG, 0.50, 0.10, above=True),
    Check("turns that join a row", (_MERGED,), _ROWS, amber=0.01, when="merges_turns"),
    Check("turns over the window", ("context/overflow",), _ROOM, 0.02, 0.0, above=True),
    Check("context used of the window", ("context/share",), _ROOM, amber=0.90, above=True),
    Check("memory of one update", ("memory/share",), _MEMORY, 0.98, 0.90, above=True),
)
_ENOUGH = 16
"""Debates of a first step below which nothing is said of it."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a check found; `bound` is the bound that it missed, if it missed one."""

    name: str
    status: Status
    value: float
    low: float | None = None
    high: float | None = None
    bound: float | None = None
    advice: str = ""


def results(
    facts: Facts, figures: Mapping[str, float], intervals: Mapping[str, Interval]
) -> Iterator[Result]:
    """Yield what each check found that applies to the phase and whose figure was measured."""
    for check in CHECKS:
        name = next((one for one in check.metrics if one in figures), None)
        if name is not None and (not check.when or getattr(facts, check.when)):
            yield judged(check, figures[name], intervals.get(name))


def judged(check: Check, value: float, interval: Interval | None = None) -> Result:
    """Return whether a figure is beyond its bounds; amber too where its interval reaches `red`."""
    low, high = interval or (None, None)
    sign = -1.0 if check.above else 1.0
    worst = value if interval is None else interval[int(check.above)]
    tried: tuple[tuple[float, float | None, Status], ...] = (
        (value, check.red, "red"),
        (value, check.amber, "amber"),
        (worst, check.red, "amber"),
    )
    for figure, bound, status in tried:
        if bound is not None and sign * figure < sign * bound:
            return Result(check.name, status, value, low, high, bound, check.advice)
    return Result(check.name, "green", value, low, high)


def verdict(found: Sequence[Result]) -> Status:
    """Return the worst status of all."""
    seen = {result.status for result in found}
    return "red" if "red" in seen else "amber" if "amber" in seen else "green"


def wanted(found: Result) -> str:
    """Return the bound that a check missed, in words."""
    bad_above = next(check.above for check in CHECKS if check.name == found.name)
    return f"{'at most' if bad_above else 'at least'} {found.bound:g}"


def first_step_warnings(facts: Facts, row: Mapping[str, float]) -> Iterator[str]:
    """Yield a line for each check that a phase's first step, played by its start, misses by red.

    Nothing is said of fewer than 16 debates.
    """
    if row.get("env/all/total_episodes", 0) >= _ENOUGH:
        for one in results(facts, derived(row), {}):
            if one.status == "red":
                missed = f"{one.name} {one.value:.3g}, expected {wanted(one)}"
                yield f"preflight: {missed}; {one.advice}"


def intervals_of(figures: Mapping[str, float], pairs: int) -> dict[str, Interval]:
    """Return the intervals, of two standard errors, of what a set of so many pairs teaches."""
    side = figures.get("pairs/smaller_side", 0.0)
    right, natural, wrong = (figures.get(f"{name}_standard_error", 0.0) for name in GUIDED)
    errors = {
        "pairs/smaller_side": sqrt(side * (1 - side) / max(1, pairs)),
        "pairs/gained": hypot(right, natural),
        "pairs/lost": hypot(natural, wrong),
    }
    found = {name: (figures[name], 2 * error) for name, error in errors.items() if name in figures}
    return {name: (value - both, value + both) for name, (value, both) in found.items()}
