"""What becomes of each step: it is recorded, then looked at, saved or the last."""

import time
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

from debate_train.advantages import Baselines
from debate_train.errors import RunFailure
from debate_train.loop import Work
from debate_train.playing.rollouts import Rollouts
from debate_train.recipe import Recipe
from debate_train.records import keep_sample, step_metrics
from debate_train.saving import Interrupted
from debate_train.step import Step

if TYPE_CHECKING:
    from debate_train.phases import Phases


class StepKeeper:
    """Records the steps of a phase, and looks, saves or stops where it is time to."""

    def __init__(
        self, phases: "Phases", name: str, recipe: Recipe, work: Work, rollouts: Rollouts
    ) -> None:
        self._phases, self._name, self._recipe, self._work = phases, name, recipe, work
        self._rollouts = rollouts
        self._ended = time.perf_counter()

    def learning(self) -> AbstractContextManager[None]:
        """Let an update that has begun come to its end."""
        return self._phases.parts.interrupts.guarded()

    def sample(self, step: Step) -> None:
        """Write the samples of a step that is about to be trained, where it is time to.

        Before the update, which cannot be undone where they cannot be written.
        """
        recipe = self._recipe
        done = step.number + 1 - self._phases.state.phase_start
        if due(recipe.recording.every, done) or done == 1:
            directory = self._phases.parts.directory
            keep_sample(directory, self._name, step, recipe.recording.debates)

    @property
    def baselines(self) -> Baselines:
        """The running baselines that the phase's last complete step left."""
        return self._phases.state.baselines

    def trained(self, step: Step) -> None:
        """Count a step whose update is made: from here on a checkpoint may hold it."""
        saving, state = self._phases.saving, self._phases.state
        number = step.number + 1
        owes_look = due(self._recipe.evaluation.every, number - state.phase_start)
        saving.unrecorded = partial(self.record, step)
        state.step, state.owes_look = number, owes_look
        state.baselines = dict(step.baselines)
        saving.take_random_states()

    def record(self, step: Step) -> None:
        """Write the metrics of a step."""
        with self.learning():
            self._record(step)

    def _record(self, step: Step) -> None:
        parts, state, saving = self._phases.parts, self._phases.state, self._phases.saving
        now = time.perf_counter()
        metrics, problem = step_metrics(step, self._recipe, seconds=now - self._ended)
        metrics |= saving.seconds_between
        saving.seconds_between.clear()
        self._ended = now
        saving.unrecorded = None  # A row that cannot be written is carried by a checkpoint.
        parts.directory.log(self._name, state.step, metrics)
        parts.tracker.log(self._name, state.step, metrics)
        parts.progress.step(state.step - state.phase_start, metrics)
        if problem is not None:
            note = f"warning: {self._name} {state.step}: not all is measured: {problem}"
            parts.progress.note(note)
        if not step.batch.rows:
            parts.progress.note(f"{self._name} {state.step}: no reply has a token to learn from")

    def after(self, step: Step) -> None:
        """Look and save where it is time to.

        Raises:
            Interrupted: A signal asked for it.
            RunFailure: Too many updates in a row were skipped.
        """
        phases, recipe = self._phases, self._recipe
        done = phases.state.step - phases.state.phase_start
        if phases.state.owes_look and not phases.parts.interrupts.asked:
            phases.look(self._name, recipe, self._work, self._rollouts)
        phases.saving.take_random_states()
        self._ended = time.perf_counter()
        if phases.parts.interrupts.asked:
            raise Interrupted
        skipped = int(step.metrics.get("optim/skipped_in_a_row", 0))
        if skipped >= recipe.trainer.max_skipped:
            raise RunFailure(
                f"{self._name} {phases.state.step}: found {skipped} updates in a row whose "
                "gradient was not finite, and skipped them; expected finite losses: look at "
                "optim/ratio_max and the advantages in tokens/, lower trainer.learning_rate, then "
                "go on with --resume"
            )
        # The end of a phase writes one of its own.
        ends = recipe.gate is None and done == recipe.steps
        is_due = due(recipe.checkpoint.every, done)
        if (is_due or phases.saving.is_due(recipe.checkpoint.every_minutes)) and not ends:
            phases.saving.checkpoint(self._name, self._work.trainer, self._rollouts)
            if phases.parts.interrupts.asked:
                raise Interrupted


def due(every: int, done: int) -> bool:
    """Return whether something is due that is done every so many steps, or never (0)."""
    return every > 0 and done % every == 0
