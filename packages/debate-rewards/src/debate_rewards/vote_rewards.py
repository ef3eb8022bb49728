"""Rewards made of all votes on an agent: win rate, win minus loss and Bradley-Terry strength."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from debate_protocol.types import TurnKey
from debate_rewards.answer_pools import (
    PooledAnswer,
    PooledReward,
    pooled_answers,
    pooled_log_strengths,
)
from debate_rewards.reward import (
    Credit,
    ReadDebate,
    Score,
    build_score,
    known_mean,
    turn_credits,
)
from debate_rewards.strengths import log_strengths, wins_of
from debate_rewards.votes import (
    Line,
    Share,
    Ties,
    Vote,
    all_votes,
    ballots,
    check_votes,
    orient,
    points,
    without_repetitions,
)

# Step reward of a failed turn, a part of its agent's total return.
FAILED_STEP = -1.0


class _Pairwise(PooledReward):
    @property
    def streams(self) -> tuple[str, ...]:
        """Streams with values."""
        return ("return",)

    @abstractmethod
    def value(self, share: Share) -> float:
        """Compute the value of an agent with these votes for and against it."""

    def score(self, debate: ReadDebate) -> Score:
        """Score a debate by all comparisons, shown or not."""
        lines_by_judge: dict[TurnKey, list[Line]] = {}
        num_malformed = num_contradictory = num_about_failed = 0
        for key, judge in debate.judges.items():
            num_malformed += judge.parsed.malformed
            if judge.failed:
                continue
            # Lines count by the agents that they name, shown to the judge or not, as the note has
            # it. Only a turn that failed says nothing about its agent.
            failed_agents = {
                agent for agent, turn in debate.judged_by(judge).items() if turn.failed
            }
            lines = [orient(comparison) for comparison in judge.parsed.comparisons]
            valid_lines = [
                line for line in lines if failed_agents.isdisjoint((line.low, line.high))
            ]
            counted_lines, num_dropped_pairs = without_repetitions(valid_lines, self.duplicates)
            num_about_failed += len(lines) - len(valid_lines)
            num_contradictory += num_dropped_pairs
            lines_by_judge[key] = counted_lines

        checked_turns: dict[int, TurnKey] = {}
        for vote in check_votes(debate):
            line = Line(vote.left.agent, vote.right.agent, vote.verdict, vote.span)
            lines_by_judge[vote.judge].append(line)
            checked_turns[vote.left.agent] = vote.left
            checked_turns[vote.right.agent] = vote.right
        num_votes = sum(len(lines) for lines in lines_by_judge.values())

        if self.pool == "answer":
            shares = _shares_by_answer(debate, lines_by_judge, self.ties, checked_turns)
        else:
            shares = _shares_by_agent(debate, lines_by_judge, self.ties)
        # Without votes the note's sums are 0, and so is the return: no signal would be `None`.
        values = []
        for share in shares:
            has_votes = share.up + share.down > 0
            values.append(self.value(share) if has_votes else 0.0)
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


def _shares_by_agent(
    debate: ReadDebate, lines_by_judge: Mapping[TurnKey, Sequence[Line]], ties: Ties
) -> list[Share]:
    """Count the votes for and against each agent."""
    votes_for = [0.0] * debate.transcript.protocol.num_agents
    votes_against = list(votes_for)
    for lines in lines_by_judge.values():
        for line in lines:
            share = points(line.verdict, ties)
            if share is not None:
                votes_for[line.low] += share.up
                votes_against[line.low] += share.down
                votes_for[line.high] += share.down
                votes_against[line.high] += share.up
    return [Share(up, down) for up, down in zip(votes_for, votes_against, strict=True)]


def _shares_by_answer(
    debate: ReadDebate,
    lines_by_judge: Mapping[TurnKey, Sequence[Line]],
    ties: Ties,
    checked_turns: Mapping[int, TurnKey],
) -> list[Share]:
    """Count the votes for and against all answers that each agent gave, without its own votes.

    A line about an agent whom the judge was not shown is about no answer: it counts for this agent.

    Args:
        debate: The debate.
        lines_by_judge: The counted lines of each judge turn.
        ties: What `=` is worth.
        checked_turns: By agent, the turns that judges were shown alone.
    """
    num_agents = debate.transcript.protocol.num_agents
    answers = pooled_answers(debate)
    answers_of_agent: list[set[PooledAnswer]] = [set() for _ in range(num_agents)]
    for key, answer in answers.items():
        answers_of_agent[key.agent].add(answer)

    votes_for = [0.0] * num_agents
    votes_against = list(votes_for)
    for judge_key, lines in lines_by_judge.items():
        judged_turns = debate.judged_by(debate.judges[judge_key])
        judged = {number: turn.key for number, turn in judged_turns.items()}
        judged.update(checked_turns)
        for line in lines:
            share = points(line.verdict, ties)
            if share is None:
                continue
            sides = ((line.low, share.up, share.down), (line.high, share.down, share.up))
            for number, up, down in sides:
                valued_agents = {number}
                if number in judged:
                    judged_answer = answers[judged[number]]
                    valued_agents = {
                        agent
                        for agent, agent_answers in enumerate(answers_of_agent)
                        if judged_answer in agent_answers
                    }
                # The judge may have given the judged answer, too: it casts no vote on itself.
                for agent in valued_agents - {judge_key.agent}:
                    votes_for[agent] += up
                    votes_against[agent] += down
    return [Share(up, down) for up, down in zip(votes_for, votes_against, strict=True)]


class WinRate(_Pairwise):
    """The share of peer votes that an agent won, W/V in [0, 1], 0 without votes.

    Stream `return`: the same value on each of an agent's turns, with −1 added for each of its
    failed turns. Every comparison of two other agents counts, shown or not, except lines about a
    failed turn.

    Source: multi-agent debate implementation note, reward function 1. Deviation: repeated lines of
    a turn count once (`duplicates: count` is the note's rule). With `pool: answer` an agent's votes
    are those of other agents on any answer that it gave in the debate.
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


class BradleyTerry(PooledReward):
    """The Bradley-Terry strength of each judged turn, scaled to (−1, 1), stream `generator`.

    The strengths w > 0 of the turns (`unit: turn`), or of the agents over all rounds
    (`unit: agent`, the same value on each of an agent's turns), maximise the likelihood of the
    votes, P(a beats b) = w_a / (w_a + w_b), times the prior. A win against a strong turn counts
    for more than a win against a weak turn, which a share of votes does not see.

    The prior is a fictitious opponent of strength 1 against which everyone has `prior` wins and as
    many losses: undefeated turns stay finite, turns of different rounds share one scale, and few
    votes say little. The value (w − 1) / (w + 1) is twice the chance to beat that opponent,
    minus 1.

    With `pool: answer` each answer has a strength, the same on all turns that give it, up to the
    votes of each turn's author, without which its strength is fitted.

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

    @model_validator(mode="after")
    def _check_unit(self) -> Self:
        if self.unit == "agent" and self.pool == "answer":
            raise ValueError(
                "pool: found answer beside unit: agent; expected unit turn with pool answer, or "
                "pool agent"
            )
        return self

    def score(self, debate: ReadDebate) -> Score:
        """Score a debate by strengths fitted to the votes."""
        votes = all_votes(ballots(debate, self.duplicates))
        if self.pool == "answer":
            strengths = pooled_log_strengths(votes, self.ties, pooled_answers(debate), self.prior)
        else:
            strengths = self._turn_log_strengths(debate, votes)
        # (w − 1) / (w + 1) with log w in the place of w, which may be too large a number.
        values = {key: math.tanh(strength / 2) for key, strength in strengths.items()}
        credits = turn_credits(debate, values)
        metrics = {
            "bradley_terry/votes": float(len(votes)),
            "bradley_terry/unvoted_turns": float(sum(c.value is None for c in credits)),
            "reward/gen/mean": known_mean(credit.value for credit in credits),
        }
        return build_score(debate.transcript, credits, metrics)

    def _turn_log_strengths(
        self, debate: ReadDebate, votes: Sequence[Vote]
    ) -> dict[TurnKey, float]:
        def unit_of(key: TurnKey) -> TurnKey | int:
            return key.agent if self.unit == "agent" else key

        strengths = log_strengths(wins_of(votes, self.ties, unit_of), self.prior)
        return {key: strengths[unit_of(key)] for key in debate.turns if unit_of(key) in strengths}
