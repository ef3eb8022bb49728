"""Memory of each rank and bytes moved by an update, from a model's configuration alone."""

import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from debate_train.interrupts import UsageError
from debate_train.models import ModelConfig
from debate_train.models.loaded_model import Lora, lora_config
from debate_train.models.model_files import reason_of
from debate_train.trainers.trainer import DEFAULT_BUCKETS, Buckets

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """What the arithmetic needs of a model."""

    parameters: int
    trained: int
    weight_bytes: int
    """Bytes of one weight."""
    layers: int
    hidden: int
    queries: int
    """Features of all query heads of a layer."""
    keys: int
    """Features of all key heads of a layer."""
    ffn: int
    """Features of the MLP, or of all experts that a token passes."""
    experts: int = 0
    """Experts that a token is routed to."""

    vocabulary: int = 0
    norms_heads: bool = False
    """Whether queries and keys of each head are normed, as in Qwen3."""
    adapter: int = 0
    """Features between the two matrices of all LoRA adapters of a layer; 0 is none."""
    wide_adapters: bool = False
    """Whether adapters are float32 beside weights of half precision."""

    @property
    def bytes(self) -> int:
        """Bytes of one copy of the weights."""
        return self.weight_bytes * self.parameters

    @property
    def trained_bytes(self) -> int:
        """Bytes of one trained weight, which its gradient has, too."""
        return 4 if self.wide_adapters else self.weight_bytes

    def activation_bytes(self, recompute: bool = False) -> int:
        """Return the bytes of a token at the peak of a backward pass, without the output head.

        Recomputed layers keep what enters them, and one layer at a time all it needs. The layer
        whose gradient is computed holds gradients of its MLP and residuals beside.
        """
        width, layer = self.weight_bytes, self._layer_bytes()
        kept = self.layers * (width * self.hidden if recompute else layer)
        # The last norm, and the hidden states that actions are drawn from.
        kept += self._norm_bytes(self.hidden) + 2 * width * self.hidden
        return kept + self._bytes_at_work(recompute)

    def peak_bytes(self, tokens: int, recompute: bool = False) -> int:
        """Return the bytes at the peak of a pack's passes, with the output head.

        The head's gradient is done before the first layer is at work.
        """
        at_work = self._bytes_at_work(recompute)
        kept = self.activation_bytes(recompute) - at_work
        return kept * tokens + max(at_work * tokens, self.head_bytes(tokens))

    def head_bytes(self, tokens: int) -> int:
        """Return the bytes at the peak of the output head's passes over so many actions."""
        from debate_train.batches.forward import GPU_CHUNK_LOGITS

        chunk = min(GPU_CHUNK_LOGITS, tokens * self.vocabulary)
        # Logits of one chunk and their slopes, while the next one's logits are computed. A gradient
        # of the head is added up in float32.
        gradient = 0 if self.adapter else 4 * self.vocabulary * self.hidden
        return 3 * self.weight_bytes * chunk + gradient

    def _bytes_at_work(self, recompute: bool) -> int:
        """Return what a layer needs of a token while its gradient is computed."""
        gradients = 2 * self.weight_bytes * (self.ffn + self.hidden)
        return gradients + (self._layer_bytes() if recompute else 0)

    def _layer_bytes(self) -> int:
        """Return the bytes that a layer keeps of a token for its backward pass."""
        width, heads = self.weight_bytes, self.queries + self.keys
        layer = 2 * (self._norm_bytes(self.hidden) + width * self.hidden)
        layer += self._norm_bytes(heads) if self.norms_heads else 0
        # Rotated queries and keys, values, the attention's output; the vectors of a gated MLP.
        layer += 2 * width * heads + 4 * width * self.ffn
        layer += 2 * self.experts * width * self.hidden  # What enters and leaves each expert.
        if not self.wide_adapters:
            return layer + width * self.adapter
        # Each adapter keeps its own float32 copy of what enters it: three of the first norm's
        # output, two of the second's, in place of those in half precision.
        copies = 4 * (5 * self.hidden + self.queries + self.ffn + self.adapter)
        return layer + copies - width * (2 * self.hidden + self.ffn)

    def _norm_bytes(self, features: int) -> int:
        """Return the bytes that an RMSNorm keeps: its float32 input, and what weights multiply."""
        return (4 + (0 if self.adapter else self.weight_bytes)) * features

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of keys and values that an engine keeps of a token."""
        return 2 * self.layers * self.keys * self.weight_bytes


def shape_of(model: ModelConfig, wide_adapters: bool = False) -> Shape:
    """Return a model's shape from its configuration; loads no weights.

    Args:
        model: what is trained.
        wide_adapters: whether the trainer leaves LoRA adapters in float32.

    Raises:
        UsageError: There is no configuration, or none that a model can be built from.
    """
    if model.source is None:
        return _shape(model.load(0).model.config, model, wide_adapters)
    config = model.load_config()
    try:
        return _shape(config, model, wide_adapters)
    except Exception as error:
        raise UsageError(
            f"model.name: found a configuration of {model.name!r} that no model can be planned "
            f"from ({reason_of(error)}); expected that of a causal language model with attention "
            "layers"
        ) from error


def _shape(config: "PreTrainedConfig", model: ModelConfig, wide_adapters: bool) -> Shape:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    parameters = trained = sum(p.numel() for p in built.parameters())
    text = config.get_text_config()
    norms_heads = any(name.endswith("q_norm") for name, _ in built.named_modules())
    adapter = 0
    if model.lora is not None:
        one, features = _adapter(built, model.lora)
        trained = one * max(1, len(model.lora.adapters))
        parameters += trained
        adapter = features // text.num_hidden_layers
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    experts, ffn = _mlp(text)
    return Shape(
        parameters=parameters,
        trained=trained,
        weight_bytes=4 if model.dtype == "float32" else 2,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        queries=heads * size,
        keys=key_heads * size,
        ffn=ffn,
        experts=experts,
        vocabulary=text.vocab_size,
        norms_heads=norms_heads,
        adapter=adapter,
        wide_adapters=wide_adapters and adapter > 0 and model.dtype != "float32",
    )


def _adapter(built: object, lora: Lora) -> tuple[int, int]:
    """Return parameters and inner features of an adapter; peft knows which layers get one."""
    import torch
    from peft import get_peft_model

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(built, lora_config(lora))
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    features = sum(p.shape[0] for name, p in trained.items() if ".lora_A." in name)
    return sum(p.numel() for p in trained.values()), features


def _mlp(text: "PreTrainedConfig") -> tuple[int, int]:
    """Return the experts that a token passes, none in a dense model, and all their features."""
    experts = getattr(text, "num_experts_per_tok", None) or 0
    if not experts:
        return 0, text.intermediate_size
    one = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
    shared = getattr(text, "shared_expert_intermediate_size", None) or 0
    shared += (getattr(text, "n_shared_experts", None) or 0) * one
    return experts, experts * one + shared


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
