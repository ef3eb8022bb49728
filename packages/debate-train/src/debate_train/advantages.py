"""From credits to advantages: baselines, scales and the weights of streams."""

import math
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeInt, model_validator

from debate_protocol.plugins import Config, Variants
from debate_protocol.types import VERDICT, Transcript, Turn, TurnKey, is_trained_on, role_of
from debate_rewards.group_advantages import STD_EPSILON, group_mean, std_factor
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

RETURN = "return"
"""The stream that is per agent: an agent's value holds for all its turns."""
JUDGING = ("comparison", "consensus", "consensus_reason", "decision", VERDICT)
SECTIONS: Mapping[str, tuple[str, ...]] = {"judge": JUDGING, "critic": ("evaluation",)}
"""Sections of these streams by default; `generator` takes all but the judge's, others take all."""
METRIC = "advantage/baseline/"
ZERO = "advantage/zero/"
# Shares written in decimals, such as three of 0.3 and one of 0.1, add up to 1 but for rounding.
SHARE_TOLERANCE = 1e-9

Baseline = Literal["debate", "question_round", "prompt", "batch", "none"]
"""Whose mean is taken off: the debate's, of turns of one question and round, one prompt, or all."""
Scale = Literal["none", "std"]
Baselines = Mapping[str, float]
"""Running baselines of a stateful advantage, by name."""


class Stream(Config):
    """Where one stream's values go and how much they weigh."""

    weight: float = 1.0
    """λ of the stream; 0 leaves it out."""
    share: float | None = Field(None, gt=0, le=1)
    """Part of each step's gradient, as a share of Σ w·|A|; null leaves what `weight` makes it."""
    sections: tuple[str, ...] | dict[str, float] | None = None
    """Sections, or each with a weight of its own; None takes the default of the stream's name."""
    baseline: Baseline | None = None
    """Whose mean is taken off; None takes the advantage's own."""

    def section_weights(self, name: str, sections: Iterable[str]) -> dict[str, float | None]:
        """Look up the weight of sections' tokens in a stream of this name; `None`: not covered."""
        selection = SECTIONS.get(name) if self.sections is None else self.sections
        if isinstance(selection, dict):
            return {section: selection.get(section) for section in sections}
        weights: dict[str, float | None] = {}
        for section in sections:
            if selection is None:
                # All sections, except that judging is not a generator's work.
                is_covered = name != "generator" or section not in JUDGING
            else:
                is_covered = section in selection
            weights[section] = 1.0 if is_covered else None
        return weights


@dataclass(frozen=True, slots=True)
class Advantage:
    """One advantage of one turn, already weighted by its reward component.

    `span` is a character range of the turn's text, or `None` for the rest of the stream's sections.
    A span replaces the rest of its own component only; components add up.
    """

    stream: str
    value: float
    span: tuple[int, int] | None = None
    component: str = ""


TurnAdvantages = dict[TurnKey, list[Advantage]]


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
        """Refuse baselines that are not finite, with which the next step could not go on."""
        for name, value in self.baselines.items():
            if not math.isfinite(value):
                raise ScoreError(
                    f"advantage: found {value} as baseline {name!r}; expected a number"
                )

    def trained_turns(self, transcripts: Sequence[Transcript]) -> list[Transcript]:
        """Remove the turns left out.

        Turns left out do not count toward denominators, minibatches or penalties. Later prompts
        still contain them.
        """
        if not any(self.left_out):
            return list(transcripts)
        trained = []
        for transcript, left_out in zip(transcripts, self.left_out, strict=True):
            turns = tuple(turn for turn in transcript.turns if turn.key not in left_out)
            trained.append(replace(transcript, turns=turns))
        return trained

    def metrics(self, transcripts: Sequence[Transcript]) -> dict[str, float]:
        """Collect the baselines, and the shares of turns without a signal, by cause.

        - `advantage/zero/share`: turns of trained agents with all advantages 0 or absent, the sum
          of the three below.
        - `advantage/zero/no_value`: no stream of non-zero weight has a value for the turn.
        - `advantage/zero/no_contrast`: all turns of the question are worth the same, as where all
          answers are right, or all wrong.
        - `advantage/zero/at_baseline`: other turns of the question have an advantage, and the
          turn's value equals its baseline.
        """
        metrics = {f"{METRIC}{name}": value for name, value in self.baselines.items()}
        trained_turns: list[tuple[str, Sequence[Advantage]]] = []
        informative_questions: set[str] = set()
        for transcript, debate_advantages in zip(transcripts, self.turns, strict=True):
            question = transcript.question.id
            for turn in transcript.turns:
                if not is_trained_on(transcript.protocol, turn.agent):
                    continue
                turn_advantages = debate_advantages.get(turn.key, [])
                trained_turns.append((question, turn_advantages))
                if has_signal(turn_advantages):
                    informative_questions.add(question)
        if not trained_turns:
            return metrics

        num_turns = {"no_value": 0, "no_contrast": 0, "at_baseline": 0}
        for question, advantages in trained_turns:
            if has_signal(advantages):
                continue
            if not advantages:
                num_turns["no_value"] += 1
            elif question in informative_questions:
                num_turns["at_baseline"] += 1
            else:
                num_turns["no_contrast"] += 1
        metrics[f"{ZERO}share"] = sum(num_turns.values()) / len(trained_turns)
        for cause, count in num_turns.items():
            metrics[f"{ZERO}{cause}"] = count / len(trained_turns)
        return metrics


