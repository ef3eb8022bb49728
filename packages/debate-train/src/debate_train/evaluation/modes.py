"""The interface of evaluation modes, and curves of accuracy by sampled tokens."""

import math
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, ValidationError

from debate_protocol.forms import DebateForm, FormConfig
from debate_protocol.forms.settings import PersonaChoice
from debate_protocol.plugins import Config
from debate_protocol.types import TopologyName, Transcript, TurnKey
from debate_rewards.answer_checking import answer_classes
from debate_rewards.metrics import AnswersGiven, answers_given, question_moments
from debate_rewards.vote_metrics import majority_of_subsets, pass_at, right_in_most

__all__ = ["Curves", "CurvePoint", "debate_curves", "reply_curves"]


MOST_REPLIES = 64
"""The end of curves of replies, whose expectation over subsets takes time that grows with k²."""
ONE_DEBATE = (-1,)
"""The copy of a mode that plays each question once."""
_ROUND_KEYS = ("num_agents", "max_rounds", "history_rounds", "conversation")
_VIEW_KEYS = ("topology", "degree", "center")

Values = Mapping[str, Mapping[str, float]]
"""Figure → question id → mean over the question's debates."""
Ratios = Mapping[str, Mapping[str, tuple[float, ...]]]
"""Figure → question id → the summands of its numerator and its denominator."""


class DebateInPlace(Config):
    """A debate form in place of the evaluated form; `None` keeps the latter."""

    # Forms of other packages are imported when the first is made, not with this module: such a
    # package may have an evaluation mode in the same file, and import this.
    model_config = ConfigDict(defer_build=True)
    removed_keys: ClassVar[Mapping[str, str]] = dict.fromkeys(
        (*_ROUND_KEYS, *_VIEW_KEYS, "personas", "temperature"),
        "it in a whole form under debate, or under evaluation for all modes",
    )

    debate: FormConfig | None = None
    """A whole form in place of the recipe's `debate`; other keys of a form change it, too."""

    def form(self, training: DebateForm, where: str = "") -> DebateForm:
        """Build the form of evaluated debates.

        Args:
            training: the form to change.
            where: key of these settings, for messages.

        Raises:
            ValueError: The form has no such setting, or the settings do not go together.
        """
        return training if self.debate is None else self.debate


class DebateChanges(DebateInPlace):
    """Changes of a debate form; a key of `None` is no change."""

    num_agents: int | None = None
    """Agents that debate."""
    max_rounds: int | None = None
    """Rounds at most."""
    topology: TopologyName | None = None
    """The others that an agent sees; it is changed together with `degree` and `center`."""
    degree: int | None = None
    """How many others each agent sees on `sparse`."""
    center: int | None = None
    """The agent that sees all on `central`."""
    history_rounds: int | None = None
    """Rounds that an agent sees: -1 all, 0 none, K the last K."""
    conversation: Literal["append", "rebuild", "shared"] | None = None
    """Whether an agent's dialogue only grows (`append`) or is a new prompt each turn."""
    personas: PersonaChoice | None = None
    """`default`, `none` or a list, in place of the recipe's."""
    temperature: float | None = Field(None, ge=0)
    """Sampling temperature of agents and direct replies, over their personas'; 0 is greedy."""

    def form(self, training: DebateForm, where: str = "") -> DebateForm:
        """Build the form with these changes."""
        form = super().form(training)
        changes: dict[str, object] = {}
        for key in (*_ROUND_KEYS, *_VIEW_KEYS):
            value = getattr(self, key)
            # A degree belongs to its topology: a new topology must not keep the old degree.
            belongs_to_change = key in _VIEW_KEYS and self.topology is not None
            if value is not None or belongs_to_change:
                changes[key] = value
        if not changes and self.personas is None and self.temperature is None:
            return form
        try:
            # Personas first: the temperature then replaces the ones that they bring.
            if self.personas is not None:
                form = form.changed({"personas": self.personas})
            if self.temperature is not None:
                form = form.at_temperature(self.temperature)
            return form.changed(changes)
        except ValidationError as error:
            # One problem is enough: the changes are few, and the next run names the next.
            problem = error.errors()[0]
            key = ".".join(filter(None, (where, *map(str, problem["loc"]))))
            message = problem["msg"].removeprefix("Value error, ")
            raise ValueError(f"{key}: {message}" if key else message) from error
        except ValueError as error:
            key = f"{where}." if where else ""
            raise ValueError(f"{key}{error}; expected {key}debate to name another form") from error


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """A point of a curve.

    Attributes:
        x: The number of samples k, or the round from 0, of this point.
        tokens: Sampled tokens an answer, on average over the questions; `None` for turns
            without replies and counts.
        values: For each question, whether the answer is right, averaged over the debates.
    """

    x: int
    tokens: float | None
    values: Mapping[str, float]


Curves = Mapping[str, Sequence[CurvePoint]]
"""Curve by name, its points in order of their cost."""


