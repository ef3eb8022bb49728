"""From credits to advantages: baselines, scales and the weights of streams."""

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, stdev
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from debate_protocol.plugins import Config, Variants
from debate_protocol.types import Transcript, Turn, TurnKey, is_trained_on, role_of
from debate_rewards.reward import Credit, Score, ScoreError

__all__ = [
    "ADVANTAGES",
    "METRIC",
    "RETURN",
    "SECTIONS",
    "STD_EPSILON",
    "Advantage",
    "AdvantageChoice",
    "AdvantageConfig",
    "Baseline",
    "Baselines",
    "Advantages",
    "Grouped",
    "RoleEma",
    "Scale",
    "Stream",
    "TurnAdvantages",
]


Baseline = Literal["debate", "question_round", "prompt", "batch", "none"]
"""Whose mean is taken off: the debate's, of turns of one question and round, one prompt, or all."""

RETURN = "return"
"""The stream that is per agent: an agent's value holds for all its turns."""
JUDGING = ("comparison", "consensus", "consensus_reason", "decision")
SECTIONS: Mapping[str, tuple[str, ...]] = {"judge": JUDGING, "critic": ("evaluation",)}
"""Sections of these streams by default; `generator` takes all but the judge's, others take all."""


class Stream(Config):
    """Where one stream's values go and how much they weigh."""

    weight: float = 1.0
    """λ of the stream; 0 leaves it out."""
    sections: tuple[str, ...] | dict[str, float] | None = None
    """Sections, or each with a weight of its own; None takes the default of the stream's name."""
    baseline: Baseline | None = None
    """Whose mean is taken off; None takes the advantage's own."""

    def section_weights(self, name: str, sections: Iterable[str]) -> dict[str, float | None]:
        """Return what sections' tokens count in a stream of this name, None if not covered."""
        own = SECTIONS.get(name) if self.sections is None else self.sections
        if own is None:
            skipped = JUDGING if name == "generator" else ()
            return {section: None if section in skipped else 1.0 for section in sections}
        if isinstance(own, dict):
            return {section: own.get(section) for section in sections}
        return {section: 1.0 if section in own else None for section in sections}


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

Baselines = Mapping[str, float]
"""Running baselines by name: what a stateful advantage has learned so far."""
METRIC = "advantage/baseline/"
"""Begins the names of their metrics."""
ZERO = "advantage/zero/"
"""Begins the names of shares of turns that teach nothing."""


@dataclass(frozen=True, slots=True)
class Advantages:
    """The advantages of each turn, by transcript in order, and the baselines after them.

    Turns without signal in any stream of non-zero weight are absent.
    """

    turns: Sequence[TurnAdvantages]
    baselines: Baselines = field(default_factory=dict)
    left_out: Sequence[frozenset[TurnKey]] = ()
    """Turns that are not trained on at all, by transcript; empty where there are none."""

    def __post_init__(self) -> None:
        """Refuse baselines that the next step could not go on with."""
        for name, value in self.baselines.items():
            if not math.isfinite(value):
                raise ScoreError(
                    f"advantage: found {value} as baseline {name!r}; expected a number"
                )

    def trained_turns(self, transcripts: Sequence[Transcript]) -> list[Transcript]:
        """Return the transcripts with the turns that are trained on.

        What is left out counts in no denominator, no minibatch and no penalty. As a part of what
        later turns were shown it stays.
        """
        if not any(self.left_out):
            return list(transcripts)
        return [
            replace(one, turns=tuple(turn for turn in one.turns if turn.key not in gone))
            for one, gone in zip(transcripts, self.left_out, strict=True)
        ]

    def metrics(self, transcripts: Sequence[Transcript]) -> dict[str, float]:
        """Return the baselines as metrics of the step, and which turns teach nothing, and why.

        - `advantage/zero/share`: turns that may be trained on and whose advantages are all 0 or
          absent. The others are its parts, and add up to it.
        - `advantage/zero/no_value`: no stream of the reward that counts has a value for the turn.
        - `advantage/zero/no_contrast`: it has one, but no turn of its question has an advantage:
          all are worth the same, as where all answers are right, or all wrong.
        - `advantage/zero/at_baseline`: other turns of its question have one, and its own value is
          just what it is compared with.
        """
        found = {f"{METRIC}{name}": value for name, value in self.baselines.items()}
        values = [
            (one.question.id, turns.get(turn.key))
            for one, turns in zip(transcripts, self.turns, strict=True)
            for turn in one.turns
            if is_trained_on(one.protocol, turn.agent)
        ]
        teaches = {question for question, own in values if _moves(own)}
        causes = {"no_value": 0, "no_contrast": 0, "at_baseline": 0}
        for question, own in values:
            if not own:
                causes["no_value"] += 1
            elif not _moves(own):
                causes["at_baseline" if question in teaches else "no_contrast"] += 1
        if values:
            found[f"{ZERO}share"] = sum(causes.values()) / len(values)
            found |= {f"{ZERO}{cause}": count / len(values) for cause, count in causes.items()}
        return found


