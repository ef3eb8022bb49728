"""Conformance checks that every engine passes; for the tests of engines, also of third parties.

Each check raises AssertionError saying what was expected. They send short requests and need
no particular model: replies may be nonsense.
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

SAMPLING = Sampling(max_tokens=12, temperature=1.0, seed=11)
QUESTIONS = ("What is 2 + 3?", "Name a colour.", "Is the sky blue? Say why, in a few words.")
TEMPERATURES = (0.6, 1.0, 1.7, 0.0)
_PATIENCE_S = 600.0
_AT_ONCE_S = 5.0
_LONG_PROMPT_TOKENS = 192
# A log-probability is at most 0, up to float32 rounding of the log-softmax.
_LOGP_ROUNDING = 1e-5
_NUM_STOP_SEEDS = 32

Logps = Callable[[Sequence[int], Sequence[int], float], Sequence[float]]
"""Log-probabilities of reply ids after prompt ids at a temperature, as a trainer computes them."""


class NotApplicable(Exception):
    """A check without an occasion at this engine or bench; the message says why."""


@dataclass(frozen=True, slots=True)
class Refresh:
    """Weights to load, with the trainer's log-probabilities under them."""

    weights: Weights
    logps: Logps | None = None


@dataclass(slots=True)
class Bench:
    """An engine under test; checks without their needs are left out and say so.

    Attributes:
        engine: Opened, with any model.
        logps: The trainer's log-probabilities under the weights served now.
        refreshes: Weights to load, in order, with rising versions: for `full_weights` at least
            one of kind full, for `lora` at least two adapters.
        kill: Ends the engine's process, if it has a separate one; called last.
        tolerance: Largest difference from `logps`; 1e-5 is for float32.
        temperatures: Temperatures at which the engine samples.
    """

    engine: Engine
    logps: Logps | None = None
    refreshes: Sequence[Refresh] = ()
    kill: Callable[[], None] | None = None
    tolerance: float = 1e-5
    temperatures: Sequence[float] = TEMPERATURES
    version: int = field(default=0, init=False)
    """Version of the weights served now."""

    def can(self, *capabilities: Capability) -> bool:
        """Check for all of these capabilities."""
        return set(capabilities) <= self.engine.capabilities

    @property
    def stream(self) -> StreamingEngine:
        """The engine as a streaming one."""
        return cast(StreamingEngine, self.engine)

    def one(self, sampling: Sampling = SAMPLING, text: str = QUESTIONS[0]) -> Reply:
        """Sample the reply to a single request."""
        single_request = request(self.engine, turn_request(text), sampling)
        return self.engine.generate([single_request])[0]

    def load(self, refresh: Refresh) -> None:
        """Load weights under a version newer than the served one."""
        self.version = max(refresh.weights.version, self.version + 1)
        self.engine.load(replace(refresh.weights, version=self.version))
        self.logps = refresh.logps

    def check_logps(self, replies: Sequence[Reply], what: str) -> None:
        """Compare log-probabilities with the trainer's, if the bench has them."""
        if self.logps is None:
            return
        for reply in replies:
            # A greedy reply has the log-probabilities of temperature 1.
            temperature = reply.temperature or 1.0
            expected = self.logps(reply.prompt_ids, reply.token_ids, temperature)
            difference = _largest_difference(expected, reply.logps)
            assert difference <= self.tolerance, (
                f"{what}: log-probabilities at temperature {reply.temperature:g} differ from the "
                f"trainer's by {difference:.2g}; expected at most {self.tolerance:g}"
            )


def _largest_difference(
    first_logps: Sequence[float],
    second_logps: Sequence[float],
) -> float:
    pairs = zip(first_logps, second_logps, strict=True)
    differences = [abs(first - second) for first, second in pairs]
    return max(differences, default=0.0)


def turn_request(text: str = QUESTIONS[0], agent: int = 0) -> TurnRequest:
    """Build an agent's first turn request."""
    message: Message = {"role": "user", "content": text}
    return TurnRequest(
        question=Question("q", text),
        agent=agent,
        round=0,
        messages=(message,),
    )


def request(
    engine: Engine,
    turn: TurnRequest,
    sampling: Sampling = SAMPLING,
) -> Request:
    """Render a turn request for this engine."""
    renderer: Any = engine.renderer
    prompt_ids = () if renderer is None else renderer.render(turn).prompt_ids
    return Request(turn, sampling, prompt_ids)


