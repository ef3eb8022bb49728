"""Refusals of a recipe before a run: a single list for all commands and runs."""

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from debate_rollout.engine import TrainingSetup
from debate_rollout.engines.transformers import absent_device
from debate_train.errors import RecipeError
from debate_train.losses import reference_error
from debate_train.models.loaded_model import trained_adapters, unknown_adapter
from debate_train.recipe.conflicts import keep_problems, sampling_problems
from debate_train.recipe.policies import (
    engines_by_key,
    missing_libraries,
    trained_policy,
    used_policies,
)
from debate_train.recipe.recipe import Recipe

SHARED_BY_PHASES = ("name", "seed", "model", "checkpoint", "tracking", "rollout.policies")
"""Keys that a run takes from the recipe as a whole; a phase cannot change them."""
NEEDED_CAPABILITIES = {"tokens": "token ids", "logps": "log-probabilities"}
"""Capabilities that training needs of an engine, with their names in messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """The intended use of a recipe.

    Attributes:
        num_processes: Training processes.
        is_here: Whether this machine runs it and needs all libraries and devices.
        with_tokenizer: Whether models in directories need tokenizers beside their configurations.
    """

    num_processes: int = 1
    is_here: bool = False
    with_tokenizer: bool = True


def refuse(recipe: Recipe, launch: Launch) -> None:
    """Refuse before a model is loaded: loading takes minutes and may not fit beside another model.

    Raises:
        RecipeError: The recipe cannot run; names all reasons.
    """
    errors = list(run_errors(recipe, launch))
    if errors:
        raise RecipeError("\n".join(errors))


def run_errors(recipe: Recipe, launch: Launch) -> Iterator[str]:
    """Yield reasons against running a recipe, with keys; reads neither data nor weights."""
    yield from keep_problems(recipe)
    yield from _engine_errors(recipe, launch)
    yield from policy_errors(recipe, launch)
    for name, phase in recipe.phase_recipes().items():
        where = f"phase {name}: " if recipe.phases else ""
        yield from _shared_key_errors(name, phase, recipe)
        for problem in sampling_problems(phase):
            yield where + problem
        reference_problem = reference_error(phase.loss.reference_policy)
        if reference_problem is not None:
            yield reference_problem
    yield from _trainer_errors(recipe, launch)
    if launch.is_here:
        yield from missing_libraries(recipe)
        yield from recipe.tracking.missing_libraries()
        yield from _device_errors(recipe)


def _engine_errors(recipe: Recipe, launch: Launch) -> Iterator[str]:
    """Yield reasons against sampling for a trainer by the recipe's engine."""
    engine = recipe.rollout.engine
    missing = [
        text for name, text in NEEDED_CAPABILITIES.items() if name not in engine.capabilities
    ]
    if not engine.is_sampled:
        yield (
            "rollout.engine.type: found demonstrations for the whole recipe; expected them in a "
            "phase"
        )
    elif missing:
        yield (
            f"rollout.engine.type: found {engine.type}, whose replies have no "
            f"{' and no '.join(missing)} to train on; expected one such as transformers or vllm"
        )
    else:
        lora = recipe.model.lora
        setup = TrainingSetup(launch.num_processes, None if lora is None else lora.rank)
        for problem in engine.problems(setup):
            yield f"rollout.engine.{problem}"


def policy_errors(recipe: Recipe, launch: Launch) -> Iterator[str]:
    """Yield reasons against serving the adapters, and against other policies."""
    yield from _adapter_errors(recipe)
    for name, policy in used_policies(recipe).items():
        problems = policy.problems(trained_policy(recipe), with_tokenizer=launch.with_tokenizer)
        for problem in problems:
            yield f"rollout.policies.{name}.{problem}"
    engines = engines_by_key(recipe)
    keys_in_process = [key for key, engine in engines.items() if engine.one_in_process]
    for key in keys_in_process[1:]:
        yield (
            f"{key}: found a {engines[key].type} inside this process, which can hold one, and "
            f"{keys_in_process[0]} is there; expected type: vllm_server"
        )


def _adapter_errors(recipe: Recipe) -> Iterator[str]:
    """Yield reasons against serving and training several adapters."""
    lora = recipe.model.lora
    engine = recipe.rollout.engine
    for prefix, phase in phases_by_prefix(recipe).items():
        for name in phase.trainer.named_rates():
            problem = unknown_adapter(lora, name)
            if problem is not None:
                yield f"{prefix}trainer.learning_rates: {problem}"
    if lora is None or len(lora.adapters) < 2:
        return
    if "lora" in engine.capabilities and "adapters" not in engine.capabilities:
        yield (
            f"rollout.engine.type: found {engine.type}, which serves one adapter of "
            f"{len(lora.adapters)}; expected transformers, vllm or vllm_server"
        )
    for prefix, phase in phases_by_prefix(recipe).items():
        limit = phase.trainer.adapters_at_once
        adapters = trained_adapters(lora, phase.debate)
        if len(adapters) > limit:
            yield (
                f"{prefix}trainer.type: found {phase.trainer.type}, which trains {limit or 'no'} "
                f"adapter by its name at a time, with {' and '.join(adapters)}; expected torch"
            )


def _shared_key_errors(name: str, phase: Recipe, recipe: Recipe) -> Iterator[str]:
    shared_keys = list(SHARED_BY_PHASES)
    if phase.rollout.engine.is_sampled:
        shared_keys.append("rollout.engine")
    for key in shared_keys:
        value_of = attrgetter(key)
        if value_of(phase) != value_of(recipe):
            yield (
                f"phases.{name}.{key}: found a difference, but a run has one; expected it outside "
                "of phases"
            )


def _trainer_errors(recipe: Recipe, launch: Launch) -> Iterator[str]:
    if launch.num_processes == 1:
        return
    for prefix, phase in phases_by_prefix(recipe).items():
        if not phase.trainer.several_processes:
            yield (
                f"{prefix}trainer.type: found {phase.trainer.type} in {launch.num_processes} "
                "processes; expected deepspeed (trainer.type=deepspeed), or one process"
            )


def refuse_absent_devices(recipe: Recipe) -> None:
    """Refuse devices missing on this machine, before a model is loaded for them.

    Raises:
        RecipeError: The recipe names an absent device.
    """
    errors = list(_device_errors(recipe))
    if errors:
        raise RecipeError("\n".join(errors))


def _device_errors(recipe: Recipe) -> Iterator[str]:
    devices = {}
    for key, engine in engines_by_key(recipe).items():
        devices[f"{key}.device"] = engine.named_device()
    for name, phase in recipe.phase_recipes().items():
        prefix = f"phases.{name}." if "trainer" in recipe.phases.get(name, {}) else ""
        devices[f"{prefix}trainer.device"] = phase.trainer.named_device()
    for key, device in devices.items():
        reason = absent_device(device)
        if reason is not None:
            yield (
                f"{key}: found {device!r}, which cannot be used here ({reason}); expected auto, "
                "or a device of this machine"
            )


def phases_by_prefix(recipe: Recipe) -> dict[str, Recipe]:
    """List each phase by the prefix of the phase's keys."""
    if not recipe.phases:
        return {"": recipe}
    return {f"phases.{name}.": phase for name, phase in recipe.phase_recipes().items()}