def _moves(advantages: Sequence[Advantage] | None) -> bool:
    return any(one.value for one in advantages or ())


class AdvantageConfig(Config):
    """The base class of advantages: a field `type` and `compute`.

    `compute` is a function of its arguments alone: what it learns is handed back, kept with the
    step and by checkpoints, and handed in at the next one.
    """

    type: str = ""
    """The name by which recipes choose it."""
    streams: dict[str, Stream] = Field(
        default_factory=lambda: {
            name: Stream() for name in ("generator", "judge", "return", "critic")
        }
    )
    """Names of the reward's streams to their weights and sections; others are left out."""

    @abstractmethod
    def compute(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score], before: Baselines
    ) -> Advantages:
        """Return the advantages of each turn, and the baselines for the next step.

        Args:
            transcripts: The debates of a step.
            scores: What the reward says of each, in order.
            before: The baselines that the phase's last step left, none at its first.
        """

    def baseline_of(self, stream: str) -> str:
        """Return what the values of a stream are compared with, as `Baseline` names it."""
        return "none"

    def __call__(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score]
    ) -> list[TurnAdvantages]:
        """Return the advantages of each turn at a first step, a mapping for each transcript."""
        return list(self.compute(transcripts, scores, {}).turns)


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


Scale = Literal["none", "std"]
STD_EPSILON = 1e-6


class Grouped(AdvantageConfig):
    """Centres and scales credits.

    Values compare within a group: the debate (`debate`), turns of one question and round
    (`question_round`), turns that answer one and the same prompt (`prompt`), or the whole `batch`.
    Members of a group are turns with a value; a single member gets 0. If a member carries a
    penalty, turns that were expected to have a value but have none join the mean as 0 and get no
    gradient:
    otherwise a lone penalty would centre itself away. Credits that are `centred` already keep
    their values unless their stream names a `baseline`.

    In the stream `return` the members are the agents of the debate, whatever the number of their
    turns. An agent that never spoke, because a turn before its own failed and ended the debate,
    is a member too, with return 0 plus what votes about it gave. Streams of turns (`generator`,
    `judge` of v2) know the turns that were held only: a turn that fails before any other was held
    is alone in its debate, and teaches where `question_round`, `prompt` or `batch` join several.

    Source: `return` under `debate` is A_i = R_i - (1/N) sum_j R_j over all N agents of a debate, of
    the implementation note of the Tinker debate recipe, "Advantage computation". `prompt` with
    `std` is eq. 6 of Liu et al., "Self-Debate Reinforcement Learning": first answers compare with
    each other and so do the second answers to one debate prompt.
    """

    type: Literal["grouped"] = "grouped"
    baseline: Baseline = "question_round"
    """Whose mean is taken off: the debate, question and round, one prompt, the batch, or nobody."""
    scale: Scale = "none"
    """`std` divides by the group's standard deviation (n-1) + 1e-6; a group without spread is 0."""
    leave_out_zeros: tuple[NonNegativeInt, ...] = ()
    """Rounds, from 0, whose turns leave the batch where their advantage is 0; SDRL: `[1]` (5.2)."""

    def baseline_of(self, stream: str) -> str:
        """Return what the values of a stream are compared with."""
        own = self.streams.get(stream)
        return self.baseline if own is None or own.baseline is None else own.baseline

    def compute(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score], before: Baselines
    ) -> Advantages:
        """Return the advantages of each turn; there are no running baselines."""
        pools: dict[tuple[str, str, Baseline, Hashable], list[Member]] = defaultdict(list)
        by_prompt = "prompt" in {self.baseline, *(one.baseline for one in self.streams.values())}
        for index, (transcript, score) in enumerate(zip(transcripts, scores, strict=True)):
            turns = transcript.turns if by_prompt else ()
            prompts = {turn.key: _prompt(index, turn) for turn in turns}
            for member in members(index, transcript, score):
                stream = self.streams.get(member.stream)
                if stream is not None and stream.weight != 0:
                    baseline = stream.baseline or ("none" if member.centred else self.baseline)
                    group = _group(baseline, transcript.question.id, member, prompts)
                    pools[member.component, member.stream, baseline, group].append(member)
        result: list[TurnAdvantages] = [{} for _ in transcripts]
        for (_, _, baseline, _), pool in pools.items():
            for member, advantages in self._compare(pool, baseline):
                for turn in member.turns:
                    result[member.debate].setdefault(turn, []).extend(advantages)
        found = [{turn: sum_equal(own) for turn, own in one.items()} for one in result]
        left_out = [self._zeros(one, own) for one, own in zip(transcripts, found, strict=True)]
        return Advantages(found, left_out=left_out)

    def _zeros(self, transcript: Transcript, found: TurnAdvantages) -> frozenset[TurnKey]:
        keys = (t.key for t in transcript.turns if t.round in self.leave_out_zeros)
        return frozenset(k for k in keys if not any(a.value for a in found.get(k, ())))

    def _compare(
        self, group: "Sequence[Member]", baseline: Baseline
    ) -> "list[tuple[Member, list[Advantage]]]":
        valued = [m for m in group if m.value is not None]
        values = [m.value for m in valued if m.value is not None]
        if any(m.penalty for m in valued):
            values += [0.0] * sum(m.value is None and m.expected for m in group)
        if not valued:
            return []
        single = len(values) == 1 and baseline != "none"
        mean = _mean(values) if baseline != "none" else 0.0
        factor = 0.0 if single else 1.0
        if self.scale == "std" and not single:
            spread = stdev(values) if len(values) > 1 else 0.0
            factor = 1.0 / (spread + STD_EPSILON) if spread > 0 else 0.0
        return [(m, m.advantages(mean, factor)) for m in valued]