def requests(engine: Engine, **changes: Any) -> list[Request]:
    """Build a request for each question, each with a seed of its own."""
    question_requests = []
    for agent, text in enumerate(QUESTIONS):
        sampling = replace(SAMPLING, seed=agent, **changes)
        question_requests.append(request(engine, turn_request(text, agent), sampling))
    return question_requests


def check_order(bench: Bench) -> None:
    """One reply a request, in order; no request, no reply."""
    engine = bench.engine
    assert engine.generate([]) == [], "no requests: expected no replies"
    sent = requests(engine)
    replies = engine.generate(sent)
    assert len(replies) == len(sent), f"expected {len(sent)} replies, got {len(replies)}"
    for sent_request, reply in zip(sent, replies, strict=True):
        if bench.can("tokens"):
            has_own_prompt = reply.prompt_ids == sent_request.prompt_ids
            assert has_own_prompt, "a reply carries its own prompt's ids"
        temperature = sent_request.sampling.temperature
        assert reply.temperature == temperature, "a reply carries its temperature"


def check_ids(bench: Bench) -> None:
    """Ids out, a log-probability for each, and the ids decode to the text."""
    tokenizer = bench.engine.renderer.tokenizer
    for reply in bench.engine.generate(requests(bench.engine)):
        num_ids = len(reply.token_ids)
        assert num_ids > 0, "expected at least one sampled id"
        # An engine may leave log-probabilities out, but not give some of them.
        if bench.can("logps") or reply.logps:
            assert len(reply.logps) == num_ids, "expected one log-probability an id"
        for logp in reply.logps:
            assert math.isfinite(logp) and logp <= _LOGP_ROUNDING, reply.logps
        assert reply.text == token_text(tokenizer, reply.token_ids).text


def check_max_tokens(bench: Bench) -> None:
    """A reply never has more ids than it may."""
    reply = bench.one(replace(SAMPLING, max_tokens=3))
    num_ids = len(reply.token_ids)
    assert num_ids <= 3, f"expected at most 3 ids, got {num_ids}"


def check_stop(bench: Bench) -> None:
    """A reply ends with the token in which its first stop string ends."""
    for seed, reply in _replies(bench):
        # Not the first character, which a stop would reduce to an empty reply, and no replacement
        # character, which replaces bytes that are not UTF-8.
        stop = re.search(r"(?<=.)[^�]{1,2}", reply.text, re.DOTALL)
        if stop is not None:
            _check_stops_at(bench, seed, stop[0])
            return
    raise NotApplicable("no reply with text")


def check_stop_inside_token(bench: Bench) -> None:
    """A stop string that ends inside a token keeps the whole token, in ids and in text."""
    tokenizer = bench.engine.renderer.tokenizer
    for seed, reply in _replies(bench):
        text = reply.text
        starts = token_text(tokenizer, reply.token_ids).starts
        for start, next_start in pairwise((*starts, len(text))):
            # The last character before the token, and its first: the stop ends inside the token
            # if the token has further characters.
            stop = text[max(0, start - 1) : start + 1]
            stop_end = text.find(stop) + len(stop)
            # Where the same characters stand earlier, the reply would stop there.
            is_first = stop_end == start + 1
            has_more_characters = next_start - start > 1
            if "�" in stop or not is_first or not has_more_characters:
                continue
            stopped = _check_stops_at(bench, seed, stop)
            if bench.can("seeds"):
                is_whole = len(stopped.text) > stop_end
                assert is_whole, f"cut inside a token: {stopped.text!r}"
            return
    raise NotApplicable("no token of two characters was sampled")


def _replies(bench: Bench) -> Iterator[tuple[int, Reply]]:
    for seed in range(_NUM_STOP_SEEDS):
        yield seed, bench.one(replace(SAMPLING, seed=seed))


def _check_stops_at(bench: Bench, seed: int, stop: str) -> Reply:
    reply = bench.one(replace(SAMPLING, seed=seed, stop=(stop,)))
    if not bench.can("seeds") and reply.finish != "stop":
        raise NotApplicable("another reply was sampled")
    assert reply.finish == "stop", f"expected finish 'stop' at {stop!r}, got {reply.finish!r}"
    assert stop in reply.text, f"expected {stop!r} in {reply.text!r}"
    tokenizer = bench.engine.renderer.tokenizer
    text_of_ids = token_text(tokenizer, reply.token_ids).text
    assert reply.text == text_of_ids, "text is not that of the ids"
    text_before_last = token_text(tokenizer, reply.token_ids[:-1]).text
    assert stop not in text_before_last, f"went on after {stop!r}: {reply.text!r}"
    return reply


