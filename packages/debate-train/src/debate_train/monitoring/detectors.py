"""Detectors of failing training, the history of a phase, and derived figures.

Most detectors are a row of data: a metric, bounds, and advice after an alarm; `OWN` lists them.
docs/health.md explains the bounds.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite, sqrt
from statistics import fmean, pstdev
from typing import Any, ClassVar, Literal

from pydantic import Field

from debate_protocol.plugins import Config
from debate_report.nothing_learned import ZERO, why_nothing_learned

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
        """Average a metric over the last `window` steps; None if fewer have a finite value."""
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


@dataclass(frozen=True, slots=True)
class Finding:
    """The figure of a detector, and the reason for an alarm, if there is one."""

    value: float
    alarm: str | None = None


class Detector(Config):
    """The base class of detectors: a field `type`, a figure, and bounds of the figure.

    The figure is the mean of `metric` over the last `health.window` steps; subclasses may override
    `figure`. Any bound of a number raises an alarm. Bounds on a change compare with the phase's
    first steps; the change must also exceed `sigmas` standard errors.
    """

    due: ClassVar[Due] = "step"

    type: str = ""
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
    stops: bool = False
    """Whether the first alarm ends the run, as if `health.stop_on` named the detector."""

    def figure(self, history: History) -> float | None:
        """Compute the figure after the last row, None if unknown."""
        return history.now(self.metric)

    def compared(self, history: History) -> tuple[float | None, float]:
        """Compute the start of a change, and the standard error of such a change."""
        return history.begun(self.metric), history.noise(self.metric)

    def is_excused(self, history: History) -> bool:
        """Whether the figure is no cause for alarm, however bad it is."""
        return False

    def judge(self, history: History) -> Finding | None:
        """Judge the last row; None as long as the figure is unknown."""
        value = self.figure(history)
        if value is None or not isfinite(value):
            return None
        if self.above is not None and value > self.above:
            alarm: str | None = f"{value:.3g}, above {self.above:g}"
        elif self.below is not None and value < self.below:
            alarm = f"{value:.3g}, below {self.below:g}"
        else:
            alarm = self._change_alarm(value, history)
        return Finding(value, None if self.is_excused(history) else alarm)

    def _change_alarm(self, value: float, history: History) -> str | None:
        start, standard_error = self.compared(history)
        if start is None or abs(value - start) <= self.sigmas * standard_error:
            return None
        change = f"{value:.3g}, at the phase's start {start:.3g}"
        if self.fall is not None and value < start - self.fall:
            return f"{change}: it fell by more than {self.fall:g}"
        if self.rise is not None and value > start + self.rise:
            return f"{change}: it rose by more than {self.rise:g}"
        # Multiples and shares of 0 or of a negative figure say nothing.
        if self.times is not None and start > 0 and value > self.times * start:
            return f"{change}: more than {self.times:g} times as much"
        if self.share is not None and start > 0 and value < self.share * start:
            return f"{change}: less than {self.share:g} of it"
        return None


def derived(row: Row) -> dict[str, float]:
    """Add the figures computed from several metrics, where these were measured.

    - `judge/youden`: J = TPR − FPR of judges.
    - `pairs/gained`, `pairs/lost`: the gain of value over natural states by guiding to the right
      answer, and the loss by guiding to a wrong answer.
    - `pairs/truth`: right chosen replies minus right rejected replies, as shares of the pairs.
    - `pairs/smaller_side`: the share of the pairs on the side with fewer: chosen replies in
      agreement or objection, right or wrong answers.
    - `largest_stream`: the largest share of a stream in the gradient; absent for a single stream.
    - `kept_right`, `turned_right`: in an evaluation on the dev split, the share of right answers
      after a right answer, and after a wrong answer, of the same agent in the round before.
    """
    figures: dict[str, float] = {}
    for name, (more, less) in DIFFERENCES.items():
        if row.get(more) is not None and row.get(less) is not None:
            figures[name] = float(row[more] - row[less])
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
    """Compute the shares of right answers that stay right, and of wrong answers made right."""
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


class EvaluationDetector(Detector):
    """The base class of detectors of evaluations on the dev split, compared with the start's.

    Only phases of pairs need them: their steps play no debates.
    """

    due: ClassVar[Due] = "evaluation"

    def figure(self, history: History) -> float | None:
        """Read the last evaluation."""
        return history.evaluations[-1].get(self.metric) if history.facts.pairs else None

    def compared(self, history: History) -> tuple[float | None, float]:
        """Read the evaluation of the phase's start, without a standard error."""
        return (history.start or {}).get(self.metric), 0.0


