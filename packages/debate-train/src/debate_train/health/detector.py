"""What a detector looks at, when it speaks, and figures derived from a row."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite, sqrt
from statistics import fmean, pstdev
from typing import Any, ClassVar, Literal

from pydantic import Field

from debate_protocol.plugins import Config

Row = Mapping[str, Any]
_MAJORITY = "eval/direct/maj@"
Due = Literal["step", "look"]
"""After which rows of metrics a detector speaks: those of steps, or of looks at the dev split."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What detectors need to know of a phase besides its metrics."""

    agents: int = 2
    several_updates: bool = False
    """Whether a step may make several."""
    keeps_start: bool = False
    """Whether the KL reference is the policy at the phase's start."""
    debates: int = 1
    """Of a question, in a step."""
    questions: int = 1
    """Of a look at the dev split."""
    pairs: bool = False
    """Whether steps learn from pairs."""


@dataclass(slots=True)
class History:
    """The metrics of a phase so far: its first and its last steps, and its looks."""

    window: int
    facts: Facts = field(default_factory=Facts)
    start: Row | None = None
    """The look at the dev split that was taken of the phase's start, or else its first one."""
    first: list[Row] = field(default_factory=list)
    last: deque[Row] = field(default_factory=deque)
    looks: list[Row] = field(default_factory=list)
    """Each with the mean of `reward/total` over the last steps before it, and of `tokens`."""
    tokens: list[float] = field(default_factory=list)
    """Sampled for a question, by step."""
    steps: int = 0

    def add(self, row: Row, due: Due) -> None:
        """Take one more row of the phase."""
        if due == "look":
            self.start = row if self.start is None else self.start
            spent = fmean(self.tokens) if self.tokens else None
            self.looks.append({**row, "reward/total": self.now("reward/total"), "tokens": spent})
            return
        self.steps += 1
        self.tokens += [self.facts.debates * one for one in numbers([row], "train/tokens/answer")]
        if len(self.first) < self.window:
            self.first.append(row)
        self.last.append(row)
        if len(self.last) > self.window:
            self.last.popleft()

    def now(self, metric: str) -> float | None:
        """Return the mean over the last `window` steps, None before there are as many."""
        values = numbers(self.last, metric)
        return fmean(values) if len(values) == self.window else None

    def begun(self, metric: str) -> float | None:
        """Return the mean over the first `window` steps of the phase."""
        values = numbers(self.first, metric)
        return fmean(values) if len(values) == self.window else None

    def noise(self, metric: str) -> float:
        """Return the standard error of `now` − `begun`, from the spread within both windows."""
        spread = [pstdev(values) for w in (self.first, self.last) if (values := numbers(w, metric))]
        return sqrt(sum(one**2 for one in spread) / max(1, self.window - 1))


def numbers(rows: "deque[Row] | list[Row]", metric: str) -> list[float]:
    """Return the values of a metric that were observed and are finite."""
    found = (row.get(metric) for row in rows)
    return [float(v) for v in found if isinstance(v, int | float) and isfinite(v)]


def votes_of(look: Row) -> list[tuple[float, float]]:
    """Return tokens and accuracy of the majority of k replies, for each k that was measured."""
    length = look.get("eval/direct/tokens/answer")
    found = {1: look.get("eval/direct/accuracy")} | {
        int(name.removeprefix(_MAJORITY)): look[name] for name in look if name.startswith(_MAJORITY)
    }
    if length is None or len(found) == 1:
        return []
    return sorted((k * length, value) for k, value in found.items() if value is not None)


def accuracy_for(votes: Sequence[tuple[float, float]], tokens: float) -> float | None:
    """Return the accuracy at so many tokens, between two k a mixture of both."""
    if not votes:
        return None
    for (less, low), (more, high) in pairwise(votes):
        if tokens < more:
            return low + max(0.0, tokens - less) / (more - less) * (high - low)
    return votes[-1][1]


@dataclass(frozen=True, slots=True)
class Finding:
    """The figure of a detector, and why it is alarming, if it is."""

    value: float
    alarm: str | None = None


