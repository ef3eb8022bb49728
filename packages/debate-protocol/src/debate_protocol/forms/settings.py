"""Settings that all debate forms share: contract, roles, personas, and how they are checked."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    NonNegativeInt,
    Tag,
    field_validator,
    model_validator,
)

from debate_protocol.contract import CONTRACTS, Contract, ContractKind, get_contract
from debate_protocol.plugins import Config, did_you_mean
from debate_protocol.prompts.styles import PromptTemplates
from debate_protocol.prompts.view import DEFAULT_PERSONAS, Persona, StyleName
from debate_protocol.tags import ThinkMode
from debate_protocol.transcripts.records import contract_to_json
from debate_protocol.types import TRAINED, AgentRole

MOST_IN_A_ROLE = 128


class RoleSettings(Config):
    """One role of a debate. What is left out is as the debate has it for all agents.

    Attributes:
        count: Its agents; forms whose roles are fixed have a count of their own.
        persona: The persona of its agents.
        temperature: What its agents are sampled at, whatever their persona says.
        policy: Who speaks: `trained`, `start` for the weights that the run began with, or a name
            under `rollout.policies`.
        adapter: Which of several adapters of the trained policy speaks, by its name under
            `model.lora.adapters`; left out, the first.
        train: Whether its turns are trained on; by default those of the trained policy are.
        answers: Whether its turns owe an answer.
        rounds: The rounds in which it speaks, from 0; left out, in all.
        sees: Whose turns it is given: for each role the number of earlier rounds, -1 for all. Left
            out, the topology decides.
    """

    count: int | None = Field(None, ge=1, le=MOST_IN_A_ROLE)
    persona: Persona | None = None
    temperature: float | None = Field(None, ge=0.0)
    policy: str = TRAINED
    adapter: str | None = None
    train: bool | None = None
    answers: bool | None = None
    rounds: tuple[NonNegativeInt, ...] | None = None
    sees: dict[str, int] | None = None

    def at_temperature(self, temperature: float) -> "RoleSettings":
        """Return the role sampled at this temperature."""
        return self.model_copy(update={"temperature": temperature})

    def role(self, name: str) -> AgentRole:
        """Return the role of a debate whose recipe names its roles."""
        answers = self.answers is not False
        return self.spoken(AgentRole(name, self.count or 1, answers, self.rounds, self.sees))

    def spoken(self, role: AgentRole) -> AgentRole:
        """Return a role of a form, spoken by the policy that is named here.

        Raises:
            ValueError: The form decides what is set here, or frozen weights are to be trained.
        """
        for key in ("count", "answers", "rounds", "sees"):
            chosen, own = getattr(self, key), getattr(role, key)
            if chosen is not None and chosen != own:
                raise ValueError(
                    f"roles.{role.name}.{key}: found {chosen!r}, but the form has {own!r}; leave "
                    "it out"
                )
        is_trained = self.policy == TRAINED
        if self.train and not is_trained:
            raise ValueError(
                f"roles.{role.name}.train: found true, but policy {self.policy!r} speaks for it, "
                f"whose weights stay as they are; expected policy: {TRAINED}, or train: false"
            )
        if self.adapter is not None and not is_trained:
            raise ValueError(
                f"roles.{role.name}.adapter: found {self.adapter!r}, but policy {self.policy!r} "
                f"speaks for it; expected policy: {TRAINED}, whose adapters have names"
            )
        trains = is_trained if self.train is None else self.train
        return AgentRole(
            role.name,
            role.count,
            role.answers,
            role.rounds,
            role.sees,
            policy=self.policy,
            adapter=self.adapter,
            trains=trains,
        )


def spoken_roles(
    own: tuple[AgentRole, ...], chosen: dict[str, RoleSettings]
) -> tuple[AgentRole, ...]:
    """Return the roles of a form with what a recipe says of them.

    Raises:
        ValueError: The form has no such role, or as `RoleSettings.spoken`.
    """
    known = [role.name for role in own]
    for name in chosen:
        if name not in known:
            raise ValueError(
                f"roles: found {name!r}, expected {' or '.join(known)}{did_you_mean(name, known)}"
            )
    return tuple(chosen[role.name].spoken(role) if role.name in chosen else role for role in own)


class OwnContract(Config):
    """A contract written in a recipe; see `Contract`.

    Attributes:
        stop: Left out, the closing tag of the last section; null for none.
        instructions: What prompts say of a section; those left out get the usual words.
    """

    name: str = Field(min_length=1)
    """What messages and transcripts call it."""
    sections: tuple[str, ...] = ()
    """Tags of the sections that a reply has, in order."""
    stop: str | None = None
    kind: ContractKind = "xml"
    """How a reply is read: XML tags, a boxed answer, or a last line with the answer."""
    instructions: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _stops_after_the_last_section(cls, data: object) -> object:
        if isinstance(data, Mapping) and "stop" not in data:
            sections = data.get("sections")
            if isinstance(sections, list | tuple) and sections:
                return {**data, "stop": f"</{sections[-1]}>"}
        return data

    @model_validator(mode="after")
    def _describes_a_contract(self) -> Self:
        if self.name in CONTRACTS:
            raise ValueError(f"contract.name: {self.name!r} is built in; choose another name")
        self.contract()
        return self

    def contract(self) -> Contract:
        """Return the contract itself."""
        return Contract(self.name, self.sections, self.stop, self.kind, self.instructions)


def named_or_own(value: object) -> str:
    """Return which kind a setting is: a built-in name, or a description of its own."""
    return "own" if isinstance(value, Mapping | BaseModel) else "named"


ContractChoice = Annotated[
    Annotated[str, Tag("named")] | Annotated[OwnContract, Tag("own")],
    Discriminator(named_or_own),
]
"""A built-in contract by name, or one of the user's."""


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
    """What a reply must hold and how it is read: a name, or a contract of one's own."""
    style: StyleChoice = "full"
    """What agents are shown: `full` instructions, `compact` for tiny models, or own templates."""
    personas: PersonaChoice = "default"
    """Manners of thinking: `default` (five, each with its temperature), `none`, or a list."""
    temperature: float = Field(default=1.0, ge=0.0)
    """Sampling temperature of all agents when `personas` is `none`; 0 is greedy."""
    think: ThinkMode = "unwrap"
    """What tags inside of thinking blocks count for: `unwrap` reads them, `drop` does not."""
    max_chars_per_field: int | None = Field(default=None, ge=1)
    """Most characters of a section that is shown to others; null cuts nothing."""

    agent_keys: ClassVar[tuple[str, ...]] = ("num_agents",)
    """Settings that are a number of agents."""
    sample_keys: ClassVar[tuple[str, ...]] = ()
    """Settings that are a number of samples beside the debate."""

    def speaking(self) -> "SpeakingSettings":
        """Return these settings alone."""
        own = {name: getattr(self, name) for name in SpeakingSettings.model_fields}
        return SpeakingSettings.model_construct(**own)

    def changed(self, settings: Mapping[str, object]) -> Self:
        """Return the form with some settings changed.

        Raises:
            ValueError: It has no such setting, or (pydantic's ValidationError) does not take it.
        """
        for key, value in settings.items():
            field = type(self).model_fields.get(key)
            if field is None or _is_fixed(field.annotation):
                kind = getattr(self, "type", type(self).__name__)
                raise ValueError(
                    f"{key}: found {value!r}, but a debate of type {kind} has no such choice"
                )
        return type(self).model_validate({**self.model_dump(exclude_unset=True), **settings})

    def at_temperature(self, temperature: float) -> Self:
        """Return the form with all agents sampled at one temperature."""
        if self.personas == "none":
            return self.changed({"temperature": temperature})
        personas = DEFAULT_PERSONAS if self.personas == "default" else self.personas
        same = tuple(p.model_copy(update={"temperature": temperature}) for p in personas)
        return self.changed({"personas": same})

    def at_most(self, agents: int, rounds: int, samples: int) -> Self:
        """Return the form with at most so many agents, rounds, and samples beside the debate.

        Raises:
            ValueError: A smaller one would be another debate.
        """
        least = dict.fromkeys(self.agent_keys, agents) | {"max_rounds": rounds}
        least |= dict.fromkeys(self.sample_keys, samples)
        return self.changed(
            {
                key: most
                for key, most in least.items()
                if key in self.model_fields_set and getattr(self, key) > most
            }
        )

    @field_validator("contract", mode="before")
    @classmethod
    def _contract_may_be_made(cls, chosen: object) -> object:
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

    def policy_of(self, agent: int) -> str:
        """Return the name of the policy that speaks for the agent."""
        return TRAINED

    def adapter_of(self, agent: int) -> str | None:
        """Return the adapter of the trained policy that speaks for the agent."""
        return None

    def stop_strings(self) -> tuple[str, ...]:
        """Return what ends a reply; nothing while a thinking block may be open."""
        stop = self.contract_rules().stop
        return () if stop is None or self.think == "drop" else (stop,)


def _is_fixed(annotation: object) -> bool:
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1
