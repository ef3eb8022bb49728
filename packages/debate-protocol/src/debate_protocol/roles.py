"""Who gives answers, by the rules of a debate."""

from debate_protocol.types import Protocol

ACTOR, CRITIC = 0, 1
"""The agents of an actor-critic debate."""


def gives_answers(rules: Protocol, agent: int) -> bool:
    """Return whether an agent's turns must hold an answer; a critic only gives feedback."""
    return not (rules.topology == "actor_critic" and agent == CRITIC)


def answering_agents(rules: Protocol, round: int) -> range:
    """Return the agents from whom an answer is due in a round.

    In a self-debate the first agents answer in round 0 only and the others in round 1 only.
    """
    if rules.topology == "actor_critic":
        return range(min(1, rules.num_agents))
    first = rules.extra.get("first_turns")
    if rules.topology == "pair" and type(first) is int:
        first = min(first, rules.num_agents)
        return range(first) if round == 0 else range(first, rules.num_agents)
    return range(rules.num_agents)
