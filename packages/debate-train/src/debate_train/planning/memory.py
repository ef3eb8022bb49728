"""Memory of each rank and bytes moved by an update, at every ZeRO stage.

Source: Rajbhandari et al. 2020 (ZeRO), sections 3 and 5, for weights, gradients and optimizer
state, and section 7 for what is moved; deviations, formulas and what was measured stand in
docs/scaling.md. Activations are counted operation by operation, and compared with passes on
fake CUDA tensors (tests/train/test_fake_cuda.py).
"""

import math
from dataclasses import dataclass, replace

from debate_train.planning.model_shape import Shape
from debate_train.trainers.trainer import DEFAULT_BUCKETS, Buckets

MASTER, MOMENTS = 4, 8.0
"""Bytes of a float32 master weight, and of AdamW's two moments."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one rank."""

    weights: float
    gradients: float
    optimizer: float
    """Masters and moments."""
    reference: float
    """Kept in CPU memory."""
    activations: float
    buffers: float = 0.0
    """What DeepSpeed takes beside, at the peak of passes or of an update, whichever is higher."""
    offloaded: float = 0.0
    """What of weights and optimizer is kept in CPU memory."""

    @property
    def total(self) -> float:
        """Return what the rank's own device holds."""
        held = self.weights + self.gradients + self.optimizer
        return held + self.activations + self.buffers - self.offloaded


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that one rank sends in an update."""

    gradients: float
    gathers: float
    """Of updated parameters (stages 1, 2), or of parameters in every pass (stage 3)."""
    to_engine: float
    """From rank 0 to each replica of an engine, once a step."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes that are kept of a trained parameter, beside itself."""

    moments: float = MOMENTS
    """By the optimizer."""
    sums: int | None = None
    """Of gradients of several packs, where DeepSpeed's `grad_accum_dtype` names a type for them."""
    buckets: Buckets = DEFAULT_BUCKETS
    is_offloaded: bool = False
    """Whether masters and moments lie in CPU memory, where updates are made."""

    def gradient_bytes(self, width: int, stage: int) -> int:
        """Return those of a gradient at a stage, of a parameter that has so many itself."""
        if stage == 0 or self.sums in (None, width):
            return width
        # Stage 1 keeps the sums beside gradients as they are computed.
        return self.sums + (width if stage == 1 else 0)


