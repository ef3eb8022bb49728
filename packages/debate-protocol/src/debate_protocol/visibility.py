"""Who sees whose turns, from schedule, roles, topology and history alone."""

import difflib
from collections.abc import Collection
from typing import Literal, get_args

from debate_protocol.roles import roles_by_agent
from debate_protocol.types import Protocol, TurnKey

TopologyName = Literal["all", "ring", "sparse", "central"]
_KNOWN = (*get_args(TopologyName), "actor_critic", "pair")


def check_topology(rules: Protocol) -> None:
    """Refuse a topology that is unknown or does not fit the number of agents.

    Raises:
        ValueError: It is unknown, or `degree` or `center` is missing, out of place or impossible.
    """
    name, count, degree, center = rules.topology, rules.num_agents, rules.degree, rules.center
    if name not in _KNOWN:
        near = difflib.get_close_matches(name, _KNOWN, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"topology: found {name!r}, expected one of {', '.join(_KNOWN)}{hint}")
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
