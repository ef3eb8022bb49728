"""`--plan`: memory of each rank and bytes moved per step, from the recipe and the model's shape.

Source: Rajbhandari et al. 2020 (ZeRO), sections 3 and 5, for weights, gradients and optimizer
state, and section 7 for what is moved; deviations, formulas and what was measured stand in
docs/scaling.md. Activations are our own count of what a layer keeps for its backward pass.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from debate_train.checks.check_context import longest_prompt, token_counter
from debate_train.checks.check_data import look_at_data
from debate_train.errors import UsageError
from debate_train.models import ModelConfig, PretrainedModel
from debate_train.recipe import Demonstrations, Recipe

MASTER, MOMENTS = 4, 8
"""Bytes of a float32 master weight, and of AdamW's two moments."""
HEAD_LOGITS = 3 * 4 * (1 << 22)
"""Bytes of a chunk of logits, its softmax and its gradient; see `logps.py`."""


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

    def activation_bytes(self, recompute: bool = False) -> int:
        """Return the bytes that are kept of a token for the backward pass.

        Recomputed layers keep what enters them, and one layer at a time all it needs. That is
        residuals, norms and their inputs (6 h), queries, keys and values before and after
        rotation and the attention's output (3 q + 3 k), and the four vectors of a gated MLP.
        """
        layer = 6 * self.hidden + 3 * self.queries + 3 * self.keys + 4 * self.ffn
        kept = self.layers * self.hidden + layer if recompute else self.layers * layer
        # The last norm's input and output, and the hidden states that actions are drawn from.
        return self.weight_bytes * (kept + 3 * self.hidden)

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of keys and values that an engine keeps of a token."""
        return 2 * self.layers * self.keys * self.weight_bytes


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

    @property
    def total(self) -> float:
        """Return what the rank's own device holds."""
        return self.weights + self.gradients + self.optimizer + self.activations


@dataclass(frozen=True, slots=True)
class Moved:
    """Bytes that one rank sends in an update."""

    gradients: float
    gathers: float
    """Of updated parameters (stages 1, 2), or of parameters in every pass (stage 3)."""
    to_engine: float
    """From rank 0 to each replica of an engine, once a step."""