def _passing(shape: Shape, stage: int, ranks: int, kept: Kept) -> float:
    """Return the bytes of DeepSpeed's buffers while a pack's passes are made."""
    width, buckets = shape.trained_bytes, kept.buckets
    reduced = buckets.reduced_together(shape.trained)
    if stage == 0:
        return 0.0
    if stage < 3:
        each = (kept.sums or width) if stage == 1 else width
        return float(each * reduced * (2 if buckets.twice else 1))
    # Gathered parameters lie beside their shards. Parameters used last in the forward pass stay,
    # as far as those of the backward pass that come before them: half of the distance.
    gathered = min(shape.parameters, buckets.reuse // 2 + buckets.prefetch)
    return float(width * reduced + (shape.weight_bytes * gathered if ranks > 1 else 0))


def _updating(shape: Shape, stage: int, ranks: int, kept: Kept) -> float:
    """Return the bytes that an update holds when activations are gone.

    DeepSpeed copies a rank's gradients into one tensor, and that into float32, before the
    gradients are freed; at stage 3 the bucket stays allocated.
    """
    if stage == 0:
        return 0.0
    width = shape.trained_bytes
    reduced = kept.buckets.reduced_together(shape.trained)
    bucket = float(width * reduced) if stage == 3 else 0.0
    if kept.is_offloaded:
        return bucket
    summed = kept.sums or width
    copies = summed if summed == MASTER else summed + MASTER
    return bucket + copies * shape.trained / ranks


def memory(
    shape: Shape,
    stage: int,
    ranks: int,
    activations: int,
    reference: bool,
    kept: Kept = Kept(),
) -> Memory:
    """Return the bytes of one rank at a ZeRO stage whose packs keep so many for activations."""
    width, trained = shape.trained_bytes, shape.trained
    sharded = {level: ranks if stage >= level else 1 for level in (1, 2, 3)}
    # DeepSpeed keeps float32 masters from stage 1 on, also of float32 weights.
    masters = MASTER * trained / ranks if stage else 0.0
    return Memory(
        weights=(shape.weight_bytes * shape.parameters + (width - shape.weight_bytes) * trained)
        / sharded[3],
        gradients=kept.gradient_bytes(width, stage) * trained / sharded[2],
        optimizer=masters + kept.moments * trained / sharded[1],
        reference=width * trained / sharded[3] if reference else 0.0,
        activations=activations,
        buffers=max(
            _passing(shape, stage, ranks, kept),
            _updating(shape, stage, ranks, kept) - activations,
        ),
    )


def moved(shape: Shape, stage: int, ranks: int, packs: int, reference: bool) -> Moved:
    """Return the bytes that one rank sends in an update of so many packs."""
    width, trained = shape.weight_bytes, shape.trained
    other = (ranks - 1) / ranks
    gradients, gathers = 2 * width * trained, 0
    if stage == 1:
        gradients, gathers = width * trained, width * trained
    elif stage == 2:  # Reduced after every pack, so that no rank holds whole gradients.
        gradients, gathers = packs * width * trained, width * trained
    elif stage == 3:
        passes = packs * (3 if reference else 2)
        gradients, gathers = packs * width * trained, passes * width * shape.parameters
    return Moved(gradients * other, gathers * other, shape.trained_bytes * trained)


@dataclass(frozen=True, slots=True)
class Layout:
    """A phase on so many ranks."""

    shape: Shape
    ranks: int
    rows: int
    """Most rows of a step."""
    longest: int
    """Tokens of its longest row."""
    budget: int
    """The recipe's `tokens_per_micro_batch`."""
    updates: int = 1
    """Updates that a step's rows are dealt to."""
    recompute: bool = False
    reference: bool = False
    deepspeed: bool = True
    """Whether the recipe's trainer is DeepSpeed already."""
    offload_optimizer: bool = False
    offload_params: bool = False
    stages: tuple[int, ...] = (0, 1, 2, 3)
    """Those that its precision and its optimizer can be trained at."""
    kept: Kept = Kept()

    @property
    def pack(self) -> int:
        """Return the tokens of a pack; a row that is longer than the budget stands alone."""
        return min(max(self.budget, self.longest), self.rows * self.longest)

    @property
    def packs(self) -> int:
        """Return the packs of a rank in an update."""
        return max(1, math.ceil(self.rows * self.longest / self.updates / self.pack / self.ranks))

    def memory(self, stage: int) -> Memory:
        """Return the bytes of one rank at a stage."""
        shape = self._shape_at(stage)
        activations = shape.peak_bytes(self.pack, self.recompute)
        kept = replace(self.kept, is_offloaded=self.offload_optimizer)
        found = memory(shape, stage, self.ranks, activations, self.reference, kept)
        offloaded = found.optimizer if self.offload_optimizer and stage else 0.0
        offloaded += found.weights if self.offload_params and stage == 3 else 0.0
        return replace(found, offloaded=offloaded)

    def moved(self, stage: int) -> Moved:
        """Return the bytes that one rank sends in an update at a stage."""
        return moved(self._shape_at(stage), stage, self.ranks, self.packs, self.reference)

    def _shape_at(self, stage: int) -> Shape:
        """Return the shape at a stage; DeepSpeed, which has the stages, makes adapters narrow."""
        return replace(self.shape, wide_adapters=False) if stage else self.shape

    @property
    def least(self) -> float:
        """Return what a rank's device holds at the stage where that is least."""
        return min(self.memory(stage).total for stage in self.stages)
