"""The majority as a reward: each valid turn is valued by whether it agrees with most replies."""

from collections.abc import Sequence
from typing import ClassVar, Literal

from debate_protocol.types import Transcript, TurnKey
from debate_rewards.credits import FAILURE_VALUE, Credit, Score, mean_returns
from debate_rewards.reading import ReadDebate, read_debate
from debate_rewards.reward_config import Need, RewardConfig, Use
from debate_rewards.rewards.few_labels.agreement import in_majority, nobody_outvoted


class Majority(RewardConfig):
    """Whether a turn's answer is that of the majority, as 1 or 0 or as ±1, stream `generator`.

    The majority is the largest class of equivalent answers in one round, of the debate
    (`scope: debate`) or of all debates of the batch on the same question (`scope: question`). Each
    turn is compared with its own round (`round: each`), or with the last rounds of these debates
    (`round: last`). A turn without an answer has no vote. Where two classes are largest, or nobody
    answered, there is no majority and no signal. With `verified` a debate has a signal only where
    its peers' votes decide for the majority's answer, too. A failed turn carries −1. No answers of
    the questions are needed.

    Source: TTRL (Zuo et al. 2025, arXiv 2504.16084), section 2: reward 1 if the prediction equals
    the most common of the sampled answers, else 0; there all samples of a prompt are the group,
    which is `scope: question` for single replies. Deviations: answers are counted by equivalence,
    and a tie has no signal instead of a winner by order. `verified` is after CoVerRL (arXiv
    2603.17775), where the model's own checks filter its majority; here votes on pairs do.
    """

    can_be_tried: ClassVar[bool] = True

    type: Literal["majority"] = "majority"
    values: Literal["plus_minus", "zero_one"] = "zero_one"
    """With the majority and against it are +1 and -1 (`plus_minus`), or 1 and 0 (`zero_one`)."""
    scope: Literal["debate", "question"] = "question"
    """Whose majority: that of a `debate`, or of all debates of a `question`."""
    round: Literal["each", "last"] = "each"
    """Whether a turn is compared with its own round (`each`) or with the `last` rounds."""
    verified: bool = False
    """Whether the peers' votes must decide for the majority's answer, too."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        debates = [read_debate(transcript) for transcript in transcripts]
        found = in_majority(
            debates, scope=self.scope, against=self.round, is_verified=self.verified
        )
        return [self._score(*one) for one in zip(debates, found, strict=True)]

    def needed(self) -> frozenset[Need]:
        """Return votes, where these verify the majority."""
        return frozenset(("votes",)) if self.verified else frozenset()

    def silence(self, stream: str, use: Use) -> str | None:
        """Return why no turn can differ from the majority."""
        return nobody_outvoted(use) if stream == "generator" and self.scope == "debate" else None

    def _score(self, debate: ReadDebate, in_majority: dict[TurnKey, bool]) -> Score:
        minority = -1.0 if self.values == "plus_minus" else 0.0
        credits = []
        for key, turn in debate.turns.items():
            if turn.failed:
                credits.append(Credit(*key, "generator", FAILURE_VALUE, penalty=True))
            else:
                value = {True: 1.0, False: minority, None: None}[in_majority.get(key)]
                credits.append(Credit(*key, "generator", value))
        valid = [in_majority.get(key) for key, turn in debate.turns.items() if not turn.failed]
        decided = [agrees for agrees in valid if agrees is not None]
        metrics = {}
        if valid:
            metrics["majority/undecided"] = 1 - len(decided) / len(valid)
        if decided:
            metrics["majority/share"] = sum(decided) / len(decided)
        returns = mean_returns(credits, debate.transcript.protocol.num_agents)
        return Score(tuple(credits), returns, metrics)
