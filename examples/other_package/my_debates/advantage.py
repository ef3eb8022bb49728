"""Credits against what a stream paid lately, in units of how much that varied."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from pydantic import Field

from debate_protocol import Transcript, TurnKey
from debate_rewards import Score
from debate_train.advantages import Advantage, AdvantageConfig, Advantages, Baselines


class Standardised(AdvantageConfig):
    """A = (value − m) / √v, where m and v are running moments of all values of the stream."""

    type: Literal["standardised"] = "standardised"
    momentum: float = Field(0.9, ge=0, lt=1)

    def compute(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score], before: Baselines
    ) -> Advantages:
        """Return the advantages, and the moments, which checkpoints keep for the next step."""
        credits = [[c for c in score.credits if c.value is not None] for score in scores]
        after = dict(before)
        for stream in sorted({c.stream for of_debate in credits for c in of_debate}):
            values = [c.value for of_debate in credits for c in of_debate if c.stream == stream]
            for name, power in (f"{stream}/mean", 1), (f"{stream}/square", 2):
                new = fmean(value**power for value in values)
                after[name] = self.momentum * before.get(name, new) + (1 - self.momentum) * new
        turns = [defaultdict(list) for _ in transcripts]
        for found, of_debate in zip(turns, credits, strict=True):
            for c in of_debate:
                mean, square = after[f"{c.stream}/mean"], after[f"{c.stream}/square"]
                value = c.weight * (c.value - mean) / max(square - mean**2, 1e-6) ** 0.5
                found[TurnKey(c.agent, c.round)].append(
                    Advantage(c.stream, value, c.span, c.component)
                )
        return Advantages(turns, after)
