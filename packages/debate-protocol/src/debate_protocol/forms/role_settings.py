"""What a recipe says of a role: how many agents, how they are sampled, and who speaks for them."""

from pydantic import Field, NonNegativeInt

from debate_protocol.config import Config
from debate_protocol.personas import Persona
from debate_protocol.plugins import did_you_mean
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
