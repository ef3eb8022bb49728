"""How far rollouts run ahead of training."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from debate_protocol.config import Config


class Pipeline(Config):
    """Rollouts for later steps while this one trains."""

    renamed: ClassVar[Mapping[str, str]] = {"depth": "max_staleness"}

    max_staleness: int = Field(0, ge=0)
    """Steps that are played ahead, with weights at most this many steps old; 0 is on-policy."""
