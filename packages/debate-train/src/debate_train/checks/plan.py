"""`--plan`: memory of each rank and bytes moved per step, from the recipe and the model's shape."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from debate_train.checks.check_context import longest_prompt, token_counter
from debate_train.checks.check_data import look_at_data
from debate_train.checks.check_engines import process_errors
from debate_train.checks.model_shape import Shape, shape_of
from debate_train.checks.plan_advice import WithLora, advice
from debate_train.checks.plan_memory import Kept, Layout
from debate_train.errors import UsageError
from debate_train.models import Lora, PretrainedModel
from debate_train.recipe import Demonstrations, Recipe

_DTYPE_BYTES = {"fp32": 4, "float32": 4, "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2}
"""Of the names that DeepSpeed has for types."""
_VLLM_SHARE = 0.9
"""Of a GPU, that a running server takes unless it was started with another share."""


@dataclass(frozen=True, slots=True)
class _Engine:
    """What the run's engine takes."""

    gpus: int = 0
    alone: int = 0
    """Those of them that no trainer rank is on."""
    reserved: float = 0.0
    """Bytes of rank 0's GPU."""
    replicas: int = 1
    split: int = 1
    """GPUs that the weights of a replica are split over."""
    room: float | None = None
    """Bytes of each of its GPUs for weights and cache, None where that is not fixed."""


def plan(recipe: Recipe, gpus: int, gpu_memory: float) -> list[str]:
    """Return what is printed: each phase's memory by stage, and what a step moves.

    Args:
        recipe: what would be trained.
        gpus: of all machines together; a served vLLM takes its own of them.
        gpu_memory: of one, in GB (10^9 bytes).
    """
    shape = shape_of(recipe.model, _keeps_wide_adapters(recipe))
    engine = _engine(recipe, shape, gpu_memory * 1e9)
    ranks = gpus - engine.alone
    if gpus < engine.gpus or ranks < 1:
        least = max(engine.gpus, engine.alone + 1)
        raise UsageError(
            f"--gpus: found {gpus}, of which the engine takes {engine.gpus}, {engine.alone} of "
            f"them alone; expected at least {least}"
        )
    lines = [
        f"model: {_count(shape.parameters)} parameters, {_count(shape.trained)} trained, "
        f"{shape.weight_bytes} bytes each; {shape.activation_bytes():,} bytes of "
        f"activations ({shape.activation_bytes(True):,} with recompute_layers) and "
        f"{shape.cache_bytes_per_token:,} of key-value cache a token"
    ]
    lines += [f"as it is, the recipe is refused: {e}" for e in process_errors(recipe, ranks)]
    lines += _where(recipe, ranks, gpus)
    longest = 0
    for name, phase in recipe.phase_recipes().items():
        layout = _layout(phase, shape, ranks)
        longest = max(longest, layout.longest)
        lines.append(f"phase {name}: {_on(layout, engine.alone)}")
        lines += _stages(phase, layout, engine, gpu_memory)
    return [*lines, *_engine_lines(shape, engine, longest, gpu_memory)]


def _where(recipe: Recipe, ranks: int, gpus: int) -> Iterator[str]:
    engine = recipe.rollout.engine
    if engine.type == "vllm_server" and engine.url is None and engine.devices is None:
        own = ",".join(str(gpu) for gpu in range(ranks, gpus))
        yield (
            "as it is, the server starts on GPUs that ranks are on: rollout.engine.devices: found "
            f"none; expected its own, such as '{own}', or a url"
        )


def _layout(phase: Recipe, shape: Shape, ranks: int) -> Layout:
    rows, longest = _most_rows(phase)
    trainer, policy = phase.trainer, phase.loss.reference_policy
    is_deepspeed = trainer.type == "deepspeed"
    # DeepSpeed's stage 0 has no float32 masters beside half precision.
    is_half = is_deepspeed and (getattr(trainer, "bf16", False) or phase.model.dtype != "float32")
    return Layout(
        shape=shape,
        ranks=ranks,
        rows=rows,
        longest=longest,
        budget=trainer.tokens_per_micro_batch,
        updates=trainer.minibatches,
        recompute=trainer.recompute_layers,
        reference=policy is not None and (policy != "base" or phase.model.lora is None),
        deepspeed=is_deepspeed,
        offload_optimizer=getattr(trainer, "offload_optimizer", False),
        offload_params=getattr(trainer, "offload_params", False),
        stages=(1, 2, 3) if is_half else (0,) if trainer.optimizer.needs_whole else (0, 1, 2, 3),
        kept=Kept(trainer.optimizer.kept().bytes_each, _sum_bytes(phase)),
    )


def _sum_bytes(phase: Recipe) -> int | None:
    """Return the bytes of a gradient that packs are added up in, None where that is its own."""
    types = getattr(phase.trainer, "deepspeed_args", {}).get("data_types") or {}
    return _DTYPE_BYTES.get(str(types.get("grad_accum_dtype")))


def _on(layout: Layout, alone: int) -> str:
    return (
        f"{layout.ranks} trainer rank{'s' * (layout.ranks > 1)}, {alone} GPUs for engines alone; "
        f"at most {layout.rows:,} rows of {layout.longest:,} tokens a step: an update has "
        f"{layout.packs} packs of {layout.pack:,} a rank"
    )


