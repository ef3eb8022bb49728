"""Conformance checks that every engine passes; for the tests of engines, also of third parties.

Each check raises AssertionError saying what was expected. They send short asks and need no
particular model: replies may be nonsense.
"""

import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal, cast

from debate_protocol.types import (
    DebateRun,
    Message,
    Protocol,
    Question,
    Reply,
    Transcript,
    TurnRequest,
)
from debate_rollout.drivers import FreeRunning, play
from debate_rollout.engine import (
    Capability,
    Engine,
    EngineFailure,
    Request,
    Sampling,
    StreamingEngine,
    Weights,
)
from debate_rollout.rendering import token_text

SAMPLING = Sampling(max_tokens=12, temperature=1.0, seed=11)
QUESTIONS = ("What is 2 + 3?", "Name a colour.", "Is the sky blue? Say why, in a few words.")

Logps = Callable[[Sequence[int], Sequence[int], float], Sequence[float]]
"""Log-probabilities of reply ids after prompt ids at a temperature, as a trainer computes them."""


class NotApplicable(Exception):
    """A check that this engine or bench gives no occasion for; the message says why."""


@dataclass(frozen=True, slots=True)
class Refresh:
    """Weights to load, and what a trainer that holds them computes."""

    weights: Weights
    logps: Logps | None = None


@dataclass(slots=True)
class Bench:
    """An engine under test; checks that lack something are left out and say so.

    Attributes:
        engine: Opened, with any model.
        logps: The trainer's log-probabilities under the weights served now.
        refreshes: Weights to load, in order, with rising versions: for `full_weights` at least
            one of kind full, for `lora` at least two adapters.
        kill: Ends the engine's process, where it has one of its own; called last.
        tolerance: Largest difference from `logps`; 1e-5 is for float32.
    """

    engine: Engine
    logps: Logps | None = None
    refreshes: Sequence[Refresh] = ()
    kill: Callable[[], None] | None = None
    tolerance: float = 1e-5
    version: int = field(default=0, init=False)
    """Of the last weights that were loaded."""

    def can(self, *capabilities: Capability) -> bool:
        """Return whether the engine has all of these."""
        return set(capabilities) <= self.engine.capabilities

    @property
    def stream(self) -> StreamingEngine:
        """The engine, for the checks of those that stream."""
        return cast(StreamingEngine, self.engine)

    def one(self, sampling: Sampling = SAMPLING, text: str = QUESTIONS[0]) -> Reply:
        """Return the reply to a single request."""
        return self.engine.generate([request(self.engine, turn_request(text), sampling)])[0]

    def load(self, refresh: Refresh) -> None:
        """Load weights under a version that is new to the engine."""
        self.version = max(refresh.weights.version, self.version + 1)
        self.engine.load(replace(refresh.weights, version=self.version))
        self.logps = refresh.logps

    def check_logps(self, replies: Sequence[Reply], what: str) -> None:
        """Compare log-probabilities with the trainer's, where these are known."""
        if self.logps is None:
            return
        for reply in replies:
            expected = self.logps(reply.prompt_ids, reply.token_ids, reply.temperature or 1.0)
            worst = max(
                (abs(a - b) for a, b in zip(expected, reply.logps, strict=True)), default=0.0
            )
            assert worst <= self.tolerance, (
                f"{what}: log-probabilities at temperature {reply.temperature:g} differ from the "
                f"trainer's by {worst:.2g}; expected at most {self.tolerance:g}"
            )


def turn_request(text: str = QUESTIONS[0], agent: int = 0) -> TurnRequest:
    """Return the first ask of an agent."""
    message: Message = {"role": "user", "content": text}
    return TurnRequest(Question("q", text), agent=agent, round=0, messages=(message,))


def request(engine: Engine, one: TurnRequest, sampling: Sampling = SAMPLING) -> Request:
    """Return an ask as a request to this engine."""
    renderer: Any = engine.renderer
    return Request(one, sampling, () if renderer is None else renderer.render(one).prompt_ids)


def requests(engine: Engine, **changes: Any) -> list[Request]:
    """Return one request for each of the questions, each with another seed."""
    return [
        request(engine, turn_request(text, agent), replace(SAMPLING, seed=agent, **changes))
        for agent, text in enumerate(QUESTIONS)
    ]


TEMPERATURES = (0.6, 1.0, 1.7, 0.0)


