"""What is sampled beside an actor-critic debate: guided replies, and roll-outs of its states."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from debate_protocol.forms.actor_critic.exchange import Exchange
from debate_protocol.types import TOKENS, Ask, Branch, Sent, Turn, TurnKey, Yielded


@dataclass(frozen=True, slots=True)
class Beside:
    """What is to be sampled.

    Attributes:
        guides: The answers to steer to; each turn gets a branch for each.
        first_round: States of earlier rounds are left alone.
        count: How many continuations value a state.
        critic_alone: Continue critics' turns alone.
    """

    guides: Sequence[str]
    first_round: int
    count: int
    critic_alone: bool


@dataclass(slots=True)
class _State:
    """A state of the debate after a natural turn or after a branch of it (`guide` is set)."""

    place: int
    guide: str | None
    name: str
    turn: Turn
    continuations: list[Turn] = field(default_factory=list)


def sampled_beside(
    exchange: Exchange, turns: Sequence[Turn], wanted: Beside
) -> Generator[Yielded, Sent, tuple[Turn, ...]]:
    """Sample branches and continuations of a debate that was held; return its turns with them.

    A guided reply has the history of the natural turn in whose place it stands, so that both
    answer the same prompt. Every state is continued up to the next answer: after a critic's turn
    to that of each actor, after an actor's to the critic's reply and then to its own. Nothing
    follows the last round. Continuations keep neither prompt nor tokens, which nothing trains on,
    but how many tokens they took (`Turn.token_counts`).
    """
    spoken = {turn.key: turn for turn in turns}
    states = [
        _State(place, None, f"{turn.agent}.{turn.round}/natural", turn)
        for place, turn in enumerate(turns)
        if turn.round >= wanted.first_round
    ]
    beside = [
        _State(s.place, guide, f"{s.turn.agent}.{s.turn.round}/guide{i}", s.turn)
        for s in states
        for i, guide in enumerate(wanted.guides)
    ]
    asks = [exchange.ask(s.turn.key, spoken, s.name, s.guide) for s in beside]
    for state, turn in zip(beside, (yield from _spoken(exchange, asks)), strict=True):
        state.turn = turn
    states += beside
    continued = [state for state in states if state.turn.round < turns[-1].round]
    if wanted.critic_alone:
        continued = [state for state in continued if state.turn.agent == exchange.critic]
    yield from _continue(continued, exchange, spoken, wanted.count)
    return tuple(_with_states(place, turn, states) for place, turn in enumerate(turns))


def _continue(
    states: Sequence[_State], exchange: Exchange, spoken: Mapping[TurnKey, Turn], count: int
) -> Generator[Yielded, Sent, None]:
    critic = exchange.critic
    tried: list[tuple[_State, str]] = []
    asks: list[Ask] = []
    for state in states:
        agent, round = state.turn.key
        keys = [TurnKey(critic, round)]
        if agent == critic:
            keys = [TurnKey(actor, round + 1) for actor in exchange.actors]
        for name in (f"{state.name}/{k}" for k in range(count)):
            tried += [(state, name)] * len(keys)
            asks += [exchange.ask(key, _held(spoken, state.turn), name) for key in keys]
    first = yield from _spoken(exchange, asks)
    feedback = [i for i, turn in enumerate(first) if turn.agent == critic]
    asks = []
    for i in feedback:
        state, name = tried[i]
        answer = TurnKey(state.turn.agent, state.turn.round + 1)
        asks.append(exchange.ask(answer, _held(spoken, state.turn, first[i]), name))
    answers = dict(zip(feedback, (yield from _spoken(exchange, asks)), strict=True))
    for i, turn in enumerate(first):
        then = (_bare(answers[i]),) if i in answers else ()
        tried[i][0].continuations.append(replace(_bare(turn), continuations=then))


def _held(spoken: Mapping[TurnKey, Turn], *instead: Turn) -> dict[TurnKey, Turn]:
    """Return the turns of a state: those of the debate, some of them others."""
    return {**spoken, **{turn.key: turn for turn in instead}}


def _spoken(exchange: Exchange, asks: list[Ask]) -> Generator[Yielded, Sent, list[Turn]]:
    if not asks:
        return []
    return exchange.hear(asks, (yield asks))


def _bare(turn: Turn) -> Turn:
    """Return a turn without what only training needs, but with how many tokens it took."""
    counts = turn.token_counts
    extra = turn.extra if counts is None or counts == (0, 0) else {**turn.extra, TOKENS: [*counts]}
    return replace(turn, prompt=None, reply=None, extra=extra)


def _with_states(place: int, turn: Turn, states: Sequence[_State]) -> Turn:
    own = [state for state in states if state.place == place]
    natural = next((s.continuations for s in own if s.guide is None), [])
    branches = [
        Branch(s.guide, replace(s.turn, continuations=tuple(s.continuations)))
        for s in own
        if s.guide is not None
    ]
    return replace(turn, branches=tuple(branches), continuations=tuple(natural))
