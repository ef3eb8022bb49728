"""Base classes of debate forms: roles, gates between rounds, parallel and sequential debates."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from debate_protocol.contract import get_contract
from debate_protocol.forms.settings import (
    MOST,
    MOST_TURNS,
    ContractChoice,
    OwnContract,
    RoleSettings,
    SpeakingSettings,
    spoken_roles,
)
from debate_protocol.prompts.view import Persona
from debate_protocol.roles import (
    DEBATER,
    TopologyName,
    check_roles,
    check_topology,
    role_of,
    speaking_agents,
)
from debate_protocol.types import TRAINED, AgentRole, Protocol, Schedule


class GatedSettings(SpeakingSettings):
    """Adds roles, and the rounds after which a form yields a gate, as in `gate_after: [0]`.

    `roles` says what is particular to some of a form's roles, by their names.
    """

    max_rounds: int = Field(default=1, ge=1, le=MOST)
    gate_after: tuple[NonNegativeInt, ...] = ()
    """Rounds, from 0, after which `rollout.select` is asked whether the debate goes on."""
    roles: dict[str, RoleSettings] = Field(default_factory=dict)
    """Names to roles, in the order in which agents are numbered."""

    if TYPE_CHECKING:  # A field or a property, as the form has it: pydantic lets none be both.

        @property
        @abstractmethod
        def num_agents(self) -> int:
            """Agents of a debate."""

    def own_roles(self) -> tuple[AgentRole, ...]:
        """Return the form's roles, in the order in which its agents are numbered."""
        return (AgentRole(DEBATER, self.num_agents),)

    def agent_roles(self) -> tuple[AgentRole, ...]:
        """Return the roles as they are written into transcripts: what `roles` says included."""
        return spoken_roles(self.own_roles(), self.roles)

    def persona(self, agent: int) -> Persona | None:
        """Return the agent's persona: its role's, else that of its number."""
        chosen = self._chosen(agent)
        own = None if chosen is None else chosen.persona
        return super().persona(agent) if own is None else own

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

    def at_temperature(self, temperature: float) -> Self:
        """Return the form with all agents sampled at one temperature."""
        same = {name: role.at_temperature(temperature) for name, role in self.roles.items()}
        form = super().at_temperature(temperature)
        return form.changed({"roles": same}) if same else form

    def _role(self, agent: int) -> AgentRole:
        return role_of(Protocol(self.num_agents, roles=self.agent_roles()), agent)

    def _chosen(self, agent: int) -> RoleSettings | None:
        return self.roles.get(self._role(agent).name) if self.roles else None

    @model_validator(mode="after")
    def _roles_are_the_forms(self) -> Self:
        self.agent_roles()
        return self

    @abstractmethod
    def turn_count(self) -> int:
        """Return how many turns are sampled when the debate goes on to its end."""

    def sequence_count(self) -> int:
        """Return how many token sequences are trained on.

        Here each turn is one, and all agents speak as often as each other.
        """
        return -(-self.turn_count() * len(self.trained_agents()) // self.num_agents)

    def changed(self, settings: Mapping[str, Any]) -> Self:
        """Return the form with some settings changed; gates after its last round are left out."""
        rounds = settings.get("max_rounds", self.max_rounds)
        if "gate_after" not in settings and any(r >= rounds for r in self.gate_after):
            settings = {**settings, "gate_after": tuple(r for r in self.gate_after if r < rounds)}
        return super().changed(settings)

    @model_validator(mode="after")
    def _gates_are_reached(self) -> Self:
        for round in self.gate_after:
            if round >= self.max_rounds:
                raise ValueError(
                    f"gate_after: found {round}, but rounds count from 0 and there are "
                    f"{self.max_rounds}; expected 0 to {self.max_rounds - 1}"
                )
        return self


class SampledSettings(GatedSettings):
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


class FreeTextSettings(SampledSettings):
    """Settings of forms that read free text: their prompts leave no room for sections."""

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
        own_rounds: How many of its own earlier turns an agent reads again: -1 all, K the last K.
            With `history_rounds: 1` and `own_rounds: 1` an agent reads the last round alone, its
            own turn included, which is eq. 2 of SDRL (paper).
        blind_review: Comparisons of other agents stay hidden.
        presentation: In which order a round's turns are shown: `by_number`, to all alike, or
            `drawn` once for each debate and reader, so that what stands first for one judge does
            not for another.
        conversation: `append` lets each agent's dialogue only grow, `rebuild` restates
            the debate in each turn.
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
        if self.conversation == "append" and self.own_rounds != -1:
            raise ValueError(
                f"conversation: append needs own_rounds -1, found {self.own_rounds}; an agent's "
                "own turns stay in a dialogue that only grows: use conversation: rebuild"
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

    @model_validator(mode="before")
    @classmethod
    def _roles_are_counted(cls, data: object) -> object:
        """Take the number of agents from the roles, where these say it and nothing else does."""
        names_roles = cls.own_roles is DebateSettings.own_roles
        if not (names_roles and isinstance(data, Mapping)) or "num_agents" in data:
            return data
        roles = data.get("roles")
        if not isinstance(roles, Mapping) or not roles:
            return data
        counts = [
            role.count if isinstance(role, RoleSettings) else (role or {}).get("count")
            for role in roles.values()
            if isinstance(role, RoleSettings | Mapping | None)
        ]
        given = [1 if count is None else count for count in counts]
        whole = all(type(count) is int for count in given)
        return {**data, "num_agents": sum(given)} if whole else data

    @model_validator(mode="after")
    def _topology_fits_agents(self) -> Self:
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

    @property
    def schedule(self) -> Schedule:
        """Whether agents of a round speak at once or one after the other."""
        return "parallel"

    def own_roles(self) -> tuple[AgentRole, ...]:
        """Return the roles that the recipe names, or one of equals."""
        named = tuple(role.role(name) for name, role in self.roles.items())
        return named or super().own_roles()

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
            roles=self.agent_roles(),
            extra={
                "blind_review": self.blind_review,
                "conversation": self.conversation,
                "style": self.recorded_style(),
                "think": self.think,
                **({"presentation": "drawn"} if self.presentation == "drawn" else {}),
                **({"own_rounds": self.own_rounds} if self.own_rounds != -1 else {}),
            },
        )
