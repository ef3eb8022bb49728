"""Modes that hold debates: the recipe's own, a society of minds, opponents, swapped orders."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from pydantic import Field

from debate_protocol.forms import DebateForm, Simultaneous
from debate_protocol.forms.settings import MOST, ContractChoice, PersonaChoice, RoleSettings
from debate_protocol.types import (
    TRAINED,
    Transcript,
    TurnKey,
    answering_agents,
    judging_agents,
    roles_by_agent,
    roles_of,
)
from debate_rewards.answer_checking import check_many
from debate_rewards.decisions import decisions_of
from debate_rewards.estimates import Sums
from debate_rewards.metrics import AnswersGiven, answers_given, question_values
from debate_rewards.reward import ReadDebate
from debate_rewards.vote_metrics import owed_values, swapped_judging
from debate_rewards.votes import all_votes, ballots, judgments, points
from debate_train.evaluation.debate_figures import (
    CENTRAL_DETAILS,
    DETAILS,
    ratios_of,
    values_of,
)
from debate_train.evaluation.modes import (
    Curves,
    DebateChanges,
    EvaluationMode,
    Plays,
    Ratios,
    Values,
    debate_curves,
    moments_of,
)

__all__ = ["Opponents"]


class DebateMode(EvaluationMode):
    """The base class of modes that hold one debate on each question."""

    @abstractmethod
    def debated(self, form: DebateForm) -> DebateForm:
        """Return the form of the debates."""

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return one debate; none where a form of one turn is no debate."""
        debated = self.debated(form)
        return (Plays(debated),) if debated.turn_count() > 1 else ()

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the figures of debates, and where several policies speak those of each."""
        rules = self.debated(form).protocol()
        return dict(values_of(rules).values()) | dict.fromkeys(ratios_of(rules), "")

    def details(self, form: DebateForm) -> Mapping[str, str]:
        """Return the rows of Maj, Debate and Δ, of the improvement and of the cost."""
        central = self.debated(form).protocol().topology == "central"
        return DETAILS | (CENTRAL_DETAILS if central else {})

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return the figures of each question."""
        found = question_values(played[0])
        rules = {id(one.protocol): one.protocol for one in played[0]}.values()
        names = {theirs: ours for one in rules for theirs, (ours, _) in values_of(one).items()}
        return {ours: found[theirs] for theirs, ours in names.items() if theirs in found}

    def ratios(self, played: Sequence[Sequence[Transcript]]) -> Ratios:
        """Return improvement, ρ, N_eff, lengths and what stopping at agreement saves."""
        names = {name for one in played[0] for name in ratios_of(one.protocol)}
        return moments_of(played[0], {name: name for name in sorted(names)})

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Return the accuracy of each round beside all tokens until then."""
        return debate_curves(played[0])

    def counted(self, form: DebateForm) -> str:
        """Return the number of turns."""
        turns = sum(one.turns for one in self.plays(form))
        return f"{turns:,} turns of debate" if turns else ""


class Debate(DebateChanges, DebateMode):
    """The policy in debates: by majority, by the votes of its peers, and as a judge."""

    type: Literal["debate"] = "debate"

    def debated(self, form: DebateForm) -> DebateForm:
        """Return the recipe's debate as these settings change it."""
        return self.form(form)


class SocietyOfMinds(DebateMode):
    """Agents that read all others' last answers and answer again; nobody votes.

    The recipe's prompts, temperature of agent 0 and limits hold; its personas do not.

    Source: Du et al. (2023), Improving factuality and reasoning in language models through
    multiagent debate: 3 agents, 2 rounds. Deviation: the prompts' words are ours.
    """

    type: Literal["society_of_minds"] = "society_of_minds"
    num_agents: int = Field(3, ge=2, le=MOST)
    """Agents that answer."""
    max_rounds: int = Field(2, ge=1, le=MOST)
    """Rounds, the first answers included."""
    contract: ContractChoice | None = None
    """How answers are read; by default as the recipe's if that is free text, else `boxed`."""
    personas: PersonaChoice = "none"
    """Who the agents are to be; each brings a temperature, which `evaluation.temperature` does
    not change."""

    def debated(self, form: DebateForm) -> DebateForm:
        """Return the debate."""
        speaking = form.speaking()
        contract: object = speaking.contract
        if self.contract is not None:
            contract = self.contract
        elif speaking.contract_rules().kind == "xml":
            contract = "boxed"
        return Simultaneous.model_validate(
            {
                "num_agents": self.num_agents,
                "max_rounds": self.max_rounds,
                "history_rounds": 1,
                "contract": contract,
                "style": speaking.style,
                "personas": self.personas,
                "temperature": form.temperature_of(0),
                "think": speaking.think,
                "max_chars_per_field": speaking.max_chars_per_field,
            }
        )


