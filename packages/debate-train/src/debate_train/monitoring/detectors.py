"""Detectors of failing training: a table of metrics with bounds, and how a figure is judged.

`ROWS` has a row for each detector. docs/health.md explains the bounds.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite, sqrt
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from debate_protocol.plugins import Config
from debate_report.nothing_learned import ZERO, why_nothing_learned
from debate_train.monitoring.figures import Due, History, Row

# Answers of a first round agree for a good reason where this share of them is right.
MOSTLY_RIGHT = 0.9

Figure = Callable[[str, History], float | None]
"""Computes the figure of a metric after the last row; None if unknown."""
Start = Callable[[str, History], tuple[float | None, float]]
"""Computes the figure at the phase's start, and the standard error of a change since then."""
Alarm = Callable[["Detector", float, History], str | None]
"""Looks for an alarm within the bounds `above` and `below`; returns the reason."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The figure of a detector, and the reason for an alarm, if any."""

    value: float
    alarm: str | None = None


def window_mean(metric: str, history: History) -> float | None:
    """Average the last steps."""
    return history.now(metric)


def last_step(metric: str, history: History) -> float | None:
    """Read the last step: a phase has a single set of examples, known from step 1 on."""
    return history.last[-1].get(metric)


def last_evaluation(metric: str, history: History) -> float | None:
    """Read the last evaluation; only phases of pairs need it, as their steps play no debates."""
    return history.evaluations[-1].get(metric) if history.facts.pairs else None


def largest_win_share(_metric: str, history: History) -> float | None:
    """Find the largest share of verdicts other than `=` won by an agent."""
    shares = [history.now(f"judge/wins/agent_{agent}") for agent in range(history.facts.agents)]
    return max((share for share in shares if share is not None), default=None)


def answer_diversity(metric: str, history: History) -> float | None:
    """Compute (classes / answers − 1/N) / (1 − 1/N): 0 if all N agents agree, 1 if all differ."""
    class_share = history.now(metric)
    num_agents = history.facts.agents
    if class_share is None or num_agents < 2:
        return None
    return (class_share * num_agents - 1) / (num_agents - 1)


def first_step_kl(metric: str, history: History) -> float | None:
    """Read the KL of the phase's first step, before the update."""
    # Later updates of one step measure the KL after the first of them.
    starts_at_zero = history.facts.keeps_start and not history.facts.several_updates
    if not starts_at_zero or not history.first:
        return None
    value = history.first[0].get(metric)
    return None if value is None else float(value)


def strength(_metric: str, history: History) -> float | None:
    """Compute accuracy minus the start's accuracy in the last evaluation."""
    return strength_in(history.evaluations[-1])


def strength_in(evaluation: Row) -> float | None:
    """Compute accuracy minus the start's accuracy in the same debates."""
    accuracy = evaluation.get("eval/start/learned/accuracy")
    start_accuracy = evaluation.get("eval/start/opponent/accuracy")
    if accuracy is None or start_accuracy is None:
        return None
    return float(accuracy) - float(start_accuracy)


def first_window(metric: str, history: History) -> tuple[float | None, float]:
    """Average the phase's first steps."""
    return history.begun(metric), history.noise(metric)


def first_evaluation(metric: str, history: History) -> tuple[float | None, float]:
    """Read the evaluation of the phase's start, without a standard error."""
    return (history.start or {}).get(metric), 0.0


def first_answers(metric: str, history: History) -> tuple[float | None, float]:
    """Read the start's share; estimate the error as if each question had a single such answer."""
    start, _ = first_evaluation(metric, history)
    shares = [share for share in (start, last_evaluation(metric, history)) if share is not None]
    # A share that is computed from rounded figures may lie a little outside [0, 1].
    variance = sum(max(0.0, share * (1 - share)) for share in shares)
    return start, sqrt(variance / max(1, history.facts.questions))


