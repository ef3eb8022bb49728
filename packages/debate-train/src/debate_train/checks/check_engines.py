"""Whether a recipe's engine can do what training asks of it."""

from collections.abc import Mapping
from importlib.util import find_spec
from math import prod
from typing import Any

from debate_rollout.engines.devices import absent_device
from debate_rollout.engines.vllm_settings import VllmSettings
from debate_train.checks.check_data import DataView
from debate_train.errors import RecipeError
from debate_train.ranks.launching import named_devices
from debate_train.recipe import Demonstrations, Recipe

NEEDED = {"tokens": "token ids", "logps": "log-probabilities"}
"""Capabilities that training needs of an engine, and what they are called."""


def engine_errors(recipe: Recipe) -> list[str]:
    """Return what keeps the recipe's engine from sampling for a trainer."""
    engine = recipe.rollout.engine
    if isinstance(engine, Demonstrations):
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
    if getattr(engine, "copy_model", True) is False:
        return [
            "rollout.engine.copy_model: found false, but training changes the model that would be "
            "served; expected true"
        ]
    return _adapter_errors(recipe)


def process_errors(recipe: Recipe, size: int) -> list[str]:
    """Return which trainers and engines cannot be used in so many processes."""
    if size == 1:
        return _shared_gpu_errors(recipe)
    found = _shared_gpu_errors(recipe)
    for name, phase in recipe.phase_recipes().items():
        where = f"phases.{name}." if recipe.phases else ""
        if phase.trainer.type != "deepspeed":
            found.append(
                f"{where}trainer.type: found {phase.trainer.type} in {size} processes; expected "
                "deepspeed (trainer.type=deepspeed), or one process"
            )
    engine = recipe.rollout.engine
    if engine.type == "vllm" and engine.process == "shared":
        found.append(
            f"rollout.engine.process: found shared in {size} processes, whose group vLLM would "
            "take for its own; expected own, or type: vllm_server"
        )
    return found


def refuse_absent_devices(recipe: Recipe) -> None:
    """Refuse devices that are not there before a model is loaded for them.

    Raises:
        RecipeError: The recipe names one.
    """
    if errors := device_errors(recipe):
        raise RecipeError("\n".join(errors))


def device_errors(recipe: Recipe) -> list[str]:
    """Return which devices that the recipe names are not there; needs torch."""
    named = {"rollout.engine.device": getattr(recipe.rollout.engine, "device", "auto")}
    for name, phase in recipe.phase_recipes().items():
        where = f"phases.{name}." if "trainer" in recipe.phases.get(name, {}) else ""
        named[f"{where}trainer.device"] = getattr(phase.trainer, "device", "auto")
    absent = {key: (device, absent_device(device)) for key, device in named.items()}
    return [
        f"{key}: found {device!r}, which cannot be used here ({why}); expected auto, or a device "
        "of this machine"
        for key, (device, why) in absent.items()
        if why is not None
    ]


def process_warnings(recipe: Recipe, size: int) -> list[str]:
    """Return which of so many GPUs the recipe's engine would leave idle while it samples."""
    engine = recipe.rollout.engine
    if not isinstance(engine, VllmSettings) or getattr(engine, "url", None) is not None:
        return []
    named = getattr(engine, "devices", None)
    devices = size if named is None else len(named.split(","))
    used = _workers(engine.vllm_args)
    if devices <= used or getattr(engine, "process", None) == "shared":
        return []
    where = f"{size} processes" if named is None else f"devices: {named}"
    return [
        f"rollout.engine.vllm_args: one engine on {used} of the GPUs of {where} samples, and the "
        f"others wait; expected data_parallel_size: {devices // used} (an engine on each), or "
        "tensor_parallel_size for a model that does not fit on one"
    ]


def _workers(arguments: Mapping[str, Any]) -> int:
    """Return how many GPUs vLLM takes under these arguments."""
    names = ("data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size")
    sizes = [arguments.get(name, 1) for name in names]
    return prod(size if isinstance(size, int) and size > 0 else 1 for size in sizes)


def _shared_gpu_errors(recipe: Recipe) -> list[str]:
    """Return whether a server that is started shares rank 0's GPU, which NCCL does not take."""
    engine = recipe.rollout.engine
    if engine.type != "vllm_server" or engine.url is not None or engine.transfer != "nccl":
        return []
    visible = named_devices() or [str(gpu) for gpu in range(64)]
    place = getattr(recipe.trainer, "device", "auto").partition(":")[2]
    own = visible[int(place)] if place.isdecimal() and int(place) < len(visible) else visible[0]
    if engine.devices is None:
        served = visible[: _workers(engine.vllm_args)]
    else:
        served = [name.strip() for name in engine.devices.split(",")]
    if own not in served:
        return []
    return [
        f"rollout.engine.devices: found {engine.devices or 'null'}, so the server starts on GPU "
        f"{own}, from which the trainer sends weights, and NCCL refuses two processes on one GPU; "
        "expected other GPUs, or transfer: file"
    ]


def missing_library(recipe: Recipe) -> str | None:
    """Return what the recipe's engine needs and is not installed here, None for nothing.

    A server that runs elsewhere needs nothing here but an HTTP client.
    """
    engine = recipe.rollout.engine
    needs = {"vllm": ("vllm",), "vllm_server": ("vllm", "httpx"), "openai": ("httpx",)}
    wanted = needs.get(engine.type, ())
    if getattr(engine, "url", None) is not None:
        wanted = ("httpx",)
    absent = [name for name in wanted if find_spec(name) is None]
    if not absent:
        return None
    extra = "openai" if engine.type == "openai" else "vllm"
    return (
        f"rollout.engine.type: found {engine.type}, which needs {' and '.join(absent)}, not "
        f"installed here; expected `pip install 'debate-rollout[{extra}]'`, or another engine"
    )


def phase_errors(name: str, phase: Recipe, recipe: Recipe, data: DataView) -> list[str]:
    """Return what keeps a phase from using its engine."""
    engine = phase.rollout.engine
    if not isinstance(engine, Demonstrations):
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


def _adapter_errors(recipe: Recipe) -> list[str]:
    """Compare what is trained with what the engine can load."""
    engine, lora = recipe.rollout.engine, getattr(recipe.model, "lora", None)
    served = getattr(engine, "max_lora_rank", None)
    if lora is None and served is not None:
        return [
            f"rollout.engine.max_lora_rank: found {served}, but model.lora is null and every "
            "parameter is trained; expected null"
        ]
    takes_ranks = "max_lora_rank" in type(engine).model_fields
    if lora is not None and takes_ranks and (served is None or served < lora.rank):
        return [
            f"rollout.engine.max_lora_rank: found {served or 'null'}; expected at least "
            f"model.lora.rank, which is {lora.rank}"
        ]
    return []
