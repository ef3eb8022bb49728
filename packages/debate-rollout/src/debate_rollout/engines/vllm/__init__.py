"""vLLM inside this process, or as a server that the run starts or connects to."""

from debate_rollout.engines.vllm.refresh_errors import OLD_WEIGHTS_SERVE, refresh_error
from debate_rollout.engines.vllm.settings import (
    BACKEND,
    BATCH_INVARIANT,
    LOWEST_TEMPERATURE,
    VllmEngine,
    VllmServerEngine,
    VllmSettings,
    on_cpu,
    serving_arguments,
)

__all__ = [
    "BACKEND",
    "BATCH_INVARIANT",
    "LOWEST_TEMPERATURE",
    "OLD_WEIGHTS_SERVE",
    "VllmEngine",
    "VllmServerEngine",
    "VllmSettings",
    "on_cpu",
    "refresh_error",
    "serving_arguments",
]
