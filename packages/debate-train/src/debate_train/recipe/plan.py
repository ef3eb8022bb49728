"""`--plan`: memory of each rank, from the recipe and the model's shape.

`docs/scaling.md` has the formulas, what they leave out and how they were measured.
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from debate_rollout.engine import Footprint
from debate_train.errors import UsageError
from debate_train.models import ModelConfig
from debate_train.models.loaded_model import Lora, lora_config
from debate_train.models.model_files import reason_of
from debate_train.models.policies import TrainedPolicy
from debate_train.recipe import Recipe
from debate_train.recipe.context import longest_prompt, look_at_data, step_counts, token_counter
from debate_train.recipe.policies import used_policies
from debate_train.recipe.refusals import Launch, run_errors
from debate_train.trainers.trainer import bucket_size

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """What the arithmetic needs of a model.

    Attributes:
        parameters: All weights, adapters included.
        trained: Those that are trained.
        weight_bytes: Bytes of one weight.
        layers: Transformer layers.
        hidden: Width of the residual stream.
        queries: Features of all query heads of a layer.
        keys: Features of all key heads of a layer.
        ffn: Features of the MLP, or of all experts that a token passes.
        experts: Experts that a token is routed to.
        vocabulary: Logits of a token.
        norms_heads: Whether queries and keys of each head are normed, as in Qwen3.
        adapter: Features between the two matrices of all LoRA adapters of a layer; 0 is none.
        wide_adapters: Whether adapters are float32 beside weights of half precision.
    """

    parameters: int
    trained: int
    weight_bytes: int
    layers: int
    hidden: int
    queries: int
    keys: int
    ffn: int
    experts: int = 0
    vocabulary: int = 0
    norms_heads: bool = False
    adapter: int = 0
    wide_adapters: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of one copy of the weights."""
        return self.weight_bytes * self.parameters

    @property
    def trained_bytes(self) -> int:
        """Bytes of one trained weight, and of its gradient."""
        return 4 if self.wide_adapters else self.weight_bytes

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of keys and values that an engine keeps of a token."""
        return 2 * self.layers * self.keys * self.weight_bytes

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
        return kept * tokens + max(at_work * tokens, self._head_bytes(tokens))

    def _head_bytes(self, tokens: int) -> int:
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
        return layer + width * self.adapter

    def _norm_bytes(self, features: int) -> int:
        """Return the bytes that an RMSNorm keeps: its float32 input, and what weights multiply."""
        return (4 + (0 if self.adapter else self.weight_bytes)) * features


def shape_of(model: ModelConfig, wide_adapters: bool = False) -> Shape:
    """Return a model's shape from its configuration; loads no weights.

    Args:
        model: What is trained.
        wide_adapters: Whether the trainer leaves LoRA adapters in float32.

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
            f"from ({reason_of(error)}); expected a causal language model with attention layers"
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
    experts, ffn = _mlp(text)
    return Shape(
        parameters=parameters,
        trained=trained,
        weight_bytes=4 if model.dtype == "float32" else 2,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        queries=heads * size,
        keys=(getattr(text, "num_key_value_heads", None) or heads) * size,
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
    """Bytes of one rank.

    Attributes:
        weights: Weights, sharded at stage 3.
        gradients: Gradients of trained weights.
        optimizer: Masters and moments.
        reference: A copy of what is trained, in CPU memory.
        activations: What a pack's passes keep.
        buffers: The bucket in which gradients wait to be reduced.
        offloaded: What of weights and optimizer is kept in CPU memory.
    """

    weights: float
    gradients: float
    optimizer: float
    reference: float
    activations: float
    buffers: float = 0.0
    offloaded: float = 0.0

    @property
    def total(self) -> float:
        """Return what the rank's own device holds."""
        held = self.weights + self.gradients + self.optimizer
        return held + self.activations + self.buffers - self.offloaded


def memory(
    shape: Shape,
    stage: int,
    ranks: int,
    activations: int,
    reference: bool,
    moments: float = MOMENTS,
) -> Memory:
    """Return the bytes of one rank at a ZeRO stage whose packs keep so many for activations."""
    width, trained = shape.trained_bytes, shape.trained
    sharded = {level: ranks if stage >= level else 1 for level in (1, 2, 3)}
    # DeepSpeed keeps float32 masters from stage 1 on, also of float32 weights.
    masters = MASTER * trained / ranks if stage else 0.0
    return Memory(
        weights=(shape.weight_bytes * shape.parameters + (width - shape.weight_bytes) * trained)
        / sharded[3],
        gradients=width * trained / sharded[2],
        optimizer=masters + moments * trained / sharded[1],
        reference=width * trained / sharded[3] if reference else 0.0,
        activations=activations,
        buffers=float(width * bucket_size(trained)) if stage else 0.0,
    )


Served = tuple[str, str, Shape, Footprint]
"""A policy with a model of its own here: its name, its engine's key, its model, what that takes."""


def _served(recipe: Recipe, shape: Shape, gpu_bytes: float) -> list[Served]:
    """Return the engines of a run, that of the trained policy first; loads no weights."""
    trained = TrainedPolicy(recipe.rollout.engine, recipe.model, recipe.seed)
    found = [("trained", "rollout.engine", shape, trained.engine.footprint(shape.bytes, gpu_bytes))]
    for name, policy in used_policies(recipe).items():
        model = policy.sampled_model(trained)
        if model is not None:
            own = shape if model == trained.model else shape_of(model)
            place = f"policies.{name}." if name in recipe.rollout.policies else ""
            takes = policy.engine_config(trained).footprint(own.bytes, gpu_bytes)
            found.append((name, f"rollout.{place}engine", own, takes))
    return found


def _engine_lines(one: Served, longest: int) -> Iterator[str]:
    """Say what an engine holds, and whether a row fits beside its weights."""
    name, key, shape, takes = one
    room = takes.reserved if takes.room is None else takes.room
    where = "of rank 0's GPU" if takes.shares else "of its own GPUs"
    yield (
        f"engine of policy {name}: {count(shape.parameters)} parameters, {shape.bytes / 1e9:.1f} "
        f"GB of weights; it takes {room / 1e9:.2f} GB {where}"
    )
    if takes.room is None:
        return
    cached = (takes.split * room - shape.bytes) / shape.cache_bytes_per_token
    if cached >= longest:
        yield f"  beside its weights it keeps about {cached:,.0f} tokens of key-value cache"
    else:
        yield (
            f"  its weights and a row of {longest:,} tokens do not fit; expected a larger "
            f"{key}.vllm_args.tensor_parallel_size or {key}.gpu_memory_utilization"
        )


def count(number: int) -> str:
    """Return a number of parameters as it is read most easily."""
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"


def plan(recipe: Recipe, gpus: int, gpu_memory: float) -> list[str]:
    """Return what is printed: each phase's memory by stage, and engines.

    Args:
        recipe: What would be trained.
        gpus: Of all machines together; a served vLLM takes its own of them.
        gpu_memory: Of one, in GB (10^9 bytes).
    """
    shape = shape_of(recipe.model, recipe.trainer.widens_adapters)
    served = _served(recipe, shape, gpu_memory * 1e9)
    # Engines that share take the first GPUs of those that ranks are on; one process has one.
    own = sum(takes.gpus for *_, takes in served if not takes.shares)
    sharing = max(takes.gpus if takes.shares else 0 for *_, takes in served)
    alone = own + (0 if recipe.trainer.several_processes else max(0, sharing - 1))
    ranks = gpus - alone
    if gpus < sharing + own or ranks < 1:
        who = "the engine takes" if len(served) == 1 else "engines take"
        raise UsageError(
            f"--gpus: found {gpus}, of which {who} {sharing + own}, {alone} of them alone; "
            f"expected at least {max(sharing + own, alone + 1)}"
        )
    lines = [
        f"model: {count(shape.parameters)} parameters, {count(shape.trained)} trained, "
        f"{shape.weight_bytes} bytes each; {shape.activation_bytes():,} bytes of "
        f"activations ({shape.activation_bytes(True):,} with gradient_checkpointing) and "
        f"{shape.cache_bytes_per_token:,} of key-value cache a token"
    ]
    launch = Launch(num_processes=ranks, with_tokenizer=False)
    lines += [f"as it is, the recipe is refused: {e}" for e in run_errors(recipe, launch)]
    sleeps = "sleeps" in recipe.rollout.engine.capabilities and not recipe.pipeline.max_staleness
    free, longest = gpu_memory * 1e9 - sum(takes.reserved for *_, takes in served[sleeps:]), 0
    for name, phase in recipe.phase_recipes().items():
        rows, row = _most_rows(phase)
        longest, updates = max(longest, row), phase.trainer.update_count(rows)
        pack = min(phase.trainer.most_tokens(row, phase.debate), rows * row)
        packs = math.ceil(rows * row * phase.trainer.epochs / updates / pack / ranks)
        lines.append(
            f"phase {name}: {ranks} trainer rank{'s' * (ranks > 1)}, {alone} GPUs for engines "
            f"alone; at most {rows:,} rows of {row:,} tokens a step: an update "
            f"has {max(1, packs)} packs of {pack:,} a rank; {max(0.0, free) / 1e9:.1f} of "
            f"{gpu_memory:g} GB are free for training on rank 0's GPU"
        )
        lines += _stages(phase, shape, ranks, pack, free)
    return lines + [line for one in served for line in _engine_lines(one, longest)]


def _rank_memory(phase: Recipe, shape: Shape, stage: int, ranks: int, pack: int) -> Memory:
    """Return the bytes of one rank at a stage, whose packs have so many tokens."""
    trainer, policy = phase.trainer, phase.loss.reference_policy
    sharding, moments = trainer.sharding(), trainer.optimizer.state_layout().bytes_each
    if stage:  # DeepSpeed, which has the stages above 0, makes adapters the model's type.
        shape = replace(shape, wide_adapters=False)
    activations = shape.peak_bytes(pack, trainer.gradient_checkpointing)
    reference = policy is not None and (policy != "base" or phase.model.lora is None)
    found = memory(shape, stage, ranks, activations, reference, moments)
    offloaded = 0.0
    if sharding is not None:
        offloaded += found.optimizer if sharding.offload_optimizer and stage else 0.0
        offloaded += found.weights if sharding.offload_params and stage == 3 else 0.0
    return replace(found, offloaded=offloaded)


def _stages(phase: Recipe, shape: Shape, ranks: int, pack: int, free: float) -> Iterator[str]:
    yield "  stage  weights  gradients  optimizer  CPU: ref.  activations  buffers   total GB"
    trainer, sharding, fitting = phase.trainer, phase.trainer.sharding(), list[int]()
    # DeepSpeed's stage 0 has no float32 masters beside half precision.
    is_half = sharding is not None and (trainer.keeps_masters or phase.model.dtype != "float32")
    stages = (1, 2, 3) if is_half else (0,) if trainer.optimizer.needs_whole else range(4)
    for stage in range(4):
        if stage not in stages:
            why = "bfloat16 and float16 need stage 1 or above"
            if stage:
                why = f"{trainer.optimizer.label} needs parameters whole: stage 0"
            yield f"  {stage}  refused: {why}"
            continue
        need = _rank_memory(phase, shape, stage, ranks, pack)
        parts = (need.weights, need.gradients, need.optimizer, need.reference, need.activations)
        shown = "".join(f"{part / 1e9:11.2f}" for part in parts) + f"{need.buffers / 1e9:9.2f}"
        mark = "*" if sharding is not None and stage == sharding.stage else " "
        if need.total <= free:
            fitting.append(stage)
        yield (
            f"  {stage}{mark} {shown} {need.total / 1e9:9.2f} "
            f"{'fits' if need.total <= free else 'no'}"
        )
    if not fitting:
        yield "  no stage fits"


def _most_rows(phase: Recipe) -> tuple[int, int]:
    """Return the rows of a step, at most as many as turns, and the longest context."""
    reply, counter = phase.rollout.max_tokens, token_counter(phase.model)
    question = look_at_data(phase.data).longest
    prompts = [longest_prompt(form, question, reply, counter) for form in phase.forms]
    longest = max(prompt.prompt_tokens for prompt in prompts)
    return step_counts(phase, phase.data.batch_size).samples, longest + reply
