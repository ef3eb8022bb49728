"""Modes of debates: the recipe's debate, a society of minds, opponents, swapped orders."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from pydantic import Field

from debate_protocol.forms import DebateForm, Simultaneous
from debate_protocol.forms.probes import among_strangers, reseated
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
    CurvePoint,
    Curves,
    DebateChanges,
    DebateInPlace,
    EvaluationMode,
    Plays,
    Ratios,
    Values,
    debate_curves,
    moments_of,
)

__all__ = ["Opponents"]

LEARNED = "learned"
# Roles of the opponents with lower and with higher numbers than the policy's seat.
_EARLIER = "earlier"
_LATER = "later"
_OPPONENT = "opponent"
# The groups that agents hear in `Listening`, with their descriptions.
_AUDIENCES = {"own": "own peers", "strangers": "peers of another question", "nobody": "nobody"}
_FLIP_FIGURES = ("flips/right_to_wrong", "flips/wrong_to_right")
_SWAPPED_ROWS = {
    "judge/accuracy": "judge accuracy over both orders",
    "judge/both_orders": "judge right in both orders",
    "judge/consistent": "same verdict in both orders",
    "judge/first_shown": "",
    "judge/pairs_in_both": "",
}


class DebateMode(EvaluationMode):
    """The base class of modes with a debate on each question."""

    @abstractmethod
    def debated(self, form: DebateForm) -> DebateForm:
        """Build the form of the debates."""

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Plan a debate; an empty list for a form of a single turn."""
        debated = self.debated(form)
        return (Plays(debated),) if debated.turn_count() > 1 else ()

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """List the figures of debates, and of each policy where several speak."""
        rules = self.debated(form).protocol()
        return dict(values_of(rules).values()) | dict.fromkeys(ratios_of(rules), "")

    def details(self, form: DebateForm) -> Mapping[str, str]:
        """List the rows of Maj, Debate and Δ, of the improvement and of the cost."""
        if self.debated(form).protocol().topology == "central":
            return DETAILS | CENTRAL_DETAILS
        return DETAILS

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Compute the figures of each question."""
        metrics = question_values(played[0])
        # Debates of one form share a protocol object, so few are read.
        protocols = {id(debate.protocol): debate.protocol for debate in played[0]}
        values = {}
        for protocol in protocols.values():
            for metric, (our_name, _) in values_of(protocol).items():
                if metric in metrics:
                    values[our_name] = metrics[metric]
        return values

    def ratios(self, played: Sequence[Sequence[Transcript]]) -> Ratios:
        """Compute improvement, ρ, N_eff, lengths and the savings of stopping at agreement."""
        names: set[str] = set()
        for debate in played[0]:
            names.update(ratios_of(debate.protocol))
        return moments_of(played[0], {name: name for name in sorted(names)})

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Compute the accuracy of each round, by all tokens until then."""
        return debate_curves(played[0])

    def counted(self, form: DebateForm) -> str:
        """Describe the number of turns."""
        num_turns = sum(plays.turns for plays in self.plays(form))
        return f"{num_turns:,} turns of debate" if num_turns else ""


class Debate(DebateChanges, DebateMode):
    """The policy in debates: by majority, by the votes of peers, and as a judge."""

    type: Literal["debate"] = "debate"

    def debated(self, form: DebateForm) -> DebateForm:
        """Change the recipe's debate by these settings."""
        return self.form(form)


class SocietyOfMinds(DebateMode):
    """Agents who read all others' last answers and answer again, without votes.

    The recipe's prompts, temperature of agent 0 and limits hold; the personas do not.

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
    """Personas of the agents; each brings a temperature, which `evaluation.temperature` does not
    change."""

    def debated(self, form: DebateForm) -> DebateForm:
        """Build the debate of the paper with the recipe's prompts."""
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


