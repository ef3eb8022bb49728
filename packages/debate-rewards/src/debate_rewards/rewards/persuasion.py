"""What a critique is worth by how the group's opinion of its target changed."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar, Literal

from debate_protocol.parsing import says_nothing
from debate_protocol.types import Transcript, TurnKey
from debate_rewards.reward import (
    Credit,
    Need,
    ReadDebate,
    ReadTurn,
    RewardConfig,
    Score,
    Use,
    mean_returns,
    read_debate,
)
from debate_rewards.rewards.spans import evaluation_parts
from debate_rewards.votes.ballots import Ballot, Duplicates, Ties, ballots, tally

CRITIC = "critic"
"""The stream's name; it covers the evaluation."""


class Persuasion(RewardConfig):
    """How far a critique lowered the group's opinion of its target, in [−1, 1], stream `critic`.

    A critique is a turn's evaluation of one other agent: its target. The opinion of judge j of an
    agent in one ballot is 2·for/(for + against) − 1 over j's votes about that agent there. For
    every judge who is neither critic nor target, `after` is its first turn that was shown the
    critique and `before` its turn before that one. With J the judges who voted about the target
    in both,

        value = mean over j in J of (opinion_before(j) − opinion_after(j)) / 2

    A part of the evaluation that names the target earns this value; the rest of the evaluation
    earns the mean over the turn's targets. An evaluation that names nobody is about the agent it
    was shown, if that was one; else it has no target.

    None without a judge in J. Nobody is shown a critique of the last round, and a first turn has
    no turn before it: parallel debates need three agents and three rounds. Failed turns carry
    nothing here. Between the ballots the target speaks again, and a good answer takes back what
    the critique had won; critiques of one target in one round share what they did together.

    Source: the shift of an audience's vote between two ballots by which Oxford-style debates are
    won (Zhang et al. 2016, Conversational flow in Oxford-style debates), taken per judge and
    target; our own as a reward.
    """

    needs: ClassVar[frozenset[Need]] = frozenset(("votes",))
    can_be_tried: ClassVar[bool] = True

    type: Literal["persuasion"] = "persuasion"
    ties: Ties = "half"
    """What `=` is worth: `half` a win for each side, or nothing (`ignore`)."""
    duplicates: Duplicates = "one"
    """Whether a voter's repeated verdict on a pair counts as `one` or each time (`count`)."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return (CRITIC,)

    def silence(self, stream: str, use: Use) -> str | None:
        """Return why no critique has a value."""
        return (
            "persuasion compares votes on a critique's target before and after the critique was "
            f"read, and nobody votes twice around one: found {use.rules.max_rounds} rounds; "
            "expected 3 agents and 3 rounds at least, and evaluations in the contract"
        )

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [self._score(read_debate(transcript)) for transcript in transcripts]

    def _score(self, debate: ReadDebate) -> Score:
        opinions = _opinions(ballots(debate, self.duplicates), self.ties)
        changes = _changes(debate)
        credits: list[Credit] = []
        values: list[float | None] = []
        for turn in debate.judges.values():
            if not turn.failed:
                parts, targets = _targets(debate, turn)
                falls = {target: _fall(opinions, changes, turn, target) for target in targets}
                values += falls.values()
                credits += _credits(turn, parts, falls)
        known = [value for value in values if value is not None]
        metrics = {
            "persuasion/critiques": float(len(values)),
            "persuasion/critiques_with_value": float(len(known)),
        }
        if known:
            metrics["persuasion/mean"] = sum(known) / len(known)
        num_agents = debate.transcript.protocol.num_agents
        return Score(tuple(credits), mean_returns(credits, num_agents), metrics)


_Part = tuple[int, tuple[int, int]]


def _opinions(cast: Mapping[TurnKey, Ballot], ties: Ties) -> dict[TurnKey, dict[int, float]]:
    """Return, per judge turn, its opinion of each agent that it voted about."""
    return {
        key: {turn.agent: share.balance for turn, share in tally(ballot.votes, ties).items()}
        for key, ballot in cast.items()
    }


def _targets(debate: ReadDebate, turn: ReadTurn) -> tuple[list[_Part], list[int]]:
    """Return the parts of a turn's evaluation with their agents, and the agents it criticises."""
    shown = debate.judged_by(turn)
    parts = [(agent, span) for agent, span in evaluation_parts(turn) if agent in shown]
    if parts:
        return parts, list(dict.fromkeys(agent for agent, _ in parts))
    section = turn.parsed.sections.get("evaluation")
    if len(shown) == 1 and section is not None and not says_nothing(section.text):
        return [], list(shown)
    return [], []


_Changes = Mapping[TurnKey, Sequence[tuple[TurnKey, TurnKey]]]


def _changes(debate: ReadDebate) -> _Changes:
    """Return, for each turn, its readers' last turns before they were shown it and first after."""
    spoken: dict[int, list[TurnKey]] = {}
    for key in sorted(debate.turns):
        spoken.setdefault(key.agent, []).append(key)
    changes: dict[TurnKey, list[tuple[TurnKey, TurnKey]]] = {}
    for own in spoken.values():
        seen: set[TurnKey] = set(debate.turns[own[0]].turn.shown)
        for before, after in pairwise(own):
            shown = set(debate.turns[after].turn.shown) - seen
            seen |= shown
            for key in shown:
                changes.setdefault(key, []).append((before, after))
    return changes


def _fall(
    opinions: Mapping[TurnKey, Mapping[int, float]],
    changes: _Changes,
    critique: ReadTurn,
    target: int,
) -> float | None:
    falls = []
    for before, after in changes.get(critique.key, ()):
        if after.agent in (critique.key.agent, target):
            continue
        if target in opinions[before] and target in opinions[after]:
            falls.append((opinions[before][target] - opinions[after][target]) / 2)
    return sum(falls) / len(falls) if falls else None


def _credits(
    turn: ReadTurn, parts: Sequence[_Part], falls: Mapping[int, float | None]
) -> list[Credit]:
    known = [value for value in falls.values() if value is not None]
    mean = sum(known) / len(known) if known else None
    whole = Credit(*turn.key, CRITIC, mean, expected=bool(falls))
    if mean is None:
        return [whole]
    spans = [Credit(*turn.key, CRITIC, falls[agent], span, expected=False) for agent, span in parts]
    return [whole, *spans]