def shape_of(model: ModelConfig) -> Shape:
    """Return a model's shape from its configuration; loads no weights.

    Raises:
        UsageError: There is no configuration to read.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if isinstance(model, PretrainedModel):
        try:
            config: Any = AutoConfig.from_pretrained(model.name, revision=model.revision)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"model.name: found no configuration of {model.name!r}; --plan expected a "
                "directory with a config.json, or a hub id that can be reached from here"
            ) from error
        width = {"float32": 4}.get(model.dtype, 2)
    else:
        config, width = model.load(0).model.config, 4
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config)
    parameters = sum(p.numel() for p in built.parameters())
    trained, lora = parameters, model.lora
    if lora is not None:
        head = built.get_output_embeddings()
        layers = [m for m in built.modules() if isinstance(m, torch.nn.Linear) and m is not head]
        trained = lora.rank * sum(m.in_features + m.out_features for m in layers)
        parameters += trained
    text = config.get_text_config()
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    ffn = text.intermediate_size
    return Shape(
        parameters, trained, width, text.num_hidden_layers, text.hidden_size,
        heads * size, key_heads * size, ffn,
    )  # fmt: skip


def memory(shape: Shape, stage: int, ranks: int, activations: int, reference: bool) -> Memory:
    """Return the bytes of one rank at a ZeRO stage whose packs keep so many for activations."""
    width, trained = shape.weight_bytes, shape.trained
    sharded = {level: ranks if stage >= level else 1 for level in (1, 2, 3)}
    # DeepSpeed keeps float32 masters from stage 1 on, also of float32 weights.
    masters = MASTER * trained / ranks if stage else 0.0
    return Memory(
        weights=width * shape.parameters / sharded[3],
        gradients=width * trained / sharded[2],
        optimizer=masters + MOMENTS * trained / sharded[1],
        reference=width * trained / sharded[3] if reference else 0.0,
        activations=activations + HEAD_LOGITS,
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
    return Moved(gradients * other, gathers * other, width * trained)


def plan(recipe: Recipe, gpus: int, gpu_memory: float) -> list[str]:
    """Return what is printed: each phase's memory by stage, and what a step moves.

    Args:
        recipe: what would be trained.
        gpus: of all machines together; a served vLLM takes its own of them.
        gpu_memory: of one, in GB (10^9 bytes).
    """
    shape = shape_of(recipe.model)
    lines = [
        f"model: {shape.parameters / 1e9:.3g} B parameters, {shape.trained / 1e9:.3g} B trained, "
        f"{shape.weight_bytes} bytes each; {shape.activation_bytes():,} bytes of "
        f"activations ({shape.activation_bytes(True):,} with recompute_layers) and "
        f"{shape.cache_bytes_per_token:,} of key-value cache a token"
    ]
    for name, phase in recipe.phase_recipes().items():
        lines += _phase_plan(name, phase, shape, gpus, gpu_memory)
    return lines


def _phase_plan(
    name: str, phase: Recipe, shape: Shape, gpus: int, gpu_memory: float
) -> Iterator[str]:
    engine_gpus, share, replicas = _engine(phase)
    ranks = gpus - engine_gpus
    if ranks < 1:
        raise UsageError(
            f"--gpus: found {gpus}, of which the engine of phase {name} takes {engine_gpus}; "
            "expected at least one more for training"
        )
    rows, longest = _most_rows(phase)
    tokens = rows * longest
    # A row that is longer than the budget stands alone.
    pack = min(max(phase.trainer.tokens_per_micro_batch, longest), tokens)
    updates = phase.trainer.minibatches
    packs = max(1, math.ceil(tokens / updates / pack / ranks))
    policy = phase.loss.reference_policy
    reference = policy is not None and (policy != "base" or phase.model.lora is None)
    yield (
        f"phase {name}: {ranks} trainer ranks, {engine_gpus} GPUs for engines alone; at most "
        f"{rows:,} rows of {longest:,} tokens a step: an update has {packs} packs of {pack:,} "
        "a rank"
    )
    yield (
        "  stage  weights  gradients  optimizer  CPU: ref.  activations    total GB"
        "   | an update: gradients  gathers GB"
    )
    free = gpu_memory * (1 - share) * 1e9
    activations = shape.activation_bytes(phase.trainer.recompute_layers) * pack
    chosen = phase.trainer.zero_stage if phase.trainer.type == "deepspeed" else None
    for stage in range(4):
        need = memory(shape, stage, ranks, activations, reference)
        sent = moved(shape, stage, ranks, packs, reference)
        parts = (need.weights, need.gradients, need.optimizer, need.reference, need.activations)
        shown = "".join(f"{part / 1e9:11.2f}" for part in parts)
        mark = "*" if stage == chosen else " "
        fits = "fits" if need.total <= free else "no  "
        yield (
            f"  {stage}{mark} {shown} {need.total / 1e9:9.2f} {fits} |"
            f"{sent.gradients / 1e9:15.2f} {sent.gathers / 1e9:11.2f}"
        )
    yield (
        f"  {free / 1e9:.1f} of {gpu_memory:g} GB are free for training on rank 0's GPU; "
        f"{shape.weight_bytes * shape.trained / 1e9:.2f} GB of weights go to each of {replicas} "
        "engine replicas a step"
    )
    cache = gpu_memory * 1e9 * (share or 0.9) - shape.weight_bytes * shape.parameters
    if cache > 0 and (engine_gpus or share):
        yield (
            f"  an engine on one such GPU keeps about {cache / shape.cache_bytes_per_token:,.0f} "
            "tokens of key-value cache beside its weights"
        )


def _engine(phase: Recipe) -> tuple[int, float, int]:
    """Return the GPUs an engine has alone, its share of rank 0's, and its replicas."""
    engine = phase.rollout.engine
    if isinstance(engine, Demonstrations) or engine.type not in ("vllm", "vllm_server"):
        return 0, 0.0, 1
    arguments = engine.vllm_args
    replicas = int(arguments.get("data_parallel_size", 1))
    count = replicas * int(arguments.get("tensor_parallel_size", 1))
    if engine.type == "vllm_server":
        return count, 0.0, replicas
    return count - 1, engine.gpu_memory_utilization, replicas


def _most_rows(phase: Recipe) -> tuple[int, int]:
    """Return the rows of a step, at most as many as turns, and the longest context."""
    form = phase.debate
    reply = phase.rollout.max_tokens
    question = look_at_data(phase.data).longest
    longest = longest_prompt(form, question, reply, token_counter(phase.model)).prompt_tokens
    questions = phase.data.batch_size
    debates = questions * phase.rollout.debates_per_question
    direct = questions * phase.rollout.direct_per_question
    each = form.turn_count()
    grows = each == form.num_agents * form.max_rounds and (
        getattr(form, "conversation", "append") == "append"
    )
    rows = debates * (form.num_agents if grows else each) + direct
    return rows, longest + reply
