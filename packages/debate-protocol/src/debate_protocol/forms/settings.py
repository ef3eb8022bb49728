"""Shared settings of debate forms: contract, roles, personas, gates, topology."""

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

from debate_protocol.contracts import AskedKind
from debate_protocol.parsing import (
    CONTRACTS,
    Contract,
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
    """A role of a debate. By default it has the debate's settings for all agents.

    Attributes:
        count: Number of agents; forms with fixed roles set the count.
        persona: The persona of the role's agents.
        temperature: Sampling temperature of the role's agents, over their persona's.
        policy: The speaking policy: `trained`, `start` for the run's first weights, or a name under
            `rollout.policies`.
        adapter: The speaking adapter of the trained policy, by name under `model.lora.adapters`; by
            default the first.
        train: Whether turns are trained on; by default the trained policy's are.
        answers: Whether turns must hold an answer.
        rounds: Rounds of the role's turns, from 0; by default all.
        sees: For each visible role the number of earlier rounds, -1 for all. By default the
            topology decides.
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
        """Build a role of a form with the policy named here.

        Raises:
            ValueError: The form itself decides a setting, or frozen weights would be trained.
        """
        for key in ("count", "answers", "rounds", "sees"):
            chosen, role_value = getattr(self, key), getattr(role, key)
            if chosen is not None and chosen != role_value:
                raise ValueError(
                    f"roles.{role.name}.{key}: found {chosen!r}, but the form has "
                    f"{role_value!r}; leave it out"
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
        stop: By default the closing tag of the last section; null for no stop string.
        instructions: Words of prompts about a section; other sections get the usual words.
    """

    name: str = Field(min_length=1)
    """What messages and transcripts call it."""
    sections: tuple[str, ...] = ()
    """Tags of the sections that a reply has, in order."""
    stop: str | None = Field(default_factory=_stop_after_the_last)
    kind: AskedKind = "xml"
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
    """Classify a setting: a built-in name, or a full description."""
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
        """Select these settings from a form's."""
        values = {name: getattr(self, name) for name in SpeakingSettings.model_fields}
        return SpeakingSettings.model_construct(**values)

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
        """Get the contract for transcripts: a built-in contract by name."""
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
        """List the stop strings of this contract; empty while a thinking block may be open."""
        stop = (contract or self.contract_rules()).stop
        return () if stop is None or self.think == "drop" else (stop,)


SameAnswer = Callable[[str, str], bool]
"""Whether two answers are the same."""


def same_words(left: str, right: str) -> bool:
    """Whether two answers, or their boxed parts, are equal up to case and white space."""
    return _boxed(left).casefold().split() == _boxed(right).casefold().split()


def _boxed(text: str) -> str:
    span = final_box(text)
    return text if span is None else text[slice(*span)]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A question of an agent, accepted by a checker."""

    question: Question
    same_answer: SameAnswer = same_words
    """Whether two answers to it are the same."""


ProposalProblem = Literal["invalid_question", "held_out_question"]
"""Reason against an agent's question: it has no answer, or must not be trained on."""
CheckProposal = Callable[[str], Proposal | ProposalProblem]
"""Checks the text of an agent's question."""


@dataclass(frozen=True, slots=True)
class DebateStart:
    """Inputs of a debate's start."""

    question: Question
    seed: int
    debate_id: str
    same_answer: SameAnswer
    other: tuple[Question, int] | None = None
    """Another question and its debate's seed, for forms whose agents are shown that debate."""
    shared_seed: int | None = None
    """The same for all copies of a question's debate in a training step; None elsewhere."""
    check_proposal: CheckProposal | None = None
    """Checks questions of agents; with None the given question is debated."""

    def transcript(self, rules: Protocol, turns: Iterable[Turn], ended: str) -> Transcript:
        """Return the record; `meta` holds the seed and why the debate ended."""
        meta = {"seed": self.seed, "ended": ended}
        return Transcript(self.debate_id, self.question, rules, tuple(turns), meta)


class DebateForm(SpeakingSettings):
    """The order of speakers and the view of each agent: settings for starting debates.

    The base class of all forms. A form has `type`, `num_agents`, `turn_count` and `debate`; other
    members have defaults.
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

    @property
    def proposes(self) -> bool:
        """Whether an agent writes the question, for the data's checker to accept."""
        return False

    @abstractmethod
    def debate(self, begin: DebateStart) -> DebateRun:
        """Play a debate."""

    @abstractmethod
    def turn_count(self) -> int:
        """Count the sampled turns of a full debate."""

    def start(
        self,
        question: Question,
        *,
        seed: int,
        debate_id: str | None = None,
        same_answer: SameAnswer = same_words,
        other: tuple[Question, int] | None = None,
        shared_seed: int | None = None,
        check_proposal: CheckProposal | None = None,
    ) -> DebateRun:
        """Begin a debate.

        Args:
            question: The question to debate.
            seed: Decides each turn's sampling seed, with the agent and the round.
            debate_id: The transcript's id; by default the question's.
            same_answer: Decides whether answers agree, where the form asks.
            other: As in `DebateStart`.
            shared_seed: As in `DebateStart`.
            check_proposal: As in `DebateStart`.
        """
        name = question.id if debate_id is None else debate_id
        begin = DebateStart(
            question=question,
            seed=seed,
            debate_id=name,
            same_answer=same_answer,
            other=other,
            shared_seed=shared_seed,
            check_proposal=check_proposal,
        )
        return self.debate(begin)

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
        """Build rules with the settings of all forms.

        Args:
            extra: Comes before these settings in `Protocol.extra`.
            unusual: Comes after them.
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
        """List the form's roles, in the order of agents' numbers."""
        return (AgentRole(DEBATER, self.num_agents),)

    def agent_roles(self) -> tuple[AgentRole, ...]:
        """List the roles for transcripts, with the settings of `roles`.

        Raises:
            ValueError: The form has no such role, or as `RoleSettings.spoken`.
        """
        form_roles = self.own_roles()
        names = [role.name for role in form_roles]
        for name in self.roles:
            if name not in names:
                raise ValueError(
                    f"roles: found {name!r}, expected {' or '.join(names)}"
                    f"{did_you_mean(name, names)}"
                )
        return tuple(
            self.roles[r.name].spoken(r) if r.name in self.roles else r for r in form_roles
        )

    def persona(self, agent: int) -> Persona | None:
        """Find the agent's persona: the role's, otherwise the persona of the agent's number."""
        chosen = self._chosen(agent)
        return chosen.persona if chosen and chosen.persona else super().persona(agent)

    def temperature_of(self, agent: int) -> float:
        """Find the agent's sampling temperature: the role's, the persona's, or the form's."""
        chosen = self._chosen(agent)
        role_temperature = None if chosen is None else chosen.temperature
        return super().temperature_of(agent) if role_temperature is None else role_temperature

    def policy_of(self, agent: int) -> str:
        """Find the agent's speaking policy by name."""
        return self._role(agent).policy if self.roles else TRAINED

    def adapter_of(self, agent: int) -> str | None:
        """Find the agent's speaking adapter of the trained policy."""
        return self._role(agent).adapter if self.roles else None

    def trained_agents(self) -> tuple[int, ...]:
        """List the agents with trained turns."""
        return tuple(agent for agent in range(self.num_agents) if self._role(agent).trains)

    def sequence_count(self) -> int:
        """Count the trained token sequences.

        Here each turn is a sequence, and all agents speak equally often.
        """
        return -(-self.turn_count() * len(self.trained_agents()) // self.num_agents)

    def speaking(self) -> SpeakingSettings:
        """Get the prompt and sampling settings; with roles, the first trained role has them."""
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
        """Change some settings of the form; drops gates after the last round.

        Raises:
            ValueError: The form has no such setting, or (pydantic's ValidationError) refuses it.
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
        """Set the temperature of all agents."""
        update = {"temperature": temperature}
        changes: dict[str, Any] = update
        if self.personas != "none":
            personas = DEFAULT_PERSONAS if self.personas == "default" else self.personas
            changes = {"personas": tuple(persona.model_copy(update=update) for persona in personas)}
        if self.roles:
            roles = {name: role.model_copy(update=update) for name, role in self.roles.items()}
            changes = {**changes, "roles": roles}
        return self.changed(changes)

    def at_most(self, agents: int, rounds: int, samples: int) -> Self:
        """Shrink the form to at most these agents, rounds, and samples beside the debate.

        Raises:
            ValueError: A smaller form would be another debate.
        """
        limits = dict.fromkeys(self.agent_keys, agents) | {"max_rounds": rounds}
        limits |= dict.fromkeys(self.sample_keys, samples)
        chosen = {key: limit for key, limit in limits.items() if key in self.model_fields_set}
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
    """Settings of forms with several samples of a prompt: such replies have no personas."""

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
    """Shared settings of parallel and sequential debates.

    Attributes:
        topology: The agents visible to an agent: all others, the neighbors on a ring, the `degree`
            nearest on the ring, or under `central` all others for agent `center`, and only agent
            `center` for the others.
        degree: Needed by `sparse`; even, or any where the number of agents is even.
        center: Belongs to `central`; agent 0 by default.
        history_rounds: How many earlier rounds agents see: -1 all, 0 none, K the last K.
        own_rounds: How many of its own earlier turns an agent reads again: -1 all, K the last K.
            With `history_rounds: 1` and `own_rounds: 1` an agent reads only the last round, with
            its own turn: eq. 2 of SDRL (paper).
        blind_review: Comparisons of other agents stay hidden.
        presentation: The order of a round's turns: `by_number`, equal for all readers, or `drawn`
            once for each debate and reader, so judges see different turns first.
        conversation: `append` lets each agent's dialogue only grow, `rebuild` restates the debate
            in each turn. `shared` restates it to all agents in the same words, before the words to
            a single agent: each text is computed once a debate instead of once a reader. Under
            blind review agents then do not see their own comparisons either.
        on_failure: After a turn without a readable solution, end the debate or go on.
        stop_when_agreed: End after a round in which all answers are the same.
        roles: Names the agents' roles, in the order of agents' numbers; `num_agents` is then the
            sum of their counts. By default all agents are equal, in a role `debater`.
        gate_after: Rounds, from 0, followed by a gate to ask whether the debate goes on.
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
        """Take the number of agents from the roles, unless another setting has it."""
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
                f"{self.max_rounds}; expected rounds from 0, and a speaker in each"
            )
        return self

    def turn_count(self) -> int:
        """Count the sampled turns of a full debate."""
        rules = self.protocol()
        return sum(len(speaking_agents(rules, n)) for n in range(self.max_rounds))

    def sequence_count(self) -> int:
        """Count the trained token sequences: a growing dialogue is a single sequence."""
        trained = {*self.trained_agents()}
        if self.conversation == "append":
            return len(trained)
        rules = self.protocol()
        return sum(len(trained & {*speaking_agents(rules, n)}) for n in range(self.max_rounds))

    def own_roles(self) -> tuple[AgentRole, ...]:
        """List the recipe's roles, or a single role of equals."""
        return (
            tuple(
                AgentRole(name, role.count or 1, role.answers is not False, role.rounds, role.sees)
                for name, role in self.roles.items()
            )
            or super().own_roles()
        )

    def protocol(self) -> Protocol:
        """Return the rules as they are written into transcripts."""
        extra_settings = {"presentation": self.presentation, "own_rounds": self.own_rounds}
        usual = {"presentation": "by_number", "own_rounds": -1}
        return self.rules(
            {"blind_review": self.blind_review, "conversation": self.conversation},
            {key: value for key, value in extra_settings.items() if value != usual[key]},
            topology=self.topology,
            history_rounds=self.history_rounds,
            degree=self.degree,
            center=(self.center or 0) if self.topology == "central" else self.center,
        )
