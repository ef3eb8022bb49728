"""A reward for few words."""

from collections.abc import Sequence
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
        return [Score(tuple(map(self._credit, debate.turns))) for debate in transcripts]

    def _credit(self, turn) -> Credit:
        return Credit(turn.agent, turn.round, "generator", -len(turn.text.split()) / self.words)
