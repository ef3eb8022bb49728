"""A reward that is a function, for runs that are started from Python."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from pydantic import PrivateAttr

from debate_protocol.types import Transcript
from debate_rewards.reward import (
    Credit,
    RewardConfig,
    Score,
    ScoreError,
    finite_value,
    mean_returns,
)

Valued = float | None | Sequence[float | None] | Score
"""A value for all turns of a debate, one for each of its turns, or all credits; None: no signal."""
RewardFunction = Callable[[Transcript], Valued]


class FunctionReward(RewardConfig):
    """What a function says of each debate, stream `generator`; no recipe can name it."""

    type: Literal["function"] = "function"
    _function: RewardFunction = PrivateAttr()

    @classmethod
    def of(cls, function: RewardFunction) -> "FunctionReward":
        """Return the reward that a function is."""
        made = cls()
        made.__pydantic_private__ = {"_function": function}
        return made

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order.

        Raises:
            ScoreError: The function returned something else than `Valued`.
        """
        return [_score(transcript, self._function(transcript)) for transcript in transcripts]


def _score(transcript: Transcript, valued: Any) -> Score:
    if isinstance(valued, Score):
        return valued
    turns = transcript.turns
    is_list = isinstance(valued, Sequence) and not isinstance(valued, str | bytes)
    values = list(valued) if is_list else [valued] * len(turns)
    if len(values) != len(turns):
        raise ScoreError(
            f"reward: found {valued!r:.200} for debate {transcript.id!r}; expected a number, None, "
            f"one of these for each of its {len(turns)} turns, or a Score"
        )
    credits = tuple(
        Credit(
            turn.agent,
            turn.round,
            "generator",
            finite_value(value, transcript.id, turn.agent, turn.round, "generator"),
            expected=value is not None,
        )
        for turn, value in zip(turns, values, strict=True)
    )
    return Score(credits, mean_returns(credits, transcript.protocol.num_agents))
