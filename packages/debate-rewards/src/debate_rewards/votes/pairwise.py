"""Win rate and win-minus-loss: one return per agent from all comparisons of a debate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from debate_protocol.types import Transcript
from debate_rewards.credits import Credit, Score
from debate_rewards.reading import ReadDebate, ReadTurn, read_debate
from debate_rewards.reward_config import Need, RewardConfig
from debate_rewards.votes.ballots import Duplicates, Line, Share, Ties, orient, points, settle

FAILED_STEP = -1.0
"""Step reward of a failed turn, a part of its agent's total return."""


@dataclass(frozen=True, slots=True)
class PairwiseVotes:
    """Votes for and against each agent over all rounds, and how many lines were malformed."""

    shares: tuple[Share, ...]
    total: int
    malformed: int
    contradictory: int
    failed: int


class _Pairwise(RewardConfig):
    needs: ClassVar[frozenset[Need]] = frozenset(("votes",))
    can_be_tried: ClassVar[bool] = True

    ties: Ties = "half"
    """What `=` is worth: `half` a win for each side, or nothing (`ignore`)."""
    duplicates: Duplicates = "one"
    """Whether a voter's repeated verdict on a pair counts as `one` or each time (`count`)."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("return",)


class WinRate(_Pairwise):
    """The share of peer votes that an agent won, W/V in [0, 1], 0 without votes.

    Stream `return`: the same value on each of an agent's turns, with −1 added for each of its
    failed turns. Every comparison of two other agents counts, shown or not, except lines about a
    failed turn.

    Source: multi-agent debate implementation note, reward function 1. Deviation: repeated lines of
    a turn count once (`duplicates: count` is the note's rule).
    """

    type: Literal["win_rate"] = "win_rate"

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [_score(read_debate(t), self, "win_rate") for t in transcripts]


class WinMinusLoss(_Pairwise):
    """The mean signed result of an agent's matchups, S/M in [−1, 1], 0 without votes.

    Ties count as matchups with result 0 (`ties: ignore` leaves them out). All else is as in
    `WinRate`.

    Source: multi-agent debate implementation note, reward function 2.
    """

    type: Literal["win_minus_loss"] = "win_minus_loss"

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [_score(read_debate(t), self, "win_minus_loss") for t in transcripts]


def pairwise_votes(debate: ReadDebate, ties: Ties, duplicates: Duplicates) -> PairwiseVotes:
    """Count the votes for and against each agent over all rounds of a debate."""
    shares = [Share(0.0, 0.0)] * debate.transcript.protocol.num_agents
    total = malformed = contradictory = failed = 0
    for judge in debate.judges.values():
        malformed += judge.parsed.malformed
        if judge.failed:
            continue
        lines = [orient(comparison) for comparison in judge.parsed.comparisons]
        about_valid = _about_valid(debate, judge, lines)
        failed += len(lines) - len(about_valid)
        kept, clashes = settle(about_valid, duplicates)
        contradictory += clashes
        total += len(kept)
        for line in kept:
            given = points(line.verdict, ties)
            if given is None:
                continue
            low, high = shares[line.low], shares[line.high]
            shares[line.low] = Share(low.up + given.up, low.down + given.down)
            shares[line.high] = Share(high.up + given.down, high.down + given.up)
    return PairwiseVotes(tuple(shares), total, malformed, contradictory, failed)


def _about_valid(debate: ReadDebate, judge: ReadTurn, lines: Sequence[Line]) -> list[Line]:
    """Return the lines whose agents were not last shown to the judge with a failed turn."""
    broken = {agent for agent, turn in debate.judged_by(judge).items() if turn.failed}
    return [line for line in lines if line.low not in broken and line.high not in broken]


def _value(share: Share, mode: Literal["win_rate", "win_minus_loss"]) -> float:
    votes = share.up + share.down
    if not votes:
        return 0.0
    return share.up / votes if mode == "win_rate" else (share.up - share.down) / votes


def _score(
    debate: ReadDebate, reward: _Pairwise, mode: Literal["win_rate", "win_minus_loss"]
) -> Score:
    counted = pairwise_votes(debate, reward.ties, reward.duplicates)
    values = [_value(share, mode) for share in counted.shares]
    returns = list(values)
    for turn in debate.turns.values():
        if turn.failed:
            returns[turn.key.agent] += FAILED_STEP
    credits = tuple(
        Credit(*key, "return", returns[key.agent], penalty=turn.failed)
        for key, turn in debate.turns.items()
    )
    metrics = {
        "pairwise_reward": sum(values) / len(values) if values else 0.0,
        "pairwise_reward_is_win_rate": float(mode == "win_rate"),
        "pairwise_reward_is_win_minus_loss": float(mode == "win_minus_loss"),
        "pairwise_total_votes": float(counted.total),
        "pairwise_malformed": float(counted.malformed),
        "pairwise_contradictory": float(counted.contradictory),
        "pairwise_failed_dropped": float(counted.failed),
        "pairwise_any_votes": float(counted.total > 0),
    }
    return Score(credits, tuple(returns), metrics)
