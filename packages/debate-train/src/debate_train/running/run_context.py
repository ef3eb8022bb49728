"""What a run and a phase of it work with."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from debate_rollout.engine import Engine
from debate_train.checkpointing.checkpoints import Checkpoints, RunState
from debate_train.commands.progress import Progress
from debate_train.data import DataSource
from debate_train.errors import RunFailure
from debate_train.evaluation.settings import Setup
from debate_train.interrupts import Interrupts
from debate_train.models.loaded_model import LoadedModel
from debate_train.playing.phase_start import PhaseStart
from debate_train.playing.rollouts import Rollouts
from debate_train.recipe import Recipe
from debate_train.run_files.run_directory import RunDirectory
from debate_train.run_files.tracking import Tracker
from debate_train.running.step import Step
from debate_train.trainers import Trainer

Ended = Literal["finished", "criterion met", "criterion missed", "interrupted"]
"""Why a phase stopped: its steps are done, its exit criterion is met or was not met in
`max_steps`, or a signal asked for it."""


@dataclass(frozen=True, slots=True)
class RunContext:
    """What all phases of a run share."""

    recipe: Recipe
    directory: RunDirectory
    tracker: Tracker
    progress: Progress
    interrupts: Interrupts
    source: DataSource
    engine: Engine
    loaded: LoadedModel
    checkpoints: Checkpoints
    state: RunState
    """Where the run is."""
    start: Path | None = None
    """The checkpoint that the run resumes from."""
    begin: Callable[[], object] = lambda: None
    """Drops what was written after that checkpoint, once nothing can be refused any more."""


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase that is being trained."""

    name: str
    recipe: Recipe
    source: DataSource
    trainer: Trainer
    rollouts: Rollouts
    start: PhaseStart | None = None
    """What the policy is measured against, in phases of self-play."""
    demonstrator: Engine | None = None
    """Writes the replies in the place of the run's engine."""

    def evaluated(self, engine: Engine, version: int) -> tuple[Setup, Engine]:
        """Return what an evaluation of the phase is made with, and the engine that plays it."""
        setup = self.recipe.evaluated()
        if self.start is None:
            return setup, engine
        current = self.trainer.weights(version=version)
        return self.start.added_to(setup), self.start.beside(engine, current)

    def evaluation_is_due(self, done: int) -> bool:
        """Return whether the dev split is measured after so many steps of the phase."""
        criterion = self.recipe.exit_criterion
        at_exit = criterion is not None and criterion.is_due(self.recipe.steps, done)
        return at_exit or is_due(self.recipe.evaluation.every, done)

    def owes_evaluation(self, state: RunState) -> bool:
        """Return whether the evaluation after the last step is still to be made."""
        criterion, done = self.recipe.exit_criterion, state.step - state.phase_start
        return state.owes_look or (
            criterion is not None
            and criterion.is_due(self.recipe.steps, done)
            and self._measured(state) is None
        )

    def ended(self, state: RunState) -> Ended | None:
        """Return why the phase ends after the last step, None if it goes on."""
        criterion, done = self.recipe.exit_criterion, state.step - state.phase_start
        if criterion is None:
            return "finished" if done >= self.recipe.steps else None
        measured = self._measured(state)
        if measured is None or not criterion.is_due(self.recipe.steps, done):
            return None
        # A measure without a single case yet (no comparison made) has not been reached.
        if measured.get(criterion.metric, 0.0) >= criterion.at_least:
            return "criterion met"
        return "criterion missed" if done >= criterion.max_steps else None

    def refuse_endless_skips(self, step: Step) -> None:
        """Stop a run whose updates are all skipped.

        Raises:
            RunFailure: Too many in a row were skipped.
        """
        skipped = int(step.metrics.get("optim/skipped_in_a_row", 0))
        if skipped >= self.recipe.trainer.max_skipped:
            raise RunFailure(
                f"{self.name} {step.number + 1}: found {skipped} updates in a row whose gradient "
                "was not finite, and skipped them; expected finite losses: look at "
                "optim/ratio_max and the advantages in tokens/, lower trainer.learning_rate, then "
                "go on with --resume"
            )

    def _measured(self, state: RunState) -> dict[str, float] | None:
        """Return the means on the dev split after the last step, if they were taken."""
        looked = state.looked
        return looked[2] if looked is not None and looked[:2] == (self.name, state.step) else None


def is_due(every: int, done: int) -> bool:
    """Return whether something is due that is done every so many steps, or never (0)."""
    return every > 0 and done % every == 0
