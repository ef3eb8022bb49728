"""Replies that the source of the questions writes, in the place of an engine."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

from debate_protocol.plugins import Variants
from debate_rollout.engine import Capability, Engine
from debate_rollout.engine_settings import EngineConfig, EngineSettings, Script
from debate_rollout.engines import ENGINES as SAMPLERS
from debate_rollout.engines import ScriptedEngine


class Demonstrations(EngineSettings):
    """Replies written by the data source instead of sampled: what a warm-start imitates."""

    is_sampled: ClassVar[bool] = False

    type: Literal["demonstrations"] = "demonstrations"
    errors: bool = True
    """Whether some first proposals are wrong, so that judges have something to find."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Demonstrations have tokens; nobody sampled them."""
        return frozenset(("tokens",))

    def script(self, demonstrate: Callable[..., str]) -> Script | None:
        """Return what agents say."""
        return partial(demonstrate, errors=self.errors)

    def open(self, model: Any, tokenizer: Any, template_kwargs: Mapping[str, Any] = {}) -> Engine:
        """Return the engine that plays a script.

        Raises:
            EngineConfigError: Always: what it says is asked of `script`.
        """
        return ScriptedEngine().open(model, tokenizer, template_kwargs)


ENGINES: Variants[EngineConfig] = Variants(
    SAMPLERS.group, EngineConfig, *SAMPLERS.models, Demonstrations
)
"""All engines, and demonstrations in the place of one."""
