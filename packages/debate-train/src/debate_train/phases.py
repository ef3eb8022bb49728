"""The phases of a run: gates, evaluations, checkpoints, and what is kept of each step."""

import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine
from debate_train.checkpointing.checkpoints import Best, Checkpoints, RunState
from debate_train.checkpointing.policy_files import load_policy
from debate_train.checkpointing.random_states import load_random_states, save_random_states
from debate_train.data import DataSource
from debate_train.errors import RecipeError, RunFailure
from debate_train.evaluation import evaluate
from debate_train.interrupts import Interrupts
from debate_train.loop import Step, Work, rollouts_of, train
from debate_train.models import LoadedModel
from debate_train.playing.rollouts import Rollouts
from debate_train.policy import export_weights
from debate_train.progress import Progress
from debate_train.recipe import Demonstrations, Recipe
from debate_train.records import keep_sample, step_metrics
from debate_train.results import measures_json, print_results, write_results
from debate_train.run_directory import RunDirectory
from debate_train.tracking import Tracker
from debate_train.trainers import Trainer

DONE, INTERRUPTED = 0, 130


@dataclass(frozen=True, slots=True)
class Desk:
    """What all phases of a run share."""

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
    """The checkpoint to go on from."""


class Interrupted(Exception):
    """The run was asked to stop and a checkpoint is written."""


class Phases:
    """Runs the phases of a recipe in order."""

    def __init__(self, recipe: Recipe, desk: Desk) -> None:
        self._recipe, self._desk = recipe, desk
        self._phases = list(recipe.phase_recipes().items())
        self._state = desk.state
        self._counted = time.perf_counter()
        self._saved = desk.state.step

    def run(self) -> int:
        """Run what is left to run; return the exit code."""
        start = self._desk.start
        if start is not None:
            load_policy(start, self._desk.loaded)
            self._desk.engine.load(export_weights(self._desk.loaded, self._state.step))
            load_random_states(start)
            if self._state.phase == len(self._phases):
                self._desk.progress.note("this run is finished: none of its phases trains more")
                if self._desk.directory.has_results:
                    return DONE
        try:
            for name, recipe in self._phases[self._state.phase :]:
                if self._rest_is_skipped():
                    self._desk.progress.note(f"{name}: skipped, as a gate before it stayed shut")
                    continue
                self._phase(name, recipe, start)
                start = None
        except Interrupted:
            self._desk.progress.note("interrupted; go on with --resume")
            return INTERRUPTED
        self._finish()
        return DONE

    def _finish(self) -> None:
        state, desk = self._state, self._desk
        after = self._measure()
        if after is None:
            return
        if state.before is None:  # A shut gate kept the last phase from starting.
            state.before = after
        changes = write_results(desk.directory, state.before, after, asdict(state))
        desk.tracker.summarise(changes)
        desk.progress.close()
        print_results(state.before, after, state.seconds)

    def _rest_is_skipped(self) -> bool:
        shut = [name for name, opened in self._state.gates.items() if not opened]
        gates = dict(self._phases)
        return any(
            gate.when_shut == "skip_rest" for name in shut if (gate := gates[name].gate) is not None
        )

    def _phase(self, name: str, recipe: Recipe, checkpoint: Path | None) -> None:
        """Run one phase to its end, from a checkpoint within it if one is given."""
        desk, state = self._desk, self._state
        if recipe is self._phases[-1][1] and state.before is None:
            state.before = self._measure()
        trainer = recipe.trainer.open(desk.loaded, recipe.loss, recipe.steps)
        try:
            work = self._work(recipe, trainer)
            rollouts = rollouts_of(work)
            if checkpoint is not None and state.step > state.phase_start:
                trainer.load(checkpoint)
                rollouts.load(checkpoint)
                load_random_states(checkpoint)
            desk.engine.load(trainer.weights(version=state.step))
            desk.progress.start(name, recipe.steps)
            self._counted = time.perf_counter()
            self._steps(name, recipe, work, rollouts)
            desk.engine.load(trainer.weights(version=state.step))
            state.phase, state.phase_start = state.phase + 1, state.step
            self.checkpoint(name, trainer, rollouts)
        finally:
            trainer.close()

    def _work(self, recipe: Recipe, trainer: Trainer) -> Work:
        desk = self._desk
        source = desk.source if recipe.data == self._recipe.data else recipe.data.open(recipe.seed)
        sampler = desk.engine
        if isinstance(recipe.rollout.engine, Demonstrations):
            if not source.can_demonstrate:
                raise RecipeError(
                    f"rollout.engine.type: found demonstrations, but data of type "
                    f"{recipe.data.type} has none; expected a source that writes them, such as "
                    "signs_puzzle"
                )
            sampler = ScriptedEngine().open(
                None,
                desk.loaded.tokenizer,
                desk.loaded.template_kwargs,
                script=partial(source.demonstrate, errors=recipe.rollout.engine.errors),
            )
        return Work(recipe, source, sampler, desk.engine, trainer, desk.loaded.tokenizer)

    def _steps(self, name: str, recipe: Recipe, work: Work, rollouts: Rollouts) -> None:
        """Train until the phase's steps are done and its gate, if any, has opened."""
        state, gate = self._state, recipe.gate
        keeper = _Keeper(self, name, recipe, work, rollouts)
        stop = _stop(recipe, state.step - state.phase_start)
        while True:
            train(work, rollouts, range(state.step, state.phase_start + stop), keeper.keep)
            if gate is None:
                return
            # A measure without a single case yet (no comparison made) has not been reached.
            found = self.look(name, recipe, work, rollouts).get(gate.metric, 0.0)
            done = state.step - state.phase_start
            if found >= gate.at_least or done >= gate.max_steps:
                state.gates[name] = found >= gate.at_least
                self._desk.progress.note(
                    f"{name}: gate {'open' if state.gates[name] else 'SHUT'} after {done} steps: "
                    f"{gate.metric} {found:.3f}, wanted at least {gate.at_least}"
                )
                return
            if self.is_best_unsaved:
                self.checkpoint(name, work.trainer, rollouts)
            stop = _stop(recipe, done + 1)

    def look(self, name: str, recipe: Recipe, work: Work, rollouts: Rollouts) -> dict[str, float]:
        """Evaluate on the dev split, log it, and return the means by name; once a step."""
        looked = self._state.looked
        if looked is not None and looked[:2] == (name, self._state.step):
            return looked[2]
        with rollouts.serving(version=self._state.step) as engine:
            questions = work.source.split("dev", recipe.evaluation.questions)
            found = evaluate(recipe, engine, questions, "dev").means()
        self._desk.directory.log(name, self._state.step, found)
        self._desk.tracker.log(name, self._state.step, found)
        shown = "  ".join(f"{key.removeprefix('eval/')} {v:.3f}" for key, v in found.items())
        self._desk.progress.note(f"{name} {self._state.step}: dev split: {shown}")
        self._state.looked = (name, self._state.step, found)
        wanted = self._recipe.checkpoint.keep_best
        value = None if wanted is None else found.get(wanted.metric)
        if wanted is not None and value is not None and wanted.is_better(value, self._state.best):
            self._state.best = Best(self._state.step, wanted.metric, value)
        return found

    @property
    def is_best_unsaved(self) -> bool:
        """Whether the policy is the best so far and no checkpoint holds it."""
        best, step = self._state.best, self._state.step
        return best is not None and best.step == step != self._saved

    def _measure(self) -> dict[str, Any] | None:
        """Return the measures on the test split, None where the recipe asks for no questions."""
        evaluation = self._recipe.evaluation
        if evaluation.questions == 0:
            return None
        self._desk.progress.note("measuring on the test split")
        started = time.perf_counter()
        questions = self._desk.source.split("test", evaluation.questions)
        found = evaluate(self._phases[-1][1], self._desk.engine, questions, "test")
        taken = self._state.seconds.get("evaluation", 0.0) + time.perf_counter() - started
        self._state.seconds["evaluation"] = taken
        return measures_json(found)

    def checkpoint(self, name: str, trainer: Trainer, rollouts: Rollouts) -> None:
        """Write a checkpoint, the phase's wall time so far included."""
        now = time.perf_counter()
        self._state.seconds[name] = self._state.seconds.get(name, 0.0) + now - self._counted
        self._counted = now

        def save(directory: Path) -> None:
            rollouts.save(directory)
            trainer.save(directory)
            save_random_states(directory)

        self._state.rows = self._desk.directory.rows_on_disk()
        self._desk.checkpoints.write(self._state, save)
        self._saved = self._state.step


