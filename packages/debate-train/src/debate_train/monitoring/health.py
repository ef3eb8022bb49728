"""The health monitor: detectors judge a training phase and may stop the run."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from debate_protocol.plugins import Config, Variants, did_you_mean
from debate_train.checkpoints.run_directory import plain
from debate_train.errors import RunFailure
from debate_train.monitoring.detectors import ROWS, Detector, Metric
from debate_train.monitoring.figures import Due, Facts, History, Row, derived
from debate_train.monitoring.preflight_checks import first_step_warnings

PREFIX = "health/"
ALARM = "health/alarm/"

DETECTORS: Variants[Detector] = Variants("debate_train.detectors", Detector, Metric)
"""All detectors, those of other installed packages included."""

DetectorChoice = Annotated[Detector, DETECTORS]
"""Any detector; recipes choose by `type`."""


class Health(Config):
    """Detectors of a phase of samples or pairs, and alarms to stop the run."""

    enabled: bool = True
    """Whether the run has a health monitor."""
    window: int = Field(8, ge=2)
    """Steps whose mean is judged, and steps at a phase's start that it is compared with."""
    stop_on: tuple[str, ...] = ()
    """Names of detectors whose first alarm ends the run, with a checkpoint and exit code 1."""
    detectors: dict[str, DetectorChoice | None] = Field(default_factory=dict)
    """Detectors by name, beside ours (docs/health.md): NAME: null turns one of these off, and
    NAME: {share: 0.5} changes a key of it. A new name needs a `type`, mostly `metric`."""

    def chosen(self) -> Mapping[str, Detector]:
        """Collect the active detectors by name."""
        if not self.enabled:
            return {}
        detectors: dict[str, Detector | None] = {name: Metric(type=name) for name in ROWS}
        detectors.update(self.detectors)
        return {name: detector for name, detector in detectors.items() if detector is not None}

    @field_validator("detectors", mode="before")
    @classmethod
    def _names_are_types(cls, detectors: object) -> object:
        if not isinstance(detectors, Mapping):
            return detectors
        typed = {}
        for name, settings in detectors.items():
            if isinstance(settings, Mapping) and name in DETECTORS:
                settings = {"type": name, **settings}
            typed[name] = settings
        return typed

    @field_validator("detectors")
    @classmethod
    def _metrics_are_named(
        cls, detectors: dict[str, Detector | None]
    ) -> dict[str, Detector | None]:
        for name, detector in detectors.items():
            if detector is not None and detector.type == "metric" and not detector.metric:
                raise ValueError(
                    f"found {name} without a metric; expected {name}.metric, or the name of one "
                    f"of ours{did_you_mean(name, DETECTORS)}"
                )
        return detectors

    @model_validator(mode="after")
    def _stops_are_watched(self) -> "Health":
        detectors = self.chosen()
        if self.stop_on and not self.enabled:
            raise ValueError("stop_on: found names with enabled false; expected enabled: true")
        for name in self.stop_on:
            if name not in detectors:
                raise ValueError(
                    f"stop_on: found {name!r}, expected one of {', '.join(detectors)}"
                    f"{did_you_mean(name, detectors)}"
                )
        return self


class HealthMonitor:
    """Monitors a phase, without a state on disk: a resumed phase reads the rows again.

    Imitating phases have no monitor.

    Args:
        name: The phase.
        health: The recipe's settings.
        facts: Facts of the phase for the detectors.
        rows: All rows of the run so far, in order.
        start: Number of steps of the run before the phase.
    """

    def __init__(
        self, name: str, health: Health, facts: Facts, rows: Iterable[Row], start: int
    ) -> None:
        self._detectors = {} if facts.imitates else dict(health.chosen())
        self._name = name
        self._stop_on = health.stop_on
        self._start_step = start
        self._history = History(health.window, facts)
        self._alarmed: set[str] = set()
        self._stop_reason: str | None = None
        if not self._detectors:
            return
        for row in rows:
            due: Due = "evaluation" if is_evaluation(row) else "step"
            if row["step"] > start:
                self._history.add(derived(row), due)
                # Alarms before a resume are not raised again.
                self._alarmed |= {key.removeprefix(ALARM) for key in row if key.startswith(ALARM)}
            elif row["step"] == start and due == "evaluation":
                # The last evaluation of the phase before is of the same weights.
                self._history.start = derived(row)

    def know_start(self, measured: Mapping[str, float]) -> None:
        """Set the evaluation of the phase's start, as the metrics have no row of it."""
        self._history.start = derived({"step": self._start_step, **measured})

    def see(self, step: int, metrics: Row, due: Due = "step") -> tuple[dict[str, float], list[str]]:
        """Judge a new row.

        Args:
            step: of the whole run.
            metrics: of the step, or of an evaluation on the dev split.
            due: the kind of the row.

        Returns:
            metrics to add to the row, and a line for each new alarm.
        """
        health_metrics: dict[str, float] = {}
        lines: list[str] = []
        if not self._detectors:
            return health_metrics, lines
        where = f"{self._name} {step}"
        if due == "step" and step == self._start_step + 1:
            warnings = first_step_warnings(self._history.facts, metrics)
            lines += [f"warning: {where}: {warning}" for warning in warnings]
        # Values as the metrics file has them, so that a resumed run judges the same.
        row = {"step": step} | {key: plain(value) for key, value in metrics.items()}
        self._history.add(derived(row), due)
        due_detectors = {
            name: detector for name, detector in self._detectors.items() if detector.due == due
        }
        for name, detector in due_detectors.items():
            try:
                finding = detector.judge(self._history)
            except Exception as error:
                # A fault in another package's detector must not cost the run.
                del self._detectors[name]
                lines.append(f"warning: health: {name} is off: {type(error).__name__}: {error}")
                continue
            if finding is None:
                continue
            health_metrics[PREFIX + name] = finding.value

            # Only the first alarm of a detector is raised.
            if finding.alarm is None or name in self._alarmed:
                continue
            self._alarmed.add(name)
            health_metrics[ALARM + name] = 1.0
            problem = f"{detector.metric} {finding.alarm}".strip()
            line = f"{where}: health: {name}: {problem}"
            stops_run = name in self._stop_on or detector.stops
            if stops_run and self._stop_reason is None:
                self._stop_reason = line
            advice = f"; {detector.advice}" if detector.advice else ""
            lines.append(f"warning: {line}{advice}")
        return health_metrics, lines

    def refuse_alarms(self) -> None:
        """Stop the run after an alarm in `stop_on`, or of a detector with `stops`.

        Raises:
            RunFailure: There was such an alarm.
        """
        if self._stop_reason is not None:
            raise RunFailure(
                f"{self._stop_reason}; the run ends here (health.stop_on, or stops of the "
                "detector); --resume goes on past this alarm"
            )


def is_evaluation(row: Row) -> bool:
    """Whether a row of metrics comes from an evaluation on the dev split."""
    return any(key.startswith("eval/") for key in row)


def alarms_of(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """List the alarms in rows of metrics: phase, step, detector and figure."""
    alarms = []
    for row in rows:
        detectors = [key.removeprefix(ALARM) for key in row if key.startswith(ALARM)]
        for detector in detectors:
            alarms.append(
                {
                    "phase": row.get("phase"),
                    "step": row.get("step"),
                    "detector": detector,
                    "value": row.get(PREFIX + detector),
                }
            )
    return alarms
