"""The policy's own certainty as a reward."""

import math
from collections.abc import Sequence
from typing import Literal

from debate_protocol.transcripts.counts import mean_logp
from debate_protocol.types import Transcript
from debate_rewards.credits import FAILURE_VALUE, Credit, Score, mean_returns
from debate_rewards.reading import ReadDebate, read_debate
from debate_rewards.reward_config import RewardConfig


class Certainty(RewardConfig):
    """How likely the policy found what it said, stream `generator`; no answers are needed.

    A valid turn is worth the geometric mean of the probabilities of its sampled tokens,
    exp(mean log-probability), above 0 and at most 1, taken under the distribution that was sampled
    from. A failed turn carries −1. Where log-probabilities are not known there is no signal.

    It sharpens what the policy prefers already, right or wrong: an arm to compare with, and seldom
    a way to train.

    Source: the certainty rewards that arXiv 2603.08660 compares. Deviation: Intuitor's
    self-certainty (arXiv 2505.19590) is the mean divergence of whole next-token distributions from
    the uniform one, which engines do not return; this has the sampled tokens alone.
    """

    type: Literal["certainty"] = "certainty"

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [self._score(read_debate(transcript)) for transcript in transcripts]

    def _score(self, debate: ReadDebate) -> Score:
        credits, known = [], []
        for key, turn in debate.turns.items():
            if turn.failed:
                credits.append(Credit(*key, "generator", FAILURE_VALUE, penalty=True))
                continue
            logp = mean_logp(turn.turn)
            value = None if logp is None else math.exp(logp)
            credits.append(Credit(*key, "generator", value, expected=value is not None))
            known += [] if value is None else [value]
        returns = mean_returns(credits, debate.transcript.protocol.num_agents)
        metrics = {"certainty/mean": sum(known) / len(known)} if known else {}
        return Score(tuple(credits), returns, metrics)
