"""What becomes of each step: it is recorded, then looked at, saved or the last."""

import time
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from debate_train.errors import RunFailure
from debate_train.loop import Step, Work
from debate_train.playing.rollouts import Rollouts
from debate_train.recipe import Recipe
from debate_train.records import keep_sample, step_metrics

if TYPE_CHECKING:
    from debate_train.phases import Phases


class Interrupted(Exception):
    """The run was asked to stop."""


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

    def record(self, step: Step) -> None:
        """Write metrics and samples of a step; only then does it count as complete."""
        with self.learning():  # Weights that stand after an unrecorded step cannot be saved.
            self._record(step)

    def _record(self, step: Step) -> None:
        parts, state, recipe = self._phases.parts, self._phases.state, self._recipe
        now = time.perf_counter()
        metrics, problem = step_metrics(step, recipe, seconds=now - self._ended)
        metrics |= self._phases.seconds_between
        self._phases.seconds_between.clear()
        self._ended = now
        number = step.number + 1
        done = number - state.phase_start
        parts.directory.log(self._name, number, metrics)
        if due(recipe.recording.every, done) or done == 1:
            keep_sample(parts.directory, self._name, step, recipe.recording.debates)
        state.step, state.owes_look = number, due(recipe.evaluation.every, done)
        self._phases.take_random_states()
        parts.tracker.log(self._name, number, metrics)
        parts.progress.step(done, metrics)
        if problem is not None:
            parts.progress.note(f"warning: {self._name} {number}: not all is measured: {problem}")
        if not step.batch.rows:
            parts.progress.note(f"{self._name} {number}: no reply has a token to learn from")

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
        phases.take_random_states()
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
        is_due = due(recipe.checkpoint.every, done) or phases.saved_minutes_ago(
            recipe.checkpoint.every_minutes
        )
        if (is_due or phases.is_best_unsaved) and not ends:
            phases.checkpoint(self._name, self._work.trainer, self._rollouts)
            if phases.parts.interrupts.asked:
                raise Interrupted


def due(every: int, done: int) -> bool:
    """Return whether something is due that is done every so many steps, or never (0)."""
    return every > 0 and done % every == 0
