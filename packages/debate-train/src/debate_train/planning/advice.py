"""What would make a layout fit that does not, by the numbers of `--plan` itself."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

from debate_train.planning.memory import Layout
from debate_train.planning.model_shape import Shape

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
