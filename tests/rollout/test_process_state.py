"""What vLLM changes of its process is put back, and vLLM finds its own again at each call."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from debate_rollout.engines.vllm.model import ThreadState, undisturbed


@dataclass
class Stream:
    """A stand-in for a CUDA stream; it notes which others it waited for."""

    name: str
    waited: list[str] = field(default_factory=list)

    def wait_stream(self, other: "Stream") -> None:
        self.waited.append(other.name)


@dataclass
class Cuda:
    """A stand-in for what torch keeps of a CUDA device."""

    current: Stream = field(default_factory=lambda: Stream("trainer"))
    seeds: Any = "trainer's"

    def set_stream(self, stream: Stream) -> None:
        self.current = stream

    def set_seeds(self, seeds: Any) -> None:
        self.seeds = seeds


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    """Give this process stand-ins for a CUDA device, and its two threads back afterwards."""
    fake, threads = Cuda(), torch.get_num_threads()
    for name, stand_in in {
        "is_available": lambda: True,
        "current_stream": lambda: fake.current,
        "set_stream": fake.set_stream,
        "get_rng_state_all": lambda: fake.seeds,
        "set_rng_state_all": fake.set_seeds,
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    torch.set_num_threads(2)
    yield fake
    torch.set_num_threads(threads)


class DisturbingLLM:
    """Does to a process what starting vLLM on CUDA does to it, and on a CPU."""

    engine_stream = Stream("engine")

    def __init__(self, *_: object, **__: object) -> None:
        settings = SimpleNamespace(cache_config=SimpleNamespace(kv_cache_size_tokens=None))
        core = SimpleNamespace(shutdown=lambda: None)
        self.llm_engine = SimpleNamespace(engine_core=core, vllm_config=settings)
        torch.set_num_threads(1)
        torch.set_num_threads = lambda _: None  # type: ignore[assignment]
        torch.set_float32_matmul_precision("high")
        torch.cuda.set_stream(self.engine_stream)  # type: ignore[arg-type]
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(0)
        torch.cuda.set_rng_state_all("engine's")  # type: ignore[arg-type]


def state_of(cuda: Cuda) -> tuple[Any, ...]:
    generators = (
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state().tolist(),
    )
    return (
        torch.get_num_threads(), torch.set_num_threads, cuda.current, cuda.seeds,
        torch.get_float32_matmul_precision(), *generators,
    )  # fmt: skip


def test_undisturbed_puts_back_all_that_a_start_of_vllm_changes(cuda: Cuda) -> None:
    torch.manual_seed(11)
    before = state_of(cuda)
    with undisturbed():
        DisturbingLLM()
        assert (torch.get_num_threads(), cuda.current.name) == (1, "engine")
    assert state_of(cuda) == before


def test_entered_gives_the_engine_its_state_and_the_caller_his_back(cuda: Cuda) -> None:
    engine = ThreadState(1, Stream("engine"))
    trainer = cuda.current
    with engine.entered():
        assert ThreadState.now() == engine
    assert ThreadState.now() == ThreadState(2, trainer)
    assert engine.stream.waited == trainer.waited == []
    with pytest.raises(KeyError), engine.entered(ordered=True):
        assert engine.stream.waited == ["trainer"]
        raise KeyError
    assert trainer.waited == ["engine"] and ThreadState.now() == ThreadState(2, trainer)


def test_entered_leaves_streams_alone_when_there_is_no_cuda() -> None:
    with ThreadState.now().entered(ordered=True):
        assert ThreadState.now().stream is None


@pytest.fixture
def imported_vllm() -> None:
    """Import what starts vLLM while there is no CUDA: its first import sets this process up."""
    import debate_rollout.engines.vllm.sampler  # noqa: F401


@pytest.mark.vllm
@pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed")
def test_vllm_steps_in_its_own_state_and_leaves_the_trainer_his(
    imported_vllm: None, cuda: Cuda, tiny_model: Any, byte_bpe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from debate_rollout.engine import Request, Sampling, Weights
    from debate_rollout.engines import VllmEngine
    from debate_rollout.engines.vllm import sampler as vllm_sampler
    from debate_rollout.testing import turn_request

    seen: list[tuple[str, int, str]] = []

    def note(what: str, answer: Any = None) -> Any:
        def called(*_: object, **__: object) -> Any:
            seen.append((what, torch.get_num_threads(), cuda.current.name))
            return answer

        return called

    class Fake(DisturbingLLM):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__()
            engine = self.llm_engine
            engine.add_request, engine.step = note("add", "0"), note("step", [])
            engine.abort_request = note("abort")

    monkeypatch.setattr(vllm_sampler, "LLM", Fake)
    monkeypatch.setattr(vllm_sampler.VllmSampler, "_load_full", note("load"))
    model, before = tiny_model(byte_bpe), state_of(cuda)[:5]
    trainer = cuda.current
    engine = VllmEngine().open(model, byte_bpe)
    try:
        assert state_of(cuda)[:5] == before
        ticket = engine.submit(Request(turn_request(), Sampling(max_tokens=2), (3, 4)))
        engine.collect(0.0)
        engine.cancel(ticket)
        engine.load(Weights(1, {}))
        assert seen == [(what, 1, "engine") for what in ("add", "step", "abort", "load")]
        assert state_of(cuda)[:5] == before and trainer.waited == ["engine"]
    finally:
        engine.close()
