"""Keys of an evaluation: frequency, questions and modes."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field, field_validator

from debate_protocol.forms import DebateForm
from debate_protocol.plugins import Config, Variants
from debate_protocol.types import Transcript
from debate_rewards.metrics import question_values
from debate_train.evaluation.debates import (
    Debate,
    Listening,
    Opponents,
    SocietyOfMinds,
    SwappedJudging,
)
from debate_train.evaluation.modes import (
    Curves,
    DebateChanges,
    EvaluationMode,
    Plays,
    Ratios,
    Values,
    moments_of,
    most_replies,
    reply_curves,
    temperatures,
)
from debate_train.playing import Rollout, direct_form

__all__ = ["Evaluation", "ExitCriterion", "KeepIf", "Setup"]

DIRECT = "direct"
"""Name of the mode of single replies, which every evaluation has."""
DEBATE = "debate"
"""Name of the mode of the recipe's debate, which every evaluation has."""
_NEUTRAL_SAMPLING = {"top_p": 1, "top_k": 0, "min_p": 0}


class DirectAnswers(EvaluationMode):
    """The policy without debate: single replies, prompted as a debate begins.

    `maj@K`, the majority of K = `samples` replies, shows what a debate's tokens are worth without
    a debate.

    Source: Wang et al. (2022), Self-consistency improves chain of thought reasoning.
    """

    type: Literal["direct"] = "direct"
    samples: int = Field(4, ge=1)
    """Replies to each question, in each run."""

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Plan `samples` replies."""
        return (Plays(direct_form(form), range(self.samples), "alone"),)

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """List the share of right replies with a row, and figures of several replies."""
        figures = {"accuracy": "direct accuracy"}
        for name in ("format", "format_strict", "tokens/answer", "right/tokens", "wrong/tokens"):
            figures[name] = ""
        if self.samples > 1:
            for name in ("maj", "pass", "cons"):
                figures[f"{name}@{self.samples}"] = ""
        return figures

    def details(self, form: DebateForm) -> Mapping[str, str]:
        """List the rows of K replies, and of their cost."""
        rows = {}
        if self.samples > 1:
            rows[f"maj@{self.samples}"] = f"majority of {self.samples} replies"
            rows[f"pass@{self.samples}"] = f"one of {self.samples} replies is right"
        rows["tokens/answer"] = "sampled tokens of a reply"
        return rows

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Compute each question's share of right replies (mean@K), and maj@K, pass@K and cons@K."""
        our_names = {"correct": "accuracy"}
        for name in ("format", "format_strict", "tokens/answer"):
            our_names[name] = name
        metrics = question_values(played[0])
        values: dict[str, Mapping[str, float]] = {}
        for metric, our_name in our_names.items():
            if metric in metrics:
                values[our_name] = metrics[metric]
        if self.samples > 1:
            # The last point of a curve is over all subsets of K replies.
            for name, points in reply_curves(played[0], self.samples).items():
                values[f"{name.removesuffix('@k')}@{self.samples}"] = points[-1].values
        return values

    def ratios(self, played: Sequence[Sequence[Transcript]]) -> Ratios:
        """Compute the mean lengths of right and of wrong replies."""
        names = {"right/tokens": "right/tokens/round_0", "wrong/tokens": "wrong/tokens/round_0"}
        return moments_of(played[0], names)

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Compute `maj@k`, `pass@k` and `cons@k`, k from 1 to all replies of all runs."""
        return reply_curves(played[0], max(self.samples, most_replies(played[0])))

    def counted(self, form: DebateForm) -> str:
        """Describe the number of replies."""
        unit = "reply" if self.samples == 1 else "replies"
        return f"{self.samples} direct {unit}"


MODES: Variants[EvaluationMode] = Variants(
    "debate_train.evaluation",
    EvaluationMode,
    Debate,
    DirectAnswers,
    Listening,
    Opponents,
    SocietyOfMinds,
    SwappedJudging,
)
"""All evaluation modes, those of other installed packages included."""

ModeChoice = Annotated[EvaluationMode, MODES]
"""Any evaluation mode; recipes choose by `type`."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Inputs of an evaluation, from a recipe or a command."""

    form: DebateForm
    """The debate that modes play, or change."""
    modes: Mapping[str, EvaluationMode]
    rollout: Rollout = field(default_factory=Rollout)
    """Settings of sampling."""
    runs: int = 1
    """Independent repetitions on the same questions."""
    seed: int = 0
    headline: Sequence[str] = ()
    """Full names of the figures that tables and reports begin with."""

    def plays(self) -> Iterator[tuple[str, Plays]]:
        """Yield each mode's name with each of the mode's plays.

        Raises:
            ValueError: A mode does not go with the form.
        """
        for name, mode in self.modes.items():
            with _errors_name_mode(name):
                plays = mode.plays(self.form)
                # The standard modes stay silent: a form of one turn has no debate to measure.
                if not plays and not is_standard(name):
                    raise ValueError(
                        f"found nothing to play: {mode.type} with a debate of type "
                        f"{self.form.type}; expected another form (key debate)"
                    )
            for each in plays:
                yield name, each

    def measured(self) -> list[str]:
        """List the full names of the figures of all modes with plays."""
        # A mode that plays nothing has no values for its figures.
        modes = {name: self.modes[name] for name, _ in self.plays()}
        return list(replace(self, modes=modes).figures())

    def figures(self) -> dict[str, str]:
        """List the full name of each figure with a row in the table, or an empty text.

        Raises:
            ValueError: Two modes have a figure of the same name, or a mode does not fit the form.
        """
        figures: dict[str, str] = {}
        for name, mode in self.modes.items():
            with _errors_name_mode(name):
                mode_figures = mode.figures(self.form)
            for figure, row in mode_figures.items():
                full = full_name(name, figure)
                if full in figures:
                    raise ValueError(
                        f"evaluation.modes.{name}: found another figure {full}; expected another "
                        "name for the mode"
                    )
                figures[full] = row if is_standard(name) or not row else f"{name}: {row}"
        return figures

    def listed(self) -> dict[str, str]:
        """List the figures of tables with their rows, the headline first."""
        rows = self.rows()
        names = list(self.headline)
        for name, row in self.figures().items():
            if row:
                names.append(name)
        # The headline may name figures of modes that this evaluation lacks.
        return {name: rows[name] or name for name in names if name in rows}

    def rows(self) -> dict[str, str]:
        """List `figures`, with the rows of details of modes with plays."""
        rows = self.figures()
        playing_modes = dict(self.plays())
        for name in playing_modes:
            for figure, row in self.modes[name].details(self.form).items():
                full = full_name(name, figure)
                # A row of the figure itself is kept.
                if not rows.get(full, row):
                    rows[full] = row if is_standard(name) else f"{name}: {row}"
        return rows

    def described(self) -> str:
        """Describe the sampling of direct replies and debates in a line."""
        form = self.form
        direct_temperature = f"{form.speaking().temperature_of(0):g}"
        debate_temperatures = temperatures(form)
        has_debates = form.turn_count() > 1 and DEBATE in self.modes
        if not has_debates or debate_temperatures == [direct_temperature]:
            text = f"temperature {direct_temperature}"
        elif DIRECT in self.modes:
            text = (
                f"direct replies at temperature {direct_temperature}, "
                f"debates at {', '.join(debate_temperatures)}"
            )
        else:
            text = f"debates at temperature {', '.join(debate_temperatures)}"
        for name, value in self.rollout.sampling.items():
            if value != _NEUTRAL_SAMPLING[name]:
                text += f", {name} {value:g}"
        if has_debates:
            text += f"; {form.num_agents} agents, {form.max_rounds} rounds"
        if self.runs > 1:
            text += f"; {self.runs} runs"
        return text