def change_alarm(detector: "Detector", value: float, history: History) -> str | None:
    """Compare the figure with the phase's start."""
    start, standard_error = detector.row.start(detector.metric, history)
    if start is None or abs(value - start) <= detector.sigmas * standard_error:
        return None
    change = f"{value:.3g}, at the phase's start {start:.3g}"
    if detector.fall is not None and value < start - detector.fall:
        return f"{change}: it fell by more than {detector.fall:g}"
    if detector.rise is not None and value > start + detector.rise:
        return f"{change}: it rose by more than {detector.rise:g}"
    # Multiples and shares of 0 or of a negative figure say nothing.
    if detector.times is not None and start > 0 and value > detector.times * start:
        return f"{change}: more than {detector.times:g} times as much"
    if detector.share is not None and start > 0 and value < detector.share * start:
        return f"{change}: less than {detector.share:g} of it"
    return None


def strength_alarm(detector: "Detector", value: float, history: History) -> str | None:
    """Look for a loss of strength hidden by the reward."""
    # At its start the policy is as strong as that start.
    # The comparison is with the reward at the policy's strongest evaluation.
    best_strength = 0.0
    reward_then = history.begun("reward/total")
    for evaluation in history.evaluations:
        strength_then = strength_in(evaluation)
        # Of equally strong evaluations the last one counts, and also before the start.
        if strength_then is not None and strength_then >= best_strength:
            best_strength = strength_then
            reward_then = evaluation["reward/total"]
    reward_now = history.now("reward/total")
    if detector.fall is None or value >= best_strength - detector.fall:
        return None
    if reward_now is None or reward_then is None:
        return None
    if reward_now < reward_then - detector.sigmas * history.noise("reward/total"):
        return None  # the reward fell, too, so it shows the loss of strength
    rewards = f"while the reward went from {reward_then:.3g} to {reward_now:.3g}"
    return f"{value:+.3g}, at best {best_strength:+.3g}, {rewards}"


def still_zero_alarm(detector: "Detector", value: float, history: History) -> str | None:
    """Look for a KL of 0 although steps move the policy: the reference moves with it."""
    if history.now(detector.metric) == 0 and history.now("optim/grad_norm"):
        return f"0 for {history.window} steps, though each moves the policy"
    return None


def no_signal_alarm(detector: "Detector", value: float, history: History) -> str | None:
    """Look for the reason why no token of the last steps was moved."""
    reason = why_nothing_learned(list(history.last))
    return None if reason is None else f"1 for {history.window} steps: {reason}"


def no_growth_alarm(detector: "Detector", value: float, history: History) -> str | None:
    """Look for a figure without growth since the phase's first steps."""
    start = history.begun(detector.metric)
    if start is None or has_few_steps(history) or value > start:
        return None
    return f"{value:.3g}, in the phase's first steps {start:.3g}: it has not grown"


def has_few_steps(history: History) -> bool:
    """Whether the last steps overlap the first steps, before replies could gain."""
    return history.steps < 2 * history.window


def answers_are_right(history: History) -> bool:
    """Whether first answers agree because they are right."""
    return (history.now("train/accuracy/round_0") or 0.0) >= MOSTLY_RIGHT


def never(_history: History) -> bool:
    """Excuse no figure."""
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorRow:
    """A detector of ours.

    `metric` to `stops` are defaults of a detector's keys; the other fields judge the figure.

    Attributes:
        due: The judged rows of metrics.
        excused: Whether the figure is no cause for alarm, however bad it is.
    """

    metric: str = ""
    above: float | None = None
    below: float | None = None
    fall: float | None = None
    rise: float | None = None
    times: float | None = None
    share: float | None = None
    sigmas: float = 3.0
    advice: str = ""
    stops: bool = False

    due: Due = "step"
    figure: Figure = window_mean
    start: Start = first_window
    change: Alarm = change_alarm
    excused: Callable[[History], bool] = never


