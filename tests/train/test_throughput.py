"""What a step costs and how fast it was, worked by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from debate_rollout.engines import TransformersEngine, VllmServerEngine
from debate_train.batches.row_types import Batch
from debate_train.monitoring import throughput
from debate_train.monitoring.throughput import Cost, Speed, Work
from train.made_rows import row_of


def make_row(tokens, num_sampled):
    """Make a row whose last tokens are sampled."""
    return row_of(tokens, np.arange(len(tokens)) >= len(tokens) - num_sampled)


class Model(torch.nn.Module):
    """Four tokens, width 2, one head of 2 features, one layer of a matrix of 2 x 3 and a norm."""

    def __init__(self, layer_is_trained=True, head_is_trained=True, **config):
        super().__init__()
        shape = {"num_attention_heads": 1, "hidden_size": 2, "num_hidden_layers": 1}
        self.config = SimpleNamespace(**shape | config)
        self.config.get_text_config = lambda: self.config
        self.embedding = torch.nn.Embedding(4, 2)
        self.head = torch.nn.Linear(2, 4, bias=False)
        self.layer = torch.nn.Linear(2, 3, bias=False)
        self.norm = torch.nn.Parameter(torch.ones(2))
        self.layer.weight.requires_grad_(layer_is_trained)
        self.head.weight.requires_grad_(head_is_trained)

    def get_input_embeddings(self):
        return self.embedding

    def get_output_embeddings(self):
        return self.head


def test_work_counts_what_rows_begin_with_in_common_once():
    # The first row computes 1 2 3 (its last token predicts nothing), the second 1 2 5.
    rows = (make_row([1, 2, 3, 4], 2), make_row([1, 2, 5, 6], 1), make_row([9], 1))
    # 1 2 3: queries see 1, 2 and 3 keys; the 5 sees 1 2 5. Actions: 3 4 and 6; nothing says 9.
    assert Work.of(Batch(rows, ("s",), 4, 3)) == Work(tokens=4, pairs=9, actions=3)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # 6 weights of the layer, 8 of the head; of a pair 4 features of queries and keys, values.
        # Three forward passes each, and two where weights are frozen.
        (Model(), Cost(token=6 * 6.0, pair=12 * 2.0, action=6 * 8.0)),
        (Model(layer_is_trained=False), Cost(token=4 * 6.0, pair=12 * 2.0, action=6 * 8.0)),
        (Model(False, False), Cost(token=4 * 6.0, pair=12 * 2.0, action=4 * 8.0)),
        (Model(num_experts=8), None),
        (None, None),
    ],
    ids=["full", "frozen layer", "adapter", "experts", "none"],
)
def test_cost_counts_passes_over_trained_and_frozen_weights(model, expected):
    assert Cost.of(model) == expected


def test_speed_is_of_each_device_and_utilisation_of_their_peak():
    batch = Batch((make_row([1, 2, 3, 4], 2),), ("s",), 2, 1)
    cost = Cost(token=10.0, pair=1.0, action=100.0)
    speed = Speed(epochs=2, training=2, devices=4, peak=1000.0, cost=cost)
    # Two epochs of 3·10 + 6·1 + 2·100 = 236 FLOPs in half a second of two devices of 1,000 FLOP/s.
    assert speed.measured(batch, {"time/train_s": 0.5, "tokens_per_s": 12.0}) == {
        "tokens_per_s/sampled_per_device": 3.0,
        "tokens_per_s/trained": 16.0,
        "tokens_per_s/trained_per_device": 8.0,
        "time/mfu": pytest.approx(2 * 236 / 0.5 / 2000, rel=1e-12),
    }
    without_peak = Speed(cost=cost).measured(batch, {"time/train_s": 0.5})
    expected = {"tokens_per_s/trained": 8.0, "tokens_per_s/trained_per_device": 8.0}
    assert without_peak == expected
    assert Speed().measured(Batch((), ("s",), 0, 0), {"time/train_s": 0.5}) == {}


def test_devices_of_the_engine_count_where_only_the_engine_uses_them(monkeypatch):
    shared = Speed.of(TransformersEngine(), None, 2, peak_tflops=1.5)
    assert (shared.training, shared.devices, shared.peak) == (2, 2, 1.5e12)
    # One engine on one of these devices.
    served = Speed.of(VllmServerEngine(devices="2,3"), None, 2, peak_tflops=1.5)
    assert (served.training, served.devices) == (2, 3)
    monkeypatch.setattr(throughput, "peak_flops", lambda tflops: None)
    assert Speed.of(TransformersEngine(), Model(), 1).cost is None
