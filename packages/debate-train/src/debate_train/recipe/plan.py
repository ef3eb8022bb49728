"""`--plan`: memory of each rank, from the recipe and the model's shape.

`docs/scaling.md` has the formulas, their limits and how they were measured.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from debate_rollout.engine import Footprint
from debate_train.errors import UsageError
from debate_train.models.policies import TrainedPolicy
from debate_train.recipe.context import longest_prompt, token_counter
from debate_train.recipe.data_view import look_at_data
from debate_train.recipe.model_shape import FLOAT32_BYTES, Shape, shape_of
from debate_train.recipe.policies import used_policies
from debate_train.recipe.recipe import Recipe
from debate_train.recipe.refusals import Launch, run_errors
from debate_train.recipe.served_training import cost_lines
from debate_train.recipe.step_counts import step_counts
from debate_train.trainers.tinker import TinkerTrainer
from debate_train.trainers.trainer import bucket_size

GB = 1e9
# Bytes of AdamW's two moments of a weight.
ADAMW_BYTES = 8.0
ZERO_STAGES = range(4)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a rank.

    Attributes:
        weights: Weights, sharded at stage 3.
        gradients: Gradients of trained weights.
        optimizer: Masters and moments.
        reference: A copy of the trained weights, in CPU memory.
        activations: Activations of a pack's passes.
        buffers: The bucket of gradients before their reduction.
        offloaded: The part of weights and optimizer in CPU memory.
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
        """Bytes on the rank's own device."""
        state = self.weights + self.gradients + self.optimizer
        return state + self.activations + self.buffers - self.offloaded


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedPolicy:
    """A policy with a model on this machine.

    Attributes:
        name: The policy.
        engine_key: The key of the engine.
        shape: The model.
        footprint: GPUs and memory of the engine.
    """

    name: str
    engine_key: str
    shape: Shape
    footprint: Footprint


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuShares:
    """How a run divides GPUs.

    Attributes:
        ranks: Training GPUs.
        engines_alone: GPUs reserved for engines.
    """

    ranks: int
    engines_alone: int


def plan(recipe: Recipe, gpus: int, gpu_memory: float) -> list[str]:
    """Write each phase's memory by stage, and the memory of engines.

    Args:
        recipe: The recipe.
        gpus: GPUs of all machines together, those of a served vLLM included.
        gpu_memory: Memory of a GPU, in GB (10^9 bytes).
    """
    phases = recipe.phase_recipes()
    if all(isinstance(phase.trainer, TinkerTrainer) for phase in phases.values()):
        costs: list[str] = []
        for name, phase in phases.items():
            num_turns = step_counts(phase, phase.data.batch_size).drawn_turns
            costs += cost_lines(name, phase, num_turns, _most_rows(phase))
        return costs
    shape = shape_of(recipe.model, recipe.trainer.widens_adapters)
    served = _served_policies(recipe, shape, gpu_memory * GB)
    shares = _divide_gpus(recipe, served, gpus)
    lines = [
        f"model: {count(shape.parameters)} parameters, {count(shape.trained)} trained, "
        f"{shape.weight_bytes} bytes each; {shape.activation_bytes():,} bytes of "
        f"activations ({shape.activation_bytes(True):,} with gradient_checkpointing) and "
        f"{shape.cache_bytes_per_token:,} of key-value cache a token"
    ]
    launch = Launch(num_processes=shares.ranks, with_tokenizer=False)
    for error in run_errors(recipe, launch):
        lines.append(f"as it is, the recipe is refused: {error}")

    # The trained policy's engine, the first, may give its memory back while the trainer works.
    sleeps = "sleeps" in recipe.rollout.engine.capabilities and not recipe.pipeline.max_staleness
    awake = served[1:] if sleeps else served
    free_bytes = gpu_memory * GB - sum(policy.footprint.reserved for policy in awake)
    longest = 0
    for name, phase in recipe.phase_recipes().items():
        num_rows, row_tokens = _most_rows(phase)
        longest = max(longest, row_tokens)
        num_updates = phase.trainer.update_count(num_rows)
        max_pack_tokens = phase.trainer.most_tokens(row_tokens, phase.debate)
        pack_tokens = min(max_pack_tokens, num_rows * row_tokens)
        epoch_tokens = num_rows * row_tokens * phase.trainer.epochs
        num_packs = math.ceil(epoch_tokens / num_updates / pack_tokens / shares.ranks)
        lines.append(
            f"phase {name}: {shares.ranks} trainer rank{'s' * (shares.ranks > 1)}, "
            f"{shares.engines_alone} GPUs for engines alone; at most {num_rows:,} rows of "
            f"{row_tokens:,} tokens a step: an update has {max(1, num_packs)} packs of "
            f"{pack_tokens:,} a rank; {max(0.0, free_bytes) / GB:.1f} of {gpu_memory:g} GB are "
            "free for training on rank 0's GPU"
        )
        lines += _stage_lines(phase, shape, shares.ranks, pack_tokens, free_bytes)
    for policy in served:
        lines += _engine_lines(policy, longest)
    return lines


