"""Play debates: engines, token rendering and drivers."""

from typing import TYPE_CHECKING

from debate_protocol import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from debate_rollout.drivers import play as play
    from debate_rollout.drivers import play_each as play_each
    from debate_rollout.engine import Engine as Engine
    from debate_rollout.engine import Request as Request
    from debate_rollout.engine import Sampling as Sampling
    from debate_rollout.engines import OpenAIEngine as OpenAIEngine
    from debate_rollout.engines import ScriptedEngine as ScriptedEngine
    from debate_rollout.engines import TransformersEngine as TransformersEngine
    from debate_rollout.engines import VllmEngine as VllmEngine
    from debate_rollout.engines import VllmServerEngine as VllmServerEngine

__getattr__, __dir__, __all__ = lazy_names(__name__)