class SetDetector(Detector):
    """The base class of figures of a phase's set of examples, known from step 1 on."""

    def figure(self, history: History) -> float | None:
        """Read the last step: a phase has one set."""
        return history.last[-1].get(self.metric)


class Metric(Detector):
    """Any metric of steps, with bounds of the recipe's own."""

    type: Literal["metric"] = "metric"


class RewardAccuracy(Detector):
    """Whether what the reward values most is right."""

    type: Literal["reward_accuracy"] = "reward_accuracy"
    metric: str = "reward/accuracy"
    below: float | None = 0.5
    fall: float | None = 0.15
    advice: str = (
        "the reward points away from the truth: take a better judge, or reward.type: mixed"
    )


class FooledJudge(Detector):
    """By how much more of a debate's answers judges call right than are right."""

    type: Literal["fooled_judge"] = "fooled_judge"
    metric: str = "train/judged/gap"
    rise: float | None = 0.2
    advice: str = "the judge is pleased, not convinced: let a critic learn, or take a better judge"


class Collapse(Detector):
    """Whether first answers, which saw nobody else's, are right less often than at the start."""

    type: Literal["collapse"] = "collapse"
    metric: str = "train/accuracy/round_0"
    fall: float | None = 0.05
    advice: str = "go back to a checkpoint before the fall, and mix in verifiable rewards"


class Transition(EvaluationDetector):
    """The base class of shares of answers in debates that are right, given the round before."""

    sigmas: float = 2.0

    def compared(self, history: History) -> tuple[float | None, float]:
        """Read the start's share; estimate the error as if each question had one such answer."""
        start = (history.start or {}).get(self.metric)
        shares = [share for share in (start, self.figure(history)) if share is not None]
        # A share that is computed from rounded figures may lie a little outside [0, 1].
        variance = sum(max(0.0, share * (1 - share)) for share in shares)
        return start, sqrt(variance / max(1, history.facts.questions))


class KeptRight(Transition):
    """Answers of debates that are right again, of those that were right in the round before."""

    type: Literal["kept_right"] = "kept_right"
    metric: str = "kept_right"
    fall: float | None = 0.05
    advice: str = "see whether right answers are ever praised (pair_sides), or go back (keep_if)"


class TurnedRight(Transition):
    """Answers of debates that are right, of those that were wrong in the round before."""

    type: Literal["turned_right"] = "turned_right"
    metric: str = "turned_right"
    share: float | None = 0.5
    advice: str = "see whether wrong answers are ever opposed (pair_sides), or go back (keep_if)"


class EqualVotes(Detector):
    """Votes that prefer nobody."""

    type: Literal["equal_votes"] = "equal_votes"
    metric: str = "judge/equal_share"
    above: float | None = 0.95
    advice: str = "judges agree by preferring nobody: take peer_prediction, or judge weight 0"


class Coverage(Detector):
    """Pairs that are compared, of those that were to be."""

    type: Literal["coverage"] = "coverage"
    metric: str = "train/comparisons_made"
    below: float | None = 0.1
    fall: float | None = 0.2
    advice: str = "price pairs that are left out (reward.judge_credit: line), lower learning_rate"


class Format(Detector):
    """Turns in which an answer can be read."""

    type: Literal["format"] = "format"
    metric: str = "train/format_all"
    below: float | None = 0.05
    fall: float | None = 0.1
    advice: str = "raise rollout.max_tokens or loss.kl.weight, lower learning_rate, or warm-start"


class StrictFormat(Detector):
    """Turns that keep their contract: an answer can be read of many that do not."""

    type: Literal["strict_format"] = "strict_format"
    metric: str = "train/format_strict"
    fall: float | None = 0.2
    advice: str = "price it (reward.contract_penalty), raise loss.kl.weight, lower learning_rate"


