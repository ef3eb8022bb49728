"""The roles of a debate: who owes an answer and when, and who sees whose turns."""

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Literal, get_args

from debate_protocol.contract import did_you_mean
from debate_protocol.types import TRAINED, AgentRole, Protocol, TurnKey

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
                raise ValueError(
                    f"roles: {role.name!r} sees {other!r}; expected one of {', '.join(names)}"
                    f"{did_you_mean(other, names)}"
                )
    total = sum(role.count for role in rules.roles)
    if rules.roles and total != rules.num_agents:
        raise ValueError(
            f"roles: found {total} agents in {', '.join(names)}; expected those of the debate, "
            f"{rules.num_agents}"
        )


TopologyName = Literal["all", "ring", "sparse", "central"]
_KNOWN = (*get_args(TopologyName), "actor_critic", "pair")


def check_topology(rules: Protocol) -> None:
    """Refuse a topology that is unknown or does not fit the number of agents.

    Raises:
        ValueError: It is unknown, or `degree` or `center` is missing, out of place or impossible.
    """
    name, count, degree, center = rules.topology, rules.num_agents, rules.degree, rules.center
    if name not in _KNOWN:
        raise ValueError(
            f"topology: found {name!r}, expected one of {', '.join(_KNOWN)}"
            f"{did_you_mean(name, _KNOWN)}"
        )
    if degree is not None and name != "sparse":
        raise ValueError(f"degree: found {degree} with topology {name}; only sparse has a degree")
    if center is not None and name != "central":
        raise ValueError(f"center: found {center} with topology {name}; only central has a center")
    if center is not None and not 0 <= center < count:
        raise ValueError(f"center: found {center}, expected an agent, 0 to {count - 1}")
    if name == "sparse" and (degree is None or not _is_degree(degree, count)):
        which = "of 1 to" if count % 2 == 0 else "an even number up to"
        raise ValueError(
            f"degree: found {'none' if degree is None else degree}; topology sparse expects how "
            f"many others each of {count} agents sees, {which} {count - 1}"
        )


def _is_degree(degree: int, count: int) -> bool:
    # Agents on a ring can all have the same odd number of neighbours only with one opposite.
    return 1 <= degree < count and (degree % 2 == 0 or count % 2 == 0)


def sees(rules: Protocol, reader: int, other: int) -> bool:
    """Return whether the topology lets one agent see another's turns.

    `ring` shows both neighbours; `sparse` the `degree` nearest on the ring, in pairs from both
    sides and for an odd degree also the agent opposite (a circulant graph). Under `central`
    agent `center`, 0 by default, sees all others and the others see only it.
    """
    if reader == other:
        return False
    if rules.topology == "central":
        return (rules.center or 0) in (reader, other)
    if rules.topology not in ("ring", "sparse"):
        return True
    degree = 2 if rules.topology == "ring" else rules.degree or 0
    count = max(rules.num_agents, 1)
    steps = min((reader - other) % count, (other - reader) % count)
    return steps <= degree // 2 or (degree % 2 == 1 and 2 * steps == count)


def neighbours(rules: Protocol, agent: int) -> tuple[int, ...]:
    """Return the other agents whose turns this agent sees, in order.

    Raises:
        ValueError: As `check_topology`.
    """
    check_topology(rules)
    return tuple(other for other in range(rules.num_agents) if sees(rules, agent, other))


def shown_turns(rules: Protocol, turn: TurnKey, spoken: Collection[TurnKey]) -> list[TurnKey]:
    """Return the other agents' turns that the author of `turn` is given, by round and agent.

    `history_rounds` counts earlier rounds; under the sequential schedule the turns of the same
    round that came before are always given, but to a role that says itself how many rounds it
    `sees`: there they count. An appended conversation keeps all its messages.

    Args:
        rules: The debate's rules.
        turn: The turn about to be spoken.
        spoken: The turns spoken so far; others are not shown.

    Raises:
        ValueError: As `check_topology`, or the turns that this role sees are drawn.
    """
    check_topology(rules)
    roles = roles_by_agent(rules)
    named = roles[turn.agent].sees if 0 <= turn.agent < len(roles) else None
    if isinstance(named, str):
        raise ValueError(
            f"role {roles[turn.agent].name} sees turns that are drawn (topology {rules.topology}); "
            "they must be written down"
        )
    keeps_all = rules.extra.get("conversation") == "append"

    def first_round(last: int, end: int) -> int:
        return 0 if last < 0 or keeps_all else max(0, end - last)

    def is_shown(key: TurnKey) -> bool:
        speaks_before = rules.schedule == "sequential" and key.agent < turn.agent
        end = turn.round + 1 if speaks_before else turn.round
        if named is None:
            seen = sees(rules, turn.agent, key.agent)
            return seen and first_round(rules.history_rounds, turn.round) <= key.round < end
        last = named.get(roles[key.agent].name, 0) if 0 <= key.agent < len(roles) else 0
        if last == 0 or key.agent == turn.agent:
            return False
        return first_round(last, end) <= key.round < end

    return sorted(filter(is_shown, spoken), key=lambda key: (key.round, key.agent))
