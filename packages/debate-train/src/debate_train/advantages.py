"""From credits to advantages: baselines, scales and the weights of streams."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from pydantic import Field

from debate_protocol.config import Config
from debate_protocol.types import Transcript, Turn, TurnKey
from debate_rewards.credits import Credit, Score

Center = Literal["group", "round", "prompt", "batch", "none"]
Scale = Literal["none", "std"]
STD_EPSILON = 1e-6

RETURN = "return"
"""The stream that is per agent: an agent's value holds for all its turns."""
JUDGING = ("comparison", "consensus", "consensus_reason")
SECTIONS: Mapping[str, tuple[str, ...]] = {"judge": JUDGING, "critic": ("evaluation",)}
"""Sections that these streams' values go to unless the recipe says otherwise.

`generator` takes all but those of `judge`, sections of a user's own contract included; any other
stream takes all.
"""


class Stream(Config):
    """Where one stream's values go and how much they weigh."""

    weight: float = 1.0
    """λ of the stream; 0 leaves it out."""
    sections: tuple[str, ...] | dict[str, float] | None = None
    """Sections, or each with a weight of its own; None takes the default of the stream's name."""
    center: Center | None = None
    """None takes the advantage's own."""

    def section_weight(self, name: str, section: str) -> float | None:
        """Return what a section's tokens count in a stream of this name, None if not covered."""
        sections = SECTIONS.get(name) if self.sections is None else self.sections
        if sections is None:
            return None if name == "generator" and section in JUDGING else 1.0
        if isinstance(sections, dict):
            return sections.get(section)
        return 1.0 if section in sections else None


@dataclass(frozen=True, slots=True)
class Advantage:
    """One advantage of one turn, already weighted by its reward component.

    `span` is the character range of the turn's text it holds for, or None for the rest of the
    stream's sections. A span replaces the rest of its own component only; components add up.
    """

    stream: str
    value: float
    span: tuple[int, int] | None = None
    component: str = ""


TurnAdvantages = dict[TurnKey, list[Advantage]]


class Advantages(Config):
    """Centres and scales credits.

    Values compare within a group: the debate (`group`), turns of one question and round
    (`round`), turns that answer one and the same prompt (`prompt`), or the whole `batch`. Members
    of a group are turns with a value; a single member gets 0. If a member carries a penalty, turns
    that were expected to have a value but have none join the mean as 0 and get no gradient:
    otherwise a lone penalty would centre itself away. Credits that are `centred` already keep
    their values unless their stream names a `center`.

    In the stream `return` the members are the agents of the debate, whatever the number of their
    turns. An agent that never spoke, because a turn before its own failed and ended the debate,
    is a member too, with return 0 plus what votes about it gave. Streams of turns (`generator`,
    `judge` of v2) know the turns that were held only: a turn that fails before any other was held
    is alone in its debate, and teaches where `round`, `prompt` or `batch` join several debates.

    Source: `return` under `group` is A_i = R_i - (1/N) sum_j R_j over all N agents of a debate, of
    the implementation note of the Tinker debate recipe, "Advantage computation". `prompt` with
    `std` is eq. 6 of Liu et al., "Self-Debate Reinforcement Learning": first answers compare with
    each other and so do the second answers to one debate prompt.
    """

    center: Center = "group"
    scale: Scale = "none"
    """`std` divides by the group's standard deviation (n-1) + 1e-6; a group without spread is 0."""
    streams: dict[str, Stream] = Field(
        default_factory=lambda: {
            name: Stream() for name in ("generator", "judge", "return", "critic")
        }
    )

    def __call__(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score]
    ) -> list[TurnAdvantages]:
        """Return the advantages of each turn, a mapping for each transcript, in order.

        Turns without signal in any stream of non-zero weight are absent.
        """
        pools: dict[tuple[str, str, Center, Hashable], list[_Member]] = defaultdict(list)
        for index, (transcript, score) in enumerate(zip(transcripts, scores, strict=True)):
            prompts = {turn.key: _prompt(index, turn) for turn in transcript.turns}
            for member in _members(index, transcript, score):
                stream = self.streams.get(member.stream)
                if stream is not None and stream.weight != 0:
                    center = stream.center or ("none" if member.centred else self.center)
                    group = _group(center, transcript.question.id, member, prompts)
                    pools[member.component, member.stream, center, group].append(member)
        result: list[TurnAdvantages] = [{} for _ in transcripts]
        for (_, _, center, _), members in pools.items():
            for member, advantages in self._compare(members, center):
                for turn in member.turns:
                    result[member.debate].setdefault(turn, []).extend(advantages)
        return [{turn: _sum_equal(found) for turn, found in turns.items()} for turns in result]

    def _compare(
        self, members: "Sequence[_Member]", center: Center
    ) -> "list[tuple[_Member, list[Advantage]]]":
        valued = [m for m in members if m.value is not None]
        values = [m.value for m in valued if m.value is not None]
        if any(m.penalty for m in valued):
            values += [0.0] * sum(m.value is None and m.expected for m in members)
        if not valued:
            return []
        single = len(values) == 1 and center != "none"
        mean = _mean(values) if center != "none" else 0.0
        factor = 0.0 if single else 1.0
        if self.scale == "std" and not single:
            spread = stdev(values) if len(values) > 1 else 0.0
            factor = 1.0 / (spread + STD_EPSILON) if spread > 0 else 0.0
        return [(m, m.advantages(mean, factor)) for m in valued]