def check_seeds(bench: Bench) -> None:
    """The same request has the same reply."""
    first = bench.one()
    second = bench.one()
    has_same_ids = first.token_ids == second.token_ids
    assert has_same_ids and first.text == second.text, "same seed, not same"


def check_samples(bench: Bench) -> None:
    """Requests that differ only by their seeds have different replies."""
    sent = []
    for seed in range(8):
        sampling = replace(SAMPLING, seed=seed)
        sent.append(request(bench.engine, turn_request(), sampling))
    distinct_ids = {reply.token_ids for reply in bench.engine.generate(sent)}
    assert len(distinct_ids) > 1, "8 seeds in one batch gave one and the same reply"


def check_batch(bench: Bench) -> None:
    """A reply is the same alone and beside others."""
    # In a large vocabulary, rounding alone decides between tokens that are hardly ever drawn.
    sent = requests(bench.engine, top_k=10)
    replies = bench.engine.generate(sent)
    for sent_request, reply in zip(sent, replies, strict=True):
        single_reply = bench.engine.generate([sent_request])[0]
        assert single_reply.token_ids == reply.token_ids, "batch neighbours changed a reply"
        # Kernels for other batch sizes sum in another order; 0.05 is far above such rounding.
        drift = _largest_difference(single_reply.logps, reply.logps)
        assert drift < 0.05, f"batch neighbours changed log-probabilities by {drift}"


def check_trainer_logps(bench: Bench) -> None:
    """Log-probabilities are the trainer's, at several temperatures in one batch."""
    if bench.logps is None:
        raise NotApplicable("needs the trainer's log-probabilities")
    sent = []
    for seed, text in enumerate(QUESTIONS):
        for temperature in bench.temperatures:
            sampling = replace(SAMPLING, temperature=temperature, seed=seed)
            sent.append(request(bench.engine, turn_request(text), sampling))
    replies = bench.engine.generate(sent)
    bench.check_logps(replies, "in one batch")


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
    short = request(bench.engine, turn_request())
    prompts = []
    for length in (window + 1, window, window - 2):
        prompt_ids = short.prompt_ids[:1] * length
        prompts.append(replace(short, prompt_ids=prompt_ids))
    too_long, full, nearly_full = bench.engine.generate(prompts)
    for reply in (too_long, full):
        assert reply.finish == "context_overflow", f"expected context_overflow: {reply.finish!r}"
        assert reply.text == "" and not reply.token_ids, "expected no tokens"
    num_ids = len(nearly_full.token_ids)
    assert 1 <= num_ids <= 2, f"room for 2 ids, got {num_ids}"


def check_extension(bench: Bench) -> None:
    """A prompt that extends a reply contains the sampled ids."""
    first = bench.one()
    assistant: Message = {"role": "assistant", "content": first.text}
    user: Message = {"role": "user", "content": "Agent 1 says 4. Answer again."}
    messages = (*turn_request().messages, assistant, user)
    turn = replace(
        turn_request(),
        round=1,
        messages=messages,
        previous=first,
    )
    rendered = bench.engine.renderer.render(turn)
    # Encoding the reply's text again may give other ids than were sampled.
    sampled_prefix = (*first.prompt_ids, *first.token_ids)
    prompt_prefix = rendered.prompt_ids[: len(sampled_prefix)]
    if rendered.extended:
        assert prompt_prefix == sampled_prefix, "reply re-tokenised"
    extended_request = Request(turn, SAMPLING, rendered.prompt_ids)
    reply = bench.engine.generate([extended_request])[0]
    if bench.can("logps"):
        bench.check_logps([reply], "after an extended prompt")


def check_stream(bench: Bench) -> None:
    """Each request ends once, with the reply that `generate` gives to it."""
    stream = bench.stream
    # More requests than an engine may take at once.
    sent = requests(bench.engine) * 4
    tickets = [stream.submit(sent_request) for sent_request in sent]
    assert len(set(tickets)) == len(tickets), "a ticket was given twice"
    replies = gather(bench, tickets)
    if bench.can("seeds"):
        expected_replies = bench.engine.generate(sent)
        for ticket, expected in zip(tickets, expected_replies, strict=True):
            reply = replies[ticket]
            has_same_ids = reply.token_ids == expected.token_ids
            assert has_same_ids and reply.text == expected.text, (
                "a submitted request has another reply than in generate"
            )


