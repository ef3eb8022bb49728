"""What an evaluation mode owes its callers: what it plays, and what it reads off it."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from debate_protocol.config import Config
from debate_protocol.forms import DebateForm, Direct
from debate_protocol.types import Transcript
from debate_train.adapters import answering_role
from debate_train.evaluation.curves import Curves

ONE_DEBATE = (-1,)
"""The copy of a mode that plays each question once."""

Values = Mapping[str, Mapping[str, float]]
"""Figure → question id → mean over what was played of the question."""

Ratios = Mapping[str, Mapping[str, tuple[float, ...]]]
"""Figure → question id → what its numerator and its denominator gain by what was played."""


@dataclass(frozen=True, slots=True)
class Plays:
    """Debates that a mode wants on every question.

    The seed of a debate follows from the question, the run and the number of its copy, not from
    the mode: two modes that play copies of one number give their agents the same seeds. What is
    then asked in the same words, such as the first turns of debates that part later, is sampled
    once for all modes.
    """

    form: DebateForm
    copies: Sequence[int] = ONE_DEBATE
    """A number of 0 or more for each debate of a question; direct replies have 0, 1, …"""
    what: str = "debates"
    """Named in the progress display."""
    mark: str = ""
    """Distinguishes debates of a mode on one question by their ids; seeds do not depend on it."""
    share: tuple[int, int] = (0, 1)
    """(k, n): of the questions only number k, k + n, k + 2 n, … from 0 are played."""

    @property
    def turns(self) -> int:
        """Most turns sampled for n questions in one run, over n: of one question where n is 1."""
        return -(-len(self.copies) * self.form.turn_count() // self.share[1])


class EvaluationMode(Protocol):
    """One way to measure the policy: a pydantic model with a field `type`.

    `ModeSettings` of `debate_train.evaluation` brings all but `type`, `plays`, `figures` and
    `values`; its `details`, `ratios` and `curves` are none. A mode samples nothing itself: it names
    forms, the evaluation plays them with the engine of the run, each ask by the policy that it
    names, and hands over the transcripts.
    """

    @property
    def type(self) -> str:
        """The name by which recipes choose the mode."""
        ...

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return what is played on each question, nothing where the mode has nothing to measure.

        `--check` counts its turns, measures its longest context and looks up its policies.

        Args:
            form: The recipe's debate as `evaluation` changes it.

        Raises:
            ValueError: The mode does not go with this form; the text begins with the key.
        """
        ...

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the names of all figures that it may measure, each with its row in the table.

        A figure with an empty text has no row. In results, metrics and exit criteria the name of
        the mode in the recipe stands before: `eval/NAME/FIGURE`.
        """
        ...

    def details(self, form: DebateForm) -> Mapping[str, str]:
        """Return rows of further figures, for the table of an evaluation without a run.

        The table that a run ends with has those of `figures` alone.
        """
        ...

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return each figure's value for each question; questions without one are absent.

        Means, intervals over questions and deviations between runs are made of them. It is called
        for each run, and with several runs once more for all of them.

        Args:
            played: What was played of each of `plays`, in order.
        """
        ...

    def ratios(self, played: Sequence[Sequence[Transcript]]) -> Ratios:
        """Return the figures that are ratios of sums over all questions, by question.

        They are of other names than those of `values`.

        Args:
            played: As for `values`.
        """
        ...

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Return accuracies beside the sampled tokens that they took, by the curve's name.

        Args:
            played: As for `values`, of all runs.
        """
        ...

    def counted(self, form: DebateForm) -> str:
        """Return what a question costs in one run, such as `4 direct replies`."""
        ...

    def described(self, form: DebateForm) -> str:
        """Return in what debates it measures, for those who read the results."""
        ...


class ModeSettings(Config):
    """The base class of evaluation modes."""

    type: str

    @abstractmethod
    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return what is played on each question."""

    @abstractmethod
    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the names of all figures, each with its row in the table or an empty text."""

    @abstractmethod
    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return each figure's value for each question."""

    def details(self, form: DebateForm) -> Mapping[str, str]:
        """Return rows of further figures; here none."""
        return {}

    def ratios(self, played: Sequence[Sequence[Transcript]]) -> Ratios:
        """Return the figures that are ratios of sums over all questions; here none."""
        return {}

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Return accuracies beside the sampled tokens that they took; here none."""
        return {}

    def counted(self, form: DebateForm) -> str:
        """Return what a question costs in one run."""
        turns = sum(one.turns for one in self.plays(form))
        return f"{turns:,} turn{'' if turns == 1 else 's'} of {self.type}"

    def described(self, form: DebateForm) -> str:
        """Return in what debates it measures."""
        return "; ".join(shape_of(one.form, len(one.copies)) for one in self.plays(form))


def shape_of(form: DebateForm, copies: int = 1) -> str:
    """Return the agents, rounds and temperatures of a form in a few words."""
    at = f"at temperature {', '.join(temperatures(form))}"
    if form.turn_count() == 1:
        return f"{copies} single repl{'y' if copies == 1 else 'ies'} {at}"
    said = f"{copies} debates of " if copies > 1 else ""
    return f"{said}{form.num_agents} agents, {form.max_rounds} rounds {at}"


def temperatures(form: DebateForm) -> list[str]:
    """Return the temperature of each agent, or one where all are the same."""
    each = [f"{form.temperature_of(agent):g}" for agent in range(form.num_agents)]
    return each if len(set(each)) > 1 else each[:1]


def direct_form(form: DebateForm) -> Direct:
    """Return the form in which one agent answers once, prompted as in this form."""
    return Direct.model_validate({**dict(form.speaking()), "roles": answering_role(form)})
