"""Conformance checks that every engine passes; for the tests of engines, also of third parties.

Each check raises AssertionError saying what was expected. They send short asks and need no
particular model: replies may be nonsense.
"""

import math
import re
from collections.abc import Callable
from dataclasses import replace

from debate_protocol.types import Ask, Message, Question, Reply
from debate_rollout.engine import Engine, Request, Sampling, Weights
from debate_rollout.token_text import token_text

SAMPLING = Sampling(max_tokens=12, temperature=1.0, seed=11)
QUESTIONS = ("What is 2 + 3?", "Name a colour.", "Is the sky blue? Say why, in a few words.")


def check_engine(engine: Engine, weights: Weights | None = None) -> None:
    """Run every check that the engine's kind allows.

    Args:
        engine: Opened, with any model.
        weights: Weights the engine can load; without them loading is not checked.
    """
    checks: list[Callable[[Engine], None]] = [check_replies, check_max_tokens, check_repeatable]
    if engine.renderer is not None:
        checks += [check_tokens, check_batch, check_stop, check_overflow, check_extension]
    for check in checks:
        check(engine)
    if weights is not None:
        check_load(engine, weights)


def ask(text: str = QUESTIONS[0], agent: int = 0) -> Ask:
    """Return the first ask of an agent."""
    message: Message = {"role": "user", "content": text}
    return Ask(Question("q", text), agent=agent, round=0, messages=(message,))


def request(engine: Engine, one: Ask, sampling: Sampling = SAMPLING) -> Request:
    """Return an ask as a request to this engine."""
    renderer = engine.renderer
    return Request(one, sampling, () if renderer is None else renderer.render(one).prompt_ids)


def check_replies(engine: Engine) -> None:
    """One reply a request, in order; no request, no reply."""
    assert engine.generate([]) == [], "no requests: expected no replies"
    requests = [request(engine, ask(text, agent)) for agent, text in enumerate(QUESTIONS)]
    replies = engine.generate(requests)
    assert len(replies) == len(requests), f"expected {len(requests)} replies, got {len(replies)}"
    for sent, reply in zip(requests, replies, strict=True):
        assert reply.prompt_ids == sent.prompt_ids, "a reply carries its own prompt's ids"
        assert reply.temperature == sent.sampling.temperature, "a reply carries its temperature"


def check_tokens(engine: Engine) -> None:
    """Ids and log-probabilities are aligned, and the text is that of the ids."""
    for reply in engine.generate([request(engine, ask(text)) for text in QUESTIONS]):
        assert reply.token_ids, "expected at least one sampled id"
        assert len(reply.logps) == len(reply.token_ids), "expected one log-probability an id"
        assert all(math.isfinite(p) and p <= 1e-5 for p in reply.logps), reply.logps
        assert reply.text == token_text(engine.renderer.tokenizer, reply.token_ids).text


def check_max_tokens(engine: Engine) -> None:
    """A reply never has more ids than it may."""
    reply = _one(engine, ask(), replace(SAMPLING, max_tokens=3))
    assert len(reply.token_ids) <= 3, f"expected at most 3 ids, got {len(reply.token_ids)}"


def check_repeatable(engine: Engine) -> None:
    """The same request has the same reply."""
    first, second = _one(engine, ask()), _one(engine, ask())
    assert (first.text, first.token_ids) == (second.text, second.token_ids), "same seed, not same"


def check_batch(engine: Engine) -> None:
    """A reply is the same alone and beside others."""
    requests = [
        request(engine, ask(text), replace(SAMPLING, seed=seed))
        for seed, text in enumerate(QUESTIONS)
    ]
    for sent, reply in zip(requests, engine.generate(requests), strict=True):
        alone = engine.generate([sent])[0]
        assert alone.token_ids == reply.token_ids, "batch neighbours changed a reply"
        drift = max(abs(a - b) for a, b in zip(alone.logps, reply.logps, strict=True))
        assert drift < 0.05, f"batch neighbours changed log-probabilities by {drift}"


def check_stop(engine: Engine) -> None:
    """A reply ends with the token in which the first stop string ends."""
    for seed in range(32):
        sampling = replace(SAMPLING, seed=seed)
        text = _one(engine, ask(), sampling).text
        if clean := re.search(r"(?<=.)[^�]{1,2}", text, re.DOTALL):
            _check_stops_at(engine, sampling, clean[0])
            return


def _check_stops_at(engine: Engine, sampling: Sampling, stop: str) -> None:
    reply = _one(engine, ask(), replace(sampling, stop=(stop,)))
    assert reply.finish == "stop", f"expected finish 'stop' at {stop!r}, got {reply.finish!r}"
    assert stop in reply.text, f"expected {stop!r} in {reply.text!r}"
    before = token_text(engine.renderer.tokenizer, reply.token_ids[:-1]).text
    assert stop not in before, f"went on after {stop!r}: {reply.text!r}"


def check_overflow(engine: Engine) -> None:
    """A prompt that fills the window has a reply without tokens; one that nearly does is cut."""
    window = engine.context_window
    if window is None:
        return
    filler = request(engine, ask()).prompt_ids[:1]
    full = replace(request(engine, ask()), prompt_ids=filler * window)
    nearly = replace(full, prompt_ids=filler * (window - 2))
    over, cut = engine.generate([full, nearly])
    assert over.finish == "context_overflow", f"expected context_overflow, got {over.finish!r}"
    assert over.text == "" and not over.token_ids, "expected no tokens"
    assert 1 <= len(cut.token_ids) <= 2, f"room for 2 ids, got {len(cut.token_ids)}"


def check_extension(engine: Engine) -> None:
    """A prompt that goes on from a reply keeps the sampled ids."""
    first = _one(engine, ask())
    news: Message = {"role": "user", "content": "Agent 1 says 4. Answer again."}
    own: Message = {"role": "assistant", "content": first.text}
    second = replace(ask(), round=1, messages=(*ask().messages, own, news), previous=first)
    rendered = engine.renderer.render(second)
    kept = (*first.prompt_ids, *first.token_ids)
    assert not rendered.extended or rendered.prompt_ids[: len(kept)] == kept, "reply re-tokenised"


def check_load(engine: Engine, weights: Weights) -> None:
    """Replies carry the version of the weights that were loaded."""
    engine.load(weights)
    reply = _one(engine, ask())
    assert reply.weight_version == weights.version, (
        f"expected weight version {weights.version}, got {reply.weight_version}"
    )


def _one(engine: Engine, one: Ask, sampling: Sampling = SAMPLING) -> Reply:
    return engine.generate([request(engine, one, sampling)])[0]
