"""Checks of single replies and batches."""

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from debate_protocol.types import Message, Reply
from debate_rollout.engine import Request
from debate_rollout.testing.bench import (
    QUESTIONS,
    SAMPLING,
    Bench,
    NotApplicable,
    ask,
    request,
    requests,
)
from debate_rollout.token_text import token_text

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
    """Ids out, a log-probability for each, and the text is that of the ids."""
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
    sent = [request(engine, ask(), replace(SAMPLING, seed=seed)) for seed in range(8)]
    replies = {reply.token_ids for reply in engine.generate(sent)}
    assert len(replies) > 1, "8 seeds in one batch gave one and the same reply"


def check_batch(bench: Bench) -> None:
    """A reply is the same alone and beside others."""
    sent = requests(bench.engine)
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
        request(bench.engine, ask(text), replace(SAMPLING, temperature=temperature, seed=seed))
        for seed, text in enumerate(QUESTIONS)
        for temperature in TEMPERATURES
    ]
    bench.check_logps(bench.engine.generate(sent), "in one batch")


def check_empty_prompt(bench: Bench) -> None:
    """A prompt without ids is refused by name, and the engine serves on."""
    empty = replace(request(bench.engine, ask()), prompt_ids=())
    try:
        reply = bench.engine.generate([empty])
    except Exception as error:
        assert "prompt" in str(error).lower(), f"expected the prompt to be named, got {error!r}"
    else:
        raise AssertionError(f"expected an exception for a prompt without ids, got {reply}")
    assert bench.one().token_ids, "the engine no longer serves after an empty prompt"


def check_overflow(bench: Bench) -> None:
    """A prompt that fills the window has a reply without tokens; one that nearly does is cut."""
    window = bench.engine.context_window
    if window is None:
        raise NotApplicable("has no context window")
    whole = request(bench.engine, ask())
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
    second = replace(ask(), round=1, messages=(*ask().messages, own, news), previous=first)
    rendered = bench.engine.renderer.render(second)
    kept = (*first.prompt_ids, *first.token_ids)
    assert not rendered.extended or rendered.prompt_ids[: len(kept)] == kept, "reply re-tokenised"
    reply = bench.engine.generate([Request(second, SAMPLING, rendered.prompt_ids)])[0]
    if bench.can("logps"):
        bench.check_logps([reply], "after an extended prompt")