def check_order(bench: Bench) -> None:
    """One reply a request, in order; no request, no reply."""
    engine = bench.engine
    assert engine.generate([]) == [], "no requests: expected no replies"
    sent = requests(engine)
    replies = engine.generate(sent)
    assert len(replies) == len(sent), f"expected {len(sent)} replies, got {len(replies)}"
    for one, reply in zip(sent, replies, strict=True):
        if bench.can("tokens"):
            assert reply.prompt_ids == one.prompt_ids, "a reply carries its own prompt's ids"
        assert reply.temperature == one.sampling.temperature, "a reply carries its temperature"


def check_ids(bench: Bench) -> None:
    """Ids out, a log-probability for each, and the ids decode to the text."""
    for reply in bench.engine.generate(requests(bench.engine)):
        assert reply.token_ids, "expected at least one sampled id"
        if bench.can("logps") or reply.logps:
            assert len(reply.logps) == len(reply.token_ids), "expected one log-probability an id"
        assert all(math.isfinite(p) and p <= 1e-5 for p in reply.logps), reply.logps
        assert reply.text == token_text(bench.engine.renderer.tokenizer, reply.token_ids).text


def check_max_tokens(bench: Bench) -> None:
    """A reply never has more ids than it may."""
    reply = bench.one(replace(SAMPLING, max_tokens=3))
    assert len(reply.token_ids) <= 3, f"expected at most 3 ids, got {len(reply.token_ids)}"


def check_stop(bench: Bench) -> None:
    """A reply ends with the token in which its first stop string ends."""
    for seed, reply in _replies(bench):
        if clean := re.search(r"(?<=.)[^�]{1,2}", reply.text, re.DOTALL):
            _check_stops_at(bench, seed, clean[0])
            return
    raise NotApplicable("no reply with text")


def check_stop_inside_token(bench: Bench) -> None:
    """A stop string that ends inside a token keeps the whole token, in ids and in text."""
    tokenizer = bench.engine.renderer.tokenizer
    for seed, reply in _replies(bench):
        text = reply.text
        starts = (*token_text(tokenizer, reply.token_ids).starts, len(text))
        for first, following in pairwise(starts):
            stop = text[max(0, first - 1) : first + 1]
            end = text.find(stop) + len(stop)
            if following - first > 1 and end == first + 1 and "�" not in stop:
                stopped = _check_stops_at(bench, seed, stop)
                if bench.can("seeds"):
                    assert len(stopped.text) > end, f"cut inside a token: {stopped.text!r}"
                return
    raise NotApplicable("no token of two characters was sampled")


def _replies(bench: Bench) -> Iterator[tuple[int, Reply]]:
    for seed in range(32):
        yield seed, bench.one(replace(SAMPLING, seed=seed))


def _check_stops_at(bench: Bench, seed: int, stop: str) -> Reply:
    reply = bench.one(replace(SAMPLING, seed=seed, stop=(stop,)))
    if not bench.can("seeds") and reply.finish != "stop":
        raise NotApplicable("another reply was sampled")
    assert reply.finish == "stop", f"expected finish 'stop' at {stop!r}, got {reply.finish!r}"
    assert stop in reply.text, f"expected {stop!r} in {reply.text!r}"
    tokenizer = bench.engine.renderer.tokenizer
    assert reply.text == token_text(tokenizer, reply.token_ids).text, "text is not that of the ids"
    before = token_text(tokenizer, reply.token_ids[:-1]).text
    assert stop not in before, f"went on after {stop!r}: {reply.text!r}"
    return reply


def check_seeds(bench: Bench) -> None:
    """The same request has the same reply."""
    first, second = bench.one(), bench.one()
    assert (first.text, first.token_ids) == (second.text, second.token_ids), "same seed, not same"


def check_samples(bench: Bench) -> None:
    """Requests that differ by their seeds alone have replies of their own."""
    engine = bench.engine
    sent = [request(engine, turn_request(), replace(SAMPLING, seed=seed)) for seed in range(8)]
    replies = {reply.token_ids for reply in engine.generate(sent)}
    assert len(replies) > 1, "8 seeds in one batch gave one and the same reply"


