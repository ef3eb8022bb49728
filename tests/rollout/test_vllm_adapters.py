"""LoRA adapters loaded into vLLM: each is served by itself, and requests end with their own."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import pytest
import torch

from debate_protocol.types import Reply
from debate_rollout.engine import Request, Sampling, Weights
from debate_rollout.engines import VllmEngine
from debate_rollout.errors import WeightsError
from debate_rollout.testing import ask

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM is not installed"),
]

SAMPLING = Sampling(max_tokens=12, temperature=0.7)
Logps = Callable[[Any, Reply], list[float]]


def requests_for(sampling: Sampling = SAMPLING) -> list[Request]:
    prompts = [tuple(3 + (7 * k + j) % 290 for j in range(100 + k)) for k in range(4)]
    return [Request(ask(), replace(sampling, seed=k), p) for k, p in enumerate(prompts)]


class Adapter:
    """A peft model whose adapter is drawn anew from a seed."""

    def __init__(self, base: Any, rank: int = 8) -> None:
        from peft import LoraConfig, get_peft_model

        self.config = LoraConfig(
            r=rank, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        self.model = get_peft_model(base, self.config)

    def drawn(self, version: int) -> Weights:
        from peft import get_peft_model_state_dict

        torch.manual_seed(version)
        for name, parameter in self.model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        tensors = {k: v.clone() for k, v in get_peft_model_state_dict(self.model).items()}
        return Weights(version, tensors, "lora", self.config.to_dict())


@pytest.fixture(scope="module")
def served(tiny_model: Callable[..., Any], byte_bpe: Any) -> Iterator[tuple[Any, Adapter]]:
    trained = Adapter(tiny_model(byte_bpe, window=256))
    # The trainer's model, as debate-train hands it over: its adapter is no part of the base.
    opened = VllmEngine(enforce_eager=True, kv_cache_mib=64, max_batch=16, max_lora_rank=8).open(
        trained.model, byte_bpe
    )
    yield opened, trained
    opened.close()


def test_load_serves_each_adapter_under_a_number_of_its_own(
    served: tuple[Any, Adapter], hf_logps: Logps
) -> None:
    engine, trained = served
    for version in (1, 2, 3):
        engine.load(trained.drawn(version))
        for reply in engine.generate(requests_for()):
            assert reply.weight_version == version
            assert reply.logps == pytest.approx(hf_logps(trained.model, reply), abs=1e-5)
    assert len(list(engine._served.folder.glob("adapter-*"))) == 1


def test_load_lets_open_requests_end_with_the_adapter_they_began_with(
    served: tuple[Any, Adapter], hf_logps: Logps
) -> None:
    engine, trained = served
    adapters = {version: trained.drawn(version) for version in (4, 5, 6)}
    tickets = {}
    for version, weights in adapters.items():  # three adapters at once, two fit into vLLM
        engine.load(weights)
        for one in requests_for(replace(SAMPLING, max_tokens=30)):
            tickets[engine.submit(one)] = version
        engine.collect(0.0)
    ended = {}
    while found := engine.collect(60.0):
        ended |= {done.ticket: done.outcome for done in found}
    for version in adapters:
        trained.drawn(version)
        for ticket, reply in ended.items():
            if tickets[ticket] == version:
                assert reply.weight_version == version and reply.version_spans == ()
                assert reply.logps == pytest.approx(hf_logps(trained.model, reply), abs=1e-5)


def test_load_leaves_the_old_adapter_serving_when_a_new_one_does_not_fit(
    served: tuple[Any, Adapter], tiny_model: Callable[..., Any], byte_bpe: Any, hf_logps: Logps
) -> None:
    engine, trained = served
    engine.load(trained.drawn(7))
    good = trained.drawn(7)
    name = next(iter(good.tensors))
    wide = Adapter(tiny_model(byte_bpe, window=256), rank=16).drawn(8)
    for bad, message in (
        (replace(good, tensors={**good.tensors, name: good.tensors[name][:, :-1]}), "shape"),
        (replace(good, tensors={**good.tensors, name + "s": good.tensors[name]}), "nearest"),
        (wide, "rank 16; expected at most 8"),
        (Weights(8, {}), "expected 'lora'"),
    ):
        with pytest.raises(WeightsError, match=message):
            engine.load(bad)
    for reply in engine.generate(requests_for()):
        assert reply.weight_version == 7
        assert reply.logps == pytest.approx(hf_logps(trained.model, reply), abs=1e-5)
