"""Judges of the v2 reward: how many see both of a pair, and where that is too few to teach."""

from dataclasses import replace

from debate_protocol.types import Protocol
from debate_protocol.visibility import sees
from debate_rewards.credits import RewardConfig
from debate_rewards.rewards import V2
from debate_train.recipe import Recipe

_RING = 64


def few_judges(phase: Recipe, reward: RewardConfig) -> str | None:
    """Return why the judge stream of v2 teaches little, where each pair has some judge but few."""
    judge = phase.advantage.streams.get("judge")
    weight = 0.0 if judge is None else judge.weight
    rules = phase.debate.protocol()
    if not isinstance(reward, V2) or weight <= 0 or reward.consensus == "none":
        return None
    fewest, most = _judges(rules)
    if fewest == rules.num_agents - 2:
        return reward.warning(rules.num_agents, weight) if most > 0 else None
    if most >= 3:
        return None
    return (
        f"debate.topology: under {rules.topology} at most {most} agents see both of a pair and "
        "can judge it, so the judge stream teaches little; expected topology all, a higher "
        "degree, or judge weight 0"
    )


def _judges(rules: Protocol) -> tuple[int, int]:
    """Return how many agents see both of a pair, for the pairs that fewest and that most see.

    Agents of a ring are alike, and so are all but the center of `central`: the pairs of agents 0
    and 1 stand for all, and a large ring is like a small one.
    """
    count = min(rules.num_agents, _RING)
    if rules.topology == "all":
        return rules.num_agents - 2, rules.num_agents - 2
    rules = replace(rules, num_agents=count, center=min(rules.center or 0, count - 1))
    found = [
        sum(sees(rules, judge, a) and sees(rules, judge, b) for judge in range(count))
        for a in range(min(2, count))
        for b in range(a + 1, count)
    ]
    return min(found), max(found)