@contextmanager
def _errors_name_mode(mode: str) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"evaluation.modes.{mode}: {error}") from error


def is_standard(mode: str) -> bool:
    """Say whether this is the name of a standard mode, part of every evaluation."""
    return mode in (DIRECT, DEBATE)


def full_name(mode: str, figure: str) -> str:
    """Build the name of a figure in results, metrics and exit criteria.

    Figures of the recipe's debate have no name of a mode: `eval/majority/accuracy`.
    """
    return f"eval/{figure}" if mode == DEBATE else f"eval/{mode}/{figure}"


class Evaluation(DebateChanges):
    """Frequency, held-out questions, sampling and modes of the policy's evaluation.

    A key of null is as in training. SDRL's protocol is `debate: {type: simultaneous, num_agents: 5,
    max_rounds: 2, history_rounds: 1, contract: boxed, personas: none}`, `temperature: 1`,
    `top_p: 0.9`, `runs: 5`.
    """

    every: int = Field(0, ge=0)
    """Steps between evaluations on the dev split; 0 leaves them out."""
    questions: int = Field(128, ge=0)
    """Questions of each evaluation; 0 leaves out the one before and after the run, too."""
    before: str | Literal[False] | None = None
    """The phase whose start is compared with the end of the run; null is the last phase, false
    measures the end alone."""
    target: bool = False
    """Whether evaluations of a phase also measure the dev split of the recipe's own data."""
    direct_samples: int = Field(4, ge=1)
    """Single-turn replies to each question, in each run."""
    runs: int = Field(1, ge=1)
    """Independent repetitions on the same questions."""
    headline: tuple[str, ...] | None = None
    """Figures that results and reports begin with; null takes those of what the recipe trains."""
    modes: dict[str, ModeChoice | None] = Field(default_factory=dict)
    """Modes by name, beside `direct` and `debate`; null leaves one of these out."""
    top_p: float | None = Field(None, gt=0, le=1)
    """As in `rollout`, of evaluated replies; null is the rollout's."""
    top_k: int | None = Field(None, ge=0)
    """As in `rollout`, of evaluated replies; null is the rollout's."""
    min_p: float | None = Field(None, ge=0, lt=1)
    """As in `rollout`, of evaluated replies; null is the rollout's."""

    @field_validator("modes")
    @classmethod
    def _modes_can_be_named(cls, modes: dict[str, object]) -> dict[str, object]:
        for name in modes:
            if re.fullmatch(r"[\w.@+-]{1,40}", name) is None:
                raise ValueError(
                    f"found {name[:60]!r}; expected a name for figures: letters, digits, _.@+-"
                )
        return modes

    def setup(self, training: DebateForm, rollout: Rollout, seed: int) -> Setup:
        """Build the inputs of an evaluation.

        Args:
            training: the debate form of training.
            rollout: sampling of training's debates.
            seed: seed of the run.

        Raises:
            ValueError: The form takes no such change.
        """
        # Zeros are settings, too: top_k 0 switches off the training's top_k.
        changes: dict[str, float] = {}
        if self.top_p is not None:
            changes["top_p"] = self.top_p
        if self.top_k is not None:
            changes["top_k"] = self.top_k
        if self.min_p is not None:
            changes["min_p"] = self.min_p
        modes: dict[str, EvaluationMode | None] = {
            DIRECT: DirectAnswers(samples=self.direct_samples),
            DEBATE: Debate(),
            **self.modes,
        }
        return Setup(
            form=self.form(training, "evaluation"),
            modes={name: mode for name, mode in modes.items() if mode is not None},
            rollout=rollout.model_copy(update=changes),
            runs=self.runs,
            seed=seed,
        )


