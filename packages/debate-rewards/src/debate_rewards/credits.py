"""What a reward hands to a trainer: numbers for turns, sections or lines, in named streams."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from debate_protocol.types import Transcript

FAILURE_VALUE = -1.0
"""What a failed turn earns on all its tokens."""
LARGEST_VALUE = 3.4e38
"""Advantages are float32 numbers, which hold no larger one."""


class ScoreError(ValueError):
    """A reward gave what is no finite number; the message names the debate, turn and stream."""


@dataclass(frozen=True, slots=True)
class Credit:
    """One value of one turn in one stream.

    `value` None means no signal. `span` is None for the turn's value of the whole stream, or the
    character range of the turn's text (a comparison line, a part of an evaluation) whose tokens
    take this value instead. `penalty` marks a value given for a failure or a missing part.
    `expected` says that a turn of this kind normally has a value in this stream; together with
    `penalty` it decides who joins the baseline. `component` and `weight` identify the parts of a
    mixed reward, which are centred apart and then summed. `centred` says that an uninformative
    habit already earns 0 on average (peer prediction): no baseline is taken off by default.
    """

    agent: int
    round: int
    stream: str
    value: float | None
    span: tuple[int, int] | None = None
    penalty: bool = False
    expected: bool = True
    component: str = ""
    weight: float = 1.0
    centred: bool = False


@dataclass(frozen=True, slots=True)
class Score:
    """All credits of one debate, a return per agent (None: no signal), and its metrics.

    `metrics` holds sums and counts that average over debates; it never steers training. `returns`
    holds the value in the stream `return` of every agent by component ("" where there is one
    reward alone): those of agents that never spoke, which no credit has, count in the baseline.
    Rewards that leave it out have those of `agents`.
    """

    credits: tuple[Credit, ...]
    agents: tuple[float | None, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)
    returns: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)

    def returns_of(self, component: str = "") -> tuple[float | None, ...]:
        """Return the value in the stream `return` of each agent; empty where it is not known."""
        return self.returns.get(component, () if component else self.agents)


class Reward(Protocol):
    """Scores a batch of debates; a batch, because some values compare across questions."""

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        ...


def mean_returns(credits: Iterable[Credit], num_agents: int) -> tuple[float | None, ...]:
    """Return the mean value of each agent's credits for whole turns; None without any."""
    earned: list[list[float]] = [[] for _ in range(num_agents)]
    for credit in credits:
        if credit.value is not None and credit.span is None:
            earned[credit.agent].append(credit.value)
    return tuple(sum(values) / len(values) if values else None for values in earned)


def score_debates(reward: Reward, transcripts: Sequence[Transcript]) -> list[Score]:
    """Return one score a transcript, in order, whose values are finite numbers or None.

    Numbers of other libraries, such as numpy's and torch's scalars, become floats.

    Raises:
        ScoreError: A value is something else.
    """
    return [
        _checked(transcript.id, score)
        for transcript, score in zip(transcripts, reward(transcripts), strict=True)
    ]


def _checked(debate: str, score: Score) -> Score:
    values = [finite_value(c.value, debate, c.agent, c.round, c.stream) for c in score.credits]
    credits = tuple(
        credit if value is credit.value else replace(credit, value=value)
        for credit, value in zip(score.credits, values, strict=True)
    )
    agents = tuple(finite_value(v, debate, agent) for agent, v in enumerate(score.agents))
    returns = {
        name: tuple(finite_value(v, debate, agent) for agent, v in enumerate(values))
        for name, values in score.returns.items()
    }
    return replace(score, credits=credits, agents=agents, returns=returns)


def finite_value(
    value: object, debate: str, agent: int, round: int | None = None, stream: str = "return"
) -> float | None:
    """Return a value of a turn, or of an agent, as a number of Python.

    Raises:
        ScoreError: It is neither a finite number nor None.
    """
    if value is None:
        return None
    number: Any = value
    if type(value) not in (float, int):
        is_scalar = getattr(value, "shape", ()) == () and not isinstance(value, str | bytes | bool)
        try:
            number = float(number) if is_scalar else math.nan
        except (TypeError, ValueError, OverflowError):
            number = math.nan
    if abs(number) <= LARGEST_VALUE:
        return cast(float, number)
    turn = "" if round is None else f", round {round}"
    found = f"{value.bit_length()} bits" if type(value) is int else f"{value!r:.100}"
    raise ScoreError(
        f"reward: found {found} for debate {debate!r}, agent {agent}{turn}, stream {stream!r}; "
        f"expected None or a finite number of at most {LARGEST_VALUE:g}: mend the reward"
    )