class Opponents(DebateInPlace, EvaluationMode):
    """Role-averaged: a debate for each seat, with the policy in this seat only.

    In debates of equals each agent has a seat; where a form or recipe has several roles, each role
    of the trained policy is a seat. A frozen policy speaks for the other seats: a
    weakened policy cannot hide it by agreeing with itself. All figures are means over the seats.

    Source: the evaluation of tinker-cookbook's multi-agent debate (`self_play=False`) of
    rewards; figures of accuracy and of the votes on both sides are added.
    """

    type: Literal["opponents"] = "opponents"
    opponent: str = "start"
    """`start`, or a name under `rollout.policies`: a checkpoint, another model, an endpoint."""
    in_turn: bool = False
    """Play each question in one seat alone, the first in the first seat, the second in the second
    and so on: as many debates as questions instead of one for each seat."""

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Plan a debate for each seat; an empty list for a form of a single turn."""
        if self.opponent == TRAINED:
            raise ValueError(
                f"opponent: found {TRAINED!r}, which is the policy that is measured; expected "
                "start or a name under rollout.policies"
            )
        debated = self.form(form)
        if debated.turn_count() == 1:
            return ()
        roles_of_seats = self._roles_of_seats(debated)
        plays = []
        for index, roles in enumerate(roles_of_seats):
            share = (index, len(roles_of_seats)) if self.in_turn else (0, 1)
            plays.append(
                Plays(
                    debated.changed({"roles": roles}),
                    what=f"seat {index + 1}",
                    mark=f"seat-{index + 1}",
                    share=share,
                )
            )
        return tuple(plays)

    def _roles_of_seats(self, form: DebateForm) -> list[Mapping[str, RoleSettings]]:
        """Build the roles of a debate for each seat."""
        roles = roles_of(form.protocol())
        settings: Mapping[str, RoleSettings] = getattr(form, "roles", {})
        if len(roles) == 1:
            equal_settings = settings.get(roles[0].name, RoleSettings())
            return self._seats_of_equals(form.num_agents, equal_settings)
        # Roles of other policies stay as they are in every seat.
        learned_names = [role.name for role in roles if role.policy == TRAINED]
        opposing = {"policy": self.opponent, "adapter": None, "train": None}
        seats: list[Mapping[str, RoleSettings]] = []
        for seat_name in learned_names:
            seat = {}
            for role in roles:
                role_settings = settings.get(role.name, RoleSettings())
                if role.name in learned_names and role.name != seat_name:
                    role_settings = role_settings.model_copy(update=opposing)
                seat[role.name] = role_settings
            seats.append(seat)
        return seats

    def _seats_of_equals(
        self, num_agents: int, equal_settings: RoleSettings
    ) -> list[Mapping[str, RoleSettings]]:
        # Equals are one role; a seat splits it into the policy and the agents before and after it.
        sees_rounds = None
        if equal_settings.sees is not None:
            sees_rounds = next(iter(equal_settings.sees.values()), None)
        seats: list[Mapping[str, RoleSettings]] = []
        for seat in range(num_agents):
            counts = {_EARLIER: seat, LEARNED: 1, _LATER: num_agents - seat - 1}
            names = [name for name, count in counts.items() if count]
            roles = {}
            for name in names:
                is_learned = name == LEARNED
                changes = {
                    "count": counts[name],
                    "sees": None if sees_rounds is None else dict.fromkeys(names, sees_rounds),
                    "policy": equal_settings.policy if is_learned else self.opponent,
                    "adapter": equal_settings.adapter if is_learned else None,
                    "train": None,
                }
                roles[name] = equal_settings.model_copy(update=changes)
            seats.append(roles)
        return seats

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """List the figures of both sides, and of the debates as a whole."""
        figures = {
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
        }
        num_seats = len(self.plays(form))
        for name in ("accuracy", "vote_win_rate"):
            for seat in range(1, num_seats + 1):
                figures[f"{LEARNED}/{name}/seat_{seat}"] = ""
        return figures

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Compute the figures of each question, over all seats."""
        seats: list[int] = []
        transcripts: list[Transcript] = []
        for seat, seat_transcripts in enumerate(played, 1):
            seats += [seat] * len(seat_transcripts)
            transcripts += seat_transcripts
        debates = answers_given(transcripts)
        decisions_of_debates = _check_decisions(debates)
        sums_of_questions: dict[str, Sums] = {}
        for seat, debate, decisions in zip(seats, debates, decisions_of_debates, strict=True):
            question = debate.debate.transcript.question.id
            sums = sums_of_questions.setdefault(question, Sums())
            _add_debate(sums, debate, seat)
            if debate.right is not None:
                for rule, is_right in decisions.items():
                    sums.add(f"{rule}/accuracy", float(is_right))
        figures: dict[str, dict[str, float]] = {}
        for question, sums in sums_of_questions.items():
            values = sums.values()
            learned_accuracy = values.get(f"{LEARNED}/accuracy")
            opponent_accuracy = values.get(f"{_OPPONENT}/accuracy")
            if learned_accuracy is not None and opponent_accuracy is not None:
                values["delta/accuracy"] = learned_accuracy - opponent_accuracy
            for name, value in values.items():
                figures.setdefault(name, {})[question] = value
        return figures

    def counted(self, form: DebateForm) -> str:
        """Describe the number of turns and seats."""
        plays = self.plays(form)
        turns_of_seats = [each.form.turn_count() for each in plays]
        # In turn, a question has one seat only; the costliest bounds it.
        num_turns = max(turns_of_seats, default=0) if self.in_turn else sum(turns_of_seats)
        seats = f"one of {len(plays)} seats" if self.in_turn else f"{len(plays)} seats"
        return f"{num_turns:,} turns of debate against {self.opponent} in {seats}"