def check_batch(bench: Bench) -> None:
    """A reply is the same alone and beside others."""
    # In a large vocabulary, rounding alone decides between tokens that are hardly ever drawn.
    sent = requests(bench.engine, top_k=10)
    for one, reply in zip(sent, bench.engine.generate(sent), strict=True):
        alone = bench.engine.generate([one])[0]
        assert alone.token_ids == reply.token_ids, "batch neighbours changed a reply"
        pairs = zip(alone.logps, reply.logps, strict=True)
        drift = max((abs(a - b) for a, b in pairs), default=0.0)
        assert drift < 0.05, f"batch neighbours changed log-probabilities by {drift}"


def check_trainer_logps(bench: Bench) -> None:
    """Log-probabilities are the trainer's, at several temperatures in one batch."""
    if bench.logps is None:
        raise NotApplicable("needs the trainer's log-probabilities")
    sent = [
        request(
            bench.engine, turn_request(text), replace(SAMPLING, temperature=temperature, seed=seed)
        )
        for seed, text in enumerate(QUESTIONS)
        for temperature in TEMPERATURES
    ]
    bench.check_logps(bench.engine.generate(sent), "in one batch")


def check_empty_prompt(bench: Bench) -> None:
    """A prompt without ids is refused by name, and the engine serves on."""
    empty = replace(request(bench.engine, turn_request()), prompt_ids=())
    error = _error_of(lambda: bench.engine.generate([empty]), "a prompt without ids")
    assert "prompt" in str(error).lower(), f"expected the prompt to be named, got {error!r}"
    assert bench.one().token_ids, "the engine no longer serves after an empty prompt"


def check_overflow(bench: Bench) -> None:
    """A prompt that fills the window has a reply without tokens; one that nearly does is cut."""
    window = bench.engine.context_window
    if window is None:
        raise NotApplicable("has no context window")
    whole = request(bench.engine, turn_request())
    filler = whole.prompt_ids[:1]

    def long(length: int) -> Request:
        return replace(whole, prompt_ids=filler * length)

    over, full, cut = bench.engine.generate([long(window + 1), long(window), long(window - 2)])
    for reply in (over, full):
        assert reply.finish == "context_overflow", f"expected context_overflow: {reply.finish!r}"
        assert reply.text == "" and not reply.token_ids, "expected no tokens"
    assert 1 <= len(cut.token_ids) <= 2, f"room for 2 ids, got {len(cut.token_ids)}"


def check_extension(bench: Bench) -> None:
    """A prompt that goes on from a reply keeps the sampled ids."""
    first = bench.one()
    news: Message = {"role": "user", "content": "Agent 1 says 4. Answer again."}
    own: Message = {"role": "assistant", "content": first.text}
    second = replace(
        turn_request(), round=1, messages=(*turn_request().messages, own, news), previous=first
    )
    rendered = bench.engine.renderer.render(second)
    kept = (*first.prompt_ids, *first.token_ids)
    assert not rendered.extended or rendered.prompt_ids[: len(kept)] == kept, "reply re-tokenised"
    reply = bench.engine.generate([Request(second, SAMPLING, rendered.prompt_ids)])[0]
    if bench.can("logps"):
        bench.check_logps([reply], "after an extended prompt")


_PATIENCE_S = 600.0
_AT_ONCE_S = 5.0


def check_stream(bench: Bench) -> None:
    """Each request ends once, with the reply that `generate` gives to it."""
    stream = bench.stream
    sent = requests(bench.engine) * 4
    tickets = [stream.submit(one) for one in sent]
    assert len(set(tickets)) == len(tickets), "a ticket was given twice"
    replies = gather(bench, tickets)
    if bench.can("seeds"):
        for ticket, expected in zip(tickets, bench.engine.generate(sent), strict=True):
            found = replies[ticket]
            assert (found.text, found.token_ids) == (expected.text, expected.token_ids), (
                "a submitted request has another reply than in generate"
            )


def check_collect(bench: Bench) -> None:
    """Collect returns at once when nothing is open, and when its time is over."""
    stream = bench.stream
    began = time.monotonic()
    assert stream.collect(_PATIENCE_S) == [], "nothing is open: expected no reply"
    ticket = stream.submit(request(bench.engine, turn_request()))
    first = stream.collect(0.0)
    took = time.monotonic() - began
    assert took < _AT_ONCE_S, f"expected both calls to return at once, they took {took:.1f} s"
    if not first:
        gather(bench, [ticket])