@dataclass(frozen=True, slots=True)
class _Member:
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
        whole = [c.value for c in self.credits if c.span is None and c.value is not None]
        parts = [c.value for c in self.credits if c.span is not None and c.value is not None]
        return fmean(whole or parts) if whole or parts else None

    @property
    def penalty(self) -> bool:
        return any(c.penalty for c in self.credits)

    @property
    def expected(self) -> bool:
        return any(c.expected for c in self.credits)

    @property
    def centred(self) -> bool:
        return all(c.centred for c in self.credits)

    def advantages(self, mean: float, factor: float) -> list[Advantage]:
        """A span without a value is there as 0, or it would take the value of the whole turn."""
        found = []
        for c in self.credits:
            if c.value is not None or c.span is not None:
                value = 0.0 if c.value is None else (c.value - mean) * factor * c.weight
                found.append(Advantage(self.stream, value, c.span, self.component))
        return found


def _members(debate: int, transcript: Transcript, score: Score) -> list[_Member]:
    """Gather credits into members; in stream `return` an agent is one member, not each turn."""
    found: dict[tuple[Hashable, ...], list[Credit]] = defaultdict(list)
    for credit in score.credits:
        unit = -1 if credit.stream == RETURN else credit.round
        found[credit.component, credit.stream, credit.agent, unit].append(credit)
    members = []
    for (component, stream, _, _), parts in found.items():
        turns = tuple(dict.fromkeys(TurnKey(c.agent, c.round) for c in parts))
        if stream == RETURN:
            parts = [replace(parts[0], penalty=any(c.penalty for c in parts))]
        members.append(_Member(debate, turns, str(stream), str(component), tuple(parts)))
    return members + _silent_agents(debate, transcript, score)


def _silent_agents(debate: int, transcript: Transcript, score: Score) -> list[_Member]:
    """Return the agents that never spoke as members of each component's stream `return`."""
    returns = {c.component: c for c in reversed(score.credits) if c.stream == RETURN}
    spoke = {turn.agent for turn in transcript.turns} | {c.agent for c in score.credits}
    members = []
    for component, like in returns.items():
        for agent in set(range(transcript.protocol.num_agents)) - spoke:
            known = score.returns_of(component)
            own = known[agent] if agent < len(known) else None
            credit = replace(like, agent=agent, value=own or 0.0, penalty=False, span=None)
            members.append(_Member(debate, (), RETURN, component, (credit,)))
    return members


def _group(
    center: Center, question: str, member: _Member, prompts: Mapping[TurnKey, Hashable]
) -> Hashable:
    first = member.turns[0] if member.turns else None
    if center == "round":
        return (question, 0 if first is None else first.round)
    if center == "prompt":
        # What an agent that never spoke would have been asked is not known: it stands alone.
        alone = (member.debate, first, member.credits[0].agent)
        return (question, alone if first is None else prompts.get(first, alone))
    return member.debate if center == "group" else None


def _prompt(debate: int, turn: Turn) -> Hashable:
    """Return what identifies the prompt of a turn."""
    if turn.prompt is not None:
        return tuple((message["role"], message["content"]) for message in turn.prompt)
    if turn.reply is not None and turn.reply.prompt_ids:
        return turn.reply.prompt_ids
    return (debate, turn.key)


def _mean(values: Sequence[float]) -> float:
    """Return the mean; of equal values that value itself, so that none differs by rounding."""
    return values[0] if len(set(values)) == 1 else fmean(values)


def _sum_equal(advantages: Sequence[Advantage]) -> list[Advantage]:
    """Add up the advantages of one turn that hold for the same stream, component and span."""
    totals: dict[tuple[str, tuple[int, int] | None, str], float] = defaultdict(float)
    for a in advantages:
        totals[a.stream, a.span, a.component] += a.value
    return [
        Advantage(stream, value, span, component)
        for (stream, span, component), value in totals.items()
    ]
