"""`--plan`: memory of each rank and bytes moved per step, from the recipe and the model's shape."""

from collections.abc import Iterator
from functools import cache

from debate_train.checks.check_context import longest_prompt, token_counter
from debate_train.checks.check_data import look_at_data
from debate_train.checks.check_engines import process_errors
from debate_train.checks.step_counts import step_counts
from debate_train.errors import UsageError
from debate_train.models.loaded_model import Lora
from debate_train.planning.advice import WithLora, advice
from debate_train.planning.engines import Engines, count
from debate_train.planning.memory import Kept, Layout
from debate_train.planning.model_shape import Shape, shape_of
from debate_train.recipe import Recipe
from debate_train.trainers.trainer import DEFAULT_BUCKETS


def plan(recipe: Recipe, gpus: int, gpu_memory: float) -> list[str]:
    """Return what is printed: each phase's memory by stage, and what a step moves.

    Args:
        recipe: what would be trained.
        gpus: of all machines together; a served vLLM takes its own of them.
        gpu_memory: of one, in GB (10^9 bytes).
    """
    shape = shape_of(recipe.model, _keeps_wide_adapters(recipe))
    engines = Engines.of(recipe, shape, gpu_memory * 1e9)
    ranks = gpus - engines.alone
    if gpus < engines.gpus or ranks < 1:
        least = max(engines.gpus, engines.alone + 1)
        who = "the engine takes" if len(engines.served) == 1 else "engines take"
        raise UsageError(
            f"--gpus: found {gpus}, of which {who} {engines.gpus}, {engines.alone} of "
            f"them alone; expected at least {least}"
        )
    lines = [
        f"model: {count(shape.parameters)} parameters, {count(shape.trained)} trained, "
        f"{shape.weight_bytes} bytes each; {shape.activation_bytes():,} bytes of "
        f"activations ({shape.activation_bytes(True):,} with gradient_checkpointing) and "
        f"{shape.cache_bytes_per_token:,} of key-value cache a token"
    ]
    lines += [f"as it is, the recipe is refused: {e}" for e in process_errors(recipe, ranks)]
    own = recipe.rollout.engine.own_gpus(ranks, gpus)
    lines += [f"as it is, {key_and_text}" for key_and_text in own]
    longest = 0
    for name, phase in recipe.phase_recipes().items():
        layout = _layout(phase, shape, ranks)
        longest = max(longest, layout.longest)
        lines.append(f"phase {name}: {_on(layout, engines.alone)}")
        lines += _stages(phase, layout, engines, gpu_memory)
    return [*lines, *engines.lines(longest, gpu_memory)]


def _layout(phase: Recipe, shape: Shape, ranks: int) -> Layout:
    rows, longest = _most_rows(phase)
    trainer, policy = phase.trainer, phase.loss.reference_policy
    sharding = trainer.sharding()
    # DeepSpeed's stage 0 has no float32 masters beside half precision.
    is_half = sharding is not None and (trainer.keeps_masters or phase.model.dtype != "float32")
    return Layout(
        shape=shape,
        ranks=ranks,
        rows=rows,
        longest=longest,
        budget=trainer.tokens_per_micro_batch,
        updates=trainer.update_count(rows) // trainer.epochs,
        recompute=trainer.gradient_checkpointing,
        reference=policy is not None and (policy != "base" or phase.model.lora is None),
        deepspeed=sharding is not None,
        offload_optimizer=sharding is not None and sharding.offload_optimizer,
        offload_params=sharding is not None and sharding.offload_params,
        stages=(1, 2, 3) if is_half else (0,) if trainer.optimizer.needs_whole else (0, 1, 2, 3),
        kept=Kept(
            trainer.optimizer.kept().bytes_each,
            trainer.gradient_sum_bytes(),
            DEFAULT_BUCKETS if sharding is None else sharding.buckets,
        ),
    )


def _on(layout: Layout, alone: int) -> str:
    return (
        f"{layout.ranks} trainer rank{'s' * (layout.ranks > 1)}, {alone} GPUs for engines alone; "
        f"at most {layout.rows:,} rows of {layout.longest:,} tokens a step: an update has "
        f"{layout.packs} packs of {layout.pack:,} a rank"
    )


def _stages(phase: Recipe, layout: Layout, engines: Engines, gpu_memory: float) -> Iterator[str]:
    yield (
        "  stage  weights  gradients  optimizer  CPU: ref.  activations  buffers   total GB"
        "   | an update: gradients  gathers GB"
    )
    engine, free = engines.trained, gpu_memory * 1e9 - engines.reserved
    sharding = phase.trainer.sharding()
    chosen = None if sharding is None else sharding.stage
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
        shown = "".join(f"{part / 1e9:11.2f}" for part in parts) + f"{need.buffers / 1e9:9.2f}"
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
        yield "  " + advice(layout, free, _with_lora(phase), engines.alone)
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
    adapted = model.with_lora(lora)
    if adapted is None:
        return None
    settings = f"model.lora.rank={lora.rank}"
    for key, value in phase.rollout.engine.for_adapter(lora.rank).items():
        settings += f" rollout.engine.{key}={value}"
    return WithLora(settings, cache(lambda: shape_of(adapted, _keeps_wide_adapters(phase))))


def _keeps_wide_adapters(recipe: Recipe) -> bool:
    """Return whether adapters stay in peft's float32; DeepSpeed makes them the model's type."""
    return recipe.trainer.widens_adapters


def _most_rows(phase: Recipe) -> tuple[int, int]:
    """Return the rows of a step, at most as many as turns, and the longest context."""
    reply, count = phase.rollout.max_tokens, token_counter(phase.model)
    question = look_at_data(phase.data).longest
    prompts = [longest_prompt(form, question, reply, count) for form in phase.forms]
    longest = max(prompt.prompt_tokens for prompt in prompts)
    return step_counts(phase, phase.data.batch_size).samples, longest + reply