def has_signal(advantages: Iterable[Advantage]) -> bool:
    """Whether any advantage differs from 0."""
    return any(advantage.value for advantage in advantages)


class AdvantageConfig(Config):
    """The base class of advantages: a field `type` and `compute`.

    `compute` is a function of its arguments alone: running baselines are handed back, kept with the
    step and by checkpoints, and handed in at the next step.
    """

    type: str = ""
    """The name by which recipes choose it."""
    streams: dict[str, Stream] = Field(
        default_factory=lambda: {
            name: Stream() for name in ("generator", "judge", "return", "critic")
        }
    )
    """Names of the reward's streams to their weights and sections; others are left out."""

    @model_validator(mode="after")
    def _check_shares(self) -> Self:
        if sum(self.shares.values()) > 1 + SHARE_TOLERANCE:
            listed = ", ".join(f"{name} {share:g}" for name, share in self.shares.items())
            raise ValueError(f"streams: found shares {listed}; expected at most 1 in all")
        return self

    @property
    def shares(self) -> dict[str, float]:
        """The shares of the gradient that trained streams are set to."""
        shares = {}
        for name, stream in self.streams.items():
            if stream.share is not None and stream.weight != 0:
                shares[name] = stream.share
        return shares

    @abstractmethod
    def compute(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score], before: Baselines
    ) -> Advantages:
        """Compute the advantages of each turn, and the baselines for the next step.

        Args:
            transcripts: The debates of a step.
            scores: The reward's scores of the debates, in order.
            before: The baselines after the phase's last step, empty at its first.
        """

    def baseline_of(self, stream: str) -> str:
        """Name the values that a stream's values are compared with, as `Baseline` does."""
        return "none"

    def __call__(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score]
    ) -> list[TurnAdvantages]:
        """Compute the advantages of each turn at a first step, a mapping for each transcript."""
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
        """The mean credit of whole turns, else the mean credit of spans; `None` without any."""
        turn_values: list[float] = []
        span_values: list[float] = []
        for credit in self.credits:
            if credit.value is None:
                continue
            if credit.span is None:
                turn_values.append(credit.value)
            else:
                span_values.append(credit.value)
        # Spans are parts of the turn: beside a value of the whole turn they would count twice.
        values = turn_values or span_values
        return fmean(values) if values else None

    @property
    def penalty(self) -> bool:
        """Whether a credit was given for a failure or a missing part."""
        return any(credit.penalty for credit in self.credits)

    @property
    def expected(self) -> bool:
        """Whether it would normally have a value."""
        return any(credit.expected for credit in self.credits)

    @property
    def centred(self) -> bool:
        """Whether no baseline is taken off by default."""
        return all(credit.centred for credit in self.credits)

    def advantages(self, mean: float, factor: float) -> list[Advantage]:
        """Compute (value - mean) · factor · weight of each credit."""
        advantages = []
        for credit in self.credits:
            if credit.value is not None:
                value = (credit.value - mean) * factor * credit.weight
            elif credit.span is not None:
                # Absent, the span would take the value of the whole turn.
                value = 0.0
            else:
                continue
            advantages.append(Advantage(self.stream, value, credit.span, self.component))
        return advantages


