"""The judge stream with the majority's answer as the yardstick instead of the truth."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from debate_protocol.types import Transcript
from debate_rewards.credits import Score
from debate_rewards.reading import read_debate
from debate_rewards.reward_config import Need, Use
from debate_rewards.rewards.few_labels.agreement import in_majority, nobody_outvoted
from debate_rewards.rewards.yardstick_judge import YardstickJudge


class MajorityJudge(YardstickJudge):
    """What each turn's comparisons are worth against the majority's answer, stream `judge`.

    As `truth_judge`, with the answer that most agents of a round give in the place of the truth: a
    vote on a turn with it and a turn without it is worth +1 if it names the first, −1 if it names
    the second, 0 if it is `=`; None where both or neither give it, and in rounds where two answers
    are most frequent. With `verified` a debate has a signal only where its peers' votes decide for
    the majority's answer. No answers of the questions are needed.

    Source: CoVerRL (arXiv 2603.17775): majority answers that a majority of the model's own checks
    accepts are what its checks are trained on, right for those answers and wrong for others.
    Deviations: verdicts on pairs of turns in the place of checks of one reply, all other answers
    in the place of the least frequent one, −1 in the place of 0, and 0 for `=`.
    """

    needs: ClassVar[frozenset[Need]] = frozenset(("votes",))

    type: Literal["majority_judge"] = "majority_judge"
    verified: bool = True
    """Whether the peers' votes must decide for the majority's answer, too."""

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        yardsticks = in_majority(debates, scope="debate", against="each", is_verified=self.verified)
        return [self.score(*one) for one in zip(debates, yardsticks, strict=True)]

    def silence(self, stream: str, use: Use) -> str | None:
        """Return why no turn can differ from the majority."""
        return nobody_outvoted(use) if stream == "judge" else None
