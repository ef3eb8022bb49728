"""The recipe's section `health`."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from debate_protocol.config import Config
from debate_protocol.plugins import Variants, did_you_mean
from debate_train.health.detector import Detector
from debate_train.health.detectors import OWN, Metric

DETECTORS: Variants[Detector] = Variants("debate_train.detectors", Detector, Metric, *OWN)
"""All detectors, those of other installed packages included."""

DetectorChoice = Annotated[Detector, DETECTORS]
"""Any detector; recipes choose by `type`."""


class Health(Config):
    """What is watched while a phase learns from samples or pairs, and what stops it."""

    enabled: bool = True
    """Whether anything is watched."""
    window: int = Field(8, ge=2)
    """Steps whose mean is looked at, and steps at a phase's start that it is compared with."""
    stop_on: tuple[str, ...] = ()
    """Names of detectors whose first alarm ends the run, with a checkpoint and exit code 1."""
    detectors: dict[str, DetectorChoice | None] = Field(default_factory=dict)
    """Detectors by name, beside ours, each under the name of its type; null leaves one of these
    out, another one of the name takes its place. `type` may be left out where the name is one."""

    def chosen(self) -> Mapping[str, Detector]:
        """Return the detectors that are on, by name."""
        ours: dict[str, Detector | None] = {}
        for model in OWN if self.enabled else ():
            detector = model()
            ours[detector.type] = detector
        named = self.detectors if self.enabled else {}
        return {name: one for name, one in {**ours, **named}.items() if one is not None}

    @field_validator("detectors", mode="before")
    @classmethod
    def _names_are_types(cls, given: object) -> object:
        if not isinstance(given, Mapping):
            return given
        return {
            name: {"type": name, **one} if isinstance(one, Mapping) and name in DETECTORS else one
            for name, one in given.items()
        }

    @model_validator(mode="after")
    def _stops_are_watched(self) -> "Health":
        known = self.chosen()
        for name in self.stop_on:
            if name not in known:
                raise ValueError(
                    f"stop_on: found {name!r}, expected one of {', '.join(known)}"
                    f"{did_you_mean(name, known)}"
                )
        return self