def _add_debate(sums: Sums, answers: AnswersGiven, seat: int) -> None:
    """Add the figures of a debate with the policy in this seat."""
    debate = answers.debate
    is_right = answers.right
    rules = debate.transcript.protocol
    learned_agents = set()
    for agent, role in enumerate(roles_by_agent(rules)):
        if role.policy == TRAINED:
            learned_agents.add(agent)
    for key, turn in debate.judges.items():
        side = _side_of(key, learned_agents)
        sums.add(f"{side}/format", float(not turn.failed))
    if is_right is not None:
        for agent in answering_agents(rules, debate.last_round):
            key = TurnKey(agent, debate.last_round)
            # A turn without a readable answer is wrong.
            answer_is_right = float(is_right.get(key, False))
            sums.add(f"{_side_of(key, learned_agents)}/accuracy", answer_is_right)
            if agent in learned_agents:
                sums.add(f"{LEARNED}/accuracy/seat_{seat}", answer_is_right)
        _add_judging(sums, debate, is_right, learned_agents)
    for won in _won_shares(debate, learned_agents):
        sums.add(f"{LEARNED}/vote_win_rate", won)
        sums.add(f"{LEARNED}/vote_win_rate/seat_{seat}", won)


def _add_judging(
    sums: Sums, debate: ReadDebate, is_right: Mapping[TurnKey, bool], learned_agents: set[int]
) -> None:
    """Add the accuracy of both sides as judges."""
    for key, turn in debate.judges.items():
        if key.agent in learned_agents:
            for value in owed_values(debate, turn, is_right):
                sums.add(f"{LEARNED}/judge/owed_accuracy", value)
    for vote in all_votes(ballots(debate)):
        share = points(vote.verdict, "half")
        # A vote between two right or two wrong turns has no right verdict.
        if share and is_right[vote.left] != is_right[vote.right]:
            accuracy = share.up if is_right[vote.left] else share.down
            sums.add(f"{_side_of(vote.judge, learned_agents)}/judge/accuracy", accuracy)


def _won_shares(debate: ReadDebate, learned_agents: set[int]) -> Iterator[float]:
    """Yield the policy's share of each vote, or decision, between it and its opponents."""
    debaters = {0, 1}.difference(judging_agents(debate.transcript.protocol))
    for judgment in judgments(debate):
        if judgment.decision is not None and len(debaters & learned_agents) == 1:
            yield float(judgment.decision in learned_agents)
    for vote in all_votes(ballots(debate)):
        left_is_learned = vote.left.agent in learned_agents
        right_is_learned = vote.right.agent in learned_agents
        share = points(vote.verdict, "half")
        # Votes on one's own turn are no judgment of the other side.
        if share is None or vote.is_own or left_is_learned == right_is_learned:
            continue
        yield share.up if left_is_learned else share.down


def _check_decisions(debates: Sequence[AnswersGiven]) -> list[dict[str, bool]]:
    """Check the decisions of each debate."""
    decisions_of_debates = []
    to_check = []
    for debate in debates:
        all_decisions = decisions_of(debate.debate, 0)
        decisions = {}
        for rule in ("majority", "peer_vote"):
            if rule in all_decisions:
                decisions[rule] = all_decisions[rule]
                to_check.append((debate.debate.transcript.question, all_decisions[rule]))
        decisions_of_debates.append(decisions)
    # All answers in one call: the processes that check them work side by side.
    verdicts = iter(check_many(to_check))
    checked: list[dict[str, bool]] = []
    for decisions in decisions_of_debates:
        checked.append({rule: next(verdicts).verdict == "right" for rule in decisions})
    return checked


def _side_of(key: TurnKey, learned_agents: set[int]) -> str:
    return LEARNED if key.agent in learned_agents else _OPPONENT


