"""The settings that debate forms share, and how they are checked."""

from typing import Annotated, Any, Literal, Self

from pydantic import Discriminator, Field, NonNegativeInt, Tag, field_validator, model_validator

from debate_protocol.config import Config
from debate_protocol.contract import CONTRACTS, Contract, get_contract
from debate_protocol.contract_records import contract_to_json
from debate_protocol.forms.own_contract import ContractChoice, OwnContract, named_or_own
from debate_protocol.personas import DEFAULT_PERSONAS, Persona
from debate_protocol.prompts.templates import PromptTemplates
from debate_protocol.prompts.view import StyleName
from debate_protocol.tags import ThinkMode
from debate_protocol.types import Protocol, Schedule
from debate_protocol.visibility import TopologyName, check_topology

StyleChoice = Annotated[
    Annotated[StyleName, Tag("named")] | Annotated[PromptTemplates, Tag("own")],
    Discriminator(named_or_own),
]
PersonaChoice = Annotated[
    Annotated[Literal["default", "none"], Tag("named")]
    | Annotated[tuple[Persona, ...], Tag("own")],
    Discriminator(lambda value: "own" if isinstance(value, list | tuple) else "named"),
]


MOST = 128
"""Agents, rounds and samples of a prompt at most: what agents read grows with their squares."""
MOST_TURNS = 512


class SpeakingSettings(Config):
    """How agents are prompted and sampled, and how their replies are read.

    `temperature` holds when `personas` is `none`; otherwise each persona brings its own. The
    compact style has no room for persona texts, there personas only set temperatures.
    `think: drop` ignores tags inside thinking blocks and uses no stop string.
    """

    contract: ContractChoice = "three_section"
    style: StyleChoice = "full"
    personas: PersonaChoice = "default"
    temperature: float = Field(default=1.0, ge=0.0)
    think: ThinkMode = "unwrap"
    max_chars_per_field: int | None = Field(default=None, ge=1)

    @field_validator("contract", mode="before")
    @classmethod
    def _contract_may_be_made(cls, chosen: Any) -> Any:
        if not isinstance(chosen, Contract):
            return chosen
        built_in = CONTRACTS.get(chosen.name) == chosen
        return chosen.name if built_in else contract_to_json(chosen)

    @field_validator("contract")
    @classmethod
    def _contract_is_known(cls, chosen: str | OwnContract) -> str | OwnContract:
        return get_contract(chosen).name if isinstance(chosen, str) else chosen

    @field_validator("personas")
    @classmethod
    def _personas_are_some(cls, personas: object) -> object:
        if personas == ():
            raise ValueError("the list of personas is empty; write none for no personas")
        return personas

    @model_validator(mode="after")
    def _temperature_is_used(self) -> Self:
        if self.temperature != 1.0 and self.personas != "none":
            raise ValueError(
                f"temperature: found {self.temperature}, but personas bring their own; expected "
                "personas: none, or a list of personas with temperatures"
            )
        return self

    def contract_rules(self) -> Contract:
        """Return the contract itself."""
        return get_contract(self.recorded_contract())

    def recorded_contract(self) -> str | Contract:
        """Return the contract as transcripts record it: a built-in one by name."""
        chosen = self.contract
        return chosen if isinstance(chosen, str) else chosen.contract()

    def recorded_style(self) -> str | dict[str, str]:
        """Return the prompt style as transcripts record it: templates as they are written."""
        return self.style if isinstance(self.style, str) else self.style.model_dump()

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

    max_rounds: int = Field(default=1, ge=1, le=MOST)
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

    contract: ContractChoice = "boxed"
    personas: Literal["none"] = "none"

    @field_validator("contract")
    @classmethod
    def _contract_is_free_text(cls, chosen: str | OwnContract) -> str | OwnContract:
        kind = get_contract(chosen).kind if isinstance(chosen, str) else chosen.kind
        if kind == "xml":
            name = chosen if isinstance(chosen, str) else chosen.name
            raise ValueError(
                f"found {name!r}, but this form reads free text; expected boxed or answer_line"
            )
        return chosen


class DebateSettings(GatedSettings):
    """What parallel and sequential debates share.

    Attributes:
        topology: Whom an agent sees: all others, its neighbours on a ring, the `degree` nearest
            on the ring, or under `central` all others for agent `center` and only it for them.
        degree: Needed by `sparse`; even, or any where the number of agents is even.
        center: Belongs to `central`; agent 0 by default.
        history_rounds: How many earlier rounds agents see: -1 all, 0 none, K the last K.
        blind_review: Comparisons of other agents stay hidden.
        conversation: `append` lets each agent's dialogue only grow, `rebuild` restates
            the debate in each turn.
        on_failure: After a turn without a readable solution, end the debate or go on.
        stop_when_agreed: End after a round in which all answers are the same.
        gate_after: The rounds, from 0, after which a gate asks whether the debate goes on.
    """

    num_agents: int = Field(default=5, le=MOST)
    max_rounds: int = Field(default=3, ge=1, le=MOST)
    topology: TopologyName = "all"
    degree: int | None = None
    center: int | None = None
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

    @model_validator(mode="after")
    def _turns_can_be_read(self) -> Self:
        turns = self.num_agents * self.max_rounds
        if turns > MOST_TURNS:
            raise ValueError(
                f"num_agents: found {self.num_agents} agents for {self.max_rounds} rounds, "
                f"{turns:,} turns that refer to each other; expected at most {MOST_TURNS}"
            )
        return self

    @model_validator(mode="after")
    def _topology_fits_agents(self) -> Self:
        check_topology(self.protocol())
        return self

    def turn_count(self) -> int:
        """Return how many turns are sampled when the debate goes on to its end."""
        return self.num_agents * self.max_rounds

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
            contract=self.recorded_contract(),
            topology=self.topology,
            history_rounds=self.history_rounds,
            degree=self.degree,
            center=(self.center or 0) if self.topology == "central" else self.center,
            extra={
                "blind_review": self.blind_review,
                "conversation": self.conversation,
                "style": self.recorded_style(),
                "think": self.think,
            },
        )