class Detector(Config):
    """The base class of detectors: a field `type`, a figure, and the bounds that it should keep.

    The figure is the mean of `metric` over the last `health.window` steps, or what `figure`
    returns in its place. It is alarming beyond any bound that is set. Bounds on a change compare
    with the phase's first steps; the change must also exceed `sigmas` standard errors.
    """

    due: ClassVar[Due] = "step"

    type: str
    """The name by which recipes choose it."""
    metric: str = ""
    """Name of a metric of steps."""
    above: float | None = None
    """The figure is bad above this; null has no such bound."""
    below: float | None = None
    """The figure is bad below this; null has no such bound."""
    fall: float | None = Field(None, gt=0)
    """The most that the figure may lie below the phase's start."""
    rise: float | None = Field(None, gt=0)
    """The most that the figure may lie above the phase's start."""
    times: float | None = Field(None, gt=1)
    """The most that the figure may be as a multiple of the phase's start."""
    share: float | None = Field(None, gt=0, lt=1)
    """The least that the figure may be as a share of the phase's start."""
    sigmas: float = Field(3.0, ge=0)
    """Standard errors that a change must exceed, too."""
    advice: str = ""
    """What to do about it."""

    def figure(self, seen: History) -> float | None:
        """Return the figure after the last row, None where it is not known."""
        return seen.now(self.metric)

    def compared(self, seen: History) -> tuple[float | None, float]:
        """Return what a change is measured from, and the standard error of such a change."""
        return seen.begun(self.metric), seen.noise(self.metric)

    def is_excused(self, seen: History) -> bool:
        """Return whether the figure is no cause for alarm, whatever it is."""
        return False

    def look(self, seen: History) -> Finding | None:
        """Return what the last row shows, None where it shows nothing yet."""
        value = self.figure(seen)
        if value is None or not isfinite(value):
            return None
        alarm = self._beyond(value) or self._changed(value, seen)
        return Finding(value, None if self.is_excused(seen) else alarm)

    def _beyond(self, value: float) -> str | None:
        if self.above is not None and value > self.above:
            return f"{value:.3g}, above {self.above:g}"
        if self.below is not None and value < self.below:
            return f"{value:.3g}, below {self.below:g}"
        return None

    def _changed(self, value: float, seen: History) -> str | None:
        start, error = self.compared(seen)
        if start is None or abs(value - start) <= self.sigmas * error:
            return None
        said = f"{value:.3g}, at the phase's start {start:.3g}"
        if self.fall is not None and value < start - self.fall:
            return f"{said}: it fell by more than {self.fall:g}"
        if self.rise is not None and value > start + self.rise:
            return f"{said}: it rose by more than {self.rise:g}"
        if self.times is not None and start > 0 and value > self.times * start:
            return f"{said}: more than {self.times:g} times as much"
        if self.share is not None and start > 0 and value < self.share * start:
            return f"{said}: less than {self.share:g} of it"
        return None


GUIDED = "offline/value_guided_right", "offline/value_natural", "offline/value_guided_wrong"
"""Values of states after these replies, which should fall in this order."""
_FEWEST = 16
"""Pairs of a set below which nothing is said of its sides."""
_RIGHT = ("offline/chosen_right_share", "offline/rejected_right_share")
_SHARES = ("offline/chosen_ok_share", "offline/actor_right_share")
"""Of pairs whose chosen reply agrees with the answer before it, and whose answer is right."""


def derived(row: Row) -> dict[str, float]:
    """Return a row with the figures that are made of several, where these were measured.

    - `judge/youden`: J = TPR − FPR of judges.
    - `pairs/gained`, `pairs/lost`: what guiding to the right answer gains, and to a wrong one
      loses, of the value of natural states.
    - `pairs/truth`: right chosen replies minus right rejected ones, as shares of the pairs.
    - `pairs/smaller_side`: the share of the pairs on the side that has fewer: of those whose chosen
      reply agrees and objects, of those about right and about wrong answers.
    - `kept_right`, `turned_right`: of a look at the dev split, how many answers are right among
      those whose agent was right, and was wrong, in the round before.
    """
    right, natural, wrong = GUIDED
    found = {
        "judge/youden": _difference(row, "judge/tpr", "judge/fpr"),
        "pairs/gained": _difference(row, right, natural),
        "pairs/lost": _difference(row, natural, wrong),
        "pairs/truth": _difference(
            row, "offline/chosen_right_share", "offline/rejected_right_share"
        ),
        "pairs/smaller_side": _smaller_side(row),
        **_transitions(row),
    }
    return {**row, **{name: value for name, value in found.items() if value is not None}}


def _difference(row: Row, more: str, less: str) -> float | None:
    first, second = row.get(more), row.get(less)
    return None if first is None or second is None else float(first - second)


def _smaller_side(row: Row) -> float | None:
    """Return the share of the pairs on the side that has fewer, by what divides them least evenly.

    Nothing is said of fewer than 16 pairs.
    """
    kept = sum(value for name, value in row.items() if name.startswith("offline/kept/"))
    shares = [float(row[name]) for name in _SHARES if row.get(name) is not None]
    if kept < _FEWEST or not shares:
        return None
    return min(min(share, 1 - share) for share in shares)


def _transitions(row: Row) -> dict[str, float | None]:
    """Return the shares of answers that stay right, and that become right, over all rounds."""
    lost, won = row.get("eval/flips/right_to_wrong"), row.get("eval/flips/wrong_to_right")
    rounds = [row[n] for r in range(len(row)) if (n := f"eval/accuracy/round_{r}") in row][:-1]
    if lost is None or won is None or not rounds:
        return {}
    before = fmean(rounds)
    return {
        "kept_right": 1 - lost / before if before > 0 else None,
        "turned_right": won / (1 - before) if before < 1 else None,
    }
