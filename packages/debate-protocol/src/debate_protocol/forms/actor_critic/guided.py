"""What is sampled beside an actor-critic debate: guided replies, and roll-outs of its states."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

from debate_protocol.forms.actor_critic.exchange import Exchange
from debate_protocol.roles import ACTOR, CRITIC
from debate_protocol.types import TOKENS, Ask, Branch, Sent, Turn, Yielded


@dataclass(slots=True)
class _State:
    """A state of the debate after a natural turn or after a branch of it (`guide` is set).

    `answer` is the actor's turn that the state rests on.
    """

    place: int
    guide: str | None
    name: str
    turn: Turn
    answer: Turn
    continuations: list[Turn] = field(default_factory=list)


def sampled_beside(
    exchange: Exchange, turns: Sequence[Turn], guides: Sequence[str], first_round: int, count: int
) -> Generator[Yielded, Sent, tuple[Turn, ...]]:
    """Sample branches and continuations of a debate that was held; return its turns with them.

    A guided reply has the history of the natural turn in whose place it stands, so that both
    answer the same prompt. Every state is continued up to the actor's next turn: after a critic's
    turn that is one turn, after an actor's the critic's reply and then the actor's. Nothing
    follows the last turn. Continuations keep neither prompt nor tokens, which nothing trains on,
    but how many tokens they took (`Turn.token_counts`).

    Args:
        exchange: Makes the asks.
        turns: The natural turns.
        guides: The answers to steer to; each turn gets a branch for each.
        first_round: States of earlier rounds are left alone.
        count: How many continuations value a state.
    """
    last = turns[-1].key
    states = [
        _State(place, None, f"{turn.agent}.{turn.round}/natural", turn, _answer(turns, place))
        for place, turn in enumerate(turns)
        if turn.round >= first_round
    ]
    beside = [
        _State(s.place, guide, f"{s.turn.agent}.{s.turn.round}/guide{i}", s.turn, s.answer)
        for s in states
        for i, guide in enumerate(guides)
    ]
    asks = [exchange.instead(s.turn, s.guide or "", s.name) for s in beside]
    for state, turn in zip(beside, (yield from _spoken(exchange, asks)), strict=True):
        state.turn = turn
        state.answer = turn if turn.agent == ACTOR else state.answer
    states += beside
    yield from _continue([s for s in states if s.turn.key != last], exchange, count)
    return tuple(_with_states(place, turn, states) for place, turn in enumerate(turns))


def _continue(
    states: Sequence[_State], exchange: Exchange, count: int
) -> Generator[Yielded, Sent, None]:
    tried = [(state, f"{state.name}/{k}") for state in states for k in range(count)]
    asks = [exchange.following(s.turn, s.answer, name) for s, name in tried]
    first = yield from _spoken(exchange, asks)
    feedback = [i for i, turn in enumerate(first) if turn.agent == CRITIC]
    asks = [exchange.following(first[i], tried[i][0].answer, tried[i][1]) for i in feedback]
    answers = dict(zip(feedback, (yield from _spoken(exchange, asks)), strict=True))
    for i, turn in enumerate(first):
        then = (_bare(answers[i]),) if i in answers else ()
        tried[i][0].continuations.append(replace(_bare(turn), continuations=then))


def _spoken(exchange: Exchange, asks: list[Ask]) -> Generator[Yielded, Sent, list[Turn]]:
    if not asks:
        return []
    return exchange.hear(asks, (yield asks))


def _answer(turns: Sequence[Turn], place: int) -> Turn:
    return turns[place] if turns[place].agent == ACTOR else turns[place - 1]


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