def most_replies(replies: Sequence[Transcript]) -> int:
    """Find the largest k with enough replies for every question, at most `MOST_REPLIES`."""
    num_replies = Counter(reply.question.id for reply in replies)
    # The question with the fewest replies limits all: a curve's points are over the same questions.
    return min(MOST_REPLIES, *num_replies.values()) if num_replies else 1


def reply_curves(replies: Sequence[Transcript], most: int) -> Curves:
    """Compute the curves of single replies.

    `maj@k`: the majority of k replies, in expectation over all subsets of k of them and over
    ties; its cost is k times the mean length of the question's replies. `pass@k`: whether any of
    k is right, and `cons@k`: whether more than half of k are, at the same cost. A question with
    fewer than `most` replies is left out.

    Args:
        replies: debates of a single turn, several of each question.
        most: the largest k.
    """
    majority: list[dict[str, float]] = [{} for _ in range(most)]
    passed: list[dict[str, float]] = [{} for _ in range(most)]
    agreed: list[dict[str, float]] = [{} for _ in range(most)]
    lengths: dict[str, float | None] = {}
    for question, debates in _group_by_question(answers_given(replies)).items():
        # All points of a curve are over the same questions.
        if len(debates) < most:
            continue
        # Subsets are drawn from all replies to a question, so their answers are classed together.
        is_right: list[bool] = []
        answers: list[str | None] = []
        for debate in debates:
            is_right += (debate.right or {}).values()
            for turn in debate.debate.turns.values():
                answers.append(None if turn.failed else turn.parsed.answer)
        classes = answer_classes(debates[0].debate.transcript.question, answers)
        right_classes = set()
        for answer_class, answer_is_right in zip(classes, is_right, strict=True):
            if answer_is_right and answer_class is not None:
                right_classes.add(answer_class)
        # In expectation over subsets: a single draw of k replies would add noise.
        expected = majority_of_subsets(classes, frozenset(right_classes), most)
        num_right = sum(is_right)
        for index, value in enumerate(expected):
            majority[index][question] = value
            passed[index][question] = pass_at(num_right, len(is_right), index + 1)
            agreed[index][question] = right_in_most(num_right, len(is_right), index + 1)
        lengths[question] = _mean([_count_sampled(debate, None) for debate in debates])
    if not lengths:
        return {}
    # k replies cost k times a mean reply, whichever of them a subset has.
    mean_length = _mean(list(lengths.values()))
    curves: dict[str, list[CurvePoint]] = {"maj@k": [], "pass@k": [], "cons@k": []}
    for index in range(most):
        cost = None if mean_length is None else (index + 1) * mean_length
        curves["maj@k"].append(CurvePoint(x=index + 1, tokens=cost, values=majority[index]))
        curves["pass@k"].append(CurvePoint(x=index + 1, tokens=cost, values=passed[index]))
        curves["cons@k"].append(CurvePoint(x=index + 1, tokens=cost, values=agreed[index]))
    return curves


def debate_curves(debates: Sequence[Transcript]) -> Curves:
    """Compute the curves of debates, a point a round; the cost is all tokens sampled until then.

    `debate/majority`: the majority of the round's answers, ties in expectation.
    `debate/agent`: the accuracy of an agent's answer in the round, on average over the agents.
    `debate/all_rounds`: the majority of all answers of this round and earlier rounds.
    `debate/central`, under topology central: the answer of the agent in the center.

    A debate with an early end keeps the answers of the last round at no more cost.
    """
    checked = []
    # Classes are numbered across rounds: `debate/all_rounds` pools the answers of several.
    for debate in answers_given(debates, across_rounds=True):
        if debate.right is not None and debate.debate.turns:
            checked.append(debate)
    last_round = max((debate.debate.last_round for debate in checked), default=-1)
    curves: dict[str, list[CurvePoint]] = {}
    for round in range(last_round + 1):
        outcomes: dict[str, dict[str, list[float]]] = {}
        costs: dict[str, list[float | None]] = {}
        for debate in checked:
            question = debate.debate.transcript.question.id
            for name, value in _outcomes_after(debate, round).items():
                outcomes.setdefault(name, {}).setdefault(question, []).append(value)
            costs.setdefault(question, []).append(_count_sampled(debate, round))
        # First over a question's debates, then over questions, so that each counts the same.
        cost = _mean([_mean(question_costs) for question_costs in costs.values()])
        for name, outcomes_by_question in outcomes.items():
            means = {}
            for question, question_outcomes in outcomes_by_question.items():
                means[question] = fmean(question_outcomes)
            curves.setdefault(name, []).append(CurvePoint(x=round, tokens=cost, values=means))
    return curves


def moments_of(debates: Sequence[Transcript], names: Mapping[str, str]) -> "Ratios":
    """Collect ratios of sums over questions; `names` maps our names to the metrics' names."""
    ratios: dict[str, dict[str, tuple[float, ...]]] = {}
    for question, moments in question_moments(debates).items():
        for our_name, metric in names.items():
            if metric in moments:
                ratios.setdefault(our_name, {})[question] = moments[metric]
    return ratios


