"""A reward for few words."""

from collections.abc import Sequence
from statistics import fmean
from typing import Literal

from debate_protocol import Transcript
from debate_rewards import Credit, RewardConfig, Score


class Brevity(RewardConfig):
    """Each turn earns −1 for every `words` words that it has, in the stream `generator`."""

    type: Literal["brevity"] = "brevity"
    words: int = 50

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [self._score(debate) for debate in transcripts]

    def _score(self, debate: Transcript) -> Score:
        credits = tuple(map(self._credit, debate.turns))
        values = {agent: [] for agent in range(debate.protocol.num_agents)}
        for credit in credits:
            values[credit.agent].append(credit.value)
        # An agent without a turn has no return, which is None and not 0.
        agents = tuple(fmean(returns) if returns else None for returns in values.values())
        return Score(credits, agents)

    def _credit(self, turn) -> Credit:
        return Credit(turn.agent, turn.round, "generator", -len(turn.text.split()) / self.words)