class ExitCriterion(Config):
    """Least measures on the dev split for the end of a phase.

    Args:
        metric: Name as in the evaluation, such as eval/judge/accuracy.
        at_least: The least sufficient value of `metric`.
        also_at_least: Further measures for the same evaluation to reach, each with a least
            value.
        every: Steps between two evaluations, from the phase's `steps` on.
        max_steps: The phase ends here even if the criterion is not met.
        if_missed: The fate of later phases after a miss; `fail` ends the run with exit code 1.
    """

    metric: str
    at_least: float
    also_at_least: dict[str, float] = Field(default_factory=dict)
    every: int = Field(50, ge=1)
    max_steps: int = Field(1000, ge=1)
    if_missed: Literal["skip_rest", "go_on", "fail"] = "skip_rest"

    @property
    def wanted(self) -> tuple[tuple[str, float], ...]:
        """Each measure with the least value."""
        return ((self.metric, self.at_least), *self.also_at_least.items())

    def is_met(self, measured: Mapping[str, float | None]) -> bool:
        """Say whether an evaluation meets it; a measure without a single case counts as 0."""
        return all((measured.get(name) or 0.0) >= least for name, least in self.wanted)

    def compared(self, measured: Mapping[str, float]) -> str:
        """Describe each measure of an evaluation beside the least value."""
        comparisons = []
        for name, least_value in self.wanted:
            value = measured.get(name, 0.0)
            comparisons.append(f"{name} {value:.3f}, wanted at least {least_value}")
        return "; ".join(comparisons)

    def next_look(self, steps: int, completed: int) -> int:
        """Compute the next step of the phase to evaluate after, `completed` or later.

        Args:
            steps: the phase's `steps`.
            completed: completed steps of the phase.
        """
        # Evaluations are at steps, steps + every, steps + 2 every, …, and at max_steps.
        num_looks = max(0, math.ceil((completed - steps) / self.every))
        return min(steps + num_looks * self.every, self.max_steps)

    def is_due(self, steps: int, completed: int) -> bool:
        """Say whether to evaluate after `completed` steps of a phase of `steps`."""
        return completed >= self.max_steps or self.next_look(steps, completed) == completed


class KeepIf(Config):
    """A measure on the dev split. If it falls, the phase is undone.

    Args:
        metric: Name as in the evaluation, such as eval/majority/accuracy.
        since: The phase with the start to compare with and to restore; `None` is the phase itself.
        tolerance: How far it may fall.
    """

    metric: str
    since: str | None = None
    tolerance: float = Field(0.0, ge=0)

    def described(self, phase: str) -> str:
        """Describe the condition of a phase in a sentence."""
        less = f" less {self.tolerance:g}" if self.tolerance else ""
        return (
            f"kept only if {self.metric} on the dev split is not below what it is at the start of "
            f"{self.since or phase}{less}; else the weights of that start come back"
        )

    def keeps(self, start: Mapping[str, float], end: Mapping[str, float]) -> bool:
        """Say whether the measure at the end is at least the measure at the start."""
        start_value = start.get(self.metric)
        # Without a case at the start nothing can have fallen; without one at the end it has.
        if start_value is None:
            return True
        return self.metric in end and end[self.metric] >= start_value - self.tolerance
