"""How far rollouts run ahead of training."""

from pydantic import BaseModel, ConfigDict, Field


class Pipeline(BaseModel):
    """Rollouts for later steps while this one trains."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    depth: int = Field(0, ge=0)
    """Steps that are played ahead, with weights at most this many steps old; 0 is on-policy."""