def members(debate: int, transcript: Transcript, score: Score) -> list[Member]:
    """List the members of a debate; in stream `return` an agent is one member, not each turn."""
    credits_of: dict[tuple[str, str, int, int], list[Credit]] = defaultdict(list)
    for credit in score.credits:
        # Not the round for a return: the agent's turns would otherwise be members one by one, and
        # an agent with more turns would weigh more in the mean.
        round_key = -1 if credit.stream == RETURN else credit.round
        member_key = (credit.component, credit.stream, credit.agent, round_key)
        credits_of[member_key].append(credit)
    members = []
    for (component, stream, _, _), credits in credits_of.items():
        # Without repetition: a turn has a credit for each of its spans.
        turns = dict.fromkeys(TurnKey(credit.agent, credit.round) for credit in credits)
        if stream == RETURN:
            # Every turn of the agent repeats the same return; its penalty may be in any of them.
            was_penalized = any(credit.penalty for credit in credits)
            credits = [replace(credits[0], penalty=was_penalized)]
        member = Member(
            debate=debate,
            turns=tuple(turns),
            stream=stream,
            component=component,
            credits=tuple(credits),
        )
        members.append(member)
    return members + _silent_agents(debate, transcript, score)


def _silent_agents(debate: int, transcript: Transcript, score: Score) -> list[Member]:
    """List the agents that never spoke as members of each component's stream `return`."""
    # Reversed: the first credit of a component is the one that remains.
    return_credits = {c.component: c for c in reversed(score.credits) if c.stream == RETURN}
    speakers = {turn.agent for turn in transcript.turns}
    speakers |= {credit.agent for credit in score.credits}
    silent_agents = set(range(transcript.protocol.num_agents)) - speakers
    members = []
    for component, example in return_credits.items():
        returns = score.returns_of(component)
        for agent in silent_agents:
            # A reward may give no return to an agent without turns: then its return is 0.
            agent_return = 0.0
            if agent < len(returns):
                agent_return = returns[agent] or 0.0
            credit = replace(example, agent=agent, value=agent_return, penalty=False, span=None)
            member = Member(
                debate=debate,
                turns=(),
                stream=RETURN,
                component=component,
                credits=(credit,),
            )
            members.append(member)
    return members


def sum_equal(advantages: Sequence[Advantage]) -> list[Advantage]:
    """Add up the advantages of one turn with equal stream, component and span."""
    totals: dict[tuple[str, tuple[int, int] | None, str], float] = defaultdict(float)
    for advantage in advantages:
        key = (advantage.stream, advantage.span, advantage.component)
        totals[key] += advantage.value
    summed = []
    for (stream, span, component), total in totals.items():
        summed.append(Advantage(stream, total, span, component))
    return summed


class Grouped(AdvantageConfig):
    """Centres and scales credits.

    Values compare within a group: the debate (`debate`), turns of one question and round
    (`question_round`), turns that answer one and the same prompt (`prompt`), or the whole `batch`.
    Members of a group are turns with a value; a single member gets 0. If a member carries a
    penalty, turns that were expected to have a value but have none join the mean as 0 and get no
    gradient: otherwise a lone penalty would centre itself away. Credits that are `centred` already
    keep their values unless their stream names a `baseline`.

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
        """Name the values that a stream's values are compared with."""
        settings = self.streams.get(stream)
        if settings is None or settings.baseline is None:
            return self.baseline
        return settings.baseline

    def compute(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score], before: Baselines
    ) -> Advantages:
        """Compute the advantages of each turn; there are no running baselines."""
        groups: dict[tuple[str, str, Baseline, Hashable], list[Member]] = defaultdict(list)
        # Keys of prompts hold whole conversations: built only where some stream compares them.
        baselines = [self.baseline, *(stream.baseline for stream in self.streams.values())]
        compares_prompts = "prompt" in baselines
        for debate, (transcript, score) in enumerate(zip(transcripts, scores, strict=True)):
            prompts: dict[TurnKey, Hashable] = {}
            if compares_prompts:
                prompts = {turn.key: _prompt_key(debate, turn) for turn in transcript.turns}
            for member in members(debate, transcript, score):
                stream = self.streams.get(member.stream)
                if stream is None or stream.weight == 0:
                    continue
                # A baseline that the stream names comes before what the reward says of a credit.
                default_baseline = "none" if member.centred else self.baseline
                baseline = stream.baseline or default_baseline
                group = _group_key(baseline, transcript.question.id, member, prompts)
                group_key = (member.component, member.stream, baseline, group)
                groups[group_key].append(member)

        advantages: list[TurnAdvantages] = [{} for _ in transcripts]
        for (_, _, baseline, _), group_members in groups.items():
            mean, factor = self._center_and_factor(group_members, baseline)
            for member in group_members:
                if member.value is None:
                    continue
                for key in member.turns:
                    turn_advantages = advantages[member.debate].setdefault(key, [])
                    turn_advantages.extend(member.advantages(mean, factor))
        # A turn may have several credits of one stream and component.
        for debate_advantages in advantages:
            for key, turn_advantages in debate_advantages.items():
                debate_advantages[key] = sum_equal(turn_advantages)
        left_out = list(map(self._zero_turns, transcripts, advantages))
        return Advantages(advantages, left_out=left_out)

    def _zero_turns(self, transcript: Transcript, advantages: TurnAdvantages) -> frozenset[TurnKey]:
        """Find the turns without a signal in the rounds of `leave_out_zeros`."""
        keys = [turn.key for turn in transcript.turns if turn.round in self.leave_out_zeros]
        return frozenset(key for key in keys if not has_signal(advantages.get(key, ())))

    def _center_and_factor(
        self, group: Sequence[Member], baseline: Baseline
    ) -> tuple[float, float]:
        """Compute the mean and the factor of A = (value - mean) · factor in one group."""
        values: list[float] = []
        has_penalty = False
        num_expected_without_value = 0
        for member in group:
            if member.value is not None:
                values.append(member.value)
                has_penalty = has_penalty or member.penalty
            elif member.expected:
                num_expected_without_value += 1
        # A lone penalty would be its own mean. Valid turns without a value, from which one was
        # expected, join as 0, so that the penalty stays below the mean.
        if has_penalty:
            values += [0.0] * num_expected_without_value
        if not values:
            return 0.0, 0.0
        mean = 0.0
        if baseline != "none":
            mean = group_mean(values)
            if len(values) == 1:
                return mean, 0.0  # A single member has nobody to be compared with.
        if self.scale == "none":
            return mean, 1.0
        return mean, std_factor(values)


