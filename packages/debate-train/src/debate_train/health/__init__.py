"""The health watch: what is looked at while a policy trains, and what is alarming."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator, model_validator

from debate_protocol.plugins import Config, Variants, did_you_mean
from debate_train.checkpointing.directory_layout import plain
from debate_train.commands.preflight import first_step_warnings
from debate_train.health.detector import Detector, Due, Facts, Finding, History, Row, derived
from debate_train.health.detectors import OWN, Metric
from debate_train.interrupts import RunFailure

if TYPE_CHECKING:
    from debate_train.recipe import Recipe

__all__ = ["DETECTORS", "Detector", "DetectorChoice", "Finding", "Health", "History"]


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


PREFIX = "health/"
ALARM = "health/alarm/"


class HealthWatch:
    """The watch over one phase. It keeps nothing of its own: a resumed one reads the rows again.

    Phases that imitate are not watched.

    Args:
        name: The phase.
        recipe: Its recipe.
        rows: All rows of the run so far, in order.
        start: How many steps the run had made before the phase.
    """

    def __init__(self, name: str, recipe: "Recipe", rows: Iterable[Row], start: int) -> None:
        watched = recipe.loss.learns_from != "demonstrations"
        self._detectors = dict(recipe.health.chosen()) if watched else {}
        self._name, self._recipe, self._start = name, recipe, start
        self._seen = History(recipe.health.window, _facts(recipe))
        self._said: set[str] = set()
        self._stop: str | None = None
        for row in rows if self._detectors else ():
            due: Due = "look" if is_look(row) else "step"
            if row["step"] > start:
                self._seen.add(derived(row), due)
                self._said |= {key.removeprefix(ALARM) for key in row if key.startswith(ALARM)}
            elif row["step"] == start and due == "look":
                self._seen.start = derived(row)

    def know_start(self, measured: Mapping[str, float]) -> None:
        """Take what the dev split measured when the phase began, which is no row of metrics."""
        self._seen.start = derived({"step": self._start, **measured})

    def see(self, step: int, metrics: Row, due: Due = "step") -> tuple[dict[str, float], list[str]]:
        """Take a new row; return what is added to it, and a line for each new alarm.

        Args:
            step: of the whole run.
            metrics: of the step, or of a look at the dev split.
            due: which of the two it is.
        """
        found: dict[str, float] = {}
        said: list[str] = []
        if not self._detectors:
            return found, said
        if due == "step" and step == self._start + 1:
            lines = first_step_warnings(self._recipe, metrics)
            said += [f"warning: {self._name} {step}: {line}" for line in lines]
        # As the file holds them, of which a resumed run reads them.
        row = {"step": step} | {key: plain(v) for key, v in metrics.items()}
        self._seen.add(derived(row), due)
        for name, detector in list(self._detectors.items()):
            try:
                finding = detector.look(self._seen) if detector.due == due else None
            except Exception as error:  # One of another package: the run is worth more.
                del self._detectors[name]
                said.append(f"warning: health: {name} is off: {type(error).__name__}: {error}")
                continue
            if finding is None:
                continue
            found[PREFIX + name] = finding.value
            if finding.alarm is not None and name not in self._said:
                self._said.add(name)
                found[ALARM + name] = 1.0
                what = f"{detector.metric} {finding.alarm}".strip()
                line = f"{self._name} {step}: health: {name}: {what}"
                said.append(f"warning: {line}" + (f"; {detector.advice}" * bool(detector.advice)))
                if name in self._recipe.health.stop_on and self._stop is None:
                    self._stop = line
        return found, said

    def refuse_alarms(self) -> None:
        """Stop the run where an alarm came that the recipe stops on.

        Raises:
            RunFailure: One came.
        """
        if self._stop is not None:
            raise RunFailure(
                f"{self._stop}; health.stop_on ends the run here; with --resume it goes on past "
                "this alarm"
            )


def is_look(row: Row) -> bool:
    """Return whether a row of metrics is of a look at the dev split."""
    return any(key.startswith("eval/") for key in row)


def alarms_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the alarms that rows of metrics hold: phase, step, detector and its figure."""
    return [
        {
            "phase": row.get("phase"),
            "step": row.get("step"),
            "detector": key.removeprefix(ALARM),
            "value": row.get(PREFIX + key.removeprefix(ALARM)),
        }
        for row in rows
        for key in row
        if key.startswith(ALARM)
    ]


def _facts(recipe: "Recipe") -> Facts:
    return Facts(
        agents=recipe.debate.num_agents,
        several_updates=recipe.trainer.makes_several,
        keeps_start=recipe.loss.reference_policy == "phase_start",
        debates=recipe.rollout.debates_per_question,
        questions=recipe.evaluation.questions,
        pairs=recipe.loss.learns_from == "pairs",
    )
