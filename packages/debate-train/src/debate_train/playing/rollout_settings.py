"""How debates are sampled: the recipe's key `rollout`."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from debate_protocol.config import Config
from debate_protocol.forms import FormConfig
from debate_protocol.types import DebateRun, Transcript
from debate_rewards.gate_rules import GateRule, divided
from debate_rollout.drivers import AUTO, DriverChoice, play
from debate_rollout.engine import Engine
from debate_rollout.engine_settings import EngineConfig
from debate_rollout.engines import TransformersEngine
from debate_rollout.playing.debates import Select
from debate_train.data.demonstrations import ENGINES
from debate_train.models.policies import PolicyChoice


class Rollout(Config):
    """How debates are sampled."""

    engine: Annotated[EngineConfig, ENGINES] = TransformersEngine()
    """Where and how replies are sampled."""
    policies: dict[str, PolicyChoice] = Field(default_factory=dict)
    """Policies that stay as they are, by the names that roles of the debate give them."""
    driver: DriverChoice = AUTO
    """Which debates wait for which, and how long for a reply."""
    max_tokens: int = Field(1024, ge=1)
    """Most tokens of one reply."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Tokens are drawn from the smallest set of at least this probability; 1 cuts nothing."""
    top_k: int = Field(0, ge=0)
    """Tokens are drawn from this many of the likeliest; 0 cuts nothing."""
    min_p: float = Field(0.0, ge=0, lt=1)
    """Tokens less likely than this share of the likeliest are not drawn; 0 cuts nothing."""
    debates_per_question: int = Field(1, ge=1)
    """Independent debates of each question; the group of GRPO when the form is `direct`."""
    direct_per_question: int = Field(0, ge=0)
    """Single-turn replies to each question beside its debates, prompted as a debate begins."""
    other_forms: tuple[FormConfig, ...] = ()
    """Further forms that the questions of a step are debated in, in turn: question n of a step in
    form n mod (1 + their number), of which `debate` is the first."""
    select: GateRule | None = None
    """Answers the gates of the debates: which go on, end, or are left out; all go on without."""
    oversample: int = Field(1, ge=1)
    """Most batches of questions that a step draws from until `data.batch_size` are kept."""

    @property
    def sampling(self) -> dict[str, float | int]:
        """Sampling settings that cut the distribution; neutral in RL."""
        return {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}

    def select_problem(self, gates: Sequence[int], turns: int) -> str | None:
        """Return what is wrong with `select` and `oversample`, if anything.

        Args:
            gates: Rounds of the form after which it yields a gate.
            turns: Of a debate.
        """
        rule = self.select
        if rule is None and self.oversample > 1:
            return (
                f"oversample: found {self.oversample} without select, so nothing is left out and "
                "nothing drawn in its place; expected select: {type: informative}"
            )
        if rule is None:
            return None
        if not gates:
            return (
                f"select: found {rule.type}, but the debate has no gate for it to answer; expected "
                "debate.gate_after, such as [0]"
            )
        alone, counting = divided(rule)
        if self.oversample > 1 and counting is not None and (alone is None or counting.drops):
            return (
                f"oversample: found {self.oversample} with a rule at_most that comes first or "
                "drops, but it counts the debates of a step once its questions are drawn; expected "
                "select: {type: in_order, rules: [{type: informative}, {type: at_most, go_on: …}]}"
            )
        if turns == 1 and rule.compares_turns:
            return (
                "select: found informative within each debate, which here is a single reply and "
                "never both right and wrong; expected group: question"
            )
        return None

    def play(
        self, runs: Sequence[DebateRun], engine: Engine, select: Select | None = None
    ) -> list[Transcript]:
        """Run debates to their ends as these settings say; `select` answers their gates."""
        return play(
            runs,
            engine,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            select=select,
            driver=self.driver,
        )
