"""What a step costs and how fast it was, worked by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from debate_rollout.engines import EngineSettings, TransformersEngine, VllmServerEngine
from debate_train.batches.row_types import Batch, Row
from debate_train.monitoring import throughput
from debate_train.monitoring.throughput import Cost, Speed, Work, peak_flops


def row(tokens: list[int], sampled: int) -> Row:
    """A row whose last tokens are sampled."""
    length = len(tokens)
    mask = np.array([0.0] * (length - sampled) + [1.0] * sampled, np.float32)
    zeros, ints = np.zeros(length, np.float32), np.zeros(length, np.int64)
    return Row.of_tokens(
        np.array(tokens),
        mask,
        advantages=zeros,
        sampler_logps=zeros,
        temperatures=zeros + 1,
        streams=ints,
        versions=ints,
        segments=ints,
        agent=0,
        debate=0,
    )


class Model(nn.Module):
    """Four tokens, width 2, one head of 2 features, one layer of a matrix of 2 x 3 and a norm."""

    config = SimpleNamespace(num_attention_heads=1, hidden_size=2, num_hidden_layers=1)

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(4, 2), nn.Linear(2, 4, bias=False)
        self.layer, self.norm = nn.Linear(2, 3, bias=False), nn.Parameter(torch.ones(2))
        self.layer.weight.requires_grad_(not frozen)
        self.config.get_text_config = lambda: self.config

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def test_work_counts_what_rows_begin_with_in_common_once() -> None:
    # The first row computes 1 2 3 (its last token predicts nothing), the second 1 2 5.
    rows = (row([1, 2, 3, 4], 2), row([1, 2, 5, 6], 1), row([9], 1))
    # 1 2 3: queries see 1, 2 and 3 keys; the 5 sees 1 2 5. Actions: 3 4 and 6; nothing says 9.
    assert Work.of(Batch(rows, ("s",), 4, 3)) == Work(tokens=4, pairs=9, actions=3)


def test_cost_is_three_forward_passes_and_two_where_weights_are_frozen() -> None:
    # 6 weights of the layer, 8 of the head; of a pair 4 features of queries and keys, and values.
    assert Cost.of(Model()) == Cost(token=6 * 6.0, pair=12 * 2.0, action=6 * 8.0)
    assert Cost.of(Model(frozen=True)) == Cost(token=4 * 6.0, pair=12 * 2.0, action=6 * 8.0)
    adapted = Model(frozen=True)
    adapted.head.weight.requires_grad_(False)
    assert Cost.of(adapted) == Cost(token=4 * 6.0, pair=12 * 2.0, action=4 * 8.0)
    assert Cost.of(Model()) is not None and Cost.of(None) is None
    routed = Model()
    routed.config = SimpleNamespace(num_experts=8)
    routed.config.get_text_config = lambda: routed.config
    assert Cost.of(routed) is None


def test_speed_is_of_each_device_and_utilisation_of_their_peak() -> None:
    batch = Batch((row([1, 2, 3, 4], 2),), ("s",), 2, 1)
    cost = Cost(token=10.0, pair=1.0, action=100.0)
    speed = Speed(epochs=2, training=2, devices=4, peak=1000.0, cost=cost)
    found = speed.measured(batch, {"time/train_s": 0.5, "tokens_per_s": 12.0})
    # Two epochs of 3·10 + 6·1 + 2·100 = 236 FLOPs in half a second of two devices of 1,000 FLOP/s.
    assert found == {
        "tokens_per_s/sampled_per_device": 3.0,
        "tokens_per_s/trained": 16.0,
        "tokens_per_s/trained_per_device": 8.0,
        "time/mfu": pytest.approx(2 * 236 / 0.5 / 2000, rel=1e-12),
    }
    unknown = Speed(cost=cost).measured(batch, {"time/train_s": 0.5})
    assert unknown == {"tokens_per_s/trained": 8.0, "tokens_per_s/trained_per_device": 8.0}
    assert Speed().measured(Batch((), ("s",), 0, 0), {"time/train_s": 0.5}) == {}


def test_peak_is_the_recipes_or_that_of_a_known_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert peak_flops(None) is None and peak_flops(2.5) == 2.5e12
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")
    assert peak_flops(None) == 989.5e12
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 PCIe")
    assert peak_flops(None) == 756.5e12
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "another device")
    assert peak_flops(None) is None


def test_devices_of_the_engine_count_where_they_are_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def speed(engine: EngineSettings, processes: int) -> Speed:
        return Speed.of(engine, None, processes, peak_tflops=1.5)

    shared = speed(TransformersEngine(), 2)
    assert (shared.training, shared.devices, shared.peak) == (2, 2, 1.5e12)
    apart = speed(VllmServerEngine(devices="2,3"), 2)
    assert (apart.training, apart.devices) == (2, 3)  # One engine on one of these devices.
    monkeypatch.setattr(throughput, "peak_flops", lambda tflops: None)
    assert Speed.of(TransformersEngine(), Model(), 1).cost is None
