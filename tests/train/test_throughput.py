"""How fast a step was, worked by hand."""

import numpy as np

from debate_rollout.engines import TransformersEngine, VllmServerEngine
from debate_train.batches.row_types import Batch, Row
from debate_train.monitoring.throughput import Speed


def row(tokens: list[int], sampled: int) -> Row:
    """A row whose last tokens are sampled."""
    length = len(tokens)
    mask = np.array([0.0] * (length - sampled) + [1.0] * sampled, np.float32)
    zeros, ints = np.zeros(length, np.float32), np.zeros(length, np.int64)
    return Row(np.array(tokens), mask, zeros, zeros, zeros + 1, ints, ints, ints, 0, 0)


def test_speed_is_of_each_device() -> None:
    batch = Batch((row([1, 2, 3, 4], 2),), ("s",), 2, 1)
    speed = Speed(epochs=2, training=2, devices=4)
    found = speed.measured(batch, {"time/train_s": 0.5, "tokens_per_s": 12.0})
    assert found == {
        "tokens_per_s/sampled_per_device": 3.0,
        "tokens_per_s/trained": 16.0,
        "tokens_per_s/trained_per_device": 8.0,
    }
    unknown = Speed().measured(batch, {"time/train_s": 0.5})
    assert unknown == {"tokens_per_s/trained": 8.0, "tokens_per_s/trained_per_device": 8.0}
    assert Speed().measured(Batch((), ("s",), 0, 0), {"time/train_s": 0.5}) == {}


def test_devices_of_the_engine_count_where_they_are_its_own() -> None:
    shared = Speed.of(TransformersEngine(), 2)
    assert (shared.training, shared.devices) == (2, 2)
    apart = Speed.of(VllmServerEngine(devices="2,3"), 2)
    assert (apart.training, apart.devices) == (2, 3)  # One engine on one of these devices.
