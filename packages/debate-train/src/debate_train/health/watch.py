"""Looks at each row of metrics, says what is alarming once, and stops where that is wanted."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from debate_train.errors import RunFailure
from debate_train.health.derived import derived
from debate_train.health.detector import Due, Facts, History, Row
from debate_train.preflight.checks import first_step_warnings
from debate_train.run_files.collected_files import plain

if TYPE_CHECKING:
    from debate_train.recipe import Recipe

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