def _group_key(
    baseline: Baseline, question: str, member: Member, prompts: Mapping[TurnKey, Hashable]
) -> Hashable:
    first_turn = member.turns[0] if member.turns else None
    if baseline == "question_round":
        # A return has no round of its own; the round of the agent's first turn counts.
        round = 0 if first_turn is None else first_turn.round
        return (question, round)
    if baseline == "prompt":
        # The prompt of an agent that never spoke is not known: the agent is a group of its own.
        unique_key = (member.debate, first_turn, member.credits[0].agent)
        if first_turn is None:
            return (question, unique_key)
        return (question, prompts.get(first_turn, unique_key))
    if baseline == "debate":
        return member.debate
    return None


def _prompt_key(debate: int, turn: Turn) -> Hashable:
    if turn.prompt is not None:
        return tuple((message["role"], message["content"]) for message in turn.prompt)
    if turn.reply is not None and turn.reply.prompt_ids:
        return turn.reply.prompt_ids
    # Without any prompt, as in imported transcripts, the turn equals no other.
    return (debate, turn.key)


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
        """Name the role's earlier values."""
        return "role"

    def compute(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score], before: Baselines
    ) -> Advantages:
        """Compute the advantages of each turn, and the baselines after them."""
        baselines = dict(before)
        advantages: list[TurnAdvantages] = []
        for debate, (transcript, score) in enumerate(zip(transcripts, scores, strict=True)):
            debate_advantages: TurnAdvantages = defaultdict(list)
            for member in members(debate, transcript, score):
                stream = self.streams.get(member.stream)
                value = member.value
                if stream is None or stream.weight == 0 or value is None:
                    continue
                role = role_of(transcript.protocol, member.credits[0].agent)
                # Rewards without components, and forms without named roles, leave parts empty.
                name_parts = (member.component, member.stream, role.name)
                name = "/".join(part for part in name_parts if part)
                # The paper updates first: the advantage is against the new baseline.
                old_baseline = baselines.get(name, 0.0)
                baseline = self.decay * old_baseline + (1 - self.decay) * value
                baselines[name] = baseline
                for turn in member.turns:
                    debate_advantages[turn] += member.advantages(mean=baseline, factor=1.0)
            advantages.append({key: sum_equal(each) for key, each in debate_advantages.items()})
        return Advantages(advantages, baselines)


ADVANTAGES: Variants[AdvantageConfig] = Variants(
    "debate_train.advantages", AdvantageConfig, Grouped, RoleEma
)
"""All advantages, those of other installed packages included."""

AdvantageChoice = Annotated[AdvantageConfig, ADVANTAGES]
"""Any advantage; recipes choose by `type`."""