LENGTH_ADVICE = "read transcripts/: padding (reward overlong), or reasoning that is left out"
PREFERENCE_ADVICE = "raise learning_rate where optim/grad_norm is steady, lower it where that grows"
PLAIN = DetectorRow()
# On unless a recipe changes them. They are judged in this order.
ROWS = {
    # Whether the turns with the highest reward are right, more often than turns drawn at random.
    "reward_accuracy": DetectorRow(
        metric="reward/above_chance",
        below=0.0,
        fall=0.3,
        advice="the reward points away from the truth: take a better judge, or reward.type: mixed",
    ),
    # Judgments "right" minus right answers.
    "fooled_judge": DetectorRow(
        metric="train/judged/gap",
        rise=0.2,
        advice="the judge is pleased, not convinced: let a critic learn, or take a better judge",
    ),
    # First answers are written before an agent has read any other.
    "collapse": DetectorRow(
        metric="train/accuracy/round_0",
        fall=0.05,
        advice="go back to a checkpoint before the fall, and mix in verifiable rewards",
    ),
    "kept_right": DetectorRow(
        metric="kept_right",
        fall=0.05,
        sigmas=2.0,
        advice="see whether right answers are ever praised (pair_sides), or go back (keep_if)",
        due="evaluation",
        figure=last_evaluation,
        start=first_answers,
    ),
    "turned_right": DetectorRow(
        metric="turned_right",
        share=0.5,
        sigmas=2.0,
        advice="see whether wrong answers are ever opposed (pair_sides), or go back (keep_if)",
        due="evaluation",
        figure=last_evaluation,
        start=first_answers,
    ),
    "equal_votes": DetectorRow(
        metric="judge/equal_share",
        above=0.95,
        advice="judges agree by preferring nobody: take peer_prediction, or judge weight 0",
    ),
    "coverage": DetectorRow(
        metric="train/comparisons_made",
        below=0.1,
        fall=0.2,
        advice="price pairs that are left out (reward.judge_credit: line), lower learning_rate",
    ),
    # Answers can be read of many turns that do not keep their contract.
    "format": DetectorRow(
        metric="train/format_all",
        below=0.05,
        fall=0.1,
        advice="raise rollout.max_tokens or loss.kl.weight, lower learning_rate, or warm-start",
    ),
    "strict_format": DetectorRow(
        metric="train/format_strict",
        fall=0.2,
        advice="price it (reward.contract_penalty), raise loss.kl.weight, lower learning_rate",
    ),
    "self_play_strength": DetectorRow(
        fall=0.1,
        advice="its own start now wins: mix in verifiable rewards, or go back to the best",
        due="evaluation",
        figure=strength,
        change=strength_alarm,
    ),
    # Of equals, each wins half of the verdicts about it.
    "one_winner": DetectorRow(
        above=0.9,
        advice="votes follow who speaks: hide the names of personas, or take personas: none",
        figure=largest_win_share,
    ),
    "first_position": DetectorRow(
        metric="judge/first_shown",
        above=0.9,
        below=0.1,
        advice="judges prefer a place: measure swapped_judging, train on pairs in both orders",
    ),
    "length": DetectorRow(
        metric="env/all/ac_tokens_per_turn",
        times=2.0,
        share=0.5,
        advice=LENGTH_ADVICE,
    ),
    "answer_length": DetectorRow(
        metric="eval/tokens/answer",
        times=2.0,
        share=0.5,
        advice=LENGTH_ADVICE,
        due="evaluation",
        figure=last_evaluation,
        start=first_evaluation,
    ),
    "truncation": DetectorRow(
        metric="rollout/truncated_fraction",
        rise=0.2,
        advice="replies no longer end by themselves: raise rollout.max_tokens, or use overlong",
    ),
    "entropy": DetectorRow(
        metric="optim/entropy",
        share=0.2,
        advice="raise loss.kl.weight or the upper clip range, or take harder questions",
    ),
    "no_signal": DetectorRow(
        metric=ZERO,
        stops=True,
        advice="look at the debates of these steps in transcripts/, and at --check",
        change=no_signal_alarm,
    ),
    "largest_stream": DetectorRow(
        metric="largest_stream",
        above=0.8,
        advice="one stream teaches nearly alone: set advantage.streams.NAME.share on purpose",
    ),
    "diversity": DetectorRow(
        metric="train/diversity/round_0",
        below=0.02,
        advice="take harder questions, more agents, personas or a higher temperature",
        figure=answer_diversity,
        excused=answers_are_right,
    ),
    "unheard": DetectorRow(
        metric="train/unheard/named",
        above=0.1,
        advice="agents make up what others said: warm-start, or say that nobody spoke yet",
    ),
    # The KL to the phase's start is 0 before the first update, and not 0 ever after.
    "reference": DetectorRow(
        metric="optim/kl_reference",
        above=1e-3,
        advice="look at loss.kl.reference and, after a resume, at reference-*.safetensors",
        figure=first_step_kl,
        change=still_zero_alarm,
    ),
    "pair_sides": DetectorRow(
        metric="pairs/smaller_side",
        below=0.2,
        advice="one side alone is learned: guide to wrong answers, or pairs_per_state: both",
        figure=last_step,
    ),
    "pair_truth": DetectorRow(
        metric="pairs/truth",
        below=0.0,
        advice="pairs prefer wrong replies: take pairs by answer, or better judges",
        figure=last_step,
    ),
    "preference_margin": DetectorRow(
        metric="optim/preference_margin",
        advice=PREFERENCE_ADVICE,
        change=no_growth_alarm,
    ),
    "preference_accuracy": DetectorRow(
        metric="optim/preference_accuracy",
        below=0.5,
        advice=PREFERENCE_ADVICE,
        excused=has_few_steps,
    ),
}