def _served_policies(recipe: Recipe, shape: Shape, gpu_bytes: float) -> list[ServedPolicy]:
    """List the engines of a run, the trained policy's first; loads no weights."""
    trained = TrainedPolicy(recipe.rollout.engine, recipe.model, recipe.seed)
    served = [
        ServedPolicy(
            name="trained",
            engine_key="rollout.engine",
            shape=shape,
            footprint=trained.engine.footprint(shape.bytes, gpu_bytes),
        )
    ]
    for name, policy in used_policies(recipe).items():
        model = policy.sampled_model(trained)
        if model is None:
            continue
        policy_shape = shape if model == trained.model else shape_of(model)
        policy_key = f"policies.{name}." if name in recipe.rollout.policies else ""
        engine = policy.engine_config(trained)
        served.append(
            ServedPolicy(
                name=name,
                engine_key=f"rollout.{policy_key}engine",
                shape=policy_shape,
                footprint=engine.footprint(policy_shape.bytes, gpu_bytes),
            )
        )
    return served


def _divide_gpus(recipe: Recipe, served: Sequence[ServedPolicy], gpus: int) -> GpuShares:
    """Divide the GPUs among ranks and engines.

    Raises:
        UsageError: There are too few.
    """
    # Engines that share take the first GPUs of those that ranks are on; one process has one.
    num_apart = 0
    num_shared = 0
    for policy in served:
        if policy.footprint.shares:
            num_shared = max(num_shared, policy.footprint.gpus)
        else:
            num_apart += policy.footprint.gpus
    engines_alone = num_apart
    if not recipe.trainer.several_processes:
        engines_alone += max(0, num_shared - 1)
    num_of_engines = num_apart + num_shared
    ranks = gpus - engines_alone
    if gpus < num_of_engines or ranks < 1:
        who = "the engine takes" if len(served) == 1 else "engines take"
        raise UsageError(
            f"--gpus: found {gpus}, of which {who} {num_of_engines}, {engines_alone} of them "
            f"alone; expected at least {max(num_of_engines, engines_alone + 1)}"
        )
    return GpuShares(ranks=ranks, engines_alone=engines_alone)


def _most_rows(phase: Recipe) -> tuple[int, int]:
    """Count the rows of a step, at most as many as turns, and the tokens of the longest."""
    max_tokens = phase.rollout.max_tokens
    counter = token_counter(phase.model)
    question = look_at_data(phase.data).longest
    prompts = [longest_prompt(form, question, max_tokens, counter) for form in phase.forms]
    prompt_tokens = max(prompt.prompt_tokens for prompt in prompts)
    return step_counts(phase, phase.data.batch_size).samples, prompt_tokens + max_tokens


def memory(
    shape: Shape,
    stage: int,
    ranks: int,
    activations: int,
    reference: bool,
    moments: float = ADAMW_BYTES,
) -> Memory:
    """Compute the bytes of a rank at a ZeRO stage.

    Args:
        shape: The model.
        stage: The ZeRO stage; 0 does not shard.
        ranks: Ranks with shards.
        activations: Bytes of a pack's activations.
        reference: Whether the rank has a reference policy.
        moments: Bytes of the optimizer's moments of a weight.
    """
    optimizer_ranks = ranks if stage >= 1 else 1
    gradient_ranks = ranks if stage >= 2 else 1
    weight_ranks = ranks if stage >= 3 else 1
    trained_bytes = shape.trained_bytes * shape.trained
    # Trained adapters may be wider than the frozen weights.
    frozen_bytes = shape.weight_bytes * (shape.parameters - shape.trained)
    optimizer_bytes = moments * shape.trained / optimizer_ranks
    buffer_bytes = 0.0
    if stage >= 1:
        # DeepSpeed keeps float32 masters from stage 1 on, also of float32 weights.
        optimizer_bytes += FLOAT32_BYTES * shape.trained / ranks
        buffer_bytes = float(shape.trained_bytes * bucket_size(shape.trained))
    return Memory(
        weights=(frozen_bytes + trained_bytes) / weight_ranks,
        gradients=trained_bytes / gradient_ranks,
        optimizer=optimizer_bytes,
        reference=trained_bytes / weight_ranks if reference else 0.0,
        activations=activations,
        buffers=buffer_bytes,
    )


