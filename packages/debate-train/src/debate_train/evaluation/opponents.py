"""The policy in each seat in turn, among opponents that stay as they are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from debate_protocol.forms import DebateForm
from debate_protocol.forms.role_settings import RoleSettings
from debate_protocol.roles import answering_agents, roles_by_agent, roles_of
from debate_protocol.types import TRAINED, Transcript, TurnKey
from debate_train.evaluation.changes import DebateChanges
from debate_train.evaluation.mode import ModeSettings, Plays, Values, shape_of

if TYPE_CHECKING:
    from debate_rewards.metrics.answers_given import AnswersGiven
    from debate_rewards.metrics.sums import Sums

__all__ = ["Opponents"]

LEARNED = "learned"
_EARLIER, _LATER = "earlier", "later"
"""Roles of the opponents with lower and with higher numbers."""
_OPPONENT = "opponent"


class Opponents(DebateChanges, ModeSettings):
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
            **{f"{LEARNED}/accuracy/seat_{n}": "" for n in range(1, len(self.plays(form)) + 1)},
        }

    def values(self, played: Sequence[Sequence[Transcript]]) -> Values:
        """Return the figures of each question, over all seats."""
        from debate_rewards.metrics.answers_given import answers_given
        from debate_rewards.metrics.sums import Sums

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
        turns = sum(one.turns for one in plays)
        if self.in_turn:
            turns = max((one.form.turn_count() for one in plays), default=0)
            return f"{turns:,} turns of debate against {self.opponent} in one of {len(plays)} seats"
        return f"{turns:,} turns of debate against {self.opponent} in {len(plays)} seats"

    def described(self, form: DebateForm) -> str:
        """Return in what debates it measures, which differ by the seat alone."""
        plays = self.plays(form)
        return f"{shape_of(plays[0].form)}, {len(plays)} seats against {self.opponent}"


def _add(sums: "Sums", one: "AnswersGiven", seat: int) -> None:
    """Add one debate, in which the policy has one seat."""
    from debate_rewards.metrics.judging import owed_values
    from debate_rewards.votes.ballots import ballots, points

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
    for cast in ballots(debate).values():
        for vote in cast.votes:
            left_share = points(vote.verdict, "half")
            assert left_share is not None
            mine = [key.agent in trained for key in vote.pair]
            if mine[0] != mine[1]:
                won = left_share.up if mine[0] else left_share.down
                sums.add(f"{LEARNED}/vote_win_rate", won)
            if right is not None and right[vote.left] != right[vote.right]:
                agrees = left_share.up if right[vote.left] else left_share.down
                sums.add(f"{_side(vote.judge, trained)}/judge/accuracy", agrees)


def _decided(read: Sequence["AnswersGiven"]) -> list[dict[str, bool]]:
    """Return for each debate which of its decisions are right."""
    from debate_rewards.answers.checking import check_many
    from debate_rewards.votes.decisions import decisions_of

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
