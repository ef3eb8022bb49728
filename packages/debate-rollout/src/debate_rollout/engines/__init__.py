"""Engines: their configs, one union on `type`."""

from typing import Annotated

from pydantic import Field

from debate_rollout.engines.openai_engine import OpenAIEngine
from debate_rollout.engines.scripted_engine import ScriptedEngine
from debate_rollout.engines.transformers_engine import TransformersEngine
from debate_rollout.engines.vllm_engine import VllmEngine
from debate_rollout.engines.vllm_server_engine import VllmServerEngine

EngineConfig = Annotated[
    TransformersEngine | VllmEngine | VllmServerEngine | OpenAIEngine | ScriptedEngine,
    Field(discriminator="type"),
]
"""What a recipe's `engine` may be."""

__all__ = [
    "EngineConfig",
    "OpenAIEngine",
    "ScriptedEngine",
    "TransformersEngine",
    "VllmEngine",
    "VllmServerEngine",
]