class Detector(Config):
    """The base class of detectors: a field `type`, a figure, and bounds of the figure.

    The figure is the mean of `metric` over the last `health.window` steps; subclasses may override
    `figure`. A figure beyond a bound raises an alarm. Bounds on a change compare with the phase's
    first steps; the change must also exceed `sigmas` standard errors.
    """

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

    @property
    def row(self) -> DetectorRow:
        """The row of our detectors; other detectors have a plain row."""
        return ROWS.get(self.type, PLAIN)

    @property
    def due(self) -> Due:
        """The judged rows of metrics: steps, or evaluations on the dev split."""
        return self.row.due

    def figure(self, history: History) -> float | None:
        """Compute the figure after the last row; `None` if unknown."""
        return self.row.figure(self.metric, history)

    def judge(self, history: History) -> Finding | None:
        """Judge the last row; `None` as long as the figure is unknown."""
        value = self.figure(history)
        if value is None or not isfinite(value):
            return None
        if self.row.excused(history):
            return Finding(value)
        if self.above is not None and value > self.above:
            return Finding(value, f"{value:.3g}, above {self.above:g}")
        if self.below is not None and value < self.below:
            return Finding(value, f"{value:.3g}, below {self.below:g}")
        return Finding(value, self.row.change(self, value, history))


CHANGES = ("fall", "rise", "times", "share")
"""Bounds on a change since the phase's start."""
# Bounds that an alarm of its own kind does not read.
UNREAD_BOUNDS: Mapping[Alarm, tuple[str, ...]] = {
    strength_alarm: CHANGES[1:],
    still_zero_alarm: CHANGES,
    no_signal_alarm: CHANGES,
    no_growth_alarm: CHANGES,
}
FIGURES_WITHOUT_METRIC = (largest_win_share, strength)

if TYPE_CHECKING:
    MetricType = str
else:
    MetricType = Literal[("metric", *ROWS)]


class Metric(Detector):
    """A metric with bounds: new in the recipe, or ours by name."""

    type: MetricType = "metric"

    @model_validator(mode="before")
    @classmethod
    def _fill_from_row(cls, settings: Any) -> Any:
        row = ROWS.get(settings.get("type", "")) if isinstance(settings, Mapping) else None
        if row is None:
            return settings
        keys = Detector.model_fields.keys() - {"type"}
        return {key: getattr(row, key) for key in keys} | settings

    @model_validator(mode="after")
    def _refuse_unread_keys(self) -> Self:
        unread_keys = list(UNREAD_BOUNDS.get(self.row.change, ()))
        if self.row.figure in FIGURES_WITHOUT_METRIC:
            unread_keys.append("metric")
        for key in unread_keys:
            value = getattr(self, key)
            if value != getattr(self.row, key):
                raise ValueError(
                    f"{key}: found {value!r}, which {self.type} does not read; expected other keys"
                )
        return self