def check_cancel(bench: Bench) -> None:
    """A cancelled request is never returned, and the others are."""
    stream = bench.stream
    kept, cancelled, late = [stream.submit(one) for one in requests(bench.engine)]
    stream.cancel(cancelled)
    stream.cancel(cancelled)
    gather(bench, [kept, late])
    assert stream.collect(0.2) == [], "a cancelled request was returned"
    stream.cancel(kept)
    gather(bench, [stream.submit(request(bench.engine, turn_request()))])


def check_overdue(bench: Bench) -> None:
    """A debate whose reply does not come in time is named, and the engine serves on."""
    try:
        play([_debate()], bench.engine, max_tokens=64, driver=FreeRunning(timeout_s=1e-5))
    except EngineFailure as failure:
        assert "no reply within" in str(failure) and "agent 0" in str(failure), str(failure)
    assert bench.one() is not None


def check_killed(bench: Bench) -> None:
    """After the engine has died, a debate ends with an error that names it."""
    if bench.kill is None:
        raise NotApplicable("has no process of its own here")
    bench.kill()
    driver = FreeRunning(timeout_s=30.0)
    error = _error_of(
        lambda: play([_debate()], bench.engine, max_tokens=8, driver=driver), "an engine that died"
    )
    assert isinstance(error, EngineFailure) and "question 'q'" in str(error), repr(error)


def gather(bench: Bench, tickets: Sequence[int]) -> dict[int, Reply]:
    """Collect until all of these requests have ended; other tickets are a fault."""
    stream = bench.stream
    replies: dict[int, Reply] = {}
    until = time.monotonic() + _PATIENCE_S
    while len(replies) < len(tickets):
        assert time.monotonic() < until, f"no reply within {_PATIENCE_S:g} s"
        for done in stream.collect(1.0):
            assert done.ticket in tickets, f"ticket {done.ticket} is not open"
            assert done.ticket not in replies, f"ticket {done.ticket} was returned twice"
            if isinstance(done.outcome, Exception):
                raise done.outcome
            replies[done.ticket] = done.outcome
    return replies


def _error_of(call: Callable[[], object], what: str) -> Exception:
    try:
        found = call()
    except Exception as error:
        return error
    raise AssertionError(f"{what}: expected an exception, got {found}")


def _debate() -> DebateRun:
    one = replace(turn_request(), seed=SAMPLING.seed)
    yield [one]
    return Transcript("q", one.question, Protocol(1), ())


_LONG = 192


def check_full_refresh(bench: Bench) -> None:
    """After a load, replies carry its version and come from the new weights."""
    for refresh in _of(bench, "full", 1):
        _check_load(bench, refresh)


def check_lora_refresh(bench: Bench) -> None:
    """Adapters follow each other, one that came before comes back, and all are served right."""
    adapters = _of(bench, "lora", 2)
    for refresh in (*adapters, adapters[0]):
        _check_load(bench, refresh)


def check_adapters(bench: Bench) -> None:
    """Of several adapters each ask is answered with its own, side by side and alone."""
    first, second, *_ = _of(bench, "lora", 2)
    own = dict(zip(("first", "second"), (first, second), strict=True))
    tensors = {
        f"{name}/{key}": tensor
        for name, refresh in own.items()
        for key, tensor in refresh.weights.tensors.items()
    }
    both = replace(first.weights, tensors=tensors, names=tuple(own))
    bench.load(Refresh(both, first.logps))
    named: dict[str | None, str] = {None: "first", **{name: name for name in own}}
    sent = [
        replace(one, turn_request=replace(one.turn_request, adapter=name))
        for one in requests(bench.engine)
        for name in named
    ]
    together = bench.engine.generate(sent)
    for one, reply in zip(sent, together, strict=True):
        _check_version(bench, reply)
        bench.logps = own[named[one.turn_request.adapter]].logps
        bench.check_logps([reply], f"adapter {one.turn_request.adapter}")
    if bench.can("seeds"):
        alone = [reply for one in sent for reply in bench.engine.generate([one])]
        assert [reply.token_ids for reply in alone] == [reply.token_ids for reply in together], (
            "other replies than without the other adapter beside"
        )
    unknown = replace(sent[0], turn_request=replace(sent[0].turn_request, adapter="third"))
    error = _error_of(lambda: bench.engine.generate([unknown]), "an adapter that was not loaded")
    assert "third" in str(error), f"expected the unknown adapter to be named: {error}"
    bench.load(first)


