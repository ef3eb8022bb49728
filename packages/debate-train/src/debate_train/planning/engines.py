"""What the engines of all policies take of the GPUs, for `--plan`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from debate_rollout.engine_settings import Footprint
from debate_train.checks.check_policies import used_policies
from debate_train.models.policies import Trained
from debate_train.planning.model_shape import Shape, shape_of
from debate_train.recipe import Recipe


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