class SelfPlayStrength(Detector):
    """Accuracy beyond that of the phase's start in the same debates, while the reward holds."""

    due: ClassVar[Due] = "evaluation"
    type: Literal["self_play_strength"] = "self_play_strength"
    fall: float | None = 0.1
    advice: str = "its own start now wins: mix in verifiable rewards, or go back to the best"

    def figure(self, history: History) -> float | None:
        """Compute the policy's accuracy minus its start's in the last evaluation."""
        return _strength(history.evaluations[-1])

    def _change_alarm(self, value: float, history: History) -> str | None:
        # At its start the policy is as strong as that start.
        # The comparison is with the reward at the policy's strongest evaluation.
        best_strength = 0.0
        reward_then = history.begun("reward/total")
        strengths = [_strength(row) for row in history.evaluations]
        for strength, row in zip(strengths, history.evaluations, strict=True):
            # Of equally strong evaluations the last one counts, and also before the start.
            if strength is not None and strength >= best_strength:
                best_strength = strength
                reward_then = row["reward/total"]
        reward_now = history.now("reward/total")
        if self.fall is None or value >= best_strength - self.fall:
            return None
        if reward_now is None or reward_then is None:
            return None
        if reward_now < reward_then - self.sigmas * history.noise("reward/total"):
            return None  # the reward fell, too, so that it shows the loss of strength
        rewards = f"while the reward went from {reward_then:.3g} to {reward_now:.3g}"
        return f"{value:+.3g}, at best {best_strength:+.3g}, {rewards}"


def _strength(evaluation: Row) -> float | None:
    accuracy = evaluation.get("eval/start/learned/accuracy")
    start_accuracy = evaluation.get("eval/start/opponent/accuracy")
    if accuracy is None or start_accuracy is None:
        return None
    return float(accuracy) - float(start_accuracy)


class OneWinner(Detector):
    """The agent, so the persona, that wins the largest share of the verdicts about it."""

    type: Literal["one_winner"] = "one_winner"
    above: float | None = 0.9
    advice: str = "votes follow who speaks: hide the names of personas, or take personas: none"

    def figure(self, history: History) -> float | None:
        """Find the largest share of verdicts other than `=` that an agent wins."""
        shares = [history.now(f"judge/wins/agent_{agent}") for agent in range(history.facts.agents)]
        return max((share for share in shares if share is not None), default=None)


class FirstPosition(Detector):
    """Verdicts for the turn that stands first."""

    type: Literal["first_position"] = "first_position"
    metric: str = "judge/first_shown"
    above: float | None = 0.9
    below: float | None = 0.1
    advice: str = "judges prefer a place: measure swapped_judging, train on pairs in both orders"


class Length(Detector):
    """Sampled tokens of a turn."""

    type: Literal["length"] = "length"
    metric: str = "env/all/ac_tokens_per_turn"
    times: float | None = 2.0
    share: float | None = 0.5
    advice: str = "read transcripts/: padding (reward overlong), or reasoning that is left out"


class AnswerLength(EvaluationDetector):
    """Sampled tokens of an answer in debates on the dev split; `length` is of those of steps."""

    type: Literal["answer_length"] = "answer_length"
    metric: str = "eval/tokens/answer"
    times: float | None = 2.0
    share: float | None = 0.5
    advice: str = Length().advice


class Truncation(Detector):
    """Replies that end at their limit of tokens."""

    type: Literal["truncation"] = "truncation"
    metric: str = "rollout/truncated_fraction"
    rise: float | None = 0.2
    advice: str = "replies no longer end by themselves: raise rollout.max_tokens, or use overlong"


class Entropy(Detector):
    """Mean entropy of the policy at the sampled tokens."""

    type: Literal["entropy"] = "entropy"
    metric: str = "optim/entropy"
    share: float | None = 0.2
    advice: str = "raise loss.kl.weight or the upper clip range, or take harder questions"


class LargestStream(Detector):
    """The stream that takes most of the gradient, where several have a part of it."""

    type: Literal["largest_stream"] = "largest_stream"
    metric: str = "largest_stream"
    above: float | None = 0.8
    advice: str = "one stream teaches nearly alone: set advantage.streams.NAME.share on purpose"


