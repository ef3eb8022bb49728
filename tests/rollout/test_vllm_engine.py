"""vLLM inside this process: token ids in, exact log-probabilities out, stepped by `collect`."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from debate_protocol.types import Reply
from debate_rollout.engine import Request, Sampling, Weights
from debate_rollout.engines import VllmEngine
from debate_rollout.engines.sampling import plain_logps
from debate_rollout.rendering import token_text
from debate_rollout.testing import Bench, Refresh, check_engine, turn_request

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

WINDOW = 256
SETTINGS = {"enforce_eager": True, "kv_cache_mib": 64, "max_batch": 16}
Logps = Callable[[Any, Reply], list[float]]


def requests_for(sampling: Sampling, count: int = 4, length: int = 100) -> list[Request]:
    prompts = [tuple(3 + (7 * k + j) % 290 for j in range(length + k)) for k in range(count)]
    return [Request(turn_request(), replace(sampling, seed=k), p) for k, p in enumerate(prompts)]


@pytest.fixture(scope="module")
def model(tiny_model: Callable[..., Any], byte_bpe: Any) -> Any:
    return tiny_model(byte_bpe, window=WINDOW)


@pytest.fixture(scope="module")
def engine(model: Any, byte_bpe: Any) -> Iterator[Any]:
    random.seed(5)
    torch.manual_seed(5)
    opened = VllmEngine(**SETTINGS).open(model, byte_bpe)
    yield opened
    opened.close()


def test_open_leaves_the_process_as_it_was(engine: Any) -> None:
    torch.set_num_threads(torch.get_num_threads())
    assert torch.set_num_threads.__module__ in (None, "torch._C", "torch")
    drawn = random.random(), torch.rand(3)
    random.seed(5)
    torch.manual_seed(5)
    assert drawn[0] == random.random() and torch.equal(drawn[1], torch.rand(3))


def test_vllm_engine_conforms(
    engine: Any, model: Any, tiny_model: Callable[..., Any], byte_bpe: Any
) -> None:
    # 64 MiB; a token has keys and values of 2 layers, 2 heads and 32 numbers of 4 bytes.
    assert engine.room.debates == 64 * 2**20 // (2 * 2 * 2 * 32 * 4)
    others = (tiny_model(byte_bpe, seed=1, window=WINDOW), model)
    refreshes = [Refresh(Weights(1, one.state_dict()), plain_logps(one)) for one in others]
    found = check_engine(Bench(engine, plain_logps(model), refreshes))
    assert {name for name, result in found.items() if result != "passed"} == {
        "LoRA refresh", "an adapter for each request", "death is named",
    }  # fmt: skip
    engine.load(Weights(100, model.state_dict()))


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 1.7])
def test_generate_reports_the_log_probabilities_it_sampled_from(
    temperature: float, engine: Any, model: Any, byte_bpe: Any, hf_logps: Logps
) -> None:
    # vLLM's default, raw_logprobs, gives those of temperature 1; bf16 would miss by 1e-3.
    for request in requests_for(Sampling(max_tokens=12, temperature=temperature)):
        (reply,) = engine.generate([request])
        assert reply.logps == pytest.approx(hf_logps(model, reply), abs=1e-5)
        assert reply.text == token_text(byte_bpe, reply.token_ids).text


def test_generate_reports_log_probabilities_when_temperatures_differ_in_a_batch(
    engine: Any, model: Any, hf_logps: Logps
) -> None:
    requests = [
        replace(one, sampling=replace(one.sampling, temperature=temperature))
        for one, temperature in zip(
            requests_for(Sampling(max_tokens=12)), (0.0, 0.5, 1.0, 2.0), strict=True
        )
    ]
    for reply in engine.generate(requests):
        assert reply.logps == pytest.approx(hf_logps(model, reply), abs=1e-5)


def test_generate_draws_from_the_seed_alone(engine: Any) -> None:
    prompt = requests_for(Sampling(max_tokens=8))[0].prompt_ids
    draws = [
        Request(turn_request(), Sampling(max_tokens=8, seed=seed), prompt) for seed in range(16)
    ]
    replies = [reply.token_ids for reply in engine.generate(draws)]
    assert len(set(replies)) > 8  # 16 samples of one prompt
    assert [engine.generate([one])[0].token_ids for one in draws] == replies


def test_collect_hands_replies_over_as_they_end(engine: Any) -> None:
    requests = requests_for(Sampling(max_tokens=1), count=6)
    longer = [replace(one, sampling=replace(one.sampling, max_tokens=40)) for one in requests[:2]]
    slow = [engine.submit(one) for one in longer]
    quick = [engine.submit(one) for one in requests[2:]]
    first = engine.collect(60.0)
    assert sorted(done.ticket for done in first) == quick
    ended = [done.ticket for done in first]
    while len(ended) < 6:
        ended += [done.ticket for done in engine.collect(60.0)]
    assert sorted(ended) == [*slow, *quick]
    assert engine.collect(60.0) == []


def test_submit_takes_more_than_fit_and_answers_like_generate(engine: Any) -> None:
    requests = requests_for(Sampling(max_tokens=6), count=40)  # max_batch is 16
    alone = [engine.generate([one])[0].token_ids for one in requests]
    tickets = [engine.submit(one) for one in requests]
    found = {}
    while len(found) < 40:
        found |= {done.ticket: done.outcome for done in engine.collect(60.0)}
    assert [found[ticket].token_ids for ticket in tickets] == alone


def test_cancel_stops_the_work_on_a_request(engine: Any) -> None:
    tickets = [engine.submit(one) for one in requests_for(Sampling(max_tokens=100))]
    engine.collect(0.0)
    for ticket in tickets:
        engine.cancel(ticket)
    engine.cancel(tickets[0])
    assert engine.collect(0.0) == []
    assert not engine._engine.has_unfinished_requests()


def test_collect_hands_an_error_over_when_a_request_cannot_be_served(engine: Any) -> None:
    bad = [Request(turn_request(), Sampling(max_tokens=4), ids) for ids in ((), (10**9,))]
    tickets = [engine.submit(one) for one in bad]
    ended = engine.collect(5.0)
    assert [done.ticket for done in ended] == tickets
    assert all(isinstance(done.outcome, Exception) for done in ended)
    assert engine.generate(requests_for(Sampling(max_tokens=2)))[0].token_ids


def test_generate_keeps_the_whole_token_in_which_a_stop_string_ends(engine: Any) -> None:
    (free,) = engine.generate(requests_for(Sampling(max_tokens=30))[:1])
    middle = len(free.text) // 2
    stop = next(free.text[k : k + 3] for k in range(middle, 0, -1) if "�" not in free.text[k:][:3])
    request = replace(requests_for(Sampling(max_tokens=30, stop=(stop,)))[0])
    (cut,) = engine.generate([request])
    assert cut.finish == "stop" and stop in cut.text
    assert cut.token_ids == free.token_ids[: len(cut.token_ids)]
