"""What an evaluation mode is: what it plays, what it reads off, and curves of accuracy by cost."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from pydantic import ConfigDict, Field, ValidationError

from debate_protocol.forms import DebateForm, FormConfig
from debate_protocol.forms.settings import PersonaChoice
from debate_protocol.plugins import Config
from debate_protocol.types import TopologyName, Transcript
from debate_rewards.answer_checking import answer_classes
from debate_rewards.metrics import AnswersGiven, answers_given, question_moments
from debate_rewards.vote_metrics import majority_of_subsets, pass_at, right_in_most

__all__ = ["Curves", "Point", "debate_curves", "reply_curves"]


_ROUNDS = ("num_agents", "max_rounds", "history_rounds", "conversation")
_VIEW = ("topology", "degree", "center")


class DebateChanges(Config):
    """Changes of a debate form; what is None stays as it is."""

    # Forms of other packages are imported when the first is made, not with this module: such a
    # package may have an evaluation mode in the same file, and import this.
    model_config = ConfigDict(defer_build=True)

    debate: FormConfig | None = None
    """A whole form in place of the recipe's `debate`; the keys below change it, too."""
    num_agents: int | None = None
    """Agents that debate."""
    max_rounds: int | None = None
    """Rounds at most."""
    topology: TopologyName | None = None
    """Whom an agent sees; with it go the evaluation's `degree` and `center`."""
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
        """Return the form of evaluated debates.

        Args:
            training: What is changed.
            where: The key of these settings, for messages.

        Raises:
            ValueError: It has no such setting, or its settings do not go together.
        """
        form = training if self.debate is None else self.debate
        changes = self._changes()
        if not changes and self.personas is None and self.temperature is None:
            return form
        try:
            if self.personas is not None:  # Before the temperature, which is that of all of them.
                form = form.changed({"personas": self.personas})
            if self.temperature is not None:
                form = form.at_temperature(self.temperature)
            return form.changed(changes)
        except ValidationError as error:
            found = error.errors()[0]
            key = ".".join(filter(None, (where, *map(str, found["loc"]))))
            text = found["msg"].removeprefix("Value error, ")
            raise ValueError(f"{key}: {text}" if key else text) from error
        except ValueError as error:
            key = f"{where}." if where else ""
            raise ValueError(f"{key}{error}; expected {key}debate to name another form") from error

    def _changes(self) -> dict[str, object]:
        named = {name: getattr(self, name) for name in (*_ROUNDS, *_VIEW)}
        kept = _VIEW if self.topology is not None else ()
        return {name: value for name, value in named.items() if name in kept or value is not None}


@dataclass(frozen=True, slots=True)
class Point:
    """One point of a curve.

    Attributes:
        x: The number of samples k, or the round from 0, of this point.
        tokens: Sampled tokens an answer, on average over the questions; None where turns hold
            neither their reply nor its counts.
        values: Per question whether the answer is right, averaged over what was played of it.
    """

    x: int
    tokens: float | None
    values: Mapping[str, float]


Curves = Mapping[str, Sequence[Point]]
"""Curve by name, its points in order of their cost."""

MOST_REPLIES = 64
"""The end of curves of replies, whose expectation over subsets takes time that grows with k²."""


def most_replies(replies: Sequence[Transcript]) -> int:
    """Return the largest k that every question has replies for, at most `MOST_REPLIES`."""
    counts = Counter(one.question.id for one in replies)
    return min(MOST_REPLIES, *counts.values()) if counts else 1


def reply_curves(replies: Sequence[Transcript], most: int) -> Curves:
    """Return the curves of single replies.

    `maj@k`: the majority of k replies, in expectation over all subsets of k of them and over
    ties; its cost is k times the mean length of the question's replies. `pass@k`: whether one of
    k is right, and `cons@k`: whether more than half of k are, at the same cost. A question with
    fewer than `most` replies is left out.

    Args:
        replies: Debates of one turn each, several of each question.
        most: The largest k.
    """
    majority: list[dict[str, float]] = [{} for _ in range(most)]
    passed: list[dict[str, float]] = [{} for _ in range(most)]
    agreed: list[dict[str, float]] = [{} for _ in range(most)]
    lengths: dict[str, float | None] = {}
    for question, given in _by_question(answers_given(replies)).items():
        if len(given) < most:
            continue
        turns = [turn for one in given for turn in one.debate.turns.values()]
        right = [hit for one in given for hit in (one.right or {}).values()]
        answers = [None if turn.failed else turn.parsed.answer for turn in turns]
        classes = answer_classes(given[0].debate.transcript.question, answers)
        good = frozenset(n for n, hit in zip(classes, right, strict=True) if hit and n is not None)
        for k, value in enumerate(majority_of_subsets(classes, good, most), 1):
            majority[k - 1][question] = value
            passed[k - 1][question] = pass_at(sum(right), len(right), k)
            agreed[k - 1][question] = right_in_most(sum(right), len(right), k)
        lengths[question] = _mean([_sampled(one, None) for one in given])
    length = _mean(list(lengths.values()))
    costs = [None if length is None else k * length for k in range(1, most + 1)]
    named = {"maj@k": majority, "pass@k": passed, "cons@k": agreed}
    return {
        name: [Point(k, costs[k - 1], values) for k, values in enumerate(points, 1)]
        for name, points in named.items()
        if lengths
    }


