"""What a run and a phase of it work with."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from debate_protocol.types import Question, Transcript
from debate_rewards.credits import Score
from debate_rewards.reward_config import RewardConfig
from debate_rollout.engine import Engine
from debate_train.checkpointing.checkpoints import Best, Checkpoints, RunState
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
from debate_train.running.step import Step
from debate_train.tracking.tracker import Tracker
from debate_train.trainers import Trainer

Ended = Literal["finished", "criterion met", "criterion missed", "interrupted"]
"""Why a phase stopped: its steps are done, its exit criterion is met or was not met in
`max_steps`, or a signal asked for it."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """A step that is complete, for what is called after each.

    Attributes:
        phase: Its phase.
        step: Steps of the run that are complete.
        metrics: What was measured of it, as in its row of `metrics.jsonl`.
        transcripts: Its debates; empty where a phase learns from a set of examples.
        scores: What its reward said of them.
    """

    phase: str
    step: int
    metrics: Mapping[str, float]
    transcripts: Sequence[Transcript]
    scores: Sequence[Score]


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
    on_step_end: Callable[[StepEnd], object] | None = None
    """Called after each step, outside of what an interrupt waits for."""
    sources: dict[str, DataSource] = field(default_factory=dict)
    """Opened sources of all stages, where phases have data of their own."""
    begin: Callable[[], object] = lambda: None
    """Drops what was written after that checkpoint, once nothing can be refused any more."""

    def note_best(self, found: Mapping[str, float]) -> None:
        """Note a look at the dev split if it is the best so far, where the best one is kept."""
        wanted, state = self.recipe.checkpoint.keep_best, self.state
        value = None if wanted is None else found.get(wanted.metric)
        if wanted is not None and value is not None and wanted.is_better(value, state.best):
            state.best = Best(state.step, wanted.metric, value)


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

    def reward_at(self, step: int) -> RewardConfig:
        """Return the reward of a step of the phase, counted from 0."""
        reward = self.recipe.reward
        return reward.at(step) if reward.is_changing else reward

    def dev_splits(self, run: RunContext) -> list[list[Question]]:
        """Return what a look measures on: the phase's dev split, and that of the recipe's own data.

        The latter is there where it was asked for (`evaluation.target`) and is another one.
        """
        size = self.recipe.evaluation.questions
        others = [run.source] if self.recipe.evaluation.target else []
        return [x.split("dev", size) for x in dict.fromkeys([self.source, *others])]

    def on_target(self, measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Return the means of a look on the recipe's own data, by names of their own."""
        own = measured[-1] if self.recipe.evaluation.target else {}
        return {name.replace("eval/", "target/", 1): value for name, value in own.items()}

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
        if criterion.is_met(measured):
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
