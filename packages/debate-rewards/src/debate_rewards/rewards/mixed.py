"""Weighted sums of other rewards, of their advantages or of their raw values."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal, Self

from pydantic import Field

from debate_protocol.config import Config
from debate_protocol.types import Transcript
from debate_rewards.credits import Credit, Score, score_debates
from debate_rewards.reward_config import RewardConfig
from debate_rewards.rewards.single_rewards import SingleReward


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
        parts = [component.reward for component in self.components.values()]
        named = [name for part in parts for name in part.streams]
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
            name: score.returns_of() for name, score in scores.items() if _is_per_agent(score)
        }
        if self.mix == "rewards":
            returns = {"": _add_returns(returns, weights, num_agents)}
        metrics = {f"reward/weight/{name}": weights[name] for name in self._fading()}
        return Score(tuple(credits), agents, _merge_metrics(scores) | metrics, returns)


def weighted_sum(values: Sequence[tuple[float | None, float]]) -> float | None:
    """Return Σ weight·value, where None adds 0; None when every value is None."""
    known = [value * weight for value, weight in values if value is not None]
    return sum(known) if known else None


def _is_per_agent(score: Score) -> bool:
    return any(credit.stream == "return" for credit in score.credits)


def _add_returns(
    returns: Mapping[str, tuple[float | None, ...]], weights: Mapping[str, float], num_agents: int
) -> tuple[float | None, ...]:
    """Add up what each agent gets in the stream `return`, also one that never spoke."""
    return tuple(
        weighted_sum(
            [(own[agent], weights[name]) for name, own in returns.items() if agent < len(own)]
        )
        for agent in range(num_agents)
    )


def _add_raw(credits: Sequence[Credit]) -> list[Credit]:
    groups: dict[tuple[object, ...], list[Credit]] = {}
    for credit in credits:
        groups.setdefault((credit.agent, credit.round, credit.stream, credit.span), []).append(
            credit
        )
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
