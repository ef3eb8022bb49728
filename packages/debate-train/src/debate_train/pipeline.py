"""Where a step's debates come from: played when they are wanted, or ahead of training."""

from pydantic import BaseModel, ConfigDict, Field


class Pipeline(BaseModel):
    """How far rollouts run ahead of training."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    depth: int = Field(0, ge=0)
    """Steps that are played ahead, with weights at most this many updates old; 0 is on-policy."""
