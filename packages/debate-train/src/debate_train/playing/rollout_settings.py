"""How debates are sampled: the recipe's key `rollout`."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from debate_protocol.config import Config
from debate_protocol.types import DebateRun, Transcript
from debate_rollout.drivers import AUTO, DriverChoice, play
from debate_rollout.engine import Engine
from debate_rollout.engine_settings import EngineConfig
from debate_rollout.engines import TransformersEngine
from debate_train.data.demonstrations import ENGINES
from debate_train.models.policies import PolicyChoice


class Rollout(Config):
    """How debates are sampled."""

    engine: Annotated[EngineConfig, ENGINES] = TransformersEngine()
    policies: dict[str, PolicyChoice] = Field(default_factory=dict)
    """Policies that stay as they are, by the names that roles of the debate give them."""
    driver: DriverChoice = AUTO
    """Which debates wait for which, and how long for a reply."""
    max_tokens: int = Field(1024, ge=1)
    """Most tokens of one reply."""
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=0)
    min_p: float = Field(0.0, ge=0, lt=1)
    debates_per_question: int = Field(1, ge=1)
    """Independent debates of each question; the group of GRPO when the form is `direct`."""
    direct_per_question: int = Field(0, ge=0)
    """Single-turn replies to each question beside its debates, prompted as a debate begins."""

    @property
    def sampling(self) -> dict[str, float | int]:
        """Sampling settings that cut the distribution; neutral in RL."""
        return {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}

    def play(self, runs: Sequence[DebateRun], engine: Engine) -> list[Transcript]:
        """Run debates to their ends as these settings say."""
        return play(
            runs,
            engine,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            driver=self.driver,
        )
