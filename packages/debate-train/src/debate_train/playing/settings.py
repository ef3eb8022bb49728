"""The keys `rollout` and `pipeline`: how debates are sampled, and how far ahead."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from debate_protocol.forms import DebateForm, Direct, FormConfig
from debate_protocol.plugins import Config
from debate_protocol.types import DebateRun, Transcript
from debate_rewards.decisions import (
    GateRule,
    Informative,
    divided,
    drops_debates,
    single_rules,
)
from debate_rollout.drivers import AUTO, DriverChoice, Select, play
from debate_rollout.engine import Engine, EngineSettings
from debate_rollout.engines import TransformersEngine
from debate_train.data.demonstrations import ENGINES
from debate_train.models.loaded_model import answering_role
from debate_train.models.policies import PolicyChoice


class Pipeline(Config):
    """Rollouts for later steps while this one trains."""

    max_staleness: int = Field(0, ge=0)
    """Steps that are played ahead, with weights at most this many steps old; 0 is on-policy."""


class Rollout(Config):
    """How debates are sampled."""

    engine: Annotated[EngineSettings, ENGINES] = TransformersEngine()
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
    form n mod (1 + their number); `debate` is the first."""
    select: GateRule | None = None
    """Answers the gates of the debates: which go on, end, or are left out; all go on without."""
    oversample: int = Field(1, ge=1)
    """Most batches of questions that a step draws from until `data.batch_size` are kept."""

    @property
    def sampling(self) -> dict[str, float | int]:
        """Sampling settings that cut the distribution; neutral in RL."""
        return {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}

    def select_problem(self, gates: Sequence[int], turns: int) -> str | None:
        """Describe the fault of `select` and `oversample`, if any.

        Args:
            gates: rounds of the form with a gate after them.
            turns: number of turns of a debate.
        """
        rule = self.select
        if rule is None:
            if self.oversample == 1:
                return None
            return (
                f"oversample: found {self.oversample} without select, so nothing is left out and "
                "nothing drawn in its place; expected select: {type: informative}"
            )
        if not gates:
            return (
                f"select: found {rule.type}, but the debate has no gate for it to answer; expected "
                "debate.gate_after, such as [0]"
            )
        # The counting rule sees a step's debates together, after all of its questions are drawn.
        # By then a drop could no longer be replaced by another question.
        debate_rule, counting_rule = divided(rule)
        if (
            self.oversample > 1
            and counting_rule is not None
            and (debate_rule is None or drops_debates(counting_rule))
        ):
            return (
                f"oversample: found {self.oversample} with a rule at_most that comes first or "
                "drops, but it counts the debates of a step once its questions are drawn; expected "
                "select: {type: in_order, rules: [{type: informative}, {type: at_most, go_on: …}]}"
            )
        compares_turns = any(
            isinstance(single_rule, Informative) and single_rule.group == "debate"
            for single_rule in single_rules(rule)
        )
        if turns == 1 and compares_turns:
            return (
                "select: found informative within each debate, which here is a single reply and "
                "never both right and wrong; expected group: question"
            )
        return None

    def play(
        self, runs: Sequence[DebateRun], engine: Engine, select: Select | None = None
    ) -> list[Transcript]:
        """Run debates to their ends with these settings; `select` answers their gates."""
        return play(
            runs,
            engine,
            max_tokens=self.max_tokens,
            sampling=self.sampling,
            select=select,
            driver=self.driver,
        )


def direct_form(form: DebateForm) -> Direct:
    """Build the form in which one agent answers once, prompted as in the given form."""
    return Direct.model_validate({**dict(form.speaking()), "roles": answering_role(form)})
