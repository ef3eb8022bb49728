"""How the policy is measured: how often, on what, and in which modes."""

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


class DirectAnswers(EvaluationMode):
    """The policy alone: single replies, prompted as a debate begins.

    `maj@K`, the majority of K = `samples` replies, is what a debate's tokens give without a debate.

    Source: Wang et al. (2022), Self-consistency improves chain of thought reasoning.
    """

    type: Literal["direct"] = "direct"
    samples: int = Field(4, ge=1)
    """Replies to each question, in each run."""

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return the replies."""
        return (Plays(direct_form(form), range(self.samples), "alone"),)

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the share of right replies with its row, and what several of them give."""
        named = ["format", "format_strict", "tokens/answer", "right/tokens", "wrong/tokens"]
        if self.samples > 1:
            named += [f"{name}@{self.samples}" for name in ("maj", "pass", "cons")]
        return {"accuracy": "direct accuracy"} | dict.fromkeys(named, "")

    def details(self, form: DebateForm) -> Mapping[str, str]:
        """Return the rows of what K replies give, and of their cost."""
        names = {"maj": "majority of {} replies", "pass": "one of {} replies is right"}
        rows = {f"{n}@{self.samples}": row.format(self.samples) for n, row in names.items()}
        return (rows if self.samples > 1 else {}) | {"tokens/answer": "sampled tokens of a reply"}

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return each question's share of right replies (mean@K), and what K of them give."""
        names = {"correct": "accuracy"}
        names |= {name: name for name in ("format", "format_strict", "tokens/answer")}
        found = question_values(played[0])
        values = {ours: found[theirs] for theirs, ours in names.items() if theirs in found}
        return {**values, **self._of_many(played[0])}

    def _of_many(self, replies: Sequence[Transcript]) -> Values:
        """Return maj@K, pass@K and cons@K of K = `samples` replies, over all subsets of K."""
        if self.samples == 1:
            return {}
        curves = reply_curves(replies, self.samples)
        last = {name: points[-1].values for name, points in curves.items()}
        return {f"{name.removesuffix('@k')}@{self.samples}": one for name, one in last.items()}

    def ratios(self, played: Sequence[Sequence[Transcript]]) -> Ratios:
        """Return the mean lengths of right and of wrong replies."""
        sides = ("right/tokens", "wrong/tokens")
        return moments_of(played[0], {side: f"{side}/round_0" for side in sides})

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Return `maj@k`, `pass@k` and `cons@k`, k from 1 to all replies of all runs."""
        return reply_curves(played[0], max(self.samples, most_replies(played[0])))

    def counted(self, form: DebateForm) -> str:
        """Return the number of replies."""
        return f"{self.samples} direct repl{'y' if self.samples == 1 else 'ies'}"


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


DIRECT, DEBATE = "direct", "debate"
"""Names of the modes that are there without being named."""
_NEUTRAL = {"top_p": 1, "top_k": 0, "min_p": 0}


@dataclass(frozen=True, slots=True)
class Setup:
    """All that an evaluation is made with, whatever recipe or command it comes from."""

    form: DebateForm
    """The debate that modes measure in, or change."""
    modes: Mapping[str, EvaluationMode]
    rollout: Rollout = field(default_factory=Rollout)
    """How replies are sampled."""
    runs: int = 1
    """Independent repetitions on the same questions."""
    seed: int = 0
    headline: Sequence[str] = ()
    """Full names of the figures that tables and reports begin with."""

    def plays(self) -> Iterator[tuple[str, Plays]]:
        """Yield the name of each mode with what it plays.

        Raises:
            ValueError: A mode does not go with the form.
        """
        for name, mode in self.modes.items():
            with _naming(name):
                found = mode.plays(self.form)
                if not found and not is_standard(name):
                    raise ValueError(
                        f"found nothing to play: {mode.type} with a debate of type "
                        f"{self.form.type}; expected another form (key debate)"
                    )
            yield from ((name, one) for one in found)

    def measured(self) -> list[str]:
        """Return the full names of the figures of all modes that play something."""
        modes = {name: self.modes[name] for name, _ in self.plays()}
        return list(replace(self, modes=modes).figures())

    def figures(self) -> dict[str, str]:
        """Return the full name of each figure with its row in the table, or an empty text.

        Raises:
            ValueError: Two modes have a figure of one name, or one does not go with the form.
        """
        found: dict[str, str] = {}
        for name, mode in self.modes.items():
            with _naming(name):
                own = mode.figures(self.form)
            for figure, row in own.items():
                full = full_name(name, figure)
                if full in found:
                    raise ValueError(
                        f"evaluation.modes.{name}: found another figure {full}; expected another "
                        "name for the mode"
                    )
                found[full] = row if is_standard(name) or not row else f"{name}: {row}"
        return found

    def listed(self) -> dict[str, str]:
        """Return the figures that tables list by default with their rows, the headline first."""
        every = self.rows()
        with_row = [name for name, row in self.figures().items() if row]
        return {name: every[name] or name for name in (*self.headline, *with_row) if name in every}

    def rows(self) -> dict[str, str]:
        """Return `figures`, with the rows of details of modes that play something."""
        found = self.figures()
        for name in dict(self.plays()):
            for figure, row in self.modes[name].details(self.form).items():
                full = full_name(name, figure)
                if not found.get(full, row):
                    found[full] = row if is_standard(name) else f"{name}: {row}"
        return found

    def described(self) -> str:
        """Return how direct replies and debates are sampled, in one line."""
        form = self.form
        direct, each = f"{form.speaking().temperature_of(0):g}", temperatures(form)
        single = form.turn_count() == 1 or DEBATE not in self.modes
        if single or each == [direct]:
            said = f"temperature {direct}"
        elif DIRECT in self.modes:
            said = f"direct replies at temperature {direct}, debates at {', '.join(each)}"
        else:
            said = f"debates at temperature {', '.join(each)}"
        cuts = {n: value for n, value in self.rollout.sampling.items() if value != _NEUTRAL[n]}
        said += "".join(f", {name} {value:g}" for name, value in cuts.items())
        if not single:
            said += f"; {form.num_agents} agents, {form.max_rounds} rounds"
        return said + (f"; {self.runs} runs" if self.runs > 1 else "")


@contextmanager
def _naming(mode: str) -> Iterator[None]:
    """Name the mode in errors."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"evaluation.modes.{mode}: {error}") from error


