"""Members of a comparison: turns, or whole agents, with the credits of one stream.

Of the advantage of a token (docs/notation.md) it makes m_c · f · (credit − baseline).
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from debate_protocol.types import Transcript, TurnKey
from debate_rewards.credits import Credit, Score
from debate_train.advantages.advantage import RETURN, Advantage


@dataclass(frozen=True, slots=True)
class Member:
    """One turn (or one agent's whole trajectory) in one stream and component.

    `turns` is empty for an agent that never spoke: it counts in the mean alone.
    """

    debate: int
    turns: tuple[TurnKey, ...]
    stream: str
    component: str
    credits: tuple[Credit, ...]

    @property
    def value(self) -> float | None:
        """The mean of its credits for whole turns, else of its parts; None without any."""
        whole = [c.value for c in self.credits if c.span is None and c.value is not None]
        parts = [c.value for c in self.credits if c.span is not None and c.value is not None]
        return fmean(whole or parts) if whole or parts else None

    @property
    def penalty(self) -> bool:
        """Whether a credit was given for a failure or a missing part."""
        return any(c.penalty for c in self.credits)

    @property
    def expected(self) -> bool:
        """Whether it would normally have a value."""
        return any(c.expected for c in self.credits)

    @property
    def centred(self) -> bool:
        """Whether no baseline is taken off by default."""
        return all(c.centred for c in self.credits)

    def advantages(self, mean: float, factor: float) -> list[Advantage]:
        """A span without a value is there as 0, or it would take the value of the whole turn."""
        found = []
        for c in self.credits:
            if c.value is not None or c.span is not None:
                value = 0.0 if c.value is None else (c.value - mean) * factor * c.weight
                found.append(Advantage(self.stream, value, c.span, self.component))
        return found


def members(debate: int, transcript: Transcript, score: Score) -> list[Member]:
    """Return the members of a debate; in stream `return` an agent is one member, not each turn."""
    found: dict[tuple[Hashable, ...], list[Credit]] = defaultdict(list)
    for credit in score.credits:
        unit = -1 if credit.stream == RETURN else credit.round
        found[credit.component, credit.stream, credit.agent, unit].append(credit)
    members = []
    for (component, stream, _, _), parts in found.items():
        turns = tuple(dict.fromkeys(TurnKey(c.agent, c.round) for c in parts))
        if stream == RETURN:
            parts = [replace(parts[0], penalty=any(c.penalty for c in parts))]
        members.append(Member(debate, turns, str(stream), str(component), tuple(parts)))
    return members + _silent_agents(debate, transcript, score)


def _silent_agents(debate: int, transcript: Transcript, score: Score) -> list[Member]:
    """Return the agents that never spoke as members of each component's stream `return`."""
    returns = {c.component: c for c in reversed(score.credits) if c.stream == RETURN}
    spoke = {turn.agent for turn in transcript.turns} | {c.agent for c in score.credits}
    members = []
    for component, like in returns.items():
        for agent in set(range(transcript.protocol.num_agents)) - spoke:
            known = score.returns_of(component)
            own = known[agent] if agent < len(known) else None
            credit = replace(like, agent=agent, value=own or 0.0, penalty=False, span=None)
            members.append(Member(debate, (), RETURN, component, (credit,)))
    return members


def sum_equal(advantages: Sequence[Advantage]) -> list[Advantage]:
    """Add up the advantages of one turn that hold for the same stream, component and span."""
    totals: dict[tuple[str, tuple[int, int] | None, str], float] = defaultdict(float)
    for a in advantages:
        totals[a.stream, a.span, a.component] += a.value
    return [
        Advantage(stream, value, span, component)
        for (stream, span, component), value in totals.items()
    ]