def _rank_memory(phase: Recipe, shape: Shape, stage: int, ranks: int, pack_tokens: int) -> Memory:
    """Compute the bytes of a rank at a stage."""
    trainer = phase.trainer
    sharding = trainer.sharding()
    reference_policy = phase.loss.reference_policy
    if stage:  # DeepSpeed, which has the stages above 0, makes adapters the model's type.
        shape = replace(shape, wide_adapters=False)
    # The base of an adapter is in memory already, so as a reference it takes nothing.
    has_reference = reference_policy == "base" and phase.model.lora is None
    has_reference = has_reference or reference_policy not in (None, "base")
    rank_memory = memory(
        shape,
        stage,
        ranks,
        activations=shape.peak_bytes(pack_tokens, trainer.gradient_checkpointing),
        reference=has_reference,
        moments=trainer.optimizer.state_layout().bytes_each,
    )
    offloaded = 0.0
    if sharding is not None and sharding.offload_optimizer and stage >= 1:
        offloaded += rank_memory.optimizer
    if sharding is not None and sharding.offload_params and stage == 3:
        offloaded += rank_memory.weights
    return replace(rank_memory, offloaded=offloaded)


def _stage_lines(
    phase: Recipe, shape: Shape, ranks: int, pack_tokens: int, free_bytes: float
) -> Iterator[str]:
    """Yield a table with a line for each ZeRO stage."""
    yield "  stage  weights  gradients  optimizer  CPU: ref.  activations  buffers   total GB"
    sharding = phase.trainer.sharding()
    any_fits = False
    for stage in ZERO_STAGES:
        problem = _stage_problem(phase, stage)
        if problem is not None:
            yield f"  {stage}  refused: {problem}"
            continue
        need = _rank_memory(phase, shape, stage, ranks, pack_tokens)
        fits = need.total <= free_bytes
        any_fits = any_fits or fits
        is_chosen = sharding is not None and stage == sharding.stage
        columns = [need.weights, need.gradients, need.optimizer, need.reference, need.activations]
        cells = "".join(f"{num_bytes / GB:11.2f}" for num_bytes in columns)
        yield (
            f"  {stage}{'*' if is_chosen else ' '} {cells}{need.buffers / GB:9.2f} "
            f"{need.total / GB:9.2f} {'fits' if fits else 'no'}"
        )
    if not any_fits:
        yield "  no stage fits"


def _stage_problem(phase: Recipe, stage: int) -> str | None:
    """Explain why a phase cannot be trained at a stage."""
    trainer = phase.trainer
    is_half = trainer.keeps_masters or phase.model.dtype != "float32"
    if trainer.sharding() is not None and is_half:
        # DeepSpeed's stage 0 has no float32 masters beside half precision.
        return None if stage else "bfloat16 and float16 need stage 1 or above"
    if stage and trainer.optimizer.needs_whole:
        return f"{trainer.optimizer.label} needs parameters whole: stage 0"
    return None


def _engine_lines(policy: ServedPolicy, longest: int) -> Iterator[str]:
    """Yield an engine's memory, and whether a row fits beside the weights.

    Args:
        policy: The policy of the engine.
        longest: Tokens of the longest row.
    """
    shape = policy.shape
    footprint = policy.footprint
    taken_bytes = footprint.reserved if footprint.room is None else footprint.room
    gpus = "of rank 0's GPU" if footprint.shares else "of its own GPUs"
    yield (
        f"engine of policy {policy.name}: {count(shape.parameters)} parameters, "
        f"{shape.bytes / GB:.1f} GB of weights; it takes {taken_bytes / GB:.2f} GB {gpus}"
    )
    if footprint.room is None:
        return
    cache_bytes = footprint.split * footprint.room - shape.bytes
    cache_tokens = cache_bytes / shape.cache_bytes_per_token
    if cache_tokens >= longest:
        yield f"  beside its weights it keeps about {cache_tokens:,.0f} tokens of key-value cache"
    else:
        yield (
            f"  its weights and a row of {longest:,} tokens do not fit; expected a larger "
            f"{policy.engine_key}.vllm_args.tensor_parallel_size or "
            f"{policy.engine_key}.gpu_memory_utilization"
        )


def count(number: int) -> str:
    """Write a number of parameters in millions or billions."""
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"
