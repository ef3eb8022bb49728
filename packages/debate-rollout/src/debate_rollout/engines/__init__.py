"""Engines: their settings, chosen by `type`."""

from typing import Annotated

from debate_protocol.plugins import Variants
from debate_rollout.engine import EngineSettings
from debate_rollout.engines.openai import OpenAIEngine
from debate_rollout.engines.scripted import ScriptedEngine
from debate_rollout.engines.tinker import TinkerEngine
from debate_rollout.engines.transformers import TransformersEngine
from debate_rollout.engines.vllm import VllmEngine, VllmServerEngine

ENGINES: Variants[EngineSettings] = Variants(
    "debate_rollout.engines",
    EngineSettings,
    TransformersEngine,
    VllmEngine,
    VllmServerEngine,
    OpenAIEngine,
    ScriptedEngine,
    TinkerEngine,
)
"""All engines, those of other installed packages included."""

EngineChoice = Annotated[EngineSettings, ENGINES]
"""What a recipe's `engine` may be."""

__all__ = [
    "ENGINES",
    "EngineChoice",
    "EngineSettings",
    "OpenAIEngine",
    "ScriptedEngine",
    "TinkerEngine",
    "TransformersEngine",
    "VllmEngine",
    "VllmServerEngine",
]