def check_collect(bench: Bench) -> None:
    """Collect returns at once when nothing is open, and when its time is over."""
    stream = bench.stream
    began = time.monotonic()
    assert stream.collect(_PATIENCE_S) == [], "nothing is open: expected no reply"
    ticket = stream.submit(request(bench.engine, turn_request()))
    # Without time to wait it returns the reply already, or nothing.
    finished = stream.collect(0.0)
    took_s = time.monotonic() - began
    assert took_s < _AT_ONCE_S, f"expected both calls to return at once, they took {took_s:.1f} s"
    if not finished:
        gather(bench, [ticket])


def check_cancel(bench: Bench) -> None:
    """A cancelled request is never returned, and the others are."""
    stream = bench.stream
    first, cancelled, last = [stream.submit(sent) for sent in requests(bench.engine)]
    stream.cancel(cancelled)
    stream.cancel(cancelled)  # A second time changes nothing.
    gather(bench, [first, last])
    assert stream.collect(0.2) == [], "a cancelled request was returned"
    stream.cancel(first)  # Neither does a ticket that has ended.
    gather(bench, [stream.submit(request(bench.engine, turn_request()))])


def check_overdue(bench: Bench) -> None:
    """An overdue debate is named in the error, and the engine serves on."""
    # Too short for any engine: the deadline passes while the request is open.
    driver = FreeRunning(timeout_s=1e-5)
    try:
        play([_debate()], bench.engine, max_tokens=64, driver=driver)
    except EngineFailure as failure:
        message = str(failure)
        assert "no reply within" in message and "agent 0" in message, message
    assert bench.one() is not None


def check_killed(bench: Bench) -> None:
    """After the engine has died, a debate ends with an error that names it."""
    if bench.kill is None:
        raise NotApplicable("has no process of its own here")
    bench.kill()
    driver = FreeRunning(timeout_s=30.0)
    play_one = partial(
        play,
        [_debate()],
        bench.engine,
        max_tokens=8,
        driver=driver,
    )
    error = _error_of(play_one, "an engine that died")
    assert isinstance(error, EngineFailure), repr(error)
    assert "question 'q'" in str(error), repr(error)


def gather(bench: Bench, tickets: Sequence[int]) -> dict[int, Reply]:
    """Collect until all of these requests have ended; other tickets are an error."""
    stream = bench.stream
    replies: dict[int, Reply] = {}
    # An engine that breaks the rule may never end a request; the check still does.
    deadline = time.monotonic() + _PATIENCE_S
    while len(replies) < len(tickets):
        assert time.monotonic() < deadline, f"no reply within {_PATIENCE_S:g} s"
        for finished in stream.collect(1.0):
            ticket = finished.ticket
            assert ticket in tickets, f"ticket {ticket} is not open"
            assert ticket not in replies, f"ticket {ticket} was returned twice"
            if isinstance(finished.outcome, Exception):
                raise finished.outcome
            replies[ticket] = finished.outcome
    return replies


def _error_of(call: Callable[[], object], what: str) -> Exception:
    try:
        result = call()
    except Exception as error:
        return error
    raise AssertionError(f"{what}: expected an exception, got {result}")


def _debate() -> DebateRun:
    turn = replace(turn_request(), seed=SAMPLING.seed)
    yield [turn]
    return Transcript("q", turn.question, Protocol(1), ())


def check_full_refresh(bench: Bench) -> None:
    """After a load, replies carry its version and come from the new weights."""
    for refresh in _refreshes(bench, "full", 1):
        _check_load(bench, refresh)


def check_lora_refresh(bench: Bench) -> None:
    """Adapters follow each other, an earlier one returns, and each is served right."""
    adapters = _refreshes(bench, "lora", 2)
    for refresh in (*adapters, adapters[0]):
        _check_load(bench, refresh)