LEARNED = "learned"
_EARLIER, _LATER = "earlier", "later"
"""Roles of the opponents with lower and with higher numbers."""
_OPPONENT = "opponent"


class Opponents(DebateChanges, EvaluationMode):
    """Role-averaged: a debate for each seat, in which the policy has that seat and no other.

    In debates of equals each agent's place is a seat; where a form or recipe has several roles,
    each role that the trained policy speaks for is one. The other seats are spoken for by one
    policy that stays as it is, so that a policy that has become weaker shows it, however content
    it is with itself. All figures are means over the seats.

    Source: the evaluation of tinker-cookbook's multi-agent debate (`self_play=False`), which
    measures rewards; figures of accuracy and of the votes on both sides are added.
    """

    type: Literal["opponents"] = "opponents"
    opponent: str = "start"
    """`start`, or a name under `rollout.policies`: a checkpoint, another model, an endpoint."""
    in_turn: bool = False
    """Play each question in one seat alone, the first in the first seat, the second in the second
    and so on: as many debates as questions instead of one for each seat."""

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return a debate for each seat; none where a form of one turn is no debate."""
        if self.opponent == TRAINED:
            raise ValueError(
                f"opponent: found {TRAINED!r}, which is the policy that is measured; expected "
                "start or a name under rollout.policies"
            )
        debated = self.form(form)
        if debated.turn_count() == 1:
            return ()
        seats = [debated.changed({"roles": roles}) for roles in self._seats(debated)]
        return tuple(
            Plays(
                form,
                what=f"seat {seat}",
                mark=f"seat-{seat}",
                share=(seat - 1, len(seats)) if self.in_turn else (0, 1),
            )
            for seat, form in enumerate(seats, 1)
        )

    def _seats(self, form: DebateForm) -> Iterator[Mapping[str, RoleSettings]]:
        """Yield the roles of a debate for each seat."""
        own = roles_of(form.protocol())
        chosen: Mapping[str, RoleSettings] = getattr(form, "roles", {})
        if len(own) == 1:
            yield from self._places(form.num_agents, chosen.get(own[0].name, RoleSettings()))
            return
        learned = [role.name for role in own if role.policy == TRAINED]
        opposed = {"policy": self.opponent, "adapter": None, "train": None}
        for seat in learned:
            others = {
                name: chosen.get(name, RoleSettings()).model_copy(update=opposed)
                for name in learned
                if name != seat
            }
            yield {role.name: {**chosen, **others}.get(role.name, RoleSettings()) for role in own}

    def _places(self, agents: int, equals: RoleSettings) -> Iterator[Mapping[str, RoleSettings]]:
        for place in range(agents):
            counts = {_EARLIER: place, LEARNED: 1, _LATER: agents - place - 1}
            names = [name for name, count in counts.items() if count]
            rounds = None if equals.sees is None else next(iter(equals.sees.values()), None)
            sees = None if rounds is None else dict.fromkeys(names, rounds)
            yield {
                name: equals.model_copy(
                    update={
                        "count": counts[name],
                        "sees": sees,
                        "policy": equals.policy if name == LEARNED else self.opponent,
                        "adapter": equals.adapter if name == LEARNED else None,
                        "train": None,
                    }
                )
                for name in names
            }

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the figures of both sides, and of the debates as a whole."""
        return {
            f"{LEARNED}/accuracy": "accuracy",
            f"{_OPPONENT}/accuracy": f"accuracy, {self.opponent}",
            "delta/accuracy": f"accuracy beyond {self.opponent}",
            f"{LEARNED}/vote_win_rate": f"votes won against {self.opponent}",
            f"{LEARNED}/judge/accuracy": "judge accuracy",
            f"{_OPPONENT}/judge/accuracy": f"judge accuracy, {self.opponent}",
            f"{LEARNED}/judge/owed_accuracy": "",
            "majority/accuracy": "majority vote",
            "peer_vote/accuracy": "peer-vote decision",
            f"{LEARNED}/format": "",
            f"{_OPPONENT}/format": "",
            **{
                f"{LEARNED}/{name}/seat_{n}": ""
                for name in ("accuracy", "vote_win_rate")
                for n in range(1, len(self.plays(form)) + 1)
            },
        }

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return the figures of each question, over all seats."""
        seats = [seat for seat, debates in enumerate(played, 1) for _ in debates]
        read = answers_given([debate for debates in played for debate in debates])
        sums: dict[str, Sums] = {}
        for seat, one, decided in zip(seats, read, _decided(read), strict=True):
            own = sums.setdefault(one.debate.transcript.question.id, Sums())
            _add(own, one, seat)
            for name, is_right in decided.items() if one.right is not None else ():
                own.add(f"{name}/accuracy", float(is_right))
        found: dict[str, dict[str, float]] = {}
        for question, totals in sums.items():
            values = totals.values()
            both = [values.get(f"{side}/accuracy") for side in (LEARNED, _OPPONENT)]
            if both[0] is not None and both[1] is not None:
                values["delta/accuracy"] = both[0] - both[1]
            for name, value in values.items():
                found.setdefault(name, {})[question] = value
        return found

    def counted(self, form: DebateForm) -> str:
        """Return the number of turns."""
        plays = self.plays(form)
        turns = [one.form.turn_count() for one in plays]
        count = max(turns, default=0) if self.in_turn else sum(turns)
        seats = f"{'one of ' * self.in_turn}{len(plays)} seats"
        return f"{count:,} turns of debate against {self.opponent} in {seats}"


def _add(sums: Sums, one: AnswersGiven, seat: int) -> None:
    """Add one debate, in which the policy has one seat."""
    debate, right = one.debate, one.right
    rules = debate.transcript.protocol
    trained = {n for n, role in enumerate(roles_by_agent(rules)) if role.policy == TRAINED}
    for key, turn in debate.judges.items():
        sums.add(f"{_side(key, trained)}/format", float(not turn.failed))
    if right is not None:
        for agent in answering_agents(rules, debate.last_round):
            key = TurnKey(agent, debate.last_round)
            is_right = float(right.get(key, False))
            sums.add(f"{_side(key, trained)}/accuracy", is_right)
            if agent in trained:
                sums.add(f"{LEARNED}/accuracy/seat_{seat}", is_right)
        for key, turn in debate.judges.items():
            for value in owed_values(debate, turn, right) if key.agent in trained else ():
                sums.add(f"{LEARNED}/judge/owed_accuracy", value)
    for won in _won(debate, trained):
        for name in ("", f"/seat_{seat}"):
            sums.add(f"{LEARNED}/vote_win_rate{name}", won)
    for vote in all_votes(ballots(debate)):
        share = points(vote.verdict, "half")
        if share and right is not None and right[vote.left] != right[vote.right]:
            agrees = share.up if right[vote.left] else share.down
            sums.add(f"{_side(vote.judge, trained)}/judge/accuracy", agrees)


def _won(debate: ReadDebate, trained: set[int]) -> Iterator[float]:
    """Yield what the policy wins of each vote, or decision, between it and its opponents."""
    sides = {0, 1}.difference(judging_agents(debate.transcript.protocol))
    for judgment in judgments(debate):
        if judgment.decision is not None and len(sides & trained) == 1:
            yield float(judgment.decision in trained)
    for vote in all_votes(ballots(debate)):
        mine = [key.agent in trained for key in vote.pair]
        share = points(vote.verdict, "half")
        if share is not None and mine[0] != mine[1] and not vote.is_own:
            yield share.up if mine[0] else share.down


def _decided(read: Sequence[AnswersGiven]) -> list[dict[str, bool]]:
    """Return for each debate which of its decisions are right."""
    found = [
        {rule: own[rule] for rule in ("majority", "peer_vote") if rule in own}
        for own in (decisions_of(one.debate, 0) for one in read)
    ]
    questions = [one.debate.transcript.question for one in read]
    asked = [
        (q, answer) for q, own in zip(questions, found, strict=True) for answer in own.values()
    ]
    verdicts = iter(check_many(asked))
    return [{name: next(verdicts).verdict == "right" for name in own} for own in found]


def _side(key: TurnKey, trained: set[int]) -> str:
    return LEARNED if key.agent in trained else _OPPONENT


_LISTENED = {"own": "own peers", "strangers": "peers of another question", "nobody": "nobody"}


class Listening(DebateChanges, EvaluationMode):
    """Debates in which agents listen to their peers, to agents of another question, or to nobody.

    First answers are the same in all three and sampled once. What `own` gains over `strangers` is
    due to what peers say, over `nobody` (each agent answers again after its own turns alone:
    self-correction) to hearing any. `self_correction` is the curve of one such agent, which costs
    its own tokens alone.
    """

    type: Literal["listening"] = "listening"

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return the three debates.

        Raises:
            ValueError: Agents of this form cannot be shown another debate.
        """
        debated = self.form(form)
        if type(debated) is not Simultaneous:
            raise ValueError(f"debate: found type {debated.type}; expected type simultaneous")
        alone = debated.changed({"history_rounds": 0, "conversation": "rebuild"})
        forms = (debated, debated.among_strangers(), alone)
        return [
            Plays(form, what=f"debates among {said}", mark="" if name == "own" else name)
            for form, (name, said) in zip(forms, _LISTENED.items(), strict=True)
        ]

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the last round's accuracy, and who changed their minds, by what they heard."""
        found = {f"{who}/accuracy": f"accuracy, listening to {s}" for who, s in _LISTENED.items()}
        names = ("majority", "flips/right_to_wrong", "flips/wrong_to_right")
        return found | {f"{who}/{name}": "" for who in _LISTENED for name in names}

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return the figures of each question."""
        names = {"correct": "accuracy", "maj/last": "majority"}
        names |= {name: name for name in ("flips/right_to_wrong", "flips/wrong_to_right")}
        return {
            f"{who}/{ours}": found[theirs]
            for who, debates in zip(_LISTENED, played, strict=True)
            for found in (question_values(debates),)
            for theirs, ours in names.items()
            if theirs in found
        }

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Return the majority of each kind by round, and of one agent that corrects itself."""
        kinds = {who: debate_curves(one) for who, one in zip(_LISTENED, played, strict=True)}
        found = {f"{who}/majority": one["debate/majority"] for who, one in kinds.items() if one}
        agents = max((one.protocol.num_agents for one in played[-1]), default=1)
        alone = kinds["nobody"].get("debate/agent", ())
        costs = [None if one.tokens is None else one.tokens / agents for one in alone]
        points = [replace(p, tokens=cost) for p, cost in zip(alone, costs, strict=True)]
        return found | {"self_correction": points}


