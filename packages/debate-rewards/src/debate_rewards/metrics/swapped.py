"""Judges asked twice about the same turns, in both orders."""

from collections.abc import Mapping

from debate_protocol.types import Transcript, TurnKey
from debate_rewards.metrics.sums import Sums
from debate_rewards.reading import ReadDebate, read_debate
from debate_rewards.rewards.verifiable import turn_verdicts
from debate_rewards.votes.ballots import Verdict, ballot

__all__ = ["swapped_judging"]

_MIRRORED: Mapping[Verdict, Verdict] = {">": "<", "<": ">", "=": "="}
Verdicts = dict[tuple[int, int, int], Verdict]
"""Judge, and two judged agents of whom the first has the lower number, to the verdict."""


def swapped_judging(plain: Transcript, reseated: Transcript) -> dict[str, tuple[float, float]]:
    """Return sum and weight of each figure, of one question judged in both orders.

    What counts are the judge and pair of the second round that have a verdict in both debates.

    - `judge/accuracy`: of pairs of a right and a wrong turn, mean over both orders of naming the
      right one, `=` counting half.
    - `judge/both_orders`: of the same pairs, the share in which both orders name the right one.
    - `judge/consistent`: of all pairs, the share with the same verdict in both orders.
    - `judge/first_shown`: of all verdicts that are not `=`, the share for the turn that stands
      first; a judge that does not mind the order has 1/2.
    - `judge/pairs_in_both`: of the pairs with a verdict in either debate, the share with one in
      both.

    Args:
        plain: A debate of two rounds or more.
        reseated: The same one with its agents in other seats (`forms.simultaneous.Reseated`).

    Raises:
        ValueError: The second does not say who sits where.

    Source: Zheng et al. (2023), Judging LLM-as-a-judge with MT-Bench and Chatbot Arena, section
    3.4: position bias, and swapped positions as its remedy.
    """
    seats = reseated.protocol.extra.get("seats")
    count = plain.protocol.num_agents
    if not isinstance(seats, list) or sorted(seats) != list(range(count)):
        raise ValueError(
            f"debate {reseated.id!r}: found seats {seats!r}; expected the agents 0 to {count - 1}"
        )
    debate = read_debate(plain)
    (verdicts,) = turn_verdicts([debate])
    usable = all(verdict.verdict != "unverifiable" for verdict in verdicts.values())
    before = _verdicts(debate, list(range(count)))
    after = _verdicts(read_debate(reseated), seats)
    sums = Sums()
    for key in before.keys() | after.keys():
        sums.add("judge/pairs_in_both", float(key in before and key in after))
    for (judge, low, high), first in sorted(before.items()):
        second = after.get((judge, low, high))
        if second is None:
            continue
        sums.add("judge/consistent", float(first == second))
        # The lower number stands first, and in reversed seats that is the other turn.
        for verdict, leading in ((first, ">"), (second, "<")):
            if verdict != "=":
                sums.add("judge/first_shown", float(verdict == leading))
        hits = [verdicts[TurnKey(agent, 0)].verdict == "right" for agent in (low, high)]
        if usable and hits[0] != hits[1]:
            good: Verdict = ">" if hits[0] else "<"
            values = [0.5 if one == "=" else float(one == good) for one in (first, second)]
            sums.add("judge/accuracy", sum(values) / 2)
            sums.add("judge/both_orders", float(first == second == good))
    return {name: (moments[0], moments[1]) for name, moments in sums.moments.items()}


def _verdicts(debate: ReadDebate, seats: list[int]) -> Verdicts:
    """Return the verdicts of the second round on turns of the first, by the agents' own numbers."""
    found: Verdicts = {}
    for key, judge in debate.judges.items():
        if key.round != 1:
            continue
        for vote in ballot(debate, judge).votes:
            left, right = seats[vote.left.agent], seats[vote.right.agent]
            verdict = vote.verdict if left < right else _MIRRORED[vote.verdict]
            found[seats[key.agent], min(left, right), max(left, right)] = verdict
    return found
