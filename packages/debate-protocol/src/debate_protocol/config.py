"""What all settings that a file can hold share."""

from pydantic import BaseModel, ConfigDict


class Config(BaseModel):
    """Frozen settings of known names, whose numbers are finite.

    A field for which infinity means something says so with `Field(allow_inf_nan=True)`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)