def check_prefix_cache(bench: Bench) -> None:
    """A prompt that was cached under old weights is computed again under new ones."""
    refresh = _any(bench)
    if refresh.logps is None:
        raise NotApplicable("needs the trainer's log-probabilities of new weights")
    long = _long_request(bench)
    bench.engine.generate([long])
    for one in (*bench.refreshes[::-1], refresh):
        bench.load(one)
        bench.check_logps(bench.engine.generate([long]), "a prompt from before the refresh")


def check_refused_weights(bench: Bench) -> None:
    """Weights that do not fit are refused, and what was served is served on, or nothing is."""
    weights = _of(bench, "full", 1)[0].weights
    names = list(weights.tensors)
    within = names[len(names) // 2]  # Not the first or last, which may be tied.
    missing = {name: weights.tensors[name] for name in names if name != within}
    unknown = {**weights.tensors, "no.such.weight": weights.tensors[within]}
    for what, tensors in (("a parameter is missing", missing), ("a name is unknown", unknown)):
        before = _scored(bench)
        unfit = replace(weights, version=bench.version + 1, tensors=tensors)
        _error_of(partial(bench.engine.load, unfit), what)
        try:
            after = _scored(bench)
        except Exception as error:
            raise NotApplicable(f"serves nothing after refused weights: {error}") from error
        assert after.weight_version == bench.version, f"{what}: the version rose"
        assert (after.token_ids, after.logps) == (before.token_ids, before.logps), (
            f"{what}: other weights are served than before"
        )


def check_load_in_flight(bench: Bench) -> None:
    """Weights that are loaded while replies are sampled: each reply says what it mixes."""
    refresh = _any(bench)
    stream = bench.stream
    old = bench.version
    tickets = [stream.submit(_running_long(bench, seed)) for seed in range(4)]
    early = {done.ticket for done in stream.collect(0.05)}
    bench.load(refresh)
    tickets.append(stream.submit(_running_long(bench, 4)))
    replies = gather(bench, [ticket for ticket in tickets if ticket not in early])
    for ticket in tickets:
        reply = replies.get(ticket)
        if reply is not None:
            _check_spans(reply, old, bench.version)
    last = replies[tickets[-1]]
    assert last.weight_version == bench.version and not last.version_spans, (
        "a request from after the load: expected its version alone"
    )


def _check_spans(reply: Reply, old: int, new: int) -> None:
    assert reply.weight_version in (old, new), f"unknown version {reply.weight_version}"
    if not reply.version_spans:
        return
    versions, starts, ends = zip(*reply.version_spans, strict=True)
    assert (starts[0], *ends) == (*starts, len(reply.token_ids)), (
        f"version_spans {reply.version_spans}: expected them to cover {len(reply.token_ids)} ids"
    )
    assert versions[-1] == reply.weight_version, "weight_version is that of the last token"


def _of(bench: Bench, kind: Literal["full", "lora"], least: int) -> list[Refresh]:
    found = [one for one in bench.refreshes if one.weights.kind == kind]
    if len(found) < least:
        raise NotApplicable(f"needs {least} refreshes of kind {kind}")
    return found


def _any(bench: Bench) -> Refresh:
    if not bench.refreshes:
        raise NotApplicable("needs a refresh")
    return bench.refreshes[0]


def _check_load(bench: Bench, refresh: Refresh) -> None:
    before = _scored(bench)
    bench.load(refresh)
    after = _scored(bench)
    _check_version(bench, after)
    if bench.can("logps"):
        changed = (after.token_ids, after.logps) != (before.token_ids, before.logps)
        assert changed, "the same log-probabilities as before the load"
        bench.check_logps([after], "after a load")


def _check_version(bench: Bench, reply: Reply) -> None:
    found, expected = reply.weight_version, bench.version
    assert found == expected, f"expected weight version {expected}, got {found}"


def _scored(bench: Bench) -> Reply:
    return bench.one(replace(SAMPLING, seed=5))


def _long_request(bench: Bench) -> Request:
    short = request(bench.engine, turn_request())
    if not short.prompt_ids:
        raise NotApplicable("takes no ids")
    window = bench.engine.context_window or 2 * _LONG
    length = min(_LONG, window - SAMPLING.max_tokens)
    ids = (short.prompt_ids * (length // len(short.prompt_ids) + 1))[:length]
    return replace(short, prompt_ids=ids)


def _running_long(bench: Bench, seed: int) -> Request:
    one = request(bench.engine, turn_request())
    room = (bench.engine.context_window or 2 * _LONG) - len(one.prompt_ids)
    return replace(one, sampling=replace(SAMPLING, seed=seed, max_tokens=room))


__all__ = [
    "CHECKS",
    "SAMPLING",
    "Bench",
    "EngineCheck",
    "Logps",
    "NotApplicable",
    "Refresh",
    "turn_request",
    "check_engine",
    "conformance",
    "conformance_table",
    "request",
]


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """One check, and the capabilities without which it is left out."""

    name: str
    needs: tuple[Capability, ...]
    run: Callable[[Bench], None]


CHECKS: tuple[EngineCheck, ...] = (
    EngineCheck("one reply a request, in order", (), check_order),
    EngineCheck("token limit", (), check_max_tokens),
    EngineCheck("ids in, ids out, text of the ids", ("tokens",), check_ids),
    EngineCheck("stop string", ("tokens",), check_stop),
    EngineCheck("stop string inside a token", ("tokens", "logps"), check_stop_inside_token),
    EngineCheck("same seed, same reply", ("seeds",), check_seeds),
    EngineCheck("n samples of a prompt", ("logps",), check_samples),
    EngineCheck("no influence of neighbours", ("tokens", "seeds"), check_batch),
    EngineCheck("trainer's log-probabilities", ("logps",), check_trainer_logps),
    EngineCheck("empty prompt", ("tokens",), check_empty_prompt),
    EngineCheck("over-long prompt", ("tokens",), check_overflow),
    EngineCheck("extended prompt keeps ids", ("tokens",), check_extension),
    EngineCheck("each submitted request ends once", ("streams",), check_stream),
    EngineCheck("collect keeps its time", ("streams",), check_collect),
    EngineCheck("cancellation", ("streams",), check_cancel),
    EngineCheck("overdue request is named", ("streams",), check_overdue),
    EngineCheck("full refresh", ("full_weights",), check_full_refresh),
    EngineCheck("LoRA refresh", ("lora",), check_lora_refresh),
    EngineCheck("an adapter for each ask", ("adapters",), check_adapters),
    EngineCheck("prefix cache dropped", ("prefix_cache",), check_prefix_cache),
    EngineCheck("unfit weights refused", ("full_weights",), check_refused_weights),
    EngineCheck("load in flight", ("load_in_flight",), check_load_in_flight),
    EngineCheck("death is named", (), check_killed),
)


def check_engine(bench: Bench | Engine, weights: Weights | None = None) -> dict[str, str]:
    """Run every check that the engine's capabilities ask for; the first failure is raised.

    Args:
        bench: The engine with what checks need, or the engine alone.
        weights: Weights to load when `bench` is an engine alone.

    Returns:
        For each check `passed`, or why it was left out.
    """
    if not isinstance(bench, Bench):
        bench = Bench(bench, refreshes=() if weights is None else (Refresh(weights),))
    found: dict[str, str] = {}
    for check in CHECKS:
        try:
            found[check.name] = _result(check, bench)
        except AssertionError as error:
            error.add_note(f"conformance check: {check.name}")
            raise
    return found


def conformance(bench: Bench) -> dict[str, str]:
    """Run every check and return its result: `passed`, why it was left out, or `FAILED: …`."""
    found: dict[str, str] = {}
    for check in CHECKS:
        try:
            found[check.name] = _result(check, bench)
        except Exception as error:
            found[check.name] = f"FAILED: {type(error).__name__}: {error}"
    return found


def conformance_table(results: Mapping[str, Mapping[str, str]]) -> str:
    """Return results by engine as a Markdown table of check × engine."""
    head = ["check", *results]
    names = [check.name for check in CHECKS if all(check.name in r for r in results.values())]
    marks = [[name, *(_mark(found[name]) for found in results.values())] for name in names]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *marks))


def _result(check: EngineCheck, bench: Bench) -> str:
    lacking = [name for name in check.needs if not bench.can(name)]
    if lacking:
        return f"without {', '.join(lacking)}"
    try:
        check.run(bench)
    except NotApplicable as reason:
        return str(reason)
    return "passed"


def _mark(result: str) -> str:
    return {"passed": "✓"}.get(result, "FAILED" if result.startswith("FAILED") else "–")