class Listening(DebateInPlace, EvaluationMode):
    """Debates with agents who hear their peers, agents of another question, or no others.

    First answers are the same in all three and sampled once. The gain of `own` over `strangers` is
    due to the content of peers' turns; the gain over `nobody` (each agent answers again after
    earlier turns of its own: self-correction) is due to hearing others. `self_correction` is the
    curve of such an agent, at the cost of a single agent's tokens.
    """

    type: Literal["listening"] = "listening"

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Plan the three debates.

        Raises:
            ValueError: Agents of this form cannot be shown another debate.
        """
        debated = self.form(form)
        if type(debated) is not Simultaneous:
            raise ValueError(f"debate: found type {debated.type}; expected type simultaneous")
        forms = {
            "own": debated,
            "strangers": among_strangers(debated),
            "nobody": debated.changed({"history_rounds": 0, "conversation": "rebuild"}),
        }
        plays = []
        for name, audience in _AUDIENCES.items():
            # Debates among own peers have no mark: they are those of the mode `debate`.
            mark = "" if name == "own" else name
            plays.append(Plays(forms[name], what=f"debates among {audience}", mark=mark))
        return plays

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """List the last round's accuracy, and changes of mind, by audience."""
        figures = {}
        for name, audience in _AUDIENCES.items():
            figures[f"{name}/accuracy"] = f"accuracy, listening to {audience}"
        for name in _AUDIENCES:
            for figure in ("majority", *_FLIP_FIGURES):
                figures[f"{name}/{figure}"] = ""
        return figures

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Compute the figures of each question."""
        our_names = {"correct": "accuracy", "maj/last": "majority"}
        our_names |= dict(zip(_FLIP_FIGURES, _FLIP_FIGURES, strict=True))
        values = {}
        for audience, debates in zip(_AUDIENCES, played, strict=True):
            metrics = question_values(debates)
            for metric, our_name in our_names.items():
                if metric in metrics:
                    values[f"{audience}/{our_name}"] = metrics[metric]
        return values

    def curves(self, played: Sequence[Sequence[Transcript]]) -> Curves:
        """Compute the majority of each audience by round, and self-correction of an agent."""
        curves: dict[str, Sequence[CurvePoint]] = {}
        alone: Sequence[CurvePoint] = ()
        for audience, debates in zip(_AUDIENCES, played, strict=True):
            audience_curves = debate_curves(debates)
            if audience_curves:
                curves[f"{audience}/majority"] = audience_curves["debate/majority"]
            if audience == "nobody":
                alone = audience_curves.get("debate/agent", ())
        # The curve's cost is of all agents, and self-correction needs only one of them.
        num_agents = max((debate.protocol.num_agents for debate in played[-1]), default=1)
        self_correction = []
        for point in alone:
            cost = None if point.tokens is None else point.tokens / num_agents
            self_correction.append(replace(point, tokens=cost))
        curves["self_correction"] = self_correction
        return curves


class SwappedJudging(DebateInPlace, EvaluationMode):
    """Dependence of judges' verdicts on the order and numbers of the compared turns.

    The first two rounds of a debate are played twice with the same first turns, the second time
    with the agents' seats reversed. `debate_rewards.vote_metrics` defines the figures. Turns in
    plain seats are shared with the mode `debate`, if the form is the same.
    """

    type: Literal["swapped_judging"] = "swapped_judging"

    def plays(self, form: DebateForm) -> Sequence[Plays]:
        """Plan the debate of two rounds, and the same with the agents in reversed seats.

        Raises:
            ValueError: In this form agents cannot exchange their seats.
        """
        debated = self.form(form)
        if type(debated) is not Simultaneous:
            raise ValueError(
                f"debate: found type {debated.type}, whose agents have no seats to exchange; "
                "expected type simultaneous"
            )
        plain = debated.changed({"max_rounds": 2})
        return Plays(plain), Plays(reseated(debated), what="debates in reversed seats")

    def figures(self, form: DebateForm) -> Mapping[str, str]:
        """List the names of all figures with their rows."""
        return _SWAPPED_ROWS

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Compute the figures of each question."""
        quotients: dict[str, dict[str, list[float]]] = {}
        for plain, in_other_seats in zip(*played, strict=True):
            question = plain.question.id
            for name, (total, weight) in swapped_judging(plain, in_other_seats).items():
                quotients.setdefault(name, {}).setdefault(question, []).append(total / weight)
        values = {}
        for name, by_question in quotients.items():
            values[name] = {question: fmean(each) for question, each in by_question.items()}
        return values
