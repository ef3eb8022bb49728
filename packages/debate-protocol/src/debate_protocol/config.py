"""What all settings that a file can hold share."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, model_validator


class Config(BaseModel):
    """Frozen settings of known names, whose numbers are finite.

    A field for which infinity means something says so with `Field(allow_inf_nan=True)`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    renamed: ClassVar[Mapping[str, str]] = {}
    """Former names of keys, each with what to write instead."""

    @model_validator(mode="before")
    @classmethod
    def _names_are_present_ones(cls, given: object) -> object:
        if isinstance(given, Mapping):
            for old in cls.renamed.keys() & given.keys():
                raise ValueError(
                    f"{old}: found {given[old]!r} under a former name; expected {cls.renamed[old]}"
                )
        return given
