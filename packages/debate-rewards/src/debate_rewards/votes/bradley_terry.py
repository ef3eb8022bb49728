"""Strengths of turns or agents that explain all votes of a debate at once."""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import ClassVar, Literal, TypeVar

from pydantic import Field

from debate_protocol.types import Transcript, TurnKey
from debate_rewards.credits import FAILURE_VALUE, Credit, Score, mean_returns
from debate_rewards.reading import ReadDebate, read_debate
from debate_rewards.reward_config import Need, RewardConfig
from debate_rewards.votes.ballots import Duplicates, Ties, Vote, all_votes, ballots, points

TOLERANCE = 1e-10
"""Largest change of a log strength at which the fit has converged."""
MAX_SWEEPS = 10_000

Item = TypeVar("Item", bound=Hashable)
Results = Mapping[tuple[Item, Item], float]
"""Wins of the first over the second; a tie is half a win for each."""


class BradleyTerry(RewardConfig):
    """The Bradley-Terry strength of each judged turn, scaled to (−1, 1), stream `generator`.

    The strengths w > 0 of the turns (`unit: turn`), or of the agents over all rounds
    (`unit: agent`, the same value on each of an agent's turns), maximise the likelihood of the
    votes, P(a beats b) = w_a / (w_a + w_b), times the prior. A win against a strong turn counts
    for more than one against a weak turn, which a share of votes does not see.

    The prior is a fictitious opponent of strength 1 against whom everyone has `prior` wins and as
    many losses: undefeated turns stay finite, turns of different rounds share one scale, and few
    votes say little. The value (w − 1) / (w + 1) is twice the chance to beat that opponent,
    minus 1.

    Turns (agents) without a vote have no signal; a failed turn carries −1. Which votes count, and
    `ties` and `duplicates`, are as in `v2`.

    Source: Bradley and Terry (1952); Newman (2023), Efficient computation of rankings from
    pairwise comparisons: its iteration and, at `prior: 1`, its logistic prior.
    """

    needs: ClassVar[frozenset[Need]] = frozenset(("votes",))
    can_be_tried: ClassVar[bool] = True

    type: Literal["bradley_terry"] = "bradley_terry"
    unit: Literal["turn", "agent"] = "turn"
    """What has a strength: each `turn`, or each `agent` over all its turns."""
    prior: float = Field(default=1.0, ge=1e-3)
    """Wins, and as many losses, of everyone against a fictitious opponent of strength 1."""
    ties: Ties = "half"
    """What `=` is worth: `half` a win for each side, or nothing (`ignore`)."""
    duplicates: Duplicates = "one"
    """Whether a voter's repeated verdict on a pair counts as `one` or each time (`count`)."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [self._score(read_debate(transcript)) for transcript in transcripts]

    def _score(self, debate: ReadDebate) -> Score:
        votes = all_votes(ballots(debate, self.duplicates))
        values = self._values(votes)
        credits = tuple(
            Credit(*key, "generator", FAILURE_VALUE, penalty=True)
            if turn.failed
            else Credit(*key, "generator", values.get(key.agent if self.unit == "agent" else key))
            for key, turn in debate.turns.items()
        )
        metrics = {
            "bradley_terry/votes": float(len(votes)),
            "bradley_terry/unvoted_turns": float(sum(c.value is None for c in credits)),
        }
        known = [c.value for c in credits if c.value is not None]
        if known:
            metrics["reward/gen/mean"] = sum(known) / len(known)
        num_agents = debate.transcript.protocol.num_agents
        return Score(credits, mean_returns(credits, num_agents), metrics)

    def _values(self, votes: Sequence[Vote]) -> dict[TurnKey | int, float]:
        wins: dict[tuple[TurnKey | int, TurnKey | int], float] = {}
        for vote in votes:
            given = points(vote.verdict, self.ties)
            if given is not None:
                left, right = vote.pair
                a: TurnKey | int = left.agent if self.unit == "agent" else left
                b: TurnKey | int = right.agent if self.unit == "agent" else right
                wins[a, b] = wins.get((a, b), 0.0) + given.up
                wins[b, a] = wins.get((b, a), 0.0) + given.down
        return {item: math.tanh(log / 2) for item, log in log_strengths(wins, self.prior).items()}


def log_strengths(wins: Results[Item], prior: float) -> dict[Item, float]:
    """Return the log strength of each item that maximises likelihood times prior.

    Args:
        wins: Wins of the first of a pair over the second, in both orders.
        prior: Wins, and losses, of each item against a fictitious item of log strength 0.

    Source: Newman (2023), the iteration for its logistic prior; here each sweep uses new values
    at once, and `prior` may differ from 1.
    """
    rivals: dict[Item, list[tuple[Item, float, float]]] = {}
    for (a, b), won in wins.items():
        rivals.setdefault(a, []).append((b, won, wins.get((b, a), 0.0)))
    strength = dict.fromkeys(rivals, 1.0)
    for _ in range(MAX_SWEEPS):
        change = 0.0
        for item, played in rivals.items():
            own = strength[item]
            gained = lost = prior / (own + 1)
            for rival, won, conceded in played:
                other = strength[rival]
                gained += won * other / (own + other)
                lost += conceded / (own + other)
            strength[item] = gained / lost
            change = max(change, abs(math.log(gained / lost / own)))
        if change < TOLERANCE:
            break
    return {item: math.log(own) for item, own in strength.items()}
