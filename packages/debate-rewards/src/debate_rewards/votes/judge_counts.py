"""How many agents can judge a pair of others, by who sees whom."""

from dataclasses import replace

from debate_protocol.types import Protocol
from debate_protocol.visibility import sees

_RING = 64


def judges_of_a_pair(rules: Protocol) -> tuple[int, int]:
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