class _Keeper:
    """Records the steps of a phase, and looks, saves or stops where it is time to."""

    def __init__(
        self, phases: Phases, name: str, recipe: Recipe, work: Work, rollouts: Rollouts
    ) -> None:
        self._phases, self._name, self._recipe, self._work = phases, name, recipe, work
        self._rollouts = rollouts
        self._ended = time.perf_counter()

    def keep(self, step: Step) -> None:
        """Record one step; when it is time to stop, raise after a checkpoint.

        Raises:
            Interrupted: A signal asked for it.
            RunFailure: Too many updates in a row were skipped.
        """
        phases, desk, state = self._phases, self._phases._desk, self._phases._state
        now = time.perf_counter()
        metrics = step_metrics(step, self._recipe, seconds=now - self._ended)
        self._ended = now
        state.step = step.number + 1
        done = state.step - state.phase_start
        desk.directory.log(self._name, state.step, metrics)
        desk.tracker.log(self._name, state.step, metrics)
        desk.progress.step(done, metrics)
        if not step.batch.rows:
            desk.progress.note(f"{self._name} {state.step}: no reply has a token to learn from")
        if self._due(self._recipe.recording.every, done) or done == 1:
            keep_sample(desk.directory, self._name, step, self._recipe.recording.debates)
        if self._due(self._recipe.evaluation.every, done):
            phases.look(self._name, self._recipe, self._work, self._rollouts)
        self._ended = time.perf_counter()
        if desk.interrupts.asked:
            phases.checkpoint(self._name, self._work.trainer, self._rollouts)
            raise Interrupted
        skipped = int(metrics.get("optim/skipped_in_a_row", 0))
        if skipped >= self._recipe.trainer.max_skipped:
            phases.checkpoint(self._name, self._work.trainer, self._rollouts)
            raise RunFailure(
                f"{self._name} {state.step}: found {skipped} updates in a row whose gradient was "
                "not finite; they were skipped and a checkpoint is written; expected finite "
                "losses: look at optim/ratio_max and the advantages in tokens/, lower "
                "trainer.learning_rate, then go on with --resume"
            )
        # The end of a phase writes one of its own.
        ends = self._recipe.gate is None and done == self._recipe.steps
        if (self._due(self._recipe.checkpoint.every, done) or phases.is_best_unsaved) and not ends:
            phases.checkpoint(self._name, self._work.trainer, self._rollouts)

    @staticmethod
    def _due(every: int, done: int) -> bool:
        return every > 0 and done % every == 0


def _stop(recipe: Recipe, done: int) -> int:
    """Return the first step from `done` on at which a phase ends or its gate is looked at."""
    if recipe.gate is None or done <= recipe.steps:
        return recipe.steps
    looks = -(-(done - recipe.steps) // recipe.gate.every)
    return min(recipe.steps + looks * recipe.gate.every, recipe.gate.max_steps)
