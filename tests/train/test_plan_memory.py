"""The arithmetic of `--plan`, by hand and beside DeepSpeed's own estimators."""

import dataclasses

import pytest
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

from debate_train.recipe.plan import Kept, Shape, memory, moved
from debate_train.trainers.trainer import Buckets

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
    # In float32 copies of 5 inputs of 10, 8 and 20, without those in half precision of 10, 10, 20.
    wide = dataclasses.replace(lora, wide_adapters=True)
    assert wide.activation_bytes() == lora.activation_bytes() + 2 * 6 + 4 * 78 - 2 * 40
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


@pytest.mark.parametrize(
    ("stage", "ranks", "activations", "buckets", "expected"),
    [
        (0, 4, 0, Buckets(), 0),
        (2, 4, 9000, Buckets(), 2000),  # All 1000 gradients of 2 bytes, of all ranks.
        (2, 4, 9000, Buckets(reduce=300), 600),
        (1, 4, 9000, Buckets(reduce=300, twice=True), 1200),
        # An update when no activations are left: 250 gradients copied, and in float32, 6 bytes.
        (2, 4, 0, Buckets(reduce=300), 1500),
        (1, 1, 5000, Buckets(reduce=300), 1000),  # 6000 of an update less the activations.
        (3, 1, 9000, Buckets(reduce=300), 600),  # Nothing to gather on one rank.
        (3, 4, 9000, Buckets(reduce=300), 600 + 2000),  # All weights are gathered
        (3, 4, 9000, Buckets(reduce=300, reuse=400, prefetch=50), 600 + 2 * 250),
        (3, 4, 0, Buckets(reduce=300, reuse=40, prefetch=0), 600 + 1500),
    ],
)
def test_memory_counts_what_deepspeed_allocates_beside(
    stage: int, ranks: int, activations: int, buckets: Buckets, expected: int
) -> None:
    found = memory(SMALL, stage, ranks, activations, False, Kept(buckets=buckets))
    assert found.buffers == expected
    kept = found.weights + found.gradients + found.optimizer
    assert found.total == kept + activations + expected


def test_buckets_are_those_that_deepspeed_is_configured_with() -> None:
    zero = DeepSpeedZeroConfig(stage=2)
    assert Buckets().reduced_together(10**10) == zero.reduce_bucket_size
    assert Buckets().prefetch == zero.prefetch_bucket_size
    assert Buckets().reuse == zero.max_reuse_distance
    assert Buckets().twice == zero.overlap_comm


@pytest.mark.parametrize("ranks", [1, 4])
def test_memory_is_that_of_deepspeeds_estimators_where_they_count_the_same(ranks: int) -> None:
    # All parameters in bfloat16 with AdamW, nothing offloaded, no activations and no buckets. They
    # leave out the copy of a rank's gradients, 2 bytes each, that an update makes on its way to
    # float32, and at stage 3 the rank's bfloat16 weights: 18 bytes, which are 16 and those 2.
    count, kept = SMALL.parameters, Kept(buckets=Buckets(reduce=0, reuse=0, prefetch=0))
    second, third = (memory(SMALL, stage, ranks, 0, False, kept).total for stage in (2, 3))
    copy = 2 * count / ranks
    sizes = {"num_gpus_per_node": ranks, "cpu_offload": False}
    assert second - copy == estimate_zero2_model_states_mem_needs(count, **sizes)[1]
    weights = 2 * count / ranks
    assert third - copy - weights == estimate_zero3_model_states_mem_needs(count, 0, **sizes)[1]


@pytest.mark.parametrize(("sums", "gradients"), [(None, (2, 2, 2, 2)), (4, (2, 6, 4, 4))])
def test_gradients_are_counted_in_the_type_that_packs_are_added_up_in(
    sums: int | None, gradients: tuple[int, ...]
) -> None:
    # Of bfloat16 weights; stage 1 has both the sums and the gradients of a pack.
    found = [memory(SMALL, stage, 1, 0, False, Kept(sums=sums)).gradients for stage in range(4)]
    assert found == [1000 * each for each in gradients]


@pytest.mark.parametrize(
    ("stage", "gradients", "gathers"),
    [
        (0, 3000, 0),  # all-reduce: 2 · 2000 · 3/4
        (1, 1500, 1500),  # reduce-scatter once, then gather the updated weights
        (2, 7500, 1500),  # reduced after each of 5 packs
        (3, 7500, 22500),  # 5 packs · (forward, backward, reference) · 2000 · 3/4
    ],
)
def test_moved_is_that_of_zero_when_on_four_ranks(stage: int, gradients: int, gathers: int) -> None:
    assert moved(SMALL, stage, 4, 5, reference=True) == (gradients, gathers)
