"""Values compared within groups: the mean of a group is taken off."""

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from statistics import fmean, stdev
from typing import ClassVar, Literal

from pydantic import NonNegativeInt

from debate_protocol.types import Transcript, Turn, TurnKey
from debate_rewards.credits import Score
from debate_train.advantages.advantage import (
    RENAMED,
    Advantage,
    AdvantageConfig,
    Baseline,
    Baselines,
    Compared,
    TurnAdvantages,
)
from debate_train.advantages.members import Member, members, sum_equal

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

    renamed: ClassVar[Mapping[str, str]] = RENAMED

    type: Literal["grouped"] = "grouped"
    baseline: Baseline = "question_round"
    """Whose mean is taken off a value: that of the debate, of the turns of one question and
    round, of the turns that answer one prompt, of the whole batch, or nobody's."""
    scale: Scale = "none"
    """`std` divides by the group's standard deviation (n-1) + 1e-6; a group without spread is 0."""
    leave_out_zeros: tuple[NonNegativeInt, ...] = ()
    """Rounds, from 0, whose turns leave the batch where their advantage is 0: they count in no
    denominator and no minibatch. SDRL leaves out second turns, `[1]` (5.2)."""

    def baseline_of(self, stream: str) -> str:
        """Return what the values of a stream are compared with."""
        own = self.streams.get(stream)
        return self.baseline if own is None or own.baseline is None else own.baseline

    def compare(
        self, transcripts: Sequence[Transcript], scores: Sequence[Score], before: Baselines
    ) -> Compared:
        """Return the advantages of each turn; there are no running baselines."""
        pools: dict[tuple[str, str, Baseline, Hashable], list[Member]] = defaultdict(list)
        for index, (transcript, score) in enumerate(zip(transcripts, scores, strict=True)):
            prompts = {turn.key: _prompt(index, turn) for turn in transcript.turns}
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
        turns = [{turn: sum_equal(found) for turn, found in own.items()} for own in result]
        left_out = [self._zeros(one, own) for one, own in zip(transcripts, turns, strict=True)]
        return Compared(turns, left_out=left_out)

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