def _stages(phase: Recipe, layout: Layout, engine: _Engine, gpu_memory: float) -> Iterator[str]:
    yield (
        "  stage  weights  gradients  optimizer  CPU: ref.  activations    total GB"
        "   | an update: gradients  gathers GB"
    )
    free = gpu_memory * 1e9 - engine.reserved
    chosen = getattr(phase.trainer, "zero_stage", None)
    fitting = [s for s in layout.stages if layout.memory(s).total <= free]
    for stage in range(4):
        if stage not in layout.stages:
            why = "bfloat16 and float16 need stage 1 or above"
            if stage:
                why = f"{phase.trainer.optimizer.label} needs parameters whole: stage 0"
            yield f"  {stage}  refused: {why}"
            continue
        need, sent = layout.memory(stage), layout.moved(stage)
        parts = (need.weights, need.gradients, need.optimizer, need.reference, need.activations)
        shown = "".join(f"{part / 1e9:11.2f}" for part in parts)
        mark = "*" if stage == chosen else " "
        fits = "fits" if stage in fitting else "no  "
        yield (
            f"  {stage}{mark} {shown} {need.total / 1e9:9.2f} {fits} |"
            f"{sent.gradients / 1e9:15.2f} {sent.gathers / 1e9:11.2f}"
        )
    to_engine = layout.moved(layout.stages[0]).to_engine / 1e9
    each = "the engine" if engine.replicas == 1 else f"each of {engine.replicas} engine replicas"
    yield (
        f"  {max(0.0, free) / 1e9:.1f} of {gpu_memory:g} GB are free for training on rank 0's "
        f"GPU; {to_engine:.2f} GB of weights go to {each} a step"
    )
    if not fitting:
        yield "  " + advice(layout, free, _with_lora(phase), engine.alone)
    elif chosen is not None and chosen not in fitting:
        yield f"  stage {chosen} does not fit; it would with trainer.zero_stage={fitting[0]}"
    if len(fitting) > 1 and layout.ranks > 1 and chosen is not None:
        sizes = {s: layout.moved(s).gradients + layout.moved(s).gathers for s in fitting}
        least = min(fitting, key=lambda s: sizes[s])
        yield (
            f"  of the stages that fit, {least} sends least: {sizes[least] / 1e9:.2f} GB an update "
            "from each rank"
        )


def _with_lora(phase: Recipe) -> WithLora | None:
    """Return what a phase is with LoRA, None where it has it or cannot."""
    model, lora = phase.model, Lora()
    if not isinstance(model, PretrainedModel) or model.lora is not None:
        return None
    settings = f"model.lora.rank={lora.rank}"
    if phase.rollout.engine.type in ("vllm", "vllm_server"):
        settings += f" rollout.engine.max_lora_rank={lora.rank}"
    adapted = model.model_copy(update={"lora": lora})
    return WithLora(settings, cache(lambda: shape_of(adapted, _keeps_wide_adapters(phase))))


def _keeps_wide_adapters(recipe: Recipe) -> bool:
    """Return whether adapters stay in peft's float32; DeepSpeed makes them the model's type."""
    return recipe.trainer.type == "torch"


def _engine(recipe: Recipe, shape: Shape, gpu_bytes: float) -> _Engine:
    """Return what the run's engine takes; it is there in all phases."""
    engine = recipe.rollout.engine
    if isinstance(engine, Demonstrations):
        return _Engine()
    if engine.type == "transformers":
        copies = engine.device != "cpu"
        return _Engine(reserved=shape.weight_bytes * shape.parameters if copies else 0.0)
    if engine.type not in ("vllm", "vllm_server"):
        return _Engine()
    arguments = engine.vllm_args
    replicas = int(arguments.get("data_parallel_size", 1))
    split = int(arguments.get("tensor_parallel_size", 1))
    count = replicas * split
    if engine.type == "vllm_server":
        share = engine.gpu_memory_utilization if engine.url is None else _VLLM_SHARE
        return _Engine(count, count, 0.0, replicas, split, share * gpu_bytes)
    room = engine.gpu_memory_utilization * gpu_bytes
    # It takes the first GPUs of those that ranks are on, and one process has but one of them.
    alone = 0 if recipe.trainer.type == "deepspeed" else count - 1
    return _Engine(count, alone, room, replicas, split, room)


def _engine_lines(shape: Shape, engine: _Engine, longest: int, gpu_memory: float) -> Iterator[str]:
    if engine.room is None:
        return
    weights, a_token = shape.weight_bytes * shape.parameters, shape.cache_bytes_per_token
    on = "one GPU" if engine.split == 1 else f"{engine.split} GPUs"
    room = f"{engine.room / 1e9:.1f} of {gpu_memory:g} GB{' each' * (engine.split > 1)}"
    spare = engine.split * engine.room - weights
    if spare >= longest * a_token:
        yield (
            f"engine: on {on}, with {room}, it keeps about {spare / a_token:,.0f} tokens "
            "of key-value cache beside its weights"
        )
        return
    needed = weights + longest * a_token
    split = engine.split
    while split * engine.room < needed:
        split *= 2
    yield (
        f"engine: it does not fit on {on}, with {room}: its weights take "
        f"{weights / 1e9:.1f} GB, a row of {longest:,} tokens {longest * a_token / 1e9:.1f}; "
        f"expected rollout.engine.vllm_args.tensor_parallel_size={split}, or a larger "
        "rollout.engine.gpu_memory_utilization"
    )


def _count(number: int) -> str:
    """Return a number of parameters as it is read most easily."""
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"


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