def check_adapters(bench: Bench) -> None:
    """Each request is answered with its own of several adapters, in one batch and alone."""
    first, second, *_ = _refreshes(bench, "lora", 2)
    refreshes = {"first": first, "second": second}
    tensors = {}
    for name, refresh in refreshes.items():
        for key, tensor in refresh.weights.tensors.items():
            tensors[f"{name}/{key}"] = tensor
    both_weights = replace(first.weights, tensors=tensors, names=tuple(refreshes))
    bench.load(Refresh(both_weights, first.logps))

    sent = []
    for plain_request in requests(bench.engine):
        for adapter in (None, "first", "second"):
            turn = replace(plain_request.turn_request, adapter=adapter)
            sent.append(replace(plain_request, turn_request=turn))
    replies = bench.engine.generate(sent)
    for sent_request, reply in zip(sent, replies, strict=True):
        _check_version(bench, reply)
        adapter = sent_request.turn_request.adapter
        # A request without an adapter is answered by the first.
        bench.logps = refreshes[adapter or "first"].logps
        bench.check_logps([reply], f"adapter {adapter}")
    if bench.can("seeds"):
        for sent_request, reply in zip(sent, replies, strict=True):
            single_reply = bench.engine.generate([sent_request])[0]
            assert single_reply.token_ids == reply.token_ids, (
                "other replies than without the other adapter beside"
            )

    unknown_turn = replace(sent[0].turn_request, adapter="third")
    unknown = replace(sent[0], turn_request=unknown_turn)
    error = _error_of(lambda: bench.engine.generate([unknown]), "an adapter that was not loaded")
    assert "third" in str(error), f"expected the unknown adapter to be named: {error}"
    bench.load(first)


def check_prefix_cache(bench: Bench) -> None:
    """A prompt that was cached under old weights is computed again under new ones."""
    first = _first_refresh(bench)
    if first.logps is None:
        raise NotApplicable("needs the trainer's log-probabilities of new weights")
    short = request(bench.engine, turn_request())
    if not short.prompt_ids:
        raise NotApplicable("takes no ids")
    window = bench.engine.context_window or 2 * _LONG_PROMPT_TOKENS
    num_tokens = min(_LONG_PROMPT_TOKENS, window - SAMPLING.max_tokens)
    num_copies = num_tokens // len(short.prompt_ids) + 1
    long_prompt = (short.prompt_ids * num_copies)[:num_tokens]
    long_request = replace(short, prompt_ids=long_prompt)
    bench.engine.generate([long_request])
    for refresh in (*bench.refreshes[::-1], first):
        bench.load(refresh)
        replies = bench.engine.generate([long_request])
        bench.check_logps(replies, "a prompt from before the refresh")


