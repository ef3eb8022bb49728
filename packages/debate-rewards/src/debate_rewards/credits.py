"""What a reward hands to a trainer: numbers for turns, sections or lines, in named streams."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from debate_protocol.types import Transcript

FAILURE_VALUE = -1.0
"""What a failed turn earns on all its tokens."""


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
