"""What forms share: their roles, and the gates between their rounds."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, NonNegativeInt, field_validator, model_validator

from debate_protocol.forms.own_contract import ContractChoice, OwnContract
from debate_protocol.forms.role_settings import RoleSettings, spoken_roles
from debate_protocol.forms.settings import MOST, SpeakingSettings
from debate_protocol.parsing.contract import get_contract
from debate_protocol.personas import Persona
from debate_protocol.roles import DEBATER, role_of
from debate_protocol.types import TRAINED, AgentRole, Protocol


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
