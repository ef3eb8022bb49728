"""What is kept of complete steps: their metrics and checkpoints, also of a run that fails."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from debate_train.batches.throughput import Speed
from debate_train.checkpointing.random_states import (
    RandomStates,
    random_states,
    save_random_states,
)
from debate_train.errors import RunFailure
from debate_train.health.detector import Due
from debate_train.health.watch import HealthWatch
from debate_train.ranks.processes import own_place
from debate_train.running.records import step_metrics
from debate_train.running.run_context import Phase, RunContext, StepEnd, is_due
from debate_train.running.step import Step
from debate_train.timing import timed


class Saving:
    """Writes the metrics and the checkpoints of a phase, each of its last complete step.

    A step is complete once its update is made. What is recorded of it afterwards is recorded
    before a checkpoint of it is written, or carried by that.
    """

    def __init__(self, run: RunContext, phase: Phase) -> None:
        self._run, self._phase, self._state = run, phase, run.state
        self._counted, self._saved_at = time.perf_counter(), time.monotonic()
        self._saved = run.state.step
        self._random: RandomStates | None = None
        self._unrecorded: Step | None = None
        self._seconds: dict[str, float] = {}
        """Of checkpoints since the last step."""
        self._speed = Speed.of(phase.recipe, run.loaded.model, own_place().size)
        rows = run.directory.metrics()
        self.watch = HealthWatch(phase.name, phase.recipe, rows, run.state.phase_start)

    def follow(self, phase: Phase) -> None:
        """Save the trainer of this phase from now on, which is the same phase with another one."""
        self._phase = phase

    def has_checkpoint(self) -> bool:
        """Return whether the last complete step has a checkpoint."""
        return any(
            path.name == f"step-{self._state.step:06d}" for path in self._run.checkpoints.complete()
        )

    def note_random_states(self) -> None:
        """Note the random states that a checkpoint of the last complete step is to hold."""
        self._random = random_states()

    def complete(self, step: Step) -> None:
        """Count a step whose update is made: from here on a checkpoint may hold it."""
        state = self._state
        self._unrecorded = step
        state.step, state.baselines = step.number + 1, dict(step.baselines)
        state.owes_look = self._phase.evaluation_is_due(state.step - state.phase_start)
        self.note_random_states()

    def log(self) -> None:
        """Write the metrics of the last complete step."""
        step = self._unrecorded
        with self._run.interrupts.guarded():
            metrics = self._log()
        if step is not None and (call := self._run.on_step_end) is not None:
            call(StepEnd(self._phase.name, step.number + 1, metrics, step.transcripts, step.scores))

    def _log(self) -> dict[str, float]:
        run, phase, state, step = self._run, self._phase, self._state, self._unrecorded
        assert step is not None
        seconds = time.perf_counter() - step.began
        metrics, problem = step_metrics(step, phase.recipe, seconds)
        metrics |= self._seconds | self._speed.measured(step.batch, metrics)
        self._seconds.clear()
        self._unrecorded = None  # A row that cannot be written is carried by a checkpoint.
        alarms = self._write(metrics, "step", step)
        run.progress.step(state.step - state.phase_start, metrics)
        for alarm in alarms:
            run.progress.note(alarm)
        if problem is not None:
            note = f"warning: {phase.name} {state.step}: not all is measured: {problem}"
            run.progress.note(note)
        if not step.batch.rows:
            run.progress.note(f"{phase.name} {state.step}: no reply has a token to learn from")
        return metrics

    def log_look(self, found: dict[str, float], more: dict[str, float]) -> None:
        """Write the measures of a look at the dev split, and what the display has no room for."""
        recipe = self._phase.recipe
        asked = [name for name, _ in recipe.exit_criterion.wanted] if recipe.exit_criterion else []
        listed = dict.fromkeys([*recipe.evaluated().listed(), *asked])
        shown = "  ".join(
            f"{name.removeprefix('eval/')} {found[name]:.3f}" for name in listed if name in found
        )
        alarms, where = self._write(more | found, "look"), f"{self._phase.name} {self._state.step}"
        for line in (f"{where}: dev split: {shown}", *alarms):
            self._run.progress.note(line)

    def _write(self, found: dict[str, float], due: Due, made: Step | None = None) -> list[str]:
        """Write a row with what the health watch adds to it; return its new alarms."""
        run, name, step = self._run, self._phase.name, self._state.step
        more, alarms = self.watch.see(step, found, due)
        run.directory.log(name, step, found | more)
        run.tracker.log(name, step, found | more, made)
        return alarms

    def is_due(self) -> bool:
        """Return whether the recipe asks for a checkpoint, or the best policy is in none."""
        wanted, state = self._phase.recipe.checkpoint, self._state
        is_old = 0 < wanted.every_minutes <= (time.monotonic() - self._saved_at) / 60
        is_best = state.best is not None and state.best.step == state.step != self._saved
        return is_due(wanted.every, state.step - state.phase_start) or is_old or is_best

    def checkpoint(self) -> None:
        """Write a checkpoint, the phase's wall time so far included."""
        run, phase, state = self._run, self._phase, self._state
        now = time.perf_counter()
        state.seconds[phase.name] = state.seconds.get(phase.name, 0.0) + now - self._counted
        self._counted = now

        def save(directory: Path) -> None:
            phase.rollouts.save(directory)
            phase.trainer.save(directory)
            save_random_states(directory, self._random)

        with run.interrupts.guarded(), timed(self._seconds, "checkpoint"):
            run.directory.count_into(state)
            run.checkpoints.write(state, save)
        self._saved, self._saved_at = state.step, time.monotonic()

    def checkpoint_if_new(self) -> None:
        """Write a checkpoint unless the last complete step has one."""
        if self._state.step != self._saved:
            self.checkpoint()

    @contextmanager
    def of_failures(self) -> Iterator[None]:
        """Write a checkpoint of the last complete step when what is within fails."""
        try:
            yield
        except BaseException:  # A second interrupt, too.
            if self._state.step != self._saved:
                self._save_what_is_whole()
            raise

    def _save_what_is_whole(self) -> None:
        """Save what can be saved of a run that fails; another failure does not hide the first."""
        step, note = self._state.step, self._run.progress.note
        if self._phase.trainer.completed != step - self._state.phase_start:
            where = (
                "in the trainer, and without its other processes"
                if own_place().size > 1
                else f"within the update after step {step}, of which"
            )
            note(
                f"the run ended {where} no checkpoint can be written; the last is of step "
                f"{self._saved}"
            )
            return
        try:
            if self._unrecorded is not None:
                with suppress(RunFailure):  # What cannot be written is carried by the checkpoint.
                    self.log()
            self.checkpoint()
        except Exception as error:
            note(f"no checkpoint of step {step}: {error}")
        else:
            note(f"a checkpoint of step {step} is written; go on with --resume")
