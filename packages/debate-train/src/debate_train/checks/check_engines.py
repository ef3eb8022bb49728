"""Whether a recipe's engine can do what training asks of it."""

from debate_rollout.engine_settings import Place
from debate_rollout.engines.devices import absent_device
from debate_train.checks.check_data import DataView
from debate_train.checks.check_policies import engines_used
from debate_train.errors import RecipeError
from debate_train.ranks.launching import named_devices
from debate_train.recipe import Recipe

NEEDED = {"tokens": "token ids", "logps": "log-probabilities"}
"""Capabilities that training needs of an engine, and what they are called."""


def engine_errors(recipe: Recipe) -> list[str]:
    """Return what keeps the recipe's engine from sampling for a trainer."""
    engine = recipe.rollout.engine
    if not engine.is_sampled:
        return [
            "rollout.engine.type: found demonstrations for the whole recipe; expected an engine "
            "that samples from the policy (demonstrations may stand in a phase)"
        ]
    missing = [text for name, text in NEEDED.items() if name not in engine.capabilities]
    if missing:
        return [
            f"rollout.engine.type: found {engine.type}, whose replies have no "
            f"{' and no '.join(missing)} to train on; expected an engine that samples from the "
            "policy, such as transformers or vllm (debate-rollout collects transcripts with any)"
        ]
    return [f"rollout.engine.{problem}" for problem in engine.problems(_place(recipe, 1))]


def process_errors(recipe: Recipe, size: int) -> list[str]:
    """Return which trainers and engines cannot be used in so many processes."""
    engine, found = recipe.rollout.engine, []
    for name, phase in recipe.phase_recipes().items():
        where = f"phases.{name}." if recipe.phases else ""
        if size > 1 and not phase.trainer.several_processes:
            found.append(
                f"{where}trainer.type: found {phase.trainer.type} in {size} processes; expected "
                "deepspeed (trainer.type=deepspeed), or one process"
            )
    known = set() if size == 1 else set(engine.problems(_place(recipe, 1)))  # Said by a check.
    problems = engine.problems(_place(recipe, size))
    return [*found, *(f"rollout.engine.{text}" for text in problems if text not in known)]


def refuse_absent_devices(recipe: Recipe) -> None:
    """Refuse devices that are not there before a model is loaded for them.

    Raises:
        RecipeError: The recipe names one.
    """
    if errors := device_errors(recipe):
        raise RecipeError("\n".join(errors))


def device_errors(recipe: Recipe) -> list[str]:
    """Return which devices that the recipe names are not there; needs torch."""
    named = {f"{key}.device": one.named_device() for key, one in engines_used(recipe).items()}
    for name, phase in recipe.phase_recipes().items():
        where = f"phases.{name}." if "trainer" in recipe.phases.get(name, {}) else ""
        named[f"{where}trainer.device"] = phase.trainer.named_device()
    absent = {key: (device, absent_device(device)) for key, device in named.items()}
    return [
        f"{key}: found {device!r}, which cannot be used here ({why}); expected auto, or a device "
        "of this machine"
        for key, (device, why) in absent.items()
        if why is not None
    ]


def process_warnings(recipe: Recipe, size: int) -> list[str]:
    """Return which of so many GPUs the recipe's engine would leave idle while it samples."""
    warnings = recipe.rollout.engine.warnings(_place(recipe, size))
    return [f"rollout.engine.{warning}" for warning in warnings]


def _place(recipe: Recipe, size: int) -> Place:
    lora = recipe.model.lora
    visible = named_devices() or [str(gpu) for gpu in range(64)]
    chosen = recipe.trainer.named_device().partition(":")[2]
    own = visible[int(chosen)] if chosen.isdecimal() and int(chosen) < len(visible) else visible[0]
    return Place(size, None if lora is None else lora.rank, own, visible)


def phase_errors(name: str, phase: Recipe, recipe: Recipe, data: DataView) -> list[str]:
    """Return what keeps a phase from using its engine."""
    engine = phase.rollout.engine
    if engine.is_sampled:
        if engine == recipe.rollout.engine:
            return []
        return [
            f"phases.{name}.rollout.engine: found a difference, but a run has one engine; "
            "expected it outside of phases, or type: demonstrations"
        ]
    if data.can_demonstrate is False:
        return [
            f"phases.{name}.rollout.engine.type: found demonstrations, but the {phase.data.type} "
            "data has none; expected a worked solution in every row (data.fields.solution)"
        ]
    return []
