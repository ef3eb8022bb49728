"""All rewards by name, for configuration files, and those that are made of others."""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from debate_protocol.plugins import Config, Variants
from debate_protocol.types import Transcript
from debate_rewards.answer_checking import answer_classes
from debate_rewards.answer_rewards import (
    Majority,
    MajorityJudge,
    TruthJudge,
    Verifiable,
    has_known_kind,
)
from debate_rewards.conl import ConlReward
from debate_rewards.judged import JudgedReward
from debate_rewards.reward import (
    Credit,
    FunctionReward,
    ReadDebate,
    Requirement,
    RewardConfig,
    RewardContext,
    Score,
    mean_returns,
    read_debate,
    score_debates,
)
from debate_rewards.turn_rewards import Certainty, Overlong, PartialTrajectory, Persuasion
from debate_rewards.v2 import V2
from debate_rewards.vote_rewards import BradleyTerry, WinMinusLoss, WinRate
from debate_rewards.votes import all_votes, ballots, by_pair

# Rewards that can be a part of a mixed one.
SINGLE_REWARDS: Variants[RewardConfig] = Variants(
    "debate_rewards.rewards", RewardConfig, V2, WinRate, WinMinusLoss, BradleyTerry, Verifiable,
    TruthJudge, Majority, MajorityJudge, Certainty, Persuasion, Overlong, PartialTrajectory,
    ConlReward,
    JudgedReward, of=FunctionReward.of,
)  # fmt: skip
SingleReward = Annotated[RewardConfig, SINGLE_REWARDS]


class Fading(Config):
    """A weight that changes evenly from `start` to `end` over the first steps of a phase."""

    start: float
    """Weight at the first step."""
    end: float = 0.0
    """Weight from the last of `steps` on."""
    steps: int = Field(ge=1)
    """The weight is `start` at the phase's first step and `end` from this many steps later on."""

    def at(self, step: int) -> float:
        """Return the weight at a step of the phase, counted from 0."""
        done = min(step, self.steps)
        return (self.start * (self.steps - done) + self.end * done) / self.steps


class Component(Config):
    """A part of a mixed reward and how much it counts, always or for a while."""

    reward: SingleReward
    """The part's reward."""
    weight: float | Fading
    """How much it counts: a number, or `{start, end, steps}` for one that changes."""

    def weight_at(self, step: int) -> float:
        """Return the weight at a step of the phase, counted from 0."""
        return self.weight.at(step) if isinstance(self.weight, Fading) else self.weight


