"""What vLLM changes of its process is put back, and vLLM finds its own again at each call."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
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
    fake = Cuda()
    threads = torch.get_num_threads()
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
    assert trainer.waited == ["engine"]
    assert ThreadState.now() == ThreadState(2, trainer)
