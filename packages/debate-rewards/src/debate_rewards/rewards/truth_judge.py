"""The judge stream with the truth as the yardstick instead of the other judges."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.types import Transcript
from debate_rewards.credits import Credit, Score, mean_returns
from debate_rewards.reading import ReadDebate
from debate_rewards.reward_config import Need, RewardConfig
from debate_rewards.rewards.spans import JudgeCredit
from debate_rewards.rewards.verifiable import Verdicts, with_verdicts
from debate_rewards.votes.ballots import Duplicates, all_votes, ballots
from debate_rewards.votes.judge_stream import JUDGE, judge_credits
from debate_rewards.votes.judging import truth_values


class TruthJudge(RewardConfig):
    """What each turn's comparisons are worth against the truth, stream `judge`.

    A vote on a right and a wrong turn is worth +1 if it names the right one, −1 if it names the
    other, 0 if it is `=`; None where both are right or both wrong. A turn's value is the mean over
    its valued votes, or `format_penalty` where comparisons were owed and none counted. Votes,
    `duplicates` and `judge_credit` are as in `v2`; unlike there, three agents are enough.

    A question whose own answer is missing or cannot be read has no signal, and a warning names it.
    Failed turns carry nothing: mix it with a reward for the generator, such as `verifiable`, or
    `v2` with `consensus: none`.

    Source: the judge stream of v2 (multi-agent debate overview, section 2.2.2) with the truth in
    the place of the consensus, after section 5.1's mixing of ground truth into peer rewards.
    """

    needs: ClassVar[frozenset[Need]] = frozenset(
        (
            "answers",
            "votes",
        )
    )
    can_be_tried: ClassVar[bool] = True

    type: Literal["truth_judge"] = "truth_judge"
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

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [self._score(*one) for one in with_verdicts(transcripts)]

    def _score(self, debate: ReadDebate, verdicts: Verdicts | None) -> Score:
        num_agents = debate.transcript.protocol.num_agents
        if verdicts is None:
            credits = [
                Credit(*key, JUDGE, None, expected=False)
                for key, turn in debate.judges.items()
                if not turn.failed
            ]
            return Score(
                tuple(credits), (None,) * num_agents, {"truth_judge/unverifiable_gold": 1.0}
            )
        cast = ballots(debate, self.duplicates)
        right = {key: verdict.verdict == "right" for key, verdict in verdicts.items()}
        values = truth_values(all_votes(cast), right)
        credits = judge_credits(
            debate,
            cast,
            values,
            judge_credit=self.judge_credit,
            format_penalty=self.format_penalty,
        )
        metrics = {
            "truth_judge/unverifiable_gold": 0.0,
            "truth_judge/votes": float(len(values)),
            "truth_judge/votes_with_value": float(sum(value is not None for value in values)),
        }
        turns = [c.value for c in credits if c.span is None and c.value is not None]
        if turns:
            metrics["reward/judge/mean"] = sum(turns) / len(turns)
        return Score(tuple(credits), mean_returns(credits, num_agents), metrics)