def _outcomes_after(debate: AnswersGiven, round: int) -> dict[str, float]:
    """Compute the curves' values after a round of a debate."""
    is_right = debate.right
    assert is_right is not None
    rounds = debate.rounds()
    past_rounds = [number for number in rounds if number <= round]
    if not past_rounds:
        return {}
    # A debate that ended before this round keeps its last answers.
    answers = rounds[past_rounds[-1]]
    if not answers:
        return {}
    past_answers: list[TurnKey] = []
    for number in past_rounds:
        past_answers += rounds[number]
    outcomes = {
        "debate/majority": debate.majority(answers),
        "debate/agent": fmean(is_right[key] for key in answers),
        "debate/all_rounds": debate.majority(past_answers),
    }
    rules = debate.debate.transcript.protocol
    if rules.topology == "central":
        center = rules.center or 0
        center_answers = [key for key in is_right if key.agent == center and key.round <= round]
        # A center without an answer so far is wrong.
        center_is_right = False
        if center_answers:
            newest_answer = max(center_answers, key=lambda key: key.round)
            center_is_right = is_right[newest_answer]
        outcomes["debate/central"] = float(center_is_right)
    return outcomes


def _count_sampled(debate: AnswersGiven, last_round: int | None) -> float | None:
    """Count the tokens sampled up to a round, or in all rounds; `None` if a turn has no counts."""
    num_sampled = 0
    for turn in debate.debate.transcript.turns:
        if last_round is not None and turn.round > last_round:
            continue
        if turn.token_counts is None:
            return None
        num_sampled += turn.token_counts[1]
    return float(num_sampled)


def _mean(values: Sequence[float | None]) -> float | None:
    # One unknown cost makes the mean unknown: the mean of the rest would be of other questions.
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    return fmean(numbers)


def _group_by_question(debates: Sequence[AnswersGiven]) -> dict[str, list[AnswersGiven]]:
    groups: dict[str, list[AnswersGiven]] = {}
    for debate in debates:
        if debate.right is not None:
            groups.setdefault(debate.debate.transcript.question.id, []).append(debate)
    return groups


@dataclass(frozen=True, slots=True)
class Plays:
    """Debates of a mode on every question.

    The seed of a debate follows from the question, the run and the number of the copy, not from
    the mode: two modes with copies of the same number give their agents the same seeds. Equal
    requests, such as the first turns of otherwise different debates, are then sampled once for all
    modes.
    """

    form: DebateForm
    copies: Sequence[int] = ONE_DEBATE
    """A number of 0 or more for each debate of a question; direct replies have 0, 1, …"""
    what: str = "debates"
    """Named in the progress display."""
    mark: str = ""
    """Distinguishes debates of a mode on one question by their ids; seeds do not depend on it."""
    share: tuple[int, int] = (0, 1)
    """(k, n) restricts the questions to the numbers k, k + n, k + 2 n, …, counted from 0."""

    @property
    def turns(self) -> int:
        """Most turns sampled in a run, on average over all questions, rounded up."""
        num_turns = len(self.copies) * self.form.turn_count()
        return math.ceil(num_turns / self.share[1])


class EvaluationMode(Config):
    """The base class of evaluation modes: a way to measure the policy.

    A mode does not sample: it names forms, and the evaluation plays them with the engine of
    the run and hands over the transcripts. The form names the policy of each request.
    In results, metrics and exit criteria a figure is called `eval/NAME/FIGURE` with the mode's name
    in the recipe.
    """

    type: str = ""
    """The name by which recipes choose the mode."""

    @abstractmethod
    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """List the debates of each question; an empty list if the mode cannot measure the form.

        `--check` counts their turns, measures their longest context and looks up their policies.

        Args:
            form: the recipe's debate as `evaluation` changes it.

        Raises:
            ValueError: The mode does not go with this form; the text begins with the key.
        """

    @abstractmethod
    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """List the names of all figures, each with a row in the table or an empty text."""

    @abstractmethod
    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Compute each figure's value for each question; questions without a value are absent.

        Means, intervals over questions and deviations between runs follow from the values. The
        evaluation calls this for each run, and with several runs once more for all of them.

        Args:
            played: transcripts of each of `plays`, in order.
        """

    def details(self, form: DebateForm) -> Mapping[str, str]:
        """List rows of further figures, for the table of an evaluation without a run."""
        return {}

    def ratios(self, played: Sequence[Sequence[Transcript]]) -> Ratios:
        """Compute the ratios of sums over all questions, by question.

        Their names differ from the names in `values`.
        """
        return {}

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Compute curves of accuracy by sampled tokens, over all runs."""
        return {}

    def counted(self, form: DebateForm) -> str:
        """Describe the cost of a question in a run, such as `4 direct replies`."""
        num_turns = sum(plays.turns for plays in self.plays(form))
        unit = "turn" if num_turns == 1 else "turns"
        return f"{num_turns:,} {unit} of {self.type}"


def temperatures(form: DebateForm) -> list[str]:
    """Format the temperature of each agent, or a single temperature if all are the same."""
    values = [f"{form.temperature_of(agent):g}" for agent in range(form.num_agents)]
    return values if len(set(values)) > 1 else values[:1]
