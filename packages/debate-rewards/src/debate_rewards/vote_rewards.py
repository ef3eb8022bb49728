"""Rewards made of all votes on an agent: win rate, win minus loss and Bradley-Terry strength."""

import math
from abc import abstractmethod
from typing import Literal

from pydantic import Field

from debate_protocol.types import TurnKey
from debate_rewards.reward import (
    Credit,
    ReadDebate,
    ReadTurn,
    Score,
    build_score,
    known_mean,
    turn_credits,
)
from debate_rewards.strengths import log_strengths, wins_of
from debate_rewards.votes import (
    Line,
    PeerReward,
    Share,
    all_votes,
    ballots,
    orient,
    points,
    without_repetitions,
)

# Step reward of a failed turn, a part of its agent's total return.
FAILED_STEP = -1.0


class _Pairwise(PeerReward):
    @property
    def streams(self) -> tuple[str, ...]:
        """Streams with values."""
        return ("return",)

    @abstractmethod
    def value(self, share: Share) -> float:
        """Compute the value of an agent with these votes for and against it."""

    def score(self, debate: ReadDebate) -> Score:
        """Score a debate by all comparisons, shown or not."""
        num_agents = debate.transcript.protocol.num_agents
        votes_for = [0.0] * num_agents
        votes_against = [0.0] * num_agents
        num_votes = num_malformed = num_contradictory = num_about_failed = 0
        for judge in debate.judges.values():
            num_malformed += judge.parsed.malformed
            if judge.failed:
                continue
            valid_lines = _lines_about_valid_turns(debate, judge)
            counted_lines, num_dropped_pairs = without_repetitions(valid_lines, self.duplicates)
            num_about_failed += len(judge.parsed.comparisons) - len(valid_lines)
            num_contradictory += num_dropped_pairs
            num_votes += len(counted_lines)
            for line in counted_lines:
                share = points(line.verdict, self.ties)
                if share is not None:
                    votes_for[line.low] += share.up
                    votes_against[line.low] += share.down
                    votes_for[line.high] += share.down
                    votes_against[line.high] += share.up

        values = []
        for up, down in zip(votes_for, votes_against, strict=True):
            values.append(self.value(Share(up, down)) if up + down else 0.0)
        returns = list(values)
        for key, turn in debate.turns.items():
            if turn.failed:
                returns[key.agent] += FAILED_STEP
        credits = []
        for key, turn in debate.turns.items():
            credits.append(Credit(*key, "return", returns[key.agent], penalty=turn.failed))
        metrics = {
            "pairwise_total_votes": float(num_votes),
            "pairwise_malformed": float(num_malformed),
            "pairwise_contradictory": float(num_contradictory),
            "pairwise_failed_dropped": float(num_about_failed),
            "pairwise_reward": known_mean(values) or 0.0,
            "pairwise_reward_is_win_rate": 0.0,
            "pairwise_reward_is_win_minus_loss": 0.0,
            f"pairwise_reward_is_{self.type}": 1.0,
            "pairwise_any_votes": float(num_votes > 0),
        }
        return Score(credits=tuple(credits), agents=tuple(returns), metrics=metrics)


def _lines_about_valid_turns(debate: ReadDebate, judge: ReadTurn) -> list[Line]:
    """Select the lines whose agents were not last shown to the judge with a failed turn."""
    failed_agents = {agent for agent, turn in debate.judged_by(judge).items() if turn.failed}
    lines = [orient(comparison) for comparison in judge.parsed.comparisons]
    return [line for line in lines if failed_agents.isdisjoint((line.low, line.high))]


class WinRate(_Pairwise):
    """The share of peer votes that an agent won, W/V in [0, 1], 0 without votes.

    Stream `return`: the same value on each of an agent's turns, with −1 added for each of its
    failed turns. Every comparison of two other agents counts, shown or not, except lines about a
    failed turn.

    Source: multi-agent debate implementation note, reward function 1. Deviation: repeated lines of
    a turn count once (`duplicates: count` is the note's rule).
    """

    type: Literal["win_rate"] = "win_rate"

    def value(self, share: Share) -> float:
        """Compute the share of votes won."""
        return share.up / (share.up + share.down)


class WinMinusLoss(_Pairwise):
    """The mean signed result of an agent's matchups, S/M in [−1, 1], 0 without votes.

    Ties count as matchups with result 0 (`ties: ignore` leaves them out). All else is as in
    `WinRate`.

    Source: multi-agent debate implementation note, reward function 2.
    """

    type: Literal["win_minus_loss"] = "win_minus_loss"

    def value(self, share: Share) -> float:
        """Compute votes for minus votes against, by votes."""
        return (share.up - share.down) / (share.up + share.down)


class BradleyTerry(PeerReward):
    """The Bradley-Terry strength of each judged turn, scaled to (−1, 1), stream `generator`.

    The strengths w > 0 of the turns (`unit: turn`), or of the agents over all rounds
    (`unit: agent`, the same value on each of an agent's turns), maximise the likelihood of the
    votes, P(a beats b) = w_a / (w_a + w_b), times the prior. A win against a strong turn counts
    for more than a win against a weak turn, which a share of votes does not see.

    The prior is a fictitious opponent of strength 1 against which everyone has `prior` wins and as
    many losses: undefeated turns stay finite, turns of different rounds share one scale, and few
    votes say little. The value (w − 1) / (w + 1) is twice the chance to beat that opponent,
    minus 1.

    Turns (agents) without a vote have no signal; a failed turn carries −1. Which votes count, and
    `ties` and `duplicates`, are as in `v2`.

    Source: Bradley and Terry (1952); the prior, at 1, is the logistic one of Newman (2023),
    Efficient computation of rankings from pairwise comparisons.
    """

    type: Literal["bradley_terry"] = "bradley_terry"
    unit: Literal["turn", "agent"] = "turn"
    """What has a strength: each `turn`, or each `agent` over all its turns."""
    prior: float = Field(default=1.0, ge=1e-3)
    """Wins, and as many losses, of everyone against a fictitious opponent of strength 1."""

    def score(self, debate: ReadDebate) -> Score:
        """Score a debate by strengths fitted to the votes."""

        def unit_of(key: TurnKey) -> TurnKey | int:
            return key.agent if self.unit == "agent" else key

        votes = all_votes(ballots(debate, self.duplicates))
        strengths = log_strengths(wins_of(votes, self.ties, unit_of), self.prior)
        values: dict[TurnKey, float | None] = {}
        for key in debate.turns:
            if unit_of(key) in strengths:
                # (w − 1) / (w + 1) with log w in the place of w, which may be too large a number.
                values[key] = math.tanh(strengths[unit_of(key)] / 2)
        credits = turn_credits(debate, values)
        metrics = {
            "bradley_terry/votes": float(len(votes)),
            "bradley_terry/unvoted_turns": float(sum(c.value is None for c in credits)),
            "reward/gen/mean": known_mean(credit.value for credit in credits),
        }
        return build_score(debate.transcript, credits, metrics)
