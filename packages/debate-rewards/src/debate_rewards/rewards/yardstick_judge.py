"""Judge streams that value votes by a yardstick: which of the judged turns count as right."""

from collections.abc import Mapping

from pydantic import Field

from debate_protocol.types import TurnKey
from debate_rewards.credits import Score, mean_returns
from debate_rewards.reading import ReadDebate
from debate_rewards.reward_config import RewardConfig
from debate_rewards.rewards.spans import JudgeCredit
from debate_rewards.votes.ballots import Duplicates, all_votes, ballots
from debate_rewards.votes.judge_stream import JUDGE, judge_credits
from debate_rewards.votes.judging import truth_values


class YardstickJudge(RewardConfig):
    """What rewards have in common that value a judge's votes by which turns count as right."""

    duplicates: Duplicates = "one"
    """Whether a voter's repeated verdict on a pair counts as `one` or each time (`count`)."""
    judge_credit: JudgeCredit = "block"
    """Where a judge's values go: one for the `block`, one per `line`, or per `segment` (lines,
    and each part of the evaluation about one agent)."""
    format_penalty: float | None = Field(default=-0.5, le=0)
    """What a turn is worth as a judge where comparisons were expected and none counted; under
    `line` and `segment` also a line that does not count, and ending with pairs left out. Null is no
    penalty."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return (JUDGE,)

    def score(self, debate: ReadDebate, right: Mapping[TurnKey, bool]) -> Score:
        """Return the values of a debate's judges.

        Args:
            debate: The debate.
            right: Whether each judged turn counts as right; votes about turns that are missing
                have no value.
        """
        cast = ballots(debate, self.duplicates)
        values = truth_values(all_votes(cast), right)
        credits = judge_credits(
            debate,
            cast,
            values,
            judge_credit=self.judge_credit,
            format_penalty=self.format_penalty,
        )
        metrics = {
            f"{self.type}/votes": float(len(values)),
            f"{self.type}/votes_with_value": float(sum(value is not None for value in values)),
        }
        turns = [c.value for c in credits if c.span is None and c.value is not None]
        if turns:
            metrics["reward/judge/mean"] = sum(turns) / len(turns)
        returns = mean_returns(credits, debate.transcript.protocol.num_agents)
        return Score(tuple(credits), returns, metrics)
