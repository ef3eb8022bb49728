"""Whether what a checkpoint says of a run can be: against its recipe, its metrics and its model."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from debate_train.advantages import METRIC
from debate_train.checkpointing.checkpoint_manifest import RefusedCheckpoint
from debate_train.checkpointing.checkpoints import RunState
from debate_train.checkpointing.content_checks import check_contents
from debate_train.errors import UsageError
from debate_train.models.loaded_model import LoadedModel
from debate_train.recipe import Recipe
from debate_train.run_files.run_directory import RunDirectory

_MEASURE = {"mean", "low", "high", "questions"}
_OF_SEVERAL_RUNS = "run_deviation"


@dataclass(frozen=True, slots=True)
class ResumeCheck:
    """Refuses checkpoints that a run by this recipe cannot have written."""

    recipe: Recipe
    directory: RunDirectory
    loaded: LoadedModel
    changed: frozenset[str] = frozenset()
    """Parts of the keys in which steps were made by another recipe than this one.

    What the recipe says of them may not hold for those steps; all else does.
    """

    def __call__(self, path: Path, state: RunState) -> None:
        """Check one checkpoint.

        Raises:
            RefusedCheckpoint: It cannot be; the message says what.
        """
        rows = list(self._rows(state))
        for problem in (
            *self._place_problems(state),
            *self._row_problems(state, rows),
            *self._exit_problems(state, rows),
            *self._kept_problems(state),
            *self._measure_problems(state, rows),
            *self._record_problems(state),
        ):
            raise RefusedCheckpoint(problem)
        try:
            updates = sum(map(_is_update, rows[_first(rows, state.phase_start) :]))
            phase = self._phase_of(state)
            may_differ = self._has_changed("epochs", "minibatches")
            check_contents(path, state, phase, self.loaded, updates, may_differ)
        except UsageError as error:
            text = str(error).removeprefix(f"checkpoint {path}: ").splitlines()[0]
            raise RefusedCheckpoint(text) from error

    def _has_changed(self, *names: str) -> bool:
        return not self.changed.isdisjoint(names)

    def _phase_of(self, state: RunState) -> Recipe | None:
        phases = list(self.recipe.phase_recipes().values())
        return phases[state.phase] if state.phase < len(phases) else None

    def _rows(self, state: RunState) -> Iterator[Mapping[str, Any]]:
        """Yield the rows of metrics that the checkpoint counts, each read."""
        if state.rows < 0:
            raise RefusedCheckpoint(f"its state.json counts {state.rows} rows of metrics")
        in_file = state.rows - len(state.unwritten)
        with self.directory.metrics_path.open("rb") as file:
            lines = file.readlines()[: max(0, in_file)]
        if len(lines) != in_file:
            raise RefusedCheckpoint(
                f"metrics.jsonl has {len(lines)} rows, of which it counts {in_file}"
            )
        lines += [f"{row}\n".encode() for row in state.unwritten]
        if hashlib.sha256(b"".join(lines)).hexdigest() != state.metrics_sha256:
            raise RefusedCheckpoint(
                f"the first {state.rows} rows of metrics.jsonl are not as they were written"
            )
        for line in lines:
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict) or {"phase", "step"} - set(row):
                raise RefusedCheckpoint("metrics.jsonl holds a line that is no row of metrics")
            yield row

    def _place_problems(self, state: RunState) -> Iterator[str]:
        phases = len(self.recipe.phase_recipes())
        if not 0 <= state.phase <= phases:
            yield f"its state.json is in phase {state.phase} of {phases}"
        if not 0 <= state.phase_start <= state.step or (
            state.phase == 0 and state.phase_start != 0
        ):
            yield f"its state.json has phase_start {state.phase_start} at step {state.step}"
        if state.phase == phases and state.phase_start != state.step:
            yield "its state.json has steps after the last phase"
        if state.owes_look and state.step == state.phase_start:
            yield "its state.json owes a look at the dev split before any step of its phase"
        known = {"evaluation", *self.recipe.phase_recipes()}
        if any(name not in known or taken < 0 for name, taken in state.seconds.items()):
            yield "its state.json has seconds that cannot be"

    def _row_problems(self, state: RunState, rows: list[Mapping[str, Any]]) -> Iterator[str]:
        """Compare steps and phases with those of the rows: every step has one or more."""
        names = list(self.recipe.phase_recipes())
        steps = [row["step"] for row in rows]
        if sorted(set(steps)) != list(range(1, state.step + 1)) or steps != sorted(steps):
            yield f"metrics.jsonl has other steps than the {state.step} that it counts"
            return
        for row in rows:
            place = names.index(row["phase"]) if row["phase"] in names else -1
            has_ended = row["step"] <= state.phase_start
            if place < 0 or (place >= state.phase if has_ended else place != state.phase):
                yield (
                    f"its state.json has step {row['step']} in another phase than metrics.jsonl, "
                    f"which has {row['phase']!r}"
                )
                return
        trained = {row["phase"] for row in rows}
        may_have_none = self._has_changed("steps")
        phases = self.recipe.phase_recipes()
        for name in names[: state.phase]:
            if name not in trained and phases[name].steps > 0 and not may_have_none:
                yield f"its state.json is past phase {name}, of which metrics.jsonl has no row"

    def _exit_problems(self, state: RunState, rows: list[Mapping[str, Any]]) -> Iterator[str]:
        phases, may_differ = self.recipe.phase_recipes(), self._has_changed("exit_criterion")
        for name in state.exit_criteria:
            if name not in phases or (phases[name].exit_criterion is None and not may_differ):
                yield f"its state.json has an exit criterion of {name!r}, which has none"
                return
        ended = list(phases)[: state.phase]
        for name, phase in phases.items():
            criterion = phase.exit_criterion
            if criterion is None or may_differ:
                continue
            if (name in ended) != (name in state.exit_criteria) and name in ended:
                yield f"its state.json does not say whether {name} met its exit criterion"
            elif name in state.exit_criteria:
                names = {metric for metric, _ in criterion.wanted}
                looks = [row for row in rows if row["phase"] == name and names & row.keys()]
                if state.exit_criteria[name] != criterion.is_met(looks[-1] if looks else {}):
                    yield f"its state.json has another outcome of the exit criterion of {name}"

    def _kept_problems(self, state: RunState) -> Iterator[str]:
        """Compare what is known of phases that may be taken back with the phases that may be."""
        phases, may_differ = self.recipe.phase_recipes(), self._has_changed("keep_if")
        for name in (*state.starts, *state.kept):
            if name not in phases or (phases[name].keep_if is None and not may_differ):
                yield f"its state.json has a start or an outcome of {name!r}, which has no keep_if"
        if any(not 0 <= step <= state.phase_start for step, _ in state.starts.values()):
            yield "its state.json has a start to go back to that has not been"
        if not phases.keys() >= state.held_out.keys():
            yield "its state.json has held-out pairs of a phase that is none"

    def _measure_problems(self, state: RunState, rows: list[Mapping[str, Any]]) -> Iterator[str]:
        last = len(self.recipe.phase_recipes()) - 1
        trains_last = state.phase == last and state.step > state.phase_start
        may_lack = self._has_changed("evaluation", "debate", "data")
        needs = self.recipe.evaluation.questions > 0 and not may_lack
        measured = list(self.recipe.phase_recipes().values())[-1]
        # Single replies to questions without answers are measured by nothing.
        setup = measured.evaluated()
        may_be_empty = all(one.form.turn_count() == 1 for _, one in setup.plays())
        known = None if may_lack else setup.figures()
        lacks = state.before is None if may_be_empty else not state.before
        if needs and lacks and (trains_last or state.phase > last):
            yield "its state.json lacks the measures before the last phase"
        for name, measure in (state.before or {}).items():
            is_measure = isinstance(measure, dict) and set(measure) - {_OF_SEVERAL_RUNS} == _MEASURE
            if known is not None and name not in known:
                is_measure = False
            if not is_measure or not _ordered(measure):
                yield f"its state.json has no measure {name!r} as before the last phase"
        if state.looked is not None:
            phase, step, means = state.looked
            if not _has_row(rows, step, {"phase": phase, **means}):
                yield f"its state.json has a look at step {step} that metrics.jsonl has not"
        if state.baselines != _baselines(rows, state):
            yield "its state.json has other baselines than the last step in metrics.jsonl"
        best = state.best
        if best is not None and not _has_row(rows, best.step, {best.metric: best.value}):
            yield f"its state.json has a best at step {best.step} that metrics.jsonl has not"

    def _record_problems(self, state: RunState) -> Iterator[str]:
        for name, digest in state.records.items():
            path = self.directory.path / name
            if ".." in Path(name).parts or Path(name).is_absolute() or path.is_symlink():
                yield f"its state.json names {name}, which is no sample of the run"
            elif not path.is_file():
                yield f"{name} is missing, which was written before it"
            elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                yield f"{name} is not as it was written"


def _first(rows: list[Mapping[str, Any]], step: int) -> int:
    """Return the place of the first row of a later step."""
    return next((n for n, row in enumerate(rows) if row["step"] > step), len(rows))


def _is_update(row: Mapping[str, Any]) -> bool:
    """Return whether all of a step's updates were made, and changed something."""
    return bool(row.get("optim/grad_norm")) and not row.get("optim/skipped")


def _baselines(rows: list[Mapping[str, Any]], state: RunState) -> dict[str, Any]:
    """Return the running baselines that the phase's last step left, as its metrics say."""
    last = [row for row in rows if row["step"] == state.step > state.phase_start]
    return {
        key.removeprefix(METRIC): value
        for row in last
        for key, value in row.items()
        if key.startswith(METRIC)
    }


def _has_row(rows: list[Mapping[str, Any]], step: int, values: Mapping[str, Any]) -> bool:
    return any(
        row["step"] == step and all(row.get(key) == value for key, value in values.items())
        for row in rows
    )


def _ordered(measure: Mapping[str, Any]) -> bool:
    numbers = [measure[key] for key in ("low", "mean", "high", "questions")]
    numbers.append(measure.get(_OF_SEVERAL_RUNS, 0.0))
    if any(isinstance(n, bool) or not isinstance(n, int | float) for n in numbers):
        return False
    low, mean, high, questions, deviation = numbers
    return (
        all(map(math.isfinite, numbers))
        and low <= mean + 1e-9
        and mean <= high + 1e-9 < (math.inf)
        and questions >= 1
        and deviation >= 0
    )
