"""Drivers: run debates against an engine."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from debate_protocol.types import Ask, DebateRun, Gate, GateDecision, Reply, Sent, Transcript
from debate_rollout.engine import Engine, Request, Sampling
from debate_rollout.errors import EngineConfigError, EngineFailure

Select = Callable[[Sequence[Gate]], Sequence[GateDecision]]
"""Answers the gates of a batch: `go_on` goes on, `keep` ends the debate with the turns it has,
`drop` leaves the debate out of the results."""


@dataclass(slots=True)
class _Live:
    """A debate that is under way, and what it waits for."""

    place: int
    run: DebateRun
    waits: Sequence[Ask] | Gate


def play(
    runs: Sequence[DebateRun],
    engine: Engine,
    *,
    max_tokens: int,
    sampling: Mapping[str, Any] = {},
    select: Select | None = None,
) -> list[Transcript]:
    """Run debates in lock-step: every open ask of every debate goes into one engine call.

    Gates wait until every debate is finished or at a gate, then `select` answers them together;
    without it every debate goes on.

    Args:
        runs: Forms that were started; each is run to its end or closed.
        engine: Samples the replies.
        max_tokens: Most tokens of a reply whose ask sets none.
        sampling: Fields of `Sampling` that replace what the asks say, such as `temperature`.
        select: Answers gates.

    Returns:
        The transcripts in the order of `runs`, dropped debates left out.

    Raises:
        EngineFailure: When the engine fails on a request, and again when it is tried alone.
        EngineConfigError: When `sampling` names no field of `Sampling`.
    """
    _check_sampling(sampling)
    finished: dict[int, Transcript] = {}
    live: list[_Live] = []
    try:
        for place, run in enumerate(runs):
            _advance(_Live(place, run, ()), None, live, finished)
        while live:
            asking = [one for one in live if not isinstance(one.waits, Gate)]
            if asking:
                live = [one for one in live if isinstance(one.waits, Gate)]
                for one, replies in _answer(asking, engine, max_tokens, sampling):
                    _advance(one, replies, live, finished)
            else:
                waiting, live = live, []
                for one, decision in _decide(waiting, select):
                    if decision == "drop":
                        one.run.close()
                    else:
                        _advance(one, decision, live, finished)
    finally:
        for run in runs:
            run.close()
    return [finished[place] for place in sorted(finished)]


def _advance(
    one: _Live, sent: Sent | None, live: list[_Live], finished: dict[int, Transcript]
) -> None:
    """Resume a debate; note what it waits for, or its transcript."""
    try:
        waits = next(one.run) if sent is None else one.run.send(sent)
    except StopIteration as stop:
        finished[one.place] = stop.value
    else:
        live.append(_Live(one.place, one.run, waits))


def _answer(
    asking: Sequence[_Live], engine: Engine, max_tokens: int, sampling: Mapping[str, Any]
) -> list[tuple[_Live, list[Reply]]]:
    asks = [(one.place, ask) for one in asking for ask in _asks(one)]
    requests = [_request(ask, engine, max_tokens, sampling) for _, ask in asks]
    replies = iter(_generate(engine, requests, [place for place, _ in asks]))
    return [(one, [next(replies) for _ in _asks(one)]) for one in asking]


def _asks(one: _Live) -> Sequence[Ask]:
    return () if isinstance(one.waits, Gate) else one.waits


def _request(ask: Ask, engine: Engine, max_tokens: int, sampling: Mapping[str, Any]) -> Request:
    wanted = Sampling(
        max_tokens=max_tokens if ask.max_tokens is None else ask.max_tokens,
        temperature=ask.temperature,
        stop=ask.stop,
        seed=ask.seed,
    )
    renderer = engine.renderer
    ids = () if renderer is None else renderer.render(ask).prompt_ids
    return Request(ask, replace(wanted, **sampling), ids)


def _generate(engine: Engine, requests: list[Request], places: list[int]) -> list[Reply]:
    if not requests:
        return []
    try:
        return _complete(engine, requests)
    except Exception:
        # One by one: what failed as a batch may pass alone, and what fails again has a name.
        return [
            _generate_alone(engine, request, place)
            for request, place in zip(requests, places, strict=True)
        ]


def _generate_alone(engine: Engine, request: Request, place: int) -> Reply:
    try:
        return _complete(engine, [request])[0]
    except Exception as error:
        ask = request.ask
        raise EngineFailure(
            f"debate {place} (question {ask.question.id!r}), agent {ask.agent}, round {ask.round}: "
            f"the engine failed twice, the second time on this request alone "
            f"({len(request.prompt_ids)} prompt tokens): {type(error).__name__}: {error}"
        ) from error


def _complete(engine: Engine, requests: list[Request]) -> list[Reply]:
    replies = engine.generate(requests)
    if len(replies) != len(requests):
        raise EngineFailure(f"the engine gave {len(replies)} replies to {len(requests)} requests")
    return replies


def _decide(waiting: Sequence[_Live], select: Select | None) -> list[tuple[_Live, GateDecision]]:
    gates = [one.waits for one in waiting if isinstance(one.waits, Gate)]
    decisions: Sequence[GateDecision] = ["go_on"] * len(gates) if select is None else select(gates)
    if len(decisions) != len(gates):
        raise EngineConfigError(
            f"select gave {len(decisions)} decisions to {len(gates)} gates; expected one a gate"
        )
    for decision in decisions:
        if decision not in ("keep", "drop", "go_on"):
            raise EngineConfigError(
                f"select decided {decision!r}; expected 'keep', 'drop' or 'go_on'"
            )
    return list(zip(waiting, decisions, strict=True))


def _check_sampling(sampling: Mapping[str, Any]) -> None:
    known = [field.name for field in fields(Sampling)]
    for name in sampling:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; nearest: {near[0]!r}" if near else ""
            raise EngineConfigError(f"sampling.{name}: expected one of {', '.join(known)}{hint}")
