"""`--plan`: memory of each rank and bytes moved per step, from the recipe and the model's shape."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

from debate_rollout.engine import Footprint
from debate_train.interrupts import UsageError
from debate_train.models.loaded_model import Lora
from debate_train.models.policies import Trained
from debate_train.recipe import Recipe
from debate_train.recipe.check_parts import process_errors, used_policies
from debate_train.recipe.context import (
    longest_prompt,
    look_at_data,
    step_counts,
    token_counter,
)
from debate_train.recipe.plan_memory import Kept, Layout, Shape, shape_of
from debate_train.trainers.trainer import DEFAULT_BUCKETS


@dataclass(frozen=True, slots=True)
class Served:
    """A policy with a model of its own on this machine, and what its engine takes."""

    name: str
    """Of the policy; empty for the one that is trained."""
    engine: str
    key: str
    """Where its engine is chosen."""
    shape: Shape
    takes: Footprint


@dataclass(frozen=True, slots=True)
class Engines:
    """The engines of a run; the first samples from the policy that is trained.

    Attributes:
        served: All.
        alone: GPUs that no rank trains on.
    """

    served: Sequence[Served]
    alone: int

    @classmethod
    def of(cls, recipe: Recipe, shape: Shape, gpu_bytes: float) -> "Engines":
        """Return the engines of a recipe; loads no weights.

        Args:
            recipe: What would be run.
            shape: Of the model that is trained.
            gpu_bytes: Memory of a GPU.
        """
        trained = Trained(recipe.rollout.engine, recipe.model, recipe.seed)
        found = [("", trained.engine, "rollout.engine", shape)]
        for name, policy in used_policies(recipe).items():
            model = policy.sampled_model(trained)
            if model is not None:
                own = shape if model == trained.model else shape_of(model)
                engine = policy.engine_config(trained)
                place = f"policies.{name}." if name in recipe.rollout.policies else ""
                found.append((name, engine, f"rollout.{place}engine", own))
        served = [
            Served(name, engine.type, key, own, engine.footprint(own.bytes, gpu_bytes))
            for name, engine, key, own in found
        ]
        # Engines that share take the first GPUs of those that ranks are on; one process has one.
        sharing = [one.takes.gpus - 1 for one in served if one.takes.shares]
        beside = 0 if recipe.trainer.several_processes else max([0, *sharing])
        return cls(served, beside + sum(one.takes.gpus for one in served if not one.takes.shares))

    @property
    def trained(self) -> Footprint:
        """What the engine of the trained policy takes."""
        return self.served[0].takes

    @property
    def gpus(self) -> int:
        """GPUs that engines compute on."""
        sharing = max(one.takes.gpus if one.takes.shares else 0 for one in self.served)
        return sharing + sum(one.takes.gpus for one in self.served if not one.takes.shares)

    @property
    def reserved(self) -> float:
        """Bytes of the GPU that engines share with rank 0."""
        return sum(one.takes.reserved for one in self.served)

    def lines(self, longest: int, gpu_memory: float) -> Iterator[str]:
        """Say what each policy beside the trained one holds, and which engine has too little room.

        Args:
            longest: Tokens of the longest row.
            gpu_memory: Of one GPU, in GB.
        """
        for one in self.served:
            if one.name:
                where = "of its own GPUs" if not one.takes.shares else "of rank 0's GPU"
                reserved = one.takes.room if not one.takes.shares else one.takes.reserved
                yield (
                    f"policy {one.name}: {count(one.shape.parameters)} parameters, "
                    f"{one.shape.bytes / 1e9:.2f} GB of weights, not trained; its engine "
                    f"({one.engine}) takes {(reserved or 0.0) / 1e9:.2f} GB {where}"
                )
            yield from _room(one, longest, gpu_memory)


def _room(one: Served, longest: int, gpu_memory: float) -> Iterator[str]:
    shape, engine = one.shape, one.takes
    if engine.room is None:
        return
    what = f"engine of policy {one.name}" if one.name else "engine"
    weights, a_token = shape.bytes, shape.cache_bytes_per_token
    on = "one GPU" if engine.split == 1 else f"{engine.split} GPUs"
    room = f"{engine.room / 1e9:.1f} of {gpu_memory:g} GB{' each' * (engine.split > 1)}"
    spare = engine.split * engine.room - weights
    if spare >= longest * a_token:
        yield (
            f"{what}: on {on}, with {room}, it keeps about {spare / a_token:,.0f} tokens "
            "of key-value cache beside its weights"
        )
        return
    needed = weights + longest * a_token
    split = engine.split
    while split * engine.room < needed:
        split *= 2
    yield (
        f"{what}: it does not fit on {on}, with {room}: its weights take "
        f"{weights / 1e9:.1f} GB, a row of {longest:,} tokens {longest * a_token / 1e9:.1f}; "
        f"expected {one.key}.vllm_args.tensor_parallel_size={split}, or a larger "
        f"{one.key}.gpu_memory_utilization"
    )


def count(number: int) -> str:
    """Return a number of parameters as it is read most easily."""
    for unit, size in (("B", 1e9), ("M", 1e6)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,}"


_MOST_RANKS = 4096

Change = Callable[[Layout, float], tuple[str, Layout] | None]
"""Takes a layout and the bytes that are free; returns what to set and the layout with it."""


@dataclass(frozen=True, slots=True)
class WithLora:
    """The recipe with an adapter."""

    settings: str
    shape: Callable[[], Shape]


def advice(layout: Layout, free: float, lora: WithLora | None, alone: int) -> str:
    """Return the fewest changes that make a layout fit, as one line.

    Args:
        layout: fits at no stage.
        free: bytes for training on a GPU.
        lora: None where the recipe has it, or cannot.
        alone: GPUs that engines take for themselves.
    """

    def adapter(layout: Layout, free: float) -> tuple[str, Layout] | None:
        return None if lora is None else (lora.settings, replace(layout, shape=lora.shape()))

    def more_gpus(layout: Layout, free: float) -> tuple[str, Layout] | None:
        ranks = layout.ranks
        while ranks <= _MOST_RANKS:
            ranks *= 2
            if (wider := replace(layout, ranks=ranks)).least <= free:
                trainer = "" if layout.deepspeed else "trainer.type=deepspeed "
                return f"{trainer}--gpus {ranks + alone}", wider
        return None

    changes: list[Change] = [_recompute, adapter, _offload, _fewer_tokens, more_gpus]
    for count in range(1, len(changes) + 1):
        tried = (_after(layout, free, chosen) for chosen in combinations(changes, count))
        found = [" with ".join(settings) for settings in tried if settings]
        if found:
            return f"no stage fits; by these numbers it would with {', or '.join(found)}"
    return (
        f"no stage fits: a rank needs {layout.least / 1e9:.1f} GB or more, and no setting of the "
        f"trainer brings that to {max(0.0, free) / 1e9:.1f}; expected larger GPUs, a smaller "
        "model, or shorter rows (rollout.max_tokens)"
    )


def _after(layout: Layout, free: float, changes: Sequence[Change]) -> list[str]:
    """Return what to set when the layout fits after all of these changes, else nothing."""
    settings = []
    for change in changes:
        changed = change(layout, free)
        if changed is None:
            return []
        setting, layout = changed
        settings.append(setting)
    return settings if layout.least <= free else []


def _recompute(layout: Layout, free: float) -> tuple[str, Layout] | None:
    if layout.recompute:
        return None
    return "trainer.gradient_checkpointing=true", replace(layout, recompute=True)


def _fewer_tokens(layout: Layout, free: float) -> tuple[str, Layout] | None:
    """Packs never get shorter than the longest row."""
    if layout.pack <= layout.longest:
        return None
    shortest = replace(layout, budget=layout.longest)
    shape = layout.shape
    head = shape.head_bytes(layout.pack) - shape.head_bytes(layout.longest)
    spare = (free - shortest.least - head) // shape.activation_bytes(layout.recompute)
    budget = layout.longest + max(0, int(spare))
    budget = max(layout.longest, budget // 1024 * 1024)
    if budget >= layout.budget:
        return None
    return f"trainer.tokens_per_micro_batch={budget}", replace(layout, budget=budget)


def _offload(layout: Layout, free: float) -> tuple[str, Layout] | None:
    if layout.offload_optimizer or not layout.deepspeed:
        return None
    return "trainer.offload_optimizer=true", replace(layout, offload_optimizer=True)


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
            trainer.optimizer.state_layout().bytes_each,
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
