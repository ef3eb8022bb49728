"""The roles of a debate: who owes an answer, and when, by the rules of the debate alone."""

import difflib
from collections import Counter
from collections.abc import Mapping

from debate_protocol.types import TRAINED, AgentRole, Protocol

ACTOR, CRITIC = 0, 1
"""The agents of an actor-critic debate."""
DEBATER = "debater"
"""The role of all agents of a debate of equals."""


def roles_of(rules: Protocol) -> tuple[AgentRole, ...]:
    """Return the roles of a debate, those of files from before roles were written included."""
    if rules.roles:
        return rules.roles
    if rules.topology == "actor_critic":
        return exchange_roles(rules.history_rounds)
    first = rules.extra.get("first_turns")
    if rules.topology == "pair" and type(first) is int:
        first = max(0, min(first, rules.num_agents))
        return paired_roles(first, rules.num_agents - first)
    return (AgentRole(DEBATER, rules.num_agents),)


def exchange_roles(history_rounds: int, actors: int = 1) -> tuple[AgentRole, AgentRole]:
    """Return actors and a critic who see each other's last turns; only actors answer.

    Several actors answer at once and also see each other's, which no order of speaking gives.
    """
    return (
        AgentRole("actor", actors, sees={"critic": history_rounds} if actors == 1 else "drawn"),
        AgentRole("critic", answers=False, sees={"actor": history_rounds}),
    )


def paired_roles(first: int, second: int) -> tuple[AgentRole, AgentRole]:
    """Return agents who answer in round 0, and agents who answer a pair of them in round 1."""
    return (
        AgentRole("first", first, rounds=(0,), sees={}),
        AgentRole("second", second, rounds=(1,), sees="drawn"),
    )


def roles_by_agent(rules: Protocol) -> list[AgentRole]:
    """Return the role of each agent, in order; agents that no role names are debaters."""
    found: list[AgentRole] = []
    for role in roles_of(rules):
        found += [role] * min(role.count, rules.num_agents - len(found))
    missing = rules.num_agents - len(found)
    return found + [AgentRole(DEBATER, missing)] * missing


def role_of(rules: Protocol, agent: int) -> AgentRole:
    """Return the role of an agent, a debater's for one that the debate does not have."""
    end = 0
    for role in roles_of(rules):
        end += role.count
        if 0 <= agent < end:
            return role
    return AgentRole(DEBATER)


def gives_answers(rules: Protocol, agent: int) -> bool:
    """Return whether an agent's turns must hold an answer; a critic only gives feedback."""
    return role_of(rules, agent).answers


def is_trained_on(rules: Protocol, agent: int) -> bool:
    """Return whether an agent's turns may be trained on; those of frozen policies may not."""
    return role_of(rules, agent).trains


def agents_by_policy(rules: Protocol) -> dict[str, frozenset[int]]:
    """Return the agents of the trained policy as `trained`, of all other roles as `role/NAME`.

    Where trained roles have adapters of their own, these are `role/NAME`, too. Nothing where one
    policy speaks for all: there is nobody to keep apart.
    """
    roles = roles_by_agent(rules)
    speakers = {(role.policy, role.adapter) for role in roles}
    if len(speakers) < 2:
        return {}
    is_one = sum(policy == TRAINED for policy, _ in speakers) == 1
    found: dict[str, set[int]] = {}
    for agent, role in enumerate(roles):
        name = TRAINED if is_one and role.policy == TRAINED else f"role/{role.name}"
        found.setdefault(name, set()).add(agent)
    return {name: frozenset(agents) for name, agents in found.items()}


def speaking_agents(rules: Protocol, round: int) -> tuple[int, ...]:
    """Return the agents that speak in a round, in order."""
    roles = enumerate(roles_by_agent(rules))
    return tuple(agent for agent, role in roles if role.rounds is None or round in role.rounds)


def answering_agents(rules: Protocol, round: int) -> tuple[int, ...]:
    """Return the agents from whom an answer is due in a round, in order."""
    return tuple(one for one in speaking_agents(rules, round) if gives_answers(rules, one))


def check_roles(rules: Protocol) -> None:
    """Refuse roles that contradict each other or the number of agents.

    Raises:
        ValueError: A name stands twice or for no agent, a role sees one that is not there, or the
            roles have not as many agents as the debate.
    """
    names = [role.name for role in rules.roles]
    for name, times in Counter(names).items():
        if times > 1:
            raise ValueError(f"roles: found {name!r} {times} times; expected each role once")
    for role in rules.roles:
        if role.count < 1:
            raise ValueError(f"roles: found {role.name!r} with {role.count} agents; expected 1")
        for other in role.sees if isinstance(role.sees, Mapping) else ():
            if other not in names:
                near = difflib.get_close_matches(other, names, n=1)
                raise ValueError(
                    f"roles: {role.name!r} sees {other!r}; expected one of {', '.join(names)}"
                    + (f"; did you mean {near[0]!r}?" if near else "")
                )
    total = sum(role.count for role in rules.roles)
    if rules.roles and total != rules.num_agents:
        raise ValueError(
            f"roles: found {total} agents in {', '.join(names)}; expected those of the debate, "
            f"{rules.num_agents}"
        )
