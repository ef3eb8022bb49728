"""Checks of `load`: new weights are served, by name and by their numbers."""

from dataclasses import replace
from typing import Literal

from debate_protocol.types import Reply
from debate_rollout.engine import Request, streaming
from debate_rollout.testing.replies import (
    SAMPLING,
    Bench,
    NotApplicable,
    Refresh,
    ask,
    gather,
    request,
    requests,
)

_LONG = 192


def check_full_refresh(bench: Bench) -> None:
    """After a load, replies carry its version and are those of the new weights."""
    for refresh in _of(bench, "full", 1):
        before = _scored(bench)
        bench.load(refresh)
        _check_served(bench, before)


def check_lora_refresh(bench: Bench) -> None:
    """Adapters follow each other, one that came before comes back, and all are served right."""
    adapters = _of(bench, "lora", 2)
    for refresh in (*adapters, adapters[0]):
        before = _scored(bench)
        bench.load(refresh)
        _check_served(bench, before)


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
        replace(one, ask=replace(one.ask, adapter=name))
        for one in requests(bench.engine)
        for name in named
    ]
    together = bench.engine.generate(sent)
    for one, reply in zip(sent, together, strict=True):
        assert reply.weight_version == bench.version, (
            f"expected weight version {bench.version}, got {reply.weight_version}"
        )
        bench.logps = own[named[one.ask.adapter]].logps
        bench.check_logps([reply], f"adapter {one.ask.adapter}")
    if bench.can("seeds"):
        alone = [reply for one in sent for reply in bench.engine.generate([one])]
        assert [reply.token_ids for reply in alone] == [reply.token_ids for reply in together], (
            "other replies than without the other adapter beside"
        )
    unknown = replace(sent[0], ask=replace(sent[0].ask, adapter="third"))
    try:
        bench.engine.generate([unknown])
    except Exception as error:
        assert "third" in str(error), f"expected the unknown adapter to be named: {error}"
    else:
        raise AssertionError("an adapter that was not loaded: expected an error")
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
        try:
            bench.engine.load(replace(weights, version=bench.version + 1, tensors=tensors))
        except Exception:
            pass
        else:
            raise AssertionError(f"{what}: expected load to raise")
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
    stream = streaming(bench.engine)
    assert stream is not None, "load_in_flight: expected an engine that streams"
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


def _check_served(bench: Bench, before: Reply) -> None:
    after = _scored(bench)
    assert after.weight_version == bench.version, (
        f"expected weight version {bench.version}, got {after.weight_version}"
    )
    if bench.can("logps"):
        changed = (after.token_ids, after.logps) != (before.token_ids, before.logps)
        assert changed, "the same log-probabilities as before the load"
        bench.check_logps([after], "after a load")


def _scored(bench: Bench) -> Reply:
    return bench.one(replace(SAMPLING, seed=5))


def _long_request(bench: Bench) -> Request:
    short = request(bench.engine, ask())
    if not short.prompt_ids:
        raise NotApplicable("takes no ids")
    window = bench.engine.context_window or 2 * _LONG
    length = min(_LONG, window - SAMPLING.max_tokens)
    ids = (short.prompt_ids * (length // len(short.prompt_ids) + 1))[:length]
    return replace(short, prompt_ids=ids)


def _running_long(bench: Bench, seed: int) -> Request:
    one = request(bench.engine, ask())
    room = (bench.engine.context_window or 2 * _LONG) - len(one.prompt_ids)
    return replace(one, sampling=replace(SAMPLING, seed=seed, max_tokens=room))