def debate_curves(debates: Sequence[Transcript]) -> Curves:
    """Return the curves of debates, a point a round; all that was sampled until then is its cost.

    `debate/majority`: the majority of the round's answers, ties in expectation.
    `debate/agent`: the accuracy of one agent's answer in the round, on average over the agents.
    `debate/all_rounds`: the majority of all answers of this round and those before.
    `debate/central`, under topology central: the answer of the agent in the center.

    A debate that ended early goes on with the answers of its last round and costs nothing more.
    """
    given = [
        one
        for one in answers_given(debates, across_rounds=True)
        if one.right is not None and one.debate.turns
    ]
    last = max((one.debate.last_round for one in given), default=-1)
    found: dict[str, list[Point]] = {}
    for round in range(last + 1):
        values: dict[str, dict[str, list[float]]] = {}
        costs: dict[str, list[float | None]] = {}
        for one in given:
            question = one.debate.transcript.question.id
            for name, value in _at_round(one, round).items():
                values.setdefault(name, {}).setdefault(question, []).append(value)
            costs.setdefault(question, []).append(_sampled(one, round))
        cost = _mean([_mean(each) for each in costs.values()])
        for name, each in values.items():
            means = {question: fmean(hits) for question, hits in each.items()}
            found.setdefault(name, []).append(Point(round, cost, means))
    return found


def moments_of(debates: Sequence[Transcript], names: Mapping[str, str]) -> "Ratios":
    """Return ratios of sums over questions; `names` maps our names to the metrics' names."""
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    for question, moments in question_moments(debates).items():
        for ours, theirs in names.items():
            if theirs in moments:
                found.setdefault(ours, {})[question] = moments[theirs]
    return found


def _at_round(one: AnswersGiven, round: int) -> dict[str, float]:
    """Return what is right after a round of a debate, by curve."""
    assert one.right is not None
    rounds = one.rounds()
    spoken = [number for number in rounds if number <= round]
    now = rounds[spoken[-1]] if spoken else []
    if not now:
        return {}
    right = one.right
    found = {
        "debate/majority": one.majority(now),
        "debate/agent": fmean(right[key] for key in now),
        "debate/all_rounds": one.majority(key for number in spoken for key in rounds[number]),
    }
    rules = one.debate.transcript.protocol
    if rules.topology == "central":
        own = [key for key in right if key.agent == (rules.center or 0) and key.round <= round]
        found["debate/central"] = float(bool(own) and right[max(own, key=lambda key: key.round)])
    return found


def _sampled(one: AnswersGiven, last: int | None) -> float | None:
    """Return the tokens sampled up to a round, in all where it is None; None where not known."""
    turns = one.debate.transcript.turns
    counts = [turn.token_counts for turn in turns if last is None or turn.round <= last]
    return None if None in counts else float(sum(count[1] for count in counts if count))


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known and len(known) == len(values) else None


def _by_question(given: Sequence[AnswersGiven]) -> dict[str, list[AnswersGiven]]:
    found: dict[str, list[AnswersGiven]] = {}
    for one in given:
        if one.right is not None:
            found.setdefault(one.debate.transcript.question.id, []).append(one)
    return found


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


class EvaluationMode(Config):
    """The base class of evaluation modes: one way to measure the policy.

    A mode samples nothing itself: it names forms, the evaluation plays them with the engine of the
    run, each ask by the policy that it names, and hands over the transcripts. In results, metrics
    and exit criteria the name of the mode in the recipe stands before: `eval/NAME/FIGURE`.
    """

    type: str = ""
    """The name by which recipes choose the mode."""

    @abstractmethod
    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return what is played on each question, nothing where the mode has nothing to measure.

        `--check` counts its turns, measures its longest context and looks up its policies.

        Args:
            form: The recipe's debate as `evaluation` changes it.

        Raises:
            ValueError: The mode does not go with this form; the text begins with the key.
        """

    @abstractmethod
    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the names of all figures, each with its row in the table or an empty text."""

    @abstractmethod
    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return each figure's value for each question; questions without one are absent.

        Means, intervals over questions and deviations between runs are made of them. It is called
        for each run, and with several runs once more for all of them.

        Args:
            played: What was played of each of `plays`, in order.
        """

    def details(self, form: DebateForm) -> Mapping[str, str]:
        """Return rows of further figures, for the table of an evaluation without a run."""
        return {}

    def ratios(self, played: Sequence[Sequence[Transcript]]) -> Ratios:
        """Return the figures that are ratios of sums over all questions, by question.

        They are of other names than those of `values`.
        """
        return {}

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Return accuracies beside the sampled tokens that they took, of all runs."""
        return {}

    def counted(self, form: DebateForm) -> str:
        """Return what a question costs in one run, such as `4 direct replies`."""
        turns = sum(one.turns for one in self.plays(form))
        return f"{turns:,} turn{'' if turns == 1 else 's'} of {self.type}"


def temperatures(form: DebateForm) -> list[str]:
    """Return the temperature of each agent, or one where all are the same."""
    each = [f"{form.temperature_of(agent):g}" for agent in range(form.num_agents)]
    return each if len(set(each)) > 1 else each[:1]
