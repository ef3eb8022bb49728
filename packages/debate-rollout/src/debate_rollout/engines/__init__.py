"""Engines: their settings, chosen by `type`."""

from typing import Annotated

from debate_protocol.plugins import Variants
from debate_rollout.engine_settings import EngineConfig, EngineSettings
from debate_rollout.engines.openai import OpenAIEngine
from debate_rollout.engines.scripted import ScriptedEngine
from debate_rollout.engines.transformers import TransformersEngine
from debate_rollout.engines.vllm.settings import VllmEngine
from debate_rollout.engines.vllm_server.settings import VllmServerEngine

ENGINES: Variants[EngineConfig] = Variants(
    "debate_rollout.engines",
    EngineConfig,
    TransformersEngine,
    VllmEngine,
    VllmServerEngine,
    OpenAIEngine,
    ScriptedEngine,
)
"""All engines, those of other installed packages included."""

EngineChoice = Annotated[EngineConfig, ENGINES]
"""What a recipe's `engine` may be."""

__all__ = [
    "ENGINES",
    "EngineChoice",
    "EngineConfig",
    "EngineSettings",
    "OpenAIEngine",
    "ScriptedEngine",
    "TransformersEngine",
    "VllmEngine",
    "VllmServerEngine",
]