def check_refused_weights(bench: Bench) -> None:
    """After weights that do not fit, the engine serves the old ones or nothing."""
    weights = _refreshes(bench, "full", 1)[0].weights
    names = list(weights.tensors)
    middle = names[len(names) // 2]  # Not the first or last, which may be tied.
    missing = {name: tensor for name, tensor in weights.tensors.items() if name != middle}
    unknown = {**weights.tensors, "no.such.weight": weights.tensors[middle]}
    for what, tensors in (("a parameter is missing", missing), ("a name is unknown", unknown)):
        before = _scored(bench)
        unfit = replace(weights, version=bench.version + 1, tensors=tensors)
        _error_of(partial(bench.engine.load, unfit), what)
        try:
            after = _scored(bench)
        except Exception as error:
            raise NotApplicable(f"serves nothing after refused weights: {error}") from error
        assert after.weight_version == bench.version, f"{what}: the version rose"
        has_same_logps = after.logps == before.logps
        assert has_same_logps and after.token_ids == before.token_ids, (
            f"{what}: other weights are served than before"
        )


def check_load_in_flight(bench: Bench) -> None:
    """A reply that was sampled during a load names the version of each of its tokens."""
    refresh = _first_refresh(bench)
    stream = bench.stream
    old_version = bench.version
    tickets = [stream.submit(_running_long(bench, seed)) for seed in range(4)]
    # A fast engine may finish some of them before the load; those are not checked.
    early_tickets = {finished.ticket for finished in stream.collect(0.05)}
    bench.load(refresh)
    tickets.append(stream.submit(_running_long(bench, 4)))
    late_tickets = [ticket for ticket in tickets if ticket not in early_tickets]
    replies = gather(bench, late_tickets)
    for ticket in late_tickets:
        _check_spans(replies[ticket], old_version, bench.version)
    last = replies[tickets[-1]]
    is_from_new_weights = last.weight_version == bench.version
    assert is_from_new_weights and not last.version_spans, (
        "a request from after the load: expected its version alone"
    )


def _check_spans(
    reply: Reply,
    old_version: int,
    new_version: int,
) -> None:
    is_known = reply.weight_version in (old_version, new_version)
    assert is_known, f"unknown version {reply.weight_version}"
    if not reply.version_spans:
        return
    versions, starts, ends = zip(*reply.version_spans, strict=True)
    # Each span starts where the last one ended, and the last span ends with the reply.
    assert (starts[0], *ends) == (*starts, len(reply.token_ids)), (
        f"version_spans {reply.version_spans}: expected them to cover {len(reply.token_ids)} ids"
    )
    assert versions[-1] == reply.weight_version, "weight_version is that of the last token"


def _refreshes(
    bench: Bench,
    kind: Literal["full", "lora"],
    num_needed: int,
) -> list[Refresh]:
    refreshes = [refresh for refresh in bench.refreshes if refresh.weights.kind == kind]
    if len(refreshes) < num_needed:
        raise NotApplicable(f"needs {num_needed} refreshes of kind {kind}")
    return refreshes


def _first_refresh(bench: Bench) -> Refresh:
    if not bench.refreshes:
        raise NotApplicable("needs a refresh")
    return bench.refreshes[0]


def _check_load(bench: Bench, refresh: Refresh) -> None:
    before = _scored(bench)
    bench.load(refresh)
    after = _scored(bench)
    _check_version(bench, after)
    if bench.can("logps"):
        has_changed = after.token_ids != before.token_ids or after.logps != before.logps
        assert has_changed, "the same log-probabilities as before the load"
        bench.check_logps([after], "after a load")


def _check_version(bench: Bench, reply: Reply) -> None:
    assert reply.weight_version == bench.version, (
        f"expected weight version {bench.version}, got {reply.weight_version}"
    )


def _scored(bench: Bench) -> Reply:
    return bench.one(replace(SAMPLING, seed=5))


def _running_long(bench: Bench, seed: int) -> Request:
    short = request(bench.engine, turn_request())
    window = bench.engine.context_window or 2 * _LONG_PROMPT_TOKENS
    # As long as the window allows, so that the load happens during the reply.
    max_tokens = window - len(short.prompt_ids)
    return replace(short, sampling=replace(SAMPLING, seed=seed, max_tokens=max_tokens))


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """A check with the capabilities it needs; an engine without them skips it."""

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
    EngineCheck("an adapter for each request", ("adapters",), check_adapters),
    EngineCheck("prefix cache dropped", ("prefix_cache",), check_prefix_cache),
    EngineCheck("unfit weights refused", ("full_weights",), check_refused_weights),
    EngineCheck("load in flight", ("load_in_flight",), check_load_in_flight),
    EngineCheck("death is named", (), check_killed),
)


def check_engine(bench: Bench | Engine, weights: Weights | None = None) -> dict[str, str]:
    """Run every check that fits the engine's capabilities; the first failure is raised.

    Args:
        bench: The engine with the needs of checks, or the engine alone.
        weights: Weights to load when `bench` is an engine alone.

    Returns:
        For each check `passed`, or why it was left out.
    """
    if not isinstance(bench, Bench):
        refreshes = () if weights is None else (Refresh(weights),)
        bench = Bench(bench, refreshes=refreshes)
    results: dict[str, str] = {}
    for check in CHECKS:
        try:
            results[check.name] = _result(check, bench)
        except AssertionError as error:
            error.add_note(f"conformance check: {check.name}")
            raise
    return results


def conformance(bench: Bench) -> dict[str, str]:
    """Run every check; each result is `passed`, why it was left out, or `FAILED: …`."""
    results: dict[str, str] = {}
    for check in CHECKS:
        try:
            results[check.name] = _result(check, bench)
        except Exception as error:
            # The table goes on after a failure, also after one that no check expects.
            results[check.name] = f"FAILED: {type(error).__name__}: {error}"
    return results


def conformance_table(results: Mapping[str, Mapping[str, str]]) -> str:
    """Format results by engine as a Markdown table of check × engine."""
    rows = [["check", *results], ["---"] * (1 + len(results))]
    for check in CHECKS:
        check_results = [by_check.get(check.name) for by_check in results.values()]
        marks = [_mark(result) for result in check_results if result is not None]
        # A table of an earlier version may lack a check that was added since.
        if len(marks) == len(results):
            rows.append([check.name, *marks])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _result(check: EngineCheck, bench: Bench) -> str:
    missing = [capability for capability in check.needs if not bench.can(capability)]
    if missing:
        return f"without {', '.join(missing)}"
    try:
        check.run(bench)
    except NotApplicable as reason:
        return str(reason)
    return "passed"


def _mark(result: str) -> str:
    if result == "passed":
        return "✓"
    return "FAILED" if result.startswith("FAILED") else "–"
