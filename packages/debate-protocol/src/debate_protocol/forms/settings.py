"""The settings that debate forms share, and how they are checked."""

from typing import Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeInt,
    field_validator,
    model_validator,
)

from debate_protocol.contract import Contract, get_contract
from debate_protocol.personas import DEFAULT_PERSONAS, Persona
from debate_protocol.prompts.view import StyleName
from debate_protocol.tags import ThinkMode
from debate_protocol.types import Protocol, Schedule
from debate_protocol.visibility import TopologyName


class SpeakingSettings(BaseModel):
    """How agents are prompted and sampled, and how their replies are read.

    `temperature` holds when `personas` is `none`; otherwise each persona brings its own. The
    compact style has no room for persona texts, there personas only set temperatures.
    `think: drop` ignores tags inside thinking blocks and uses no stop string.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    contract: str = "three_section"
    style: StyleName = "full"
    personas: Literal["default", "none"] | tuple[Persona, ...] = "default"
    temperature: float = Field(default=1.0, ge=0.0)
    think: ThinkMode = "unwrap"
    max_chars_per_field: int | None = Field(default=None, ge=1)

    @field_validator("contract")
    @classmethod
    def _contract_is_known(cls, name: str) -> str:
        return get_contract(name).name

    @field_validator("personas")
    @classmethod
    def _personas_are_some(cls, personas: object) -> object:
        if personas == ():
            raise ValueError("the list of personas is empty; write none for no personas")
        return personas

    def contract_rules(self) -> Contract:
        """Return the contract itself."""
        return get_contract(self.contract)

    def persona(self, agent: int) -> Persona | None:
        """Return the agent's persona: number i mod the length of the list."""
        if isinstance(self.personas, tuple):
            return self.personas[agent % len(self.personas)]
        return DEFAULT_PERSONAS[agent % 5] if self.personas == "default" else None

    def temperature_of(self, agent: int) -> float:
        """Return the temperature the agent is sampled at."""
        persona = self.persona(agent)
        return self.temperature if persona is None else persona.temperature

    def stop_strings(self) -> tuple[str, ...]:
        """Return what ends a reply; nothing while a thinking block may be open."""
        stop = self.contract_rules().stop
        return () if stop is None or self.think == "drop" else (stop,)


class GatedSettings(SpeakingSettings):
    """Adds the rounds after which a form yields a gate, as in `gate_after: [0]`."""

    max_rounds: int = Field(default=1, ge=1)
    gate_after: tuple[NonNegativeInt, ...] = ()

    @model_validator(mode="after")
    def _gates_are_reached(self) -> Self:
        for round in self.gate_after:
            if round >= self.max_rounds:
                raise ValueError(
                    f"gate_after: found {round}, but rounds count from 0 and there are "
                    f"{self.max_rounds}; expected 0 to {self.max_rounds - 1}"
                )
        return self


class FreeTextSettings(GatedSettings):
    """Settings of forms that read free text: their prompts leave no room for sections.

    All replies to a prompt are samples of the same thing, so there are no personas.
    """

    contract: str = "boxed"
    personas: Literal["none"] = "none"

    @field_validator("contract")
    @classmethod
    def _contract_is_free_text(cls, name: str) -> str:
        if get_contract(name).kind == "xml":
            raise ValueError(
                f"found {name!r}, but this form reads free text; expected boxed or answer_line"
            )
        return name


class DebateSettings(GatedSettings):
    """What parallel and sequential debates share.

    Attributes:
        history_rounds: How many earlier rounds agents see: -1 all, 0 none, K the last K.
        blind_review: Comparisons of other agents stay hidden.
        conversation: `append` lets each agent's dialogue only grow, `rebuild` tells the debate
            afresh each turn.
        on_failure: After a turn without a readable solution, end the debate or go on.
        stop_when_agreed: End after a round in which all answers are the same.
        gate_after: The rounds, from 0, after which a gate asks whether the debate goes on.
    """

    num_agents: int = 5
    max_rounds: int = Field(default=3, ge=1)
    topology: TopologyName = "all"
    history_rounds: int = Field(default=-1, ge=-1)
    blind_review: bool = True
    conversation: Literal["append", "rebuild"] = "append"
    on_failure: Literal["abort", "continue"] = "continue"
    stop_when_agreed: bool = False

    @field_validator("num_agents")
    @classmethod
    def _agents_are_several(cls, num_agents: int) -> int:
        if num_agents < 2:
            raise ValueError(
                f"found {num_agents}, but a debate needs at least 2 agents; "
                "for one agent use type: direct"
            )
        return num_agents

    @model_validator(mode="after")
    def _conversation_fits_history(self) -> Self:
        if self.conversation == "append" and self.history_rounds not in (-1, 1):
            raise ValueError(
                f"conversation: append needs history_rounds -1 or 1, found {self.history_rounds}; "
                "a dialogue that only grows cannot leave rounds out: use conversation: rebuild"
            )
        return self

    @property
    def schedule(self) -> Schedule:
        """Whether agents of a round speak at once or one after the other."""
        return "parallel"

    def protocol(self) -> Protocol:
        """Return the rules as they are written into transcripts."""
        return Protocol(
            num_agents=self.num_agents,
            max_rounds=self.max_rounds,
            schedule=self.schedule,
            contract=self.contract,
            topology=self.topology,
            history_rounds=self.history_rounds,
            extra={
                "blind_review": self.blind_review,
                "conversation": self.conversation,
                "style": self.style,
                "think": self.think,
            },
        )
