"""The arithmetic of `--plan`, by hand and beside DeepSpeed's own estimators."""

import dataclasses

import pytest
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

from debate_train.recipe.model_shape import Shape
from debate_train.recipe.plan import memory
from debate_train.trainers.trainer import bucket_size

# 1000 weights of 2 bytes in 1 layer. It keeps of a token two norms of 4·10 + 2·10 bytes and their
# outputs, 2·2·10; rotated queries and keys, values and the output, 2·2·12; the MLP's 4·2·20: 368.
SMALL = Shape(1000, 1000, 2, layers=1, hidden=10, queries=8, keys=4, ffn=20)


def test_shape_counts_bytes_a_token_when_asked() -> None:
    # The last norm and its output 80, hidden states of actions 20; a layer at work 2·2·(20 + 10).
    ends = 100 + 120
    assert SMALL.activation_bytes() == 368 + ends
    two = dataclasses.replace(SMALL, layers=2)
    assert two.activation_bytes(recompute=True) == 2 * 2 * 10 + 368 + ends
    # Frozen weights keep no inputs: 3 norms of 10 less; 6 features of adapters are kept.
    lora = dataclasses.replace(SMALL, adapter=6)
    assert lora.activation_bytes() == 368 + ends - 3 * 20 + 2 * 6
    # Adapters in float32 train in float32, but their layers are computed as the others.
    wide = dataclasses.replace(lora, wide_adapters=True)
    assert wide.activation_bytes() == lora.activation_bytes()
    assert (lora.trained_bytes, wide.trained_bytes) == (2, 4)
    assert SMALL.cache_bytes_per_token == 2 * 1 * 4 * 2  # keys and values of 4 features


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer", "reference"),
    [
        (0, 2000, 2000, 8000, 2000),  # moments 8 a weight
        (1, 2000, 2000, 3000, 2000),  # (4 + 8) · 1000 / 4
        (2, 2000, 500, 3000, 2000),
        (3, 500, 500, 3000, 500),
    ],
)
def test_memory_is_that_of_zero_when_on_four_ranks(
    stage: int, weights: int, gradients: int, optimizer: int, reference: int
) -> None:
    found = memory(SMALL, stage, 4, 0, reference=True)
    assert (found.weights, found.gradients, found.optimizer, found.reference) == (
        weights,
        gradients,
        optimizer,
        reference,
    )


def test_bucket_is_the_one_that_deepspeed_is_configured_with() -> None:
    assert bucket_size(10**10) == DeepSpeedZeroConfig(stage=2).reduce_bucket_size


@pytest.mark.parametrize("ranks", [1, 4])
def test_memory_is_that_of_deepspeeds_estimators_where_they_count_the_same(ranks: int) -> None:
    # All parameters in bfloat16 with AdamW, nothing offloaded, no activations. They count the
    # float32 copy of an update, 4 bytes each, and no bucket, nor the rank's weights at stage 3.
    count = SMALL.parameters
    second, third = (memory(SMALL, stage, ranks, 0, False) for stage in (2, 3))
    copy = 4 * count / ranks
    sizes = {"num_gpus_per_node": ranks, "cpu_offload": False}
    without = second.total - second.buffers + copy
    assert without == estimate_zero2_model_states_mem_needs(count, **sizes)[1]
    without = third.total - third.buffers - third.weights + copy
    assert without == estimate_zero3_model_states_mem_needs(count, 0, **sizes)[1]