def is_standard(mode: str) -> bool:
    """Return whether this is the name of a mode that is there without being named."""
    return mode in (DIRECT, DEBATE)


def full_name(mode: str, figure: str) -> str:
    """Return the name of a figure in results, metrics and exit criteria.

    Those of the recipe's debate have no name of a mode: `eval/majority/accuracy`.
    """
    return f"eval/{figure}" if mode == DEBATE else f"eval/{mode}/{figure}"


class Evaluation(DebateChanges):
    """When, on how many held-out questions and how the policy is measured.

    What is None is as in training. SDRL's protocol is `debate: {type: simultaneous, num_agents: 5,
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
        """Return what an evaluation is made with.

        Args:
            training: The debate form of training.
            rollout: How debates of training are sampled.
            seed: Of the run.

        Raises:
            ValueError: The form takes no such change.
        """
        cuts = {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}
        changed = {name: value for name, value in cuts.items() if value is not None}
        modes: dict[str, EvaluationMode | None] = {
            DIRECT: DirectAnswers(samples=self.direct_samples),
            DEBATE: Debate(),
            **self.modes,
        }
        return Setup(
            self.form(training, "evaluation"),
            {name: mode for name, mode in modes.items() if mode is not None},
            rollout.model_copy(update=changed),
            self.runs,
            seed,
        )


class ExitCriterion(Config):
    """What a phase must reach, on the dev split, before it may end.

    Args:
        metric: Name as in the evaluation, such as eval/judge/accuracy.
        at_least: The least value of `metric` that meets it.
        also_at_least: Further measures that one evaluation must reach, each with the least that is
            wanted.
        every: Steps between two evaluations, from the phase's `steps` on.
        max_steps: The phase ends here even if the criterion is not met.
        if_missed: What happens to the phases after a miss; `fail` ends the run with exit code 1.
    """

    metric: str
    at_least: float
    also_at_least: dict[str, float] = Field(default_factory=dict)
    every: int = Field(50, ge=1)
    max_steps: int = Field(1000, ge=1)
    if_missed: Literal["skip_rest", "go_on", "fail"] = "skip_rest"

    @property
    def wanted(self) -> tuple[tuple[str, float], ...]:
        """Each measure and the least that is wanted of it."""
        return ((self.metric, self.at_least), *self.also_at_least.items())

    def is_met(self, measured: Mapping[str, float | None]) -> bool:
        """Return whether a look reached it; a measure without a single case has not been."""
        return all((measured.get(name) or 0.0) >= least for name, least in self.wanted)

    def compared(self, measured: Mapping[str, float]) -> str:
        """Return each measure at a look and what was wanted of it, in words."""
        return "; ".join(
            f"{name} {measured.get(name, 0.0):.3f}, wanted at least {least}"
            for name, least in self.wanted
        )

    def next_look(self, steps: int, done: int) -> int:
        """Return at how many steps of the phase, `done` or more, it is next looked at."""
        looks = max(0, -(-(done - steps) // self.every))
        return min(steps + looks * self.every, self.max_steps)

    def is_due(self, steps: int, done: int) -> bool:
        """Return whether it is looked at after so many steps of a phase of `steps`."""
        return done >= self.max_steps or self.next_look(steps, done) == done


class KeepIf(Config):
    """What must not have fallen on the dev split for the weights of a phase to be kept.

    Args:
        metric: Name as in the evaluation, such as eval/majority/accuracy.
        since: The phase whose start it is compared with and comes back; None is the phase itself.
        tolerance: How far it may fall.
    """

    metric: str
    since: str | None = None
    tolerance: float = Field(0.0, ge=0)

    def described(self, phase: str) -> str:
        """Return what it asks of a phase, in one sentence."""
        less = f" less {self.tolerance:g}" if self.tolerance else ""
        return (
            f"kept only if {self.metric} on the dev split is not below what it is at the start of "
            f"{self.since or phase}{less}; else the weights of that start come back"
        )

    def keeps(self, start: Mapping[str, float], end: Mapping[str, float]) -> bool:
        """Return whether the measure at the end is not below that at the start.

        Without a case at the start nothing can have fallen; without one at the end it has.
        """
        least = start.get(self.metric)
        if least is None:
            return True
        return self.metric in end and end[self.metric] >= least - self.tolerance
