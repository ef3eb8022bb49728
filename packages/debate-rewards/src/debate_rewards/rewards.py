"""All rewards by name, for configuration files, and rewards made of other rewards."""

import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import Field

from debate_protocol.plugins import Config, Variants
from debate_protocol.types import Transcript, TurnKey, parse_turn
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
from debate_rewards.learnability import Learnability
from debate_rewards.reward import (
    Credit,
    FunctionReward,
    ReadDebate,
    RewardConfig,
    RewardContext,
    RewardNeeds,
    RewardNote,
    RewardPart,
    Score,
    mean_returns,
    read_debate,
    score_debates,
)
from debate_rewards.turn_rewards import Certainty, Overlong, PartialTrajectory, Persuasion
from debate_rewards.v2 import V2
from debate_rewards.vote_rewards import BradleyTerry, WinMinusLoss, WinRate
from debate_rewards.votes import JUDGE, all_votes, ballots, by_pair

# Rewards that can be a part of a mixed one.
SINGLE_REWARDS: Variants[RewardConfig] = Variants(
    "debate_rewards.rewards", RewardConfig,
    V2, WinRate, WinMinusLoss, BradleyTerry,
    Verifiable, TruthJudge, Majority, MajorityJudge,
    Certainty, Persuasion, Overlong, PartialTrajectory,
    ConlReward, JudgedReward, Learnability,
    of=FunctionReward.of,
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
        """Compute the weight at a step of the phase, counted from 0."""
        num_faded = min(step, self.steps)
        num_left = self.steps - num_faded
        return (self.start * num_left + self.end * num_faded) / self.steps


class Component(Config):
    """A part of a mixed reward and how much it counts, always or for a while."""

    reward: SingleReward
    """The part's reward."""
    weight: float | Fading
    """How much it counts: a number, or `{start, end, steps}` for one that changes."""

    def weight_at(self, step: int) -> float:
        """Compute the weight at a step of the phase, counted from 0."""
        return self.weight.at(step) if isinstance(self.weight, Fading) else self.weight


class Mixed(RewardConfig):
    """Several rewards together, as a named mapping.

    `mix: advantages` keeps the components apart: each credit carries its component's name and
    weight, to be centred over that component's values and then summed. `mix: rewards` adds the
    weighted raw values per turn and stream; `None` adds 0, and all `None` stays `None`. The value
    of a range takes the place of its own component's value of the turn, and of no other's.

    A weight `{start: 0.5, end: 0, steps: 100}` fades: `at` makes the reward of a step, whose scores
    have that weight as the metric `reward/weight/NAME`. Without `at` it is the reward of step 0.

    Source: multi-agent debate overview, section 5.1 (0.7 peers + 0.3 correctness).
    """

    type: Literal["mixed"] = "mixed"
    components: dict[str, Component] = Field(min_length=1)
    """Names to rewards and their weights."""
    mix: Literal["advantages", "rewards"] = "advantages"
    """Whether weighted `advantages` are added, each of its own reward, or `rewards` before that."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams with values in any component."""
        stream_names: dict[str, None] = {}
        for component in self.components.values():
            stream_names.update(dict.fromkeys(component.reward.streams))
        return tuple(stream_names)

    def parts(self) -> Mapping[str, RewardPart]:
        """List the components."""
        parts = {}
        for name, component in self.components.items():
            weight = component.weight_at(0)
            if isinstance(component.weight, Fading) and weight == 0:
                weight = component.weight.end
            parts[name] = RewardPart(
                reward=component.reward,
                weight=weight,
                is_compared_apart=self.mix == "advantages",
            )
        return parts

    def at(self, step: int) -> Self:
        """Build the reward of a step of the phase, counted from 0."""
        fading_weights = self._fading_weights()
        if not fading_weights:
            return self
        components = dict(self.components)
        for name, weight in fading_weights.items():
            # It stays a fading weight, so that scores have its value as a metric.
            weight_now = Fading(start=weight.at(step), end=weight.at(step), steps=1)
            components[name] = components[name].model_copy(update={"weight": weight_now})
        return self.model_copy(update={"components": components})

    def notes(self, context: RewardContext) -> Iterator[RewardNote]:
        """Describe the weights that change; remarks on components are theirs."""
        for name, weight in self._fading_weights().items():
            text = (
                f"reward.components.{name}.weight: from {weight.start:g} to {weight.end:g} over "
                f"the phase's first {weight.steps:,} steps"
            )
            yield RewardNote(kind="change", text=text)

    def _fading_weights(self) -> dict[str, Fading]:
        fading_weights = {}
        for name, component in self.components.items():
            if isinstance(component.weight, Fading):
                fading_weights[name] = component.weight
        return fading_weights

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score a batch of debates, in order."""
        scores_by_component = {}
        for name, component in self.components.items():
            scores_by_component[name] = score_debates(component.reward, transcripts)
        mixed_scores = []
        for index in range(len(transcripts)):
            scores = {name: scores[index] for name, scores in scores_by_component.items()}
            mixed_scores.append(self._combine(transcripts[index], scores))
        return mixed_scores

    def _combine(self, transcript: Transcript, scores: Mapping[str, Score]) -> Score:
        """Combine the scores of one debate, by component."""
        weights = {name: self.components[name].weight_at(0) for name in scores}
        num_agents = max(len(score.agents) for score in scores.values())
        credits: list[Credit] = []
        returns: dict[str, tuple[float | None, ...]] = {}
        for name, score in scores.items():
            for credit in score.credits:
                credits.append(replace(credit, component=name, weight=weights[name]))
            if any(credit.stream == "return" for credit in score.credits):
                returns[name] = score.returns_of()
        if self.mix == "rewards":
            credits = _add_raw(transcript, credits)
            # All components are one reward now. Its returns are also of agents that never spoke.
            returns = {"": _weighted_returns(returns, weights, num_agents)}
        all_returns = {name: score.agents for name, score in scores.items()}
        metrics = _merge_metrics(scores)
        for name in self._fading_weights():
            metrics[f"reward/weight/{name}"] = weights[name]
        return Score(
            credits=tuple(credits),
            agents=_weighted_returns(all_returns, weights, num_agents),
            metrics=metrics,
            returns=returns,
        )


def weighted_sum(values: Sequence[tuple[float | None, float]]) -> float | None:
    """Compute Σ weight·value, where `None` adds 0; `None` when every value is `None`."""
    products = [value * weight for value, weight in values if value is not None]
    return sum(products) if products else None


def _weighted_returns(
    returns: Mapping[str, tuple[float | None, ...]], weights: Mapping[str, float], num_agents: int
) -> tuple[float | None, ...]:
    """Add each agent's returns of several components by weight."""
    sums = []
    for agent in range(num_agents):
        agent_returns = []
        for name, values in returns.items():
            if agent < len(values):
                agent_returns.append((values[agent], weights[name]))
        sums.append(weighted_sum(agent_returns))
    return tuple(sums)


def _add_raw(transcript: Transcript, credits: Sequence[Credit]) -> list[Credit]:
    """Add the weighted values that components have on the same turn, stream and characters."""
    by_target: dict[tuple[TurnKey, str], list[Credit]] = {}
    for credit in credits:
        target = (TurnKey(credit.agent, credit.round), credit.stream)
        by_target.setdefault(target, []).append(credit)
    turns = {turn.key: turn for turn in transcript.turns}
    summed_credits = []
    for (key, stream), group in by_target.items():
        whole_credits = [credit for credit in group if credit.span is None]
        if whole_credits:
            summed_credits.append(_summed(whole_credits, None))
        ranged_credits = [credit for credit in group if credit.span is not None]
        if not ranged_credits:
            continue
        evaluation = parse_turn(transcript, turns[key]).sections.get("evaluation")
        for start, end in _cut_ranges(ranged_credits):
            # A judge's turn is paid on its comparisons: only parts that `segment` names reach here.
            is_beside_turn = (
                stream == JUDGE
                and evaluation is not None
                and evaluation.span[0] <= start < evaluation.span[1]
            )
            counted = _counted_within(
                start, end, [] if is_beside_turn else whole_credits, ranged_credits
            )
            summed_credits.append(_summed(counted, (start, end)))
    return summed_credits


def _cut_ranges(credits: Sequence[Credit]) -> list[tuple[int, int]]:
    """Cut the ranges of credits at each other's ends, so that none overlap."""
    spans = {credit.span for credit in credits if credit.span is not None}
    bounds = sorted({bound for span in spans for bound in span})
    ranges = []
    for start, end in pairwise(bounds):
        if any(first <= start and end <= last for first, last in spans):
            ranges.append((start, end))
    return ranges


def _counted_within(
    start: int, end: int, whole_credits: Sequence[Credit], ranged_credits: Sequence[Credit]
) -> list[Credit]:
    """Select what holds between two characters: of each component the shortest range, or the turn.

    A component's range takes the place of its own value of the turn, and of no other's.
    """
    ranges_by_component: dict[str, list[tuple[int, Credit]]] = {}
    for credit in ranged_credits:
        first, last = credit.span or (0, 0)
        if first <= start and end <= last:
            ranges_by_component.setdefault(credit.component, []).append((last - first, credit))
    counted = [c for c in whole_credits if c.component not in ranges_by_component]
    for ranges in ranges_by_component.values():
        shortest_length = min(length for length, _ in ranges)
        counted += [credit for length, credit in ranges if length == shortest_length]
    return counted


def _summed(credits: Sequence[Credit], span: tuple[int, int] | None) -> Credit:
    """Add up credits of one turn and stream."""
    return replace(
        credits[0],
        value=weighted_sum([(credit.value, credit.weight) for credit in credits]),
        span=span,
        penalty=any(credit.penalty for credit in credits),
        expected=any(credit.expected for credit in credits),
        centred=all(credit.centred for credit in credits),
        component="",
        weight=1.0,
    )


def _merge_metrics(scores: Mapping[str, Score]) -> dict[str, float]:
    """Merge all metrics; a metric of several components gets the component's name as prefix."""
    num_components: Counter[str] = Counter()
    for score in scores.values():
        num_components.update(score.metrics.keys())
    merged: dict[str, float] = {}
    for name, score in scores.items():
        for key, value in score.metrics.items():
            merged[f"{name}/{key}" if num_components[key] > 1 else key] = value
    return merged


class Labelled(RewardConfig):
    """The truth on a share of the questions, and votes or another reward on the others.

    `by` says which questions are labelled. `random`: each with probability `share`, by a hash of
    its id, so that a question is labelled whenever it comes, or never. `votes` and `answers`: of
    the questions of a batch the round(share · number) on which judges or first answers disagree
    the most, ties by the hash:

        votes     mean over judged pairs of turns of 1 − Σ f(v)², f(v) the share of verdict v
        answers   1 − Σ f(c)², f(c) the share of answer c among the turns of round 0

    the chance that two drawn with replacement differ; a question without any has 0. All debates
    on a question are pooled.

    On labelled questions `truth` gives the values, and `rest` the values of streams without
    `truth`; on the others `rest` gives all. `truth` is called with labelled questions only: answers
    of other questions stay unread.
    """

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
        """Streams with values in either reward."""
        return tuple(dict.fromkeys(self.truth.streams + self.rest.streams))

    def needs(self) -> RewardNeeds:
        """Describe needs; those of the truth only where some questions are labelled."""
        rest = self.rest.needs()
        truth = self.truth.needs() if self.share > 0 else RewardNeeds()
        return RewardNeeds(
            answers=rest.answers or truth.answers,
            votes=rest.votes or truth.votes,
            num_questions=rest.num_questions,
            policy=False,
        )

    def notes(self, context: RewardContext) -> Iterator[RewardNote]:
        """Yield remarks on both rewards, each on the streams that it gives values."""
        truth_streams = self.truth.streams if self.share > 0 else ()
        rest_streams = [stream for stream in self.rest.streams if stream not in truth_streams]
        for reward, streams in ((self.truth, truth_streams), (self.rest, rest_streams)):
            # A stream of few judges teaches little only where it is judged without the truth.
            kept_kinds = ("doubt", "few_judges") if reward is self.rest else ("doubt",)
            for note in reward.notes(context):
                if note.kind in kept_kinds:
                    yield note
                    continue
                for stream in streams:
                    if note.stream in (None, stream):
                        yield RewardNote(kind="no_signal", text=note.text, stream=stream)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score a batch of debates, in order."""
        labelled_ids = self.labelled(transcripts)
        # The truth is asked of labelled questions only: it must not see the other answers.
        next_truth = iter(self.truth([t for t in transcripts if t.question.id in labelled_ids]))
        scores = []
        for transcript, rest in zip(transcripts, self.rest(transcripts), strict=True):
            if transcript.question.id not in labelled_ids:
                metrics = {**rest.metrics, "labelled/share": 0.0}
                scores.append(Score(rest.credits, rest.agents, metrics))
                continue
            truth = next(next_truth)
            rest_credits = [c for c in rest.credits if c.stream not in self.truth.streams]
            credits = (*truth.credits, *rest_credits)
            scores.append(
                Score(
                    credits=credits,
                    agents=mean_returns(credits, transcript.protocol.num_agents),
                    metrics={**rest.metrics, **truth.metrics, "labelled/share": 1.0},
                )
            )
        return scores

    def labelled(self, transcripts: Sequence[Transcript]) -> set[str]:
        """Select the ids of the questions of a batch that are labelled."""
        debates_by_question: dict[str, list[Transcript]] = {}
        for transcript in transcripts:
            debates_by_question.setdefault(transcript.question.id, []).append(transcript)
        lots = {question_id: self._lot(question_id) for question_id in debates_by_question}
        if self.by == "random":
            return {question_id for question_id, lot in lots.items() if lot < self.share}
        disagreement_of = _vote_disagreement if self.by == "votes" else _answer_disagreement
        disagreement = {}
        for question_id, question_transcripts in debates_by_question.items():
            debates = [read_debate(transcript) for transcript in question_transcripts]
            disagreement[question_id] = disagreement_of(debates)
        ordered_ids = sorted(lots, key=lambda name: (-disagreement[name], lots[name]))
        return set(ordered_ids[: round(self.share * len(ordered_ids))])

    def _lot(self, question_id: str) -> float:
        """Draw a number from 0 to 1 that depends on the question's id and the seed only."""
        digest = hashlib.sha256(f"{self.seed}/{question_id}".encode()).digest()
        return int.from_bytes(digest[:8], "big") / 2**64


def _chance_to_differ(values: Iterable[Hashable]) -> float:
    """Compute 1 − Σ f², f the share of each value; 0 without values."""
    counts = Counter(values)
    total = sum(counts.values())
    if total == 0:
        return 0.0
    return 1 - sum((count / total) ** 2 for count in counts.values())


def _vote_disagreement(debates: Sequence[ReadDebate]) -> float:
    pair_disagreements = []
    for debate in debates:
        for pair_votes in by_pair(all_votes(ballots(debate))).values():
            pair_disagreements.append(_chance_to_differ(vote.verdict for vote in pair_votes))
    if not pair_disagreements:
        return 0.0
    return sum(pair_disagreements) / len(pair_disagreements)


def _answer_disagreement(debates: Sequence[ReadDebate]) -> float:
    question = debates[0].transcript.question
    if not has_known_kind(question):
        return 0.0
    answers = []
    for debate in debates:
        for key, turn in debate.turns.items():
            if key.round == 0 and not turn.failed:
                answers.append(turn.parsed.answer)
    classes = answer_classes(question, answers)
    return _chance_to_differ(number for number in classes if number is not None)


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
    """Build the reward of this `type` with these settings.

    Raises:
        ValueError: No reward has this name, the message names the nearest one; or (pydantic's
            ValidationError) a setting is unknown or does not fit.
    """
    try:
        return REWARDS.make(name, settings)
    except KeyError as error:
        raise ValueError(f"reward: {error.args[0]}") from error
