"""A detector of the health monitor."""

from typing import Literal

from debate_train.monitoring import Detector, History


class Rambling(Detector):
    """How much longer the longest reply of a step is than its mean."""

    type: Literal["rambling"] = "rambling"
    above: float | None = 4.0
    advice: str = "a few replies do not end: look at them in transcripts/"

    def figure(self, history: History) -> float | None:
        """Return the longest reply over the mean length, of the last steps."""
        longest = history.now("rollout/reply_tokens_max")
        mean = history.now("env/all/ac_tokens_per_turn")
        return longest / mean if longest and mean else None