def _group(
    baseline: Baseline, question: str, member: Member, prompts: Mapping[TurnKey, Hashable]
) -> Hashable:
    first = member.turns[0] if member.turns else None
    if baseline == "question_round":
        return (question, 0 if first is None else first.round)
    if baseline == "prompt":
        # What an agent that never spoke would have been asked is not known: it stands alone.
        alone = (member.debate, first, member.credits[0].agent)
        return (question, alone if first is None else prompts.get(first, alone))
    return member.debate if baseline == "debate" else None


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


class RoleEma(AdvantageConfig):
    """Takes off what the role earned lately: A = R − b, after b ← decay·b + (1 − decay)·R.

    Each role of a debate has a baseline of its own in each stream and component, 0 at the start of
    a phase; agents of one role share it. Values count in the order of debates. Where roles differ
    in what they can win, as in games that one side wins more often, the mean of a group would
    credit a role with its luck.

    Source: role-conditioned advantage estimation of Liu et al. 2025, SPIRAL (arXiv 2506.24119),
    section 3.2; there the decay is 0.95.
    """

    type: Literal["role_ema"] = "role_ema"
    decay: float = Field(0.95, ge=0, lt=1)
    """Share of the old baseline that stays at each value."""

    def baseline_of(self, stream: str) -> str:
        """Return that values are compared with those before."""
        return "role"

    def compute(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score], before: Baselines
    ) -> Advantages:
        """Return the advantages of each turn, and the baselines after them."""
        baselines = dict(before)
        result: list[dict[TurnKey, list[Advantage]]] = [defaultdict(list) for _ in transcripts]
        for index, (transcript, score) in enumerate(zip(transcripts, scores, strict=True)):
            for member in members(index, transcript, score):
                stream = self.streams.get(member.stream)
                if stream is None or stream.weight == 0 or member.value is None:
                    continue
                role = role_of(transcript.protocol, member.credits[0].agent)
                parts = (member.component, member.stream, role.name)
                name = "/".join(filter(None, parts))
                kept = self.decay * baselines.get(name, 0.0) + (1 - self.decay) * member.value
                baselines[name] = kept
                for turn in member.turns:
                    result[index][turn] += member.advantages(kept, 1.0)
        turns: list[TurnAdvantages] = [
            {turn: sum_equal(found) for turn, found in one.items()} for one in result
        ]
        return Advantages(turns, baselines)


ADVANTAGES: Variants[AdvantageConfig] = Variants(
    "debate_train.advantages", AdvantageConfig, Grouped, RoleEma
)
"""All advantages, those of other installed packages included."""

AdvantageChoice = Annotated[AdvantageConfig, ADVANTAGES]
"""Any advantage; recipes choose by `type`."""