class Mixed(RewardConfig):
    """Several rewards together, as a named mapping.

    `mix: advantages` keeps the components apart: each credit carries its component's name and
    weight, to be centred over that component's values and then summed. `mix: rewards` adds the
    weighted raw values per turn and stream; None adds 0, and all None stays None.

    A weight `{start: 0.5, end: 0, steps: 100}` fades: `at` makes the reward of a step, whose scores
    have that weight as the metric `reward/weight/NAME`. Without `at` it is the reward of step 0.

    Source: multi-agent debate overview, section 5.1 (0.7 peers + 0.3 correctness).
    """

    is_changing: ClassVar[bool] = True

    type: Literal["mixed"] = "mixed"
    components: dict[str, Component] = Field(min_length=1)
    """Names to rewards and their weights."""
    mix: Literal["advantages", "rewards"] = "advantages"
    """Whether weighted `advantages` are added, each of its own reward, or `rewards` before that."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        named = [name for part in self.parts().values() for name in part.streams]
        return tuple(dict.fromkeys(named))

    @property
    def adds_advantages(self) -> bool:
        """Whether its parts are compared apart."""
        return self.mix == "advantages"

    def parts(self) -> Mapping[str, RewardConfig]:
        """Return the rewards of the components."""
        return {name: component.reward for name, component in self.components.items()}

    def part_weights(self) -> Mapping[str, float]:
        """Return the weights of the components; of one that changes the first that is not 0."""
        return {
            name: one.weight_at(0) or (one.weight.end if isinstance(one.weight, Fading) else 0.0)
            for name, one in self.components.items()
        }

    def at(self, step: int) -> Self:
        """Return the reward of a step of the phase, counted from 0."""
        fading = self._fading()
        if not fading:
            return self
        now = {
            name: self.components[name].model_copy(
                update={"weight": Fading(start=weight.at(step), end=weight.at(step), steps=1)}
            )
            for name, weight in fading.items()
        }
        return self.model_copy(update={"components": {**self.components, **now}})

    def changes(self) -> list[str]:
        """Return which weights change, and how."""
        return [
            f"reward.components.{name}.weight: from {one.start:g} to {one.end:g} over the phase's "
            f"first {one.steps:,} steps"
            for name, one in self._fading().items()
        ]

    def _fading(self) -> dict[str, Fading]:
        named = ((name, one.weight) for name, one in self.components.items())
        return {name: weight for name, weight in named if isinstance(weight, Fading)}

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        names = list(self.components)
        columns = [score_debates(self.components[name].reward, transcripts) for name in names]
        return [
            self._combine(dict(zip(names, row, strict=True))) for row in zip(*columns, strict=True)
        ]

    def _combine(self, scores: Mapping[str, Score]) -> Score:
        weights = {name: self.components[name].weight_at(0) for name in scores}
        credits = [
            replace(credit, component=name, weight=weights[name])
            for name, score in scores.items()
            for credit in score.credits
        ]
        if self.mix == "rewards":
            credits = _add_raw(credits)
        num_agents = max(len(score.agents) for score in scores.values())
        agents = tuple(
            weighted_sum([(score.agents[agent], weights[name]) for name, score in scores.items()])
            for agent in range(num_agents)
        )
        returns = {
            name: score.returns_of()
            for name, score in scores.items()
            if any(credit.stream == "return" for credit in score.credits)
        }
        if self.mix == "rewards":
            # Also of agents that never spoke.
            parts = [(own, weights[name]) for name, own in returns.items()]
            returns = {
                "": tuple(
                    weighted_sum(
                        [(own[agent], weight) for own, weight in parts if agent < len(own)]
                    )
                    for agent in range(num_agents)
                )
            }
        metrics = {f"reward/weight/{name}": weights[name] for name in self._fading()}
        return Score(tuple(credits), agents, _merge_metrics(scores) | metrics, returns)


def weighted_sum(values: Sequence[tuple[float | None, float]]) -> float | None:
    """Return Σ weight·value, where None adds 0; None when every value is None."""
    known = [value * weight for value, weight in values if value is not None]
    return sum(known) if known else None


def _add_raw(credits: Sequence[Credit]) -> list[Credit]:
    groups: dict[tuple[object, ...], list[Credit]] = {}
    for credit in credits:
        place = (credit.agent, credit.round, credit.stream, credit.span)
        groups.setdefault(place, []).append(credit)
    return [
        replace(
            group[0],
            value=weighted_sum([(credit.value, credit.weight) for credit in group]),
            penalty=any(credit.penalty for credit in group),
            expected=any(credit.expected for credit in group),
            centred=all(credit.centred for credit in group),
            component="",
            weight=1.0,
        )
        for group in groups.values()
    ]


def _merge_metrics(scores: Mapping[str, Score]) -> dict[str, float]:
    """Return all metrics; those that several components share have a prefix each."""
    merged: dict[str, float] = {}
    for name, score in scores.items():
        for key, value in score.metrics.items():
            shared = sum(key in other.metrics for other in scores.values()) > 1
            merged[f"{name}/{key}" if shared else key] = value
    return merged


class Labelled(RewardConfig):
    """The truth on a share of the questions, and votes or another reward on the others.

    `by` says which questions are labelled. `random`: each with probability `share`, by a hash of
    its id, so that a question is labelled whenever it comes, or never. `votes` and `answers`: of
    the questions of a batch the round(share · number) on which judges or first answers disagree
    the most, equal ones by that hash:

        votes     mean over judged pairs of turns of 1 − Σ f(v)², f(v) the share of verdict v
        answers   1 − Σ f(c)², f(c) the share of answer c among the turns of round 0

    the chance that two drawn with replacement differ; a question without any has 0. All debates
    on a question are pooled.

    On labelled questions `truth` gives the values, and `rest` those of streams that `truth` does
    not have; on the others `rest` gives all. `truth` is called with labelled questions alone, so
    answers of others are not looked at.
    """

    can_be_tried: ClassVar[bool] = True

    type: Literal["labelled"] = "labelled"
    share: float = Field(ge=0, le=1)
    """Share of the questions that are labelled."""
    by: Literal["random", "votes", "answers"] = "random"
    """Which are: by a hash, or those on which `votes` or first `answers` disagree the most."""
    truth: SingleReward = Verifiable()
    """Reward of debates on labelled questions."""
    rest: SingleReward
    """Reward of debates on the others, and of streams that `truth` does not have."""
    seed: int = 0
    """Of the hash that draws questions."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return tuple(dict.fromkeys((*self.truth.streams, *self.rest.streams)))

    @property
    def least_questions(self) -> int:
        """The fewest questions of a batch with which every stream has values."""
        return self.rest.least_questions

    def needed(self) -> frozenset[Requirement]:
        """Return what must be there; answers only where some questions are labelled."""
        return self.rest.needed() | (self.truth.needed() if self.share > 0 else frozenset())

    def why_no_signal(self, stream: str, context: RewardContext) -> str | None:
        """Return why no turn has a value in a stream."""
        part = self.truth if self.share > 0 and stream in self.truth.streams else self.rest
        return part.why_no_signal(stream, context)

    def few_judges(self, context: RewardContext) -> str | None:
        """Return why judges are too few for their stream to teach much."""
        return self.rest.few_judges(context)

    def warnings(self, context: RewardContext) -> list[str]:
        """Return what should be looked at."""
        return [*self.truth.warnings(context), *self.rest.warnings(context)]

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        chosen = self.labelled(transcripts)
        known = [one for one in transcripts if one.question.id in chosen]
        truths = iter(self.truth(known))
        return [
            self._joined(next(truths), score, one.protocol.num_agents)
            if one.question.id in chosen
            else Score(score.credits, score.agents, {**score.metrics, "labelled/share": 0.0})
            for one, score in zip(transcripts, self.rest(transcripts), strict=True)
        ]

    def labelled(self, transcripts: Sequence[Transcript]) -> set[str]:
        """Return the ids of the questions of a batch that are labelled."""
        ids = list(dict.fromkeys(one.question.id for one in transcripts))
        if self.by == "random":
            return {name for name in ids if self._drawn(name) < self.share}
        debates: dict[str, list[ReadDebate]] = {name: [] for name in ids}
        for one in transcripts:
            debates[one.question.id].append(read_debate(one))
        measure = _split_votes if self.by == "votes" else _split_answers
        split = {name: measure(debates[name]) for name in ids}
        ids.sort(key=lambda name: (-split[name], self._drawn(name)))
        return set(ids[: round(self.share * len(ids))])

    def _drawn(self, name: str) -> float:
        digest = hashlib.sha256(f"{self.seed}/{name}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64

    def _joined(self, truth: Score, rest: Score, num_agents: int) -> Score:
        own = [one for one in rest.credits if one.stream not in self.truth.streams]
        credits = (*truth.credits, *own)
        metrics = {**rest.metrics, **truth.metrics, "labelled/share": 1.0}
        return Score(credits, mean_returns(credits, num_agents), metrics)


def _split(values: Iterable[Hashable]) -> float:
    counts = Counter(values)
    total = sum(counts.values())
    return 1 - sum((count / total) ** 2 for count in counts.values()) if total else 0.0


def _split_votes(debates: Sequence[ReadDebate]) -> float:
    pairs = [
        _split(vote.verdict for vote in votes)
        for debate in debates
        for votes in by_pair(all_votes(ballots(debate))).values()
    ]
    return sum(pairs) / len(pairs) if pairs else 0.0


def _split_answers(debates: Sequence[ReadDebate]) -> float:
    question = debates[0].transcript.question
    if not has_known_kind(question):
        return 0.0
    turns = [t for debate in debates for key, t in debate.turns.items() if key.round == 0]
    said = [turn.parsed.answer for turn in turns if not turn.failed]
    return _split(one for one in answer_classes(question, said) if one is not None)


# All rewards, those of other installed packages included.
REWARDS: Variants[RewardConfig] = Variants(
    "debate_rewards.rewards",
    RewardConfig,
    *SINGLE_REWARDS.models,
    Mixed,
    Labelled,
    of=FunctionReward.of,
)

# Any reward; `type` names it.
RewardChoice = Annotated[RewardConfig, REWARDS]


def get_reward(name: str, **settings: object) -> RewardConfig:
    """Return the reward of this `type` with these settings.

    Raises:
        ValueError: No reward has this name, the message names the nearest one; or (pydantic's
            ValidationError) a setting is unknown or does not fit.
    """
    try:
        return REWARDS.make(name, settings)
    except KeyError as error:
        raise ValueError(f"reward: {error.args[0]}") from error
