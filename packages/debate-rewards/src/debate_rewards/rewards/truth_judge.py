"""The judge stream with the truth as the yardstick instead of the other judges."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from debate_protocol.types import Transcript
from debate_rewards.credits import Credit, Score
from debate_rewards.reading import ReadDebate
from debate_rewards.reward_config import Need
from debate_rewards.rewards.verifiable import Verdicts, with_verdicts
from debate_rewards.rewards.yardstick_judge import YardstickJudge
from debate_rewards.votes.judge_stream import JUDGE


class TruthJudge(YardstickJudge):
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

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [self._score(*one) for one in with_verdicts(transcripts)]

    def _score(self, debate: ReadDebate, verdicts: Verdicts | None) -> Score:
        if verdicts is None:
            credits = [
                Credit(*key, JUDGE, None, expected=False)
                for key, turn in debate.judges.items()
                if not turn.failed
            ]
            nobody = (None,) * debate.transcript.protocol.num_agents
            return Score(tuple(credits), nobody, {"truth_judge/unverifiable_gold": 1.0})
        right = {key: verdict.verdict == "right" for key, verdict in verdicts.items()}
        score = self.score(debate, right)
        return Score(
            score.credits, score.agents, {"truth_judge/unverifiable_gold": 0.0, **score.metrics}
        )
