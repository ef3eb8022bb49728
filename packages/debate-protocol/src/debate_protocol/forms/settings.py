"""Settings that debate forms share: contract, roles, personas, gates, topology."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    Discriminator,
    Field,
    NonNegativeInt,
    Tag,
    field_validator,
    model_validator,
)

from debate_protocol.parsing import (
    CONTRACTS,
    Contract,
    ContractKind,
    ThinkMode,
    final_box,
    get_contract,
)
from debate_protocol.plugins import Config, did_you_mean
from debate_protocol.prompts import DEFAULT_PERSONAS, Persona, PromptTemplates, StyleName
from debate_protocol.transcripts.files import contract_to_json
from debate_protocol.types import (
    DEBATER,
    TRAINED,
    AgentRole,
    DebateRun,
    Protocol,
    Question,
    Schedule,
    TopologyName,
    Transcript,
    Turn,
    check_roles,
    check_topology,
    role_of,
    speaking_agents,
)

MOST = 128
"""Agents, rounds and samples of a prompt at most: what agents read grows with their squares."""
MOST_TURNS = 512


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

    count: int | None = Field(None, ge=1, le=MOST)
    persona: Persona | None = None
    temperature: float | None = Field(None, ge=0.0)
    policy: str = TRAINED
    adapter: str | None = None
    train: bool | None = None
    answers: bool | None = None
    rounds: tuple[NonNegativeInt, ...] | None = None
    sees: dict[str, int] | None = None

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
        for key, chosen in (("train", self.train), ("adapter", self.adapter)):
            if chosen and not is_trained:
                raise ValueError(
                    f"roles.{role.name}.{key}: found {chosen!r}, but policy {self.policy!r} speaks "
                    f"for it, whose weights stay as they are; expected policy: {TRAINED}"
                )
        trains = is_trained if self.train is None else self.train
        return replace(role, policy=self.policy, adapter=self.adapter, trains=trains)


def _stop_after_the_last(known: Mapping[str, Any]) -> str | None:
    sections = known.get("sections")
    return f"</{sections[-1]}>" if sections else None


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
    stop: str | None = Field(default_factory=_stop_after_the_last)
    kind: ContractKind = "xml"
    """How a reply is read: XML tags, a boxed answer, or a last line with the answer."""
    instructions: dict[str, str] = Field(default_factory=dict)

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
    | Annotated[tuple[Persona, ...], Field(min_length=1), Tag("own")],
    Discriminator(lambda value: "own" if isinstance(value, list | tuple) else "named"),
]


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

    def speaking(self) -> "SpeakingSettings":
        """Return these settings alone."""
        own = {name: getattr(self, name) for name in SpeakingSettings.model_fields}
        return SpeakingSettings.model_construct(**own)

    @field_validator("contract", mode="before")
    @classmethod
    def _contract_is_known(cls, chosen: object) -> object:
        if isinstance(chosen, Contract):
            return chosen.name if CONTRACTS.get(chosen.name) == chosen else contract_to_json(chosen)
        return get_contract(chosen).name if isinstance(chosen, str) else chosen

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
        personas = DEFAULT_PERSONAS if self.personas == "default" else self.personas
        return None if personas == "none" else personas[agent % len(personas)]

    def temperature_of(self, agent: int) -> float:
        """Return the temperature the agent is sampled at."""
        persona = self.persona(agent)
        return self.temperature if persona is None else persona.temperature

    def stop_strings(self, contract: Contract | None = None) -> tuple[str, ...]:
        """Return what ends a reply by this contract; nothing while a thinking block may be open."""
        stop = (contract or self.contract_rules()).stop
        return () if stop is None or self.think == "drop" else (stop,)


SameAnswer = Callable[[str, str], bool]
"""Whether two answers are the same."""


def same_words(left: str, right: str) -> bool:
    """Return whether two answers, or what they box, are equal up to case and white space."""
    return _boxed(left).casefold().split() == _boxed(right).casefold().split()


def _boxed(text: str) -> str:
    span = final_box(text)
    return text if span is None else text[slice(*span)]


@dataclass(frozen=True, slots=True)
class DebateStart:
    """What one debate begins with."""

    question: Question
    seed: int
    debate_id: str
    same_answer: SameAnswer
    other: tuple[Question, int] | None = None
    """Another question and its debate's seed, for forms whose agents are shown that debate."""
    shared_seed: int | None = None
    """The same for all copies of a question's debate in a training step; None elsewhere."""

    def transcript(self, rules: Protocol, turns: Iterable[Turn], ended: str) -> Transcript:
        """Return the record; `meta` holds the seed and why the debate ended."""
        meta = {"seed": self.seed, "ended": ended}
        return Transcript(self.debate_id, self.question, rules, tuple(turns), meta)