class Diversity(Detector):
    """How far first answers to a question differ: 0 where all agents give one, 1 where none."""

    type: Literal["diversity"] = "diversity"
    metric: str = "train/diversity/round_0"
    below: float | None = 0.02
    advice: str = "take harder questions, more agents, personas or a higher temperature"

    def figure(self, history: History) -> float | None:
        """Compute (classes / answers − 1/N) / (1 − 1/N) of the first round."""
        class_share = history.now(self.metric)
        num_agents = history.facts.agents
        if class_share is None or num_agents < 2:
            return None
        return (class_share * num_agents - 1) / (num_agents - 1)

    def is_excused(self, history: History) -> bool:
        """Whether the answers agree because they are right."""
        return (history.now("train/accuracy/round_0") or 0.0) >= 0.9


class Unheard(Detector):
    """Turns of the first round that name an agent they were not shown."""

    type: Literal["unheard"] = "unheard"
    metric: str = "train/unheard/named"
    above: float | None = 0.1
    advice: str = "agents make up what others said: warm-start, or say that nobody spoke yet"


class Reference(Detector):
    """The KL to the phase's start: 0 before the first update, and not 0 ever after."""

    type: Literal["reference"] = "reference"
    metric: str = "optim/kl_reference"
    above: float | None = 1e-3
    advice: str = "look at loss.kl.reference and, after a resume, at reference-*.safetensors"

    def figure(self, history: History) -> float | None:
        """Read the KL of the phase's first step, before its update."""
        # Later updates of one step measure the KL after the first of them.
        starts_at_zero = history.facts.keeps_start and not history.facts.several_updates
        if not starts_at_zero or not history.first:
            return None
        value = history.first[0].get(self.metric)
        return None if value is None else float(value)

    def _change_alarm(self, value: float, history: History) -> str | None:
        if history.now(self.metric) == 0 and history.now("optim/grad_norm"):
            return f"0 for {history.window} steps, though each moves the policy"
        return None


class NoSignal(Detector):
    """Turns that no advantage reaches: 1 where no token of a step is moved."""

    type: Literal["no_signal"] = "no_signal"
    metric: str = ZERO
    stops: bool = True
    advice: str = "look at the debates of these steps in transcripts/, and at --check"

    def _change_alarm(self, value: float, history: History) -> str | None:
        reason = why_nothing_learned(list(history.last))
        return None if reason is None else f"1 for {history.window} steps: {reason}"


class PairSides(SetDetector):
    """The share of a set's pairs on the side that has fewer of them."""

    type: Literal["pair_sides"] = "pair_sides"
    metric: str = "pairs/smaller_side"
    below: float | None = 0.2
    advice: str = "one side alone is learned: guide to wrong answers, or pairs_per_state: both"


class PairTruth(SetDetector):
    """Right replies among the chosen ones minus right ones among the rejected, of all pairs."""

    type: Literal["pair_truth"] = "pair_truth"
    metric: str = "pairs/truth"
    below: float | None = 0.0
    advice: str = "pairs prefer wrong replies: take pairs by answer, or better judges"


class PreferenceMargin(Detector):
    """How much more the policy has come to prefer the chosen replies than the phase's start."""

    type: Literal["preference_margin"] = "preference_margin"
    metric: str = "optim/preference_margin"
    advice: str = "raise learning_rate where optim/grad_norm is steady, lower it where that grows"

    def _change_alarm(self, value: float, history: History) -> str | None:
        start = history.begun(self.metric)
        if start is None or history.steps < 2 * history.window or value > start:
            return None
        return f"{value:.3g}, in the phase's first steps {start:.3g}: it has not grown"


class PreferenceAccuracy(Detector):
    """Pairs whose chosen reply gained more than the rejected one."""

    type: Literal["preference_accuracy"] = "preference_accuracy"
    metric: str = "optim/preference_accuracy"
    below: float | None = 0.5
    advice: str = PreferenceMargin().advice

    def is_excused(self, history: History) -> bool:
        """Whether there were too few steps: at the first one no reply has gained."""
        return history.steps < 2 * history.window


# All that are on unless the recipe changes them.
OWN = (
    RewardAccuracy,
    FooledJudge,
    Collapse,
    KeptRight,
    TurnedRight,
    EqualVotes,
    Coverage,
    Format,
    StrictFormat,
    SelfPlayStrength,
    OneWinner,
    FirstPosition,
    Length,
    AnswerLength,
    Truncation,
    Entropy,
    NoSignal,
    LargestStream,
    Diversity,
    Unheard,
    Reference,
    PairSides,
    PairTruth,
    PreferenceMargin,
    PreferenceAccuracy,
)
