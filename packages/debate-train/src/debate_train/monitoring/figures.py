"""The metrics of a phase as detectors see them: facts, windows of steps, and derived figures."""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, sqrt
from statistics import fmean, pstdev
from typing import Any, Literal

Row = Mapping[str, Any]
Due = Literal["step", "evaluation"]
"""The rows of metrics that a detector judges: steps, or evaluations on the dev split."""

# Values of states after these replies, which should fall in this order.
GUIDED = ("offline/value_guided_right", "offline/value_natural", "offline/value_guided_wrong")
# Shares of pairs on one of two sides: chosen replies that agree with the answer before them, and
# answers that are right.
PAIR_SIDE_SHARES = ("offline/chosen_ok_share", "offline/actor_right_share")
# The smaller side of fewer pairs says too little.
FEWEST_PAIRS = 16
# Figures that are a difference of two metrics.
DIFFERENCES = {
    "judge/youden": ("judge/tpr", "judge/fpr"),
    "pairs/gained": ("offline/value_guided_right", "offline/value_natural"),
    "pairs/lost": ("offline/value_natural", "offline/value_guided_wrong"),
    "pairs/truth": ("offline/chosen_right_share", "offline/rejected_right_share"),
}


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of a phase for detectors and preflight checks, beside the metrics."""

    agents: int = 2
    several_updates: bool = False
    """Whether a step may make several updates."""
    keeps_start: bool = False
    """Whether the KL reference is the policy at the phase's start."""
    questions: int = 1
    """Number of questions of an evaluation on the dev split."""
    pairs: bool = False
    """Whether steps learn from pairs."""
    imitates: bool = False
    """Whether steps learn from demonstrations."""
    votes: bool = False
    """Whether a part of the reward counts votes."""
    peers_alone: bool = False
    """Whether votes count, and no part of the reward reads the questions' own answers."""
    judges_learn: bool = False
    merges_turns: bool = False
    """Whether the turns of an agent are to share a row."""


@dataclass(slots=True)
class History:
    """The metrics of a phase so far: first and last steps, and evaluations."""

    window: int
    facts: Facts = field(default_factory=Facts)
    start: Row | None = None
    """The evaluation of the phase's start, or else its first one."""
    first: list[Row] = field(default_factory=list)
    last: deque[Row] = field(default_factory=deque)
    evaluations: list[Row] = field(default_factory=list)
    """Each with the mean of `reward/total` over the last steps before it."""
    steps: int = 0

    def add(self, row: Row, due: Due) -> None:
        """Add a row of the phase."""
        if due == "evaluation":
            # A phase without an evaluation of its start is compared with its first evaluation.
            if self.start is None:
                self.start = row
            self.evaluations.append({**row, "reward/total": self.now("reward/total")})
            return
        self.steps += 1
        if len(self.first) < self.window:
            self.first.append(row)
        self.last.append(row)
        if len(self.last) > self.window:
            self.last.popleft()

    def now(self, metric: str) -> float | None:
        """Average a metric over the last `window` steps; `None` if fewer have a finite value."""
        values = numbers(self.last, metric)
        return fmean(values) if len(values) == self.window else None

    def begun(self, metric: str) -> float | None:
        """Average a metric over the first `window` steps of the phase."""
        values = numbers(self.first, metric)
        return fmean(values) if len(values) == self.window else None

    def noise(self, metric: str) -> float:
        """Estimate the standard error of `now` − `begun` from the spread within both windows."""
        variance = 0.0
        for rows in (self.first, self.last):
            values = numbers(rows, metric)
            if values:
                variance += pstdev(values) ** 2
        # pstdev² / (n − 1) is s² / n with the sample's s: the variance of a window's mean.
        return sqrt(variance / max(1, self.window - 1))


def numbers(rows: Iterable[Row], metric: str) -> list[float]:
    """Collect the finite values of a metric."""
    values = [row.get(metric) for row in rows]
    return [float(value) for value in values if isinstance(value, int | float) and isfinite(value)]


def derived(row: Row) -> dict[str, float]:
    """Add the figures computed from several metrics, where these were measured.

    - `judge/youden`: J = TPR − FPR of judges.
    - `pairs/gained`, `pairs/lost`: the gain of value over natural states by guiding to the right
      answer, and the loss by guiding to a wrong answer.
    - `pairs/truth`: right chosen replies minus right rejected replies, as shares of the pairs.
    - `pairs/smaller_side`: the share of the pairs on the side with fewer: chosen replies in
      agreement or objection, right or wrong answers.
    - `reward/above_chance`: (a − c) / (1 − c) with a = `reward/accuracy`, c = `reward/chance`: 1 if
      the reward values the right turns most, 0 if it says nothing about them.
    - `largest_stream`: the largest share of a stream in the gradient; absent for a single stream.
    - `kept_right`, `turned_right`: in an evaluation on the dev split, the share of right answers
      after a right answer, and after a wrong answer, of the same agent in the round before.
    """
    figures: dict[str, float] = {}
    for name, (more, less) in DIFFERENCES.items():
        if row.get(more) is not None and row.get(less) is not None:
            figures[name] = float(row[more] - row[less])
    accuracy, chance = row.get("reward/accuracy"), row.get("reward/chance")
    if accuracy is not None and chance is not None:
        # Each round that counts has a wrong turn, so chance is below 1.
        figures["reward/above_chance"] = float(accuracy - chance) / (1 - chance)
    num_pairs = sum(value for name, value in row.items() if name.startswith("offline/kept/"))
    shares = [float(row[name]) for name in PAIR_SIDE_SHARES if row.get(name) is not None]
    if shares and num_pairs >= FEWEST_PAIRS:
        figures["pairs/smaller_side"] = min(min(share, 1 - share) for share in shares)
    stream_shares = []
    prefix = "optim/gradient_share/"
    for name, share in row.items():
        # The shares of agents are of the same gradient, divided in another way.
        is_stream = name.startswith(prefix) and not name.startswith(f"{prefix}agent_")
        if is_stream and share:
            stream_shares.append(float(share))
    if len(stream_shares) > 1:
        figures["largest_stream"] = max(stream_shares)
    return {**row, **figures, **_transitions(row)}


def _transitions(row: Row) -> dict[str, float]:
    """Compute the shares of right answers staying right, and of wrong answers made right."""
    lost_share = row.get("eval/flips/right_to_wrong")
    won_share = row.get("eval/flips/wrong_to_right")
    accuracies = []
    for round_number in range(len(row)):
        name = f"eval/accuracy/round_{round_number}"
        if name in row:
            accuracies.append(row[name])
    # Flips go from each round but the last to the next.
    accuracies_before = accuracies[:-1]
    if lost_share is None or won_share is None or not accuracies_before:
        return {}
    share_right_before = fmean(accuracies_before)
    shares = {}
    if share_right_before > 0:
        shares["kept_right"] = 1 - lost_share / share_right_before
    if share_right_before < 1:
        shares["turned_right"] = won_share / (1 - share_right_before)
    return shares