class DebateForm(SpeakingSettings):
    """Who speaks when, and what each agent is given: settings that begin debates.

    The base class of all forms. A form has `type`, `num_agents`, `turn_count` and `debate`; all
    else has a default.
    """

    max_rounds: int = Field(default=1, ge=1, le=MOST)
    gate_after: tuple[NonNegativeInt, ...] = ()
    """Rounds, from 0, after which `rollout.select` is asked whether the debate goes on."""
    roles: dict[str, RoleSettings] = Field(default_factory=dict)
    """Names to roles, in the order in which agents are numbered."""

    schedule: ClassVar[Schedule] = "parallel"
    """Whether agents of a round speak at once or one after the other."""
    agent_keys: ClassVar[tuple[str, ...]] = ("num_agents",)
    """Settings that are a number of agents."""
    sample_keys: ClassVar[tuple[str, ...]] = ()
    """Settings that are a number of samples beside the debate."""

    if TYPE_CHECKING:  # A field or a property, as the form has it: pydantic lets none be both.

        @property
        def type(self) -> str:
            """The name by which recipes choose the form."""

        @property
        def num_agents(self) -> int:
            """Agents of a debate."""

    else:
        type: str = ""

    @property
    def shares_turns(self) -> bool:
        """Whether copies of a question's debate in a training step have some turns in common."""
        return False

    @abstractmethod
    def debate(self, begin: DebateStart) -> DebateRun:
        """Play a debate."""

    @abstractmethod
    def turn_count(self) -> int:
        """Return how many turns are sampled when the debate goes on to its end."""

    def start(
        self,
        question: Question,
        *,
        seed: int,
        debate_id: str | None = None,
        same_answer: SameAnswer = same_words,
        other: tuple[Question, int] | None = None,
        shared_seed: int | None = None,
    ) -> DebateRun:
        """Begin a debate.

        Args:
            question: What is debated.
            seed: Each turn's sampling seed follows from it, the agent and the round.
            debate_id: The transcript's id; the question's by default.
            same_answer: Decides whether answers agree, where the form asks.
            other: As in `DebateStart`.
            shared_seed: As in `DebateStart`.
        """
        name = question.id if debate_id is None else debate_id
        return self.debate(DebateStart(question, seed, name, same_answer, other, shared_seed))

    def contracts(self) -> tuple[str | Contract, ...]:
        """Return the contract of each round, where they differ."""
        return ()

    def protocol(self) -> Protocol:
        """Return the rules as they are written into transcripts."""
        return self.rules({})

    def rules(
        self,
        extra: Mapping[str, object],
        unusual: Mapping[str, object] | None = None,
        **topology: Any,
    ) -> Protocol:
        """Return rules with the settings that all forms have.

        Args:
            extra: Stands before these settings in `Protocol.extra`.
            unusual: Stands behind them.
            topology: Other fields of `Protocol`.
        """
        shared = {"style": self.recorded_style(), "think": self.think}
        return Protocol(
            num_agents=self.num_agents,
            max_rounds=self.max_rounds,
            schedule=self.schedule,
            contract=self.recorded_contract(),
            contracts=self.contracts(),
            roles=self.agent_roles(),
            extra={**extra, **shared, **(unusual or {})},
            **topology,
        )

    def own_roles(self) -> tuple[AgentRole, ...]:
        """Return the form's roles, in the order in which its agents are numbered."""
        return (AgentRole(DEBATER, self.num_agents),)

    def agent_roles(self) -> tuple[AgentRole, ...]:
        """Return the roles as they are written into transcripts: what `roles` says included.

        Raises:
            ValueError: The form has no such role, or as `RoleSettings.spoken`.
        """
        own = self.own_roles()
        known = [role.name for role in own]
        for name in self.roles:
            if name not in known:
                raise ValueError(
                    f"roles: found {name!r}, expected {' or '.join(known)}"
                    f"{did_you_mean(name, known)}"
                )
        return tuple(self.roles[r.name].spoken(r) if r.name in self.roles else r for r in own)

    def persona(self, agent: int) -> Persona | None:
        """Return the agent's persona: its role's own, else the one with its number."""
        chosen = self._chosen(agent)
        return chosen.persona if chosen and chosen.persona else super().persona(agent)

    def temperature_of(self, agent: int) -> float:
        """Return the temperature the agent is sampled at: its role's, its persona's, or all's."""
        chosen = self._chosen(agent)
        own = None if chosen is None else chosen.temperature
        return super().temperature_of(agent) if own is None else own

    def policy_of(self, agent: int) -> str:
        """Return the name of the policy that speaks for the agent."""
        return self._role(agent).policy if self.roles else TRAINED

    def adapter_of(self, agent: int) -> str | None:
        """Return the adapter of the trained policy that speaks for the agent."""
        return self._role(agent).adapter if self.roles else None

    def trained_agents(self) -> tuple[int, ...]:
        """Return the agents whose turns are trained on."""
        return tuple(agent for agent in range(self.num_agents) if self._role(agent).trains)

    def sequence_count(self) -> int:
        """Return how many token sequences are trained on.

        Here each turn is one, and all agents speak as often as each other.
        """
        return -(-self.turn_count() * len(self.trained_agents()) // self.num_agents)

    def speaking(self) -> SpeakingSettings:
        """Return how agents are prompted and sampled; of roles, as the first that is trained on."""
        plain = super().speaking()
        if not self.roles:
            return plain
        agent = next(iter(self.trained_agents()), 0)
        persona, temperature = self.persona(agent), self.temperature_of(agent)
        if persona is None:
            return plain.model_copy(update={"personas": "none", "temperature": temperature})
        only = persona.model_copy(update={"temperature": temperature})
        return plain.model_copy(update={"personas": (only,), "temperature": 1.0})

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return the form with some settings changed; gates after its last round are left out.

        Raises:
            ValueError: It has no such setting, or (pydantic's ValidationError) does not take it.
        """
        for key, value in settings.items():
            field = type(self).model_fields.get(key)
            annotation = None if field is None else field.annotation
            is_fixed = get_origin(annotation) is Literal and len(get_args(annotation)) == 1
            if field is None or is_fixed:
                raise ValueError(
                    f"{key}: found {value!r}, but a debate of type {self.type} has no such choice"
                )
        rounds = settings.get("max_rounds", self.max_rounds)
        if "gate_after" not in settings and any(r >= rounds for r in self.gate_after):
            settings = {**settings, "gate_after": tuple(r for r in self.gate_after if r < rounds)}
        return type(self).model_validate({**self.model_dump(exclude_unset=True), **settings})

    def at_temperature(self, temperature: float) -> Self:
        """Return the form with all agents sampled at one temperature."""
        update = {"temperature": temperature}
        changes: dict[str, Any] = update
        if self.personas != "none":
            personas = DEFAULT_PERSONAS if self.personas == "default" else self.personas
            changes = {"personas": tuple(one.model_copy(update=update) for one in personas)}
        if self.roles:
            roles = {name: role.model_copy(update=update) for name, role in self.roles.items()}
            changes = {**changes, "roles": roles}
        return self.changed(changes)

    def at_most(self, agents: int, rounds: int, samples: int) -> Self:
        """Return the form with at most so many agents, rounds, and samples beside the debate.

        Raises:
            ValueError: A smaller one would be another debate.
        """
        most = dict.fromkeys(self.agent_keys, agents) | {"max_rounds": rounds}
        most |= dict.fromkeys(self.sample_keys, samples)
        chosen = {key: limit for key, limit in most.items() if key in self.model_fields_set}
        return self.changed({k: limit for k, limit in chosen.items() if getattr(self, k) > limit})

    def _role(self, agent: int) -> AgentRole:
        return role_of(Protocol(self.num_agents, roles=self.agent_roles()), agent)

    def _chosen(self, agent: int) -> RoleSettings | None:
        return self.roles.get(self._role(agent).name) if self.roles else None

    @model_validator(mode="after")
    def _roles_and_gates_fit(self) -> Self:
        self.agent_roles()
        for round in self.gate_after:
            if round >= self.max_rounds:
                raise ValueError(
                    f"gate_after: found {round}, but rounds count from 0 and there are "
                    f"{self.max_rounds}; expected 0 to {self.max_rounds - 1}"
                )
        return self


class SampledSettings(DebateForm):
    """Settings of forms that sample a prompt several times: such replies have no personas."""

    contract: ContractChoice = "boxed"
    """What a reply must hold and how it is read: a name, or a contract of one's own."""
    personas: Literal["none"] = "none"
    """Samples of one prompt have none."""

    @model_validator(mode="after")
    def _roles_have_no_personas(self) -> Self:
        for name, role in self.roles.items():
            if role.persona is not None:
                raise ValueError(f"roles.{name}.persona: this form's prompts have none")
        return self


class DebateSettings(DebateForm):
    """What parallel and sequential debates share.

    Attributes:
        topology: Whom an agent sees: all others, its neighbours on a ring, the `degree` nearest
            on the ring, or under `central` all others for agent `center` and only it for them.
        degree: Needed by `sparse`; even, or any where the number of agents is even.
        center: Belongs to `central`; agent 0 by default.
        history_rounds: How many earlier rounds agents see: -1 all, 0 none, K the last K.
        own_rounds: How many of its own earlier turns an agent reads again: -1 all, K the last K.
            With `history_rounds: 1` and `own_rounds: 1` an agent reads the last round alone, its
            own turn included, which is eq. 2 of SDRL (paper).
        blind_review: Comparisons of other agents stay hidden.
        presentation: In which order a round's turns are shown: `by_number`, to all alike, or
            `drawn` once for each debate and reader, so that what stands first for one judge does
            not for another.
        conversation: `append` lets each agent's dialogue only grow, `rebuild` restates
            the debate in each turn; `shared`, too, and to all agents in the same words, before
            what is said to one of them, so that each text is computed once a debate instead of
            once a reader. Under blind review agents then do not see their own comparisons either.
        on_failure: After a turn without a readable solution, end the debate or go on.
        stop_when_agreed: End after a round in which all answers are the same.
        roles: Names the agents' roles, in the order in which agents are numbered; `num_agents` is
            then the sum of their counts. One of equals, `debater`, without it.
        gate_after: The rounds, from 0, after which a gate asks whether the debate goes on.
    """

    num_agents: int = Field(default=5, le=MOST)
    """Agents that debate, at least 2."""
    max_rounds: int = Field(default=3, ge=1, le=MOST)
    """Rounds at most, the first answers included."""
    topology: TopologyName = "all"
    degree: int | None = None
    center: int | None = None
    history_rounds: int = Field(default=-1, ge=-1)
    own_rounds: int = Field(default=-1, ge=-1)
    blind_review: bool = True
    presentation: Literal["by_number", "drawn"] = "by_number"
    conversation: Literal["append", "rebuild", "shared"] = "append"
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

    @model_validator(mode="before")
    @classmethod
    def _roles_are_counted(cls, data: Any) -> Any:
        """Take the number of agents from the roles, where these say it and nothing else does."""
        is_named = isinstance(data, Mapping) and cls.own_roles is DebateSettings.own_roles
        roles = data.get("roles") if is_named and "num_agents" not in data else None
        if not isinstance(roles, Mapping) or not roles:
            return data
        given = [
            role.count if isinstance(role, RoleSettings) else role.get("count")
            for role in roles.values()
            if isinstance(role, RoleSettings | Mapping)
        ]
        counts = [count for count in given if type(count) is int]
        return {**data, "num_agents": sum(counts) + len(roles) - len(counts)}

    @model_validator(mode="after")
    def _agents_fit(self) -> Self:
        agents, turns = self.num_agents, self.num_agents * self.max_rounds
        if self.conversation == "append" and self.history_rounds not in (-1, 1):
            raise ValueError(
                f"conversation: append needs history_rounds -1 or 1, found {self.history_rounds}; "
                "a dialogue that only grows cannot leave rounds out: use conversation: rebuild"
            )
        if self.conversation == "append" and self.own_rounds != -1:
            raise ValueError(
                f"conversation: append needs own_rounds -1, found {self.own_rounds}; an agent's "
                "own turns stay in a dialogue that only grows: use conversation: rebuild"
            )
        alike = (self.topology, self.presentation, self.own_rounds)
        expected = ("all", "by_number", self.history_rounds)
        if self.conversation == "shared" and alike != expected:
            raise ValueError(
                "conversation: shared shows all agents the same turns in the same order; found "
                "topology {}, presentation {}, own_rounds {}; ".format(*alike)
                + "expected {}, {} and {} (history_rounds)".format(*expected)
            )
        if turns > MOST_TURNS:
            raise ValueError(
                f"num_agents: found {agents} agents for {self.max_rounds} rounds, {turns:,} turns "
                f"that refer to each other; expected at most {MOST_TURNS}"
            )
        rules = self.protocol()
        check_topology(rules)
        check_roles(rules)
        named = {n for role in rules.roles for n in role.rounds or ()}
        silent = [n for n in range(self.max_rounds) if not speaking_agents(rules, n)]
        if silent or any(n >= self.max_rounds for n in named):
            raise ValueError(
                f"roles: found rounds {sorted(named)}, in a debate of max_rounds "
                f"{self.max_rounds}; expected rounds from 0 in each of which somebody speaks"
            )
        return self

    def turn_count(self) -> int:
        """Return how many turns are sampled when the debate goes on to its end."""
        rules = self.protocol()
        return sum(len(speaking_agents(rules, n)) for n in range(self.max_rounds))

    def sequence_count(self) -> int:
        """Return how many token sequences are trained on: one an agent where dialogues grow."""
        trained = {*self.trained_agents()}
        if self.conversation == "append":
            return len(trained)
        rules = self.protocol()
        return sum(len(trained & {*speaking_agents(rules, n)}) for n in range(self.max_rounds))

    def own_roles(self) -> tuple[AgentRole, ...]:
        """Return the roles that the recipe names, or one of equals."""
        return (
            tuple(
                AgentRole(name, role.count or 1, role.answers is not False, role.rounds, role.sees)
                for name, role in self.roles.items()
            )
            or super().own_roles()
        )

    def protocol(self) -> Protocol:
        """Return the rules as they are written into transcripts."""
        own = {"presentation": self.presentation, "own_rounds": self.own_rounds}
        usual = {"presentation": "by_number", "own_rounds": -1}
        return self.rules(
            {"blind_review": self.blind_review, "conversation": self.conversation},
            {key: value for key, value in own.items() if value != usual[key]},
            topology=self.topology,
            history_rounds=self.history_rounds,
            degree=self.degree,
            center=(self.center or 0) if self.topology == "central" else self.center,
        )
