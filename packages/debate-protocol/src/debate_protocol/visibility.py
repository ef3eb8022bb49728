"""Who sees whose turns, from schedule, topology and history alone."""

from collections.abc import Collection
from typing import Literal

from debate_protocol.roles import ACTOR, CRITIC
from debate_protocol.types import Protocol, TurnKey

TopologyName = Literal["all", "ring"]


def neighbours(topology: str, agent: int, num_agents: int) -> tuple[int, ...]:
    """Return the other agents whose turns this agent sees, in order.

    Raises:
        ValueError: The topology is unknown.
    """
    if topology in ("all", "actor_critic", "pair"):
        return tuple(other for other in range(num_agents) if other != agent)
    if topology == "ring":
        beside = {(agent - 1) % num_agents, (agent + 1) % num_agents} - {agent}
        return tuple(sorted(beside))
    raise ValueError(f"topology: found {topology!r}, expected one of all, ring")


def shown_turns(rules: Protocol, turn: TurnKey, spoken: Collection[TurnKey]) -> list[TurnKey]:
    """Return the other agents' turns that the author of `turn` is given, by round and agent.

    `history_rounds` counts earlier rounds; under the sequential schedule the turns of the same
    round that came before are always given.

    Args:
        rules: The debate's rules.
        turn: The turn about to be spoken.
        spoken: The turns spoken so far; others are not shown.

    Raises:
        ValueError: The topology is unknown, or it draws the turns that are shown.
    """
    if rules.topology == "actor_critic":
        return _between_actor_and_critic(rules, turn, spoken)
    if rules.topology == "pair" and turn.round > 0:
        raise ValueError("topology pair draws the turns that are shown; they must be written down")
    first = 0 if rules.history_rounds < 0 else max(0, turn.round - rules.history_rounds)
    others = neighbours(rules.topology, turn.agent, rules.num_agents)
    shown = [
        TurnKey(other, earlier)
        for earlier in range(first, turn.round)
        for other in others
        if TurnKey(other, earlier) in spoken
    ]
    if rules.schedule == "sequential":
        before = (TurnKey(other, turn.round) for other in others if other < turn.agent)
        shown += [key for key in before if key in spoken]
    return shown


def _between_actor_and_critic(
    rules: Protocol, turn: TurnKey, spoken: Collection[TurnKey]
) -> list[TurnKey]:
    """Return the last turns of the other, as many as `history_rounds` says."""
    end = turn.round + (turn.agent == CRITIC)
    first = 0 if rules.history_rounds < 0 else max(0, end - rules.history_rounds)
    other = ACTOR if turn.agent == CRITIC else CRITIC
    keys = (TurnKey(other, round) for round in range(first, end))
    return [key for key in keys if key in spoken]