_ROWS = {
    "judge/accuracy": "judge accuracy over both orders",
    "judge/both_orders": "judge right in both orders",
    "judge/consistent": "same verdict in both orders",
    "judge/first_shown": "",
    "judge/pairs_in_both": "",
}


class SwappedJudging(DebateChanges, EvaluationMode):
    """Whether judges' verdicts depend on the order and numbers of the turns that they compare.

    The first two rounds of a debate are held twice with the same first turns, the second time with
    the agents' seats reversed. `debate_rewards.vote_metrics` defines the figures. Without the
    exchange the turns are those of the mode `debate`, where that has the same form.
    """

    type: Literal["swapped_judging"] = "swapped_judging"

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Return the debate of two rounds, and the same with the agents in reversed seats.

        Raises:
            ValueError: In this form agents cannot exchange their seats.
        """
        debated = self.form(form)
        reseated = getattr(debated, "reseated", None)
        if reseated is None:
            raise ValueError(
                f"debate: found type {debated.type}, whose agents have no seats to exchange; "
                "expected type simultaneous"
            )
        plain = debated.changed({"max_rounds": 2})
        return Plays(plain), Plays(reseated(), what="debates in reversed seats")

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """Return the names of all figures with their rows."""
        return _ROWS

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return the figures of each question."""
        found: dict[str, dict[str, list[float]]] = {}
        for plain, reseated in zip(*played, strict=True):
            for name, (total, weight) in swapped_judging(plain, reseated).items():
                found.setdefault(name, {}).setdefault(plain.question.id, []).append(total / weight)
        return {name: {q: fmean(each) for q, each in of.items()} for name, of in found.items()}
