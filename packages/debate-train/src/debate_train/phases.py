"""The phases of a run: gates, evaluations, checkpoints, and what is kept of each step."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine
from debate_train.adapters import trained_adapters
from debate_train.checkpointing.checkpoints import Best, Checkpoints, RunState
from debate_train.checkpointing.policy_files import load_policy
from debate_train.checkpointing.random_states import load_random_states
from debate_train.data import DataSource
from debate_train.errors import RecipeError
from debate_train.evaluation.measuring import evaluate
from debate_train.interrupts import Interrupts, Stopped
from debate_train.keeper import StepKeeper
from debate_train.loaded_model import LoadedModel
from debate_train.loop import Work, rollouts_of, train
from debate_train.playing.rollouts import Rollouts
from debate_train.policy import export_weights
from debate_train.progress import Progress
from debate_train.recipe import Recipe
from debate_train.results import measures_json, print_results, write_results
from debate_train.run_directory import RunDirectory
from debate_train.saving import Interrupted, Saving
from debate_train.tracking import Tracker
from debate_train.trainers import Trainer

DONE, INTERRUPTED = 0, 130


@dataclass(frozen=True, slots=True)
class RunParts:
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
    begin: Callable[[], object] = lambda: None
    """Drops what was written after that checkpoint, once nothing can be refused any more."""


class Phases:
    """Runs the phases of a recipe in order."""

    def __init__(self, recipe: Recipe, parts: RunParts) -> None:
        self.parts, self.state = parts, parts.state
        self._recipe = recipe
        self._phases = list(recipe.phase_recipes().items())
        self.saving = Saving(parts)

    def run(self) -> int:
        """Run what is left to run; return the exit code."""
        start = self.parts.start
        if start is not None:
            load_policy(start, self.parts.loaded)
            self.parts.engine.load(export_weights(self.parts.loaded, self.state.step))
            load_random_states(start)
            if self.state.phase == len(self._phases):
                self.parts.progress.note("this run is finished: none of its phases trains more")
                self.parts.begin()
                if self.parts.directory.has_results:
                    return DONE
        try:
            for name, recipe in self._phases[self.state.phase :]:
                if self._rest_is_skipped():
                    self.parts.progress.note(f"{name}: skipped, as a gate before it stayed shut")
                    continue
                self._phase(name, recipe, start)
                start = None
            self._finish()
        except (Interrupted, Stopped):
            self.parts.progress.note(self._how_to_go_on())
            return INTERRUPTED
        return DONE

    def _how_to_go_on(self) -> str:
        if self.parts.checkpoints.complete():
            return f"interrupted; go on from step {self.saving.saved} with --resume"
        return "interrupted before the first step was complete; --resume begins again"

    def _finish(self) -> None:
        state, parts = self.state, self.parts
        parts.begin()
        after = self._measure("after")
        if after is None:
            return
        if state.before is None:  # A shut gate kept the last phase from starting.
            state.before = after
        setup = self._phases[-1][1].evaluated()
        changes = write_results(parts.directory, state.before, after, asdict(state), setup)
        parts.tracker.summarise(changes)
        parts.progress.close()
        print_results(state.before, after, state.seconds, setup)

    def _rest_is_skipped(self) -> bool:
        shut = [name for name, opened in self.state.gates.items() if not opened]
        gates = dict(self._phases)
        return any(
            gate.when_shut == "skip_rest" for name in shut if (gate := gates[name].gate) is not None
        )

    def _phase(self, name: str, recipe: Recipe, checkpoint: Path | None) -> None:
        """Run one phase to its end, from a checkpoint within it if one is given."""
        parts, state = self.parts, self.state
        if recipe is self._phases[-1][1] and state.before is None:
            state.before = self._measure("before")
        training = trained_adapters(recipe.model.lora, recipe.debate)
        learner = replace(parts.loaded, training=training)
        trainer = recipe.trainer.open(learner, recipe.loss, recipe.steps)
        try:
            work = self._work(recipe, trainer)
            rollouts = rollouts_of(work, parts.progress.watch)
            if checkpoint is not None and state.step > state.phase_start:
                trainer.load(checkpoint)
                rollouts.load(checkpoint)
                load_random_states(checkpoint)
            parts.engine.load(trainer.weights(version=state.step))
            parts.begin()
            parts.progress.start(name, recipe.steps)
            with self.saving.of_phase(name, trainer, rollouts):
                self._steps(name, recipe, work, rollouts)
                parts.engine.load(trainer.weights(version=state.step))
            state.phase, state.phase_start, state.baselines = state.phase + 1, state.step, {}
            self.saving.checkpoint(name, trainer, rollouts)
        finally:
            trainer.close()

    def _work(self, recipe: Recipe, trainer: Trainer) -> Work:
        parts = self.parts
        source = parts.source if recipe.data == self._recipe.data else recipe.data.open(recipe.seed)
        sampler = parts.engine
        script = recipe.rollout.engine.script(source.demonstrate)
        if script is not None:
            if not source.can_demonstrate:
                raise RecipeError(
                    f"rollout.engine.type: found demonstrations, but data of type "
                    f"{recipe.data.type} has none; expected a source that writes them, such as "
                    "signs_puzzle"
                )
            sampler = ScriptedEngine().open(
                None,
                parts.loaded.tokenizer,
                parts.loaded.template_kwargs,
                script=script,
            )
        return Work(recipe, source, sampler, parts.engine, trainer, parts.loaded.tokenizer)

    def _steps(self, name: str, recipe: Recipe, work: Work, rollouts: Rollouts) -> None:
        """Train until the phase's steps are done and its gate, if any, has opened."""
        state, gate = self.state, recipe.gate
        keeper = StepKeeper(self, name, recipe, work, rollouts)
        self.saving.take_random_states()
        if state.owes_look:  # The run ended between a step and the look after it.
            self.look(name, recipe, work, rollouts)
            self.saving.checkpoint(name, work.trainer, rollouts)
        if self.parts.interrupts.asked:
            raise Interrupted
        stop = _stop(recipe, state.step - state.phase_start)
        while True:
            train(work, rollouts, range(state.step, state.phase_start + stop), keeper)
            if gate is None:
                return
            # A measure without a single case yet (no comparison made) has not been reached.
            found = self.look(name, recipe, work, rollouts).get(gate.metric, 0.0)
            done = state.step - state.phase_start
            if found >= gate.at_least or done >= gate.max_steps:
                state.gates[name] = found >= gate.at_least
                self.parts.progress.note(
                    f"{name}: gate {'open' if state.gates[name] else 'SHUT'} after {done} steps: "
                    f"{gate.metric} {found:.3f}, wanted at least {gate.at_least}"
                )
                return
            if self.saving.is_best_unsaved:
                self.saving.checkpoint(name, work.trainer, rollouts)
            stop = _stop(recipe, done + 1)

    def look(self, name: str, recipe: Recipe, work: Work, rollouts: Rollouts) -> dict[str, float]:
        """Evaluate on the dev split, log it, and return the means by name; once a step."""
        looked = self.state.looked
        if looked is not None and looked[:2] == (name, self.state.step):
            self.state.owes_look = False
            return looked[2]
        watch = self.parts.progress.watch
        with rollouts.serving(version=self.state.step) as engine:
            questions = work.source.split("dev", recipe.evaluation.questions)
            with self.parts.interrupts.stoppable():
                found = evaluate(recipe.evaluated(), engine, questions, "dev", watch).means()
        # Before its row: a checkpoint carries one that cannot be written.
        self.state.looked, self.state.owes_look = (name, self.state.step, found), False
        wanted = self._recipe.checkpoint.keep_best
        value = None if wanted is None else found.get(wanted.metric)
        if wanted is not None and value is not None and wanted.is_better(value, self.state.best):
            self.state.best = Best(self.state.step, wanted.metric, value)
        self.parts.directory.log(name, self.state.step, found)
        self.parts.tracker.log(name, self.state.step, found)
        shown = "  ".join(f"{key.removeprefix('eval/')} {v:.3f}" for key, v in found.items())
        self.parts.progress.note(f"{name} {self.state.step}: dev split: {shown}")
        return found

    def _measure(self, when: str) -> dict[str, Any] | None:
        """Return the measures on the test split, None where the recipe asks for no questions."""
        evaluation, last = self._recipe.evaluation, self._phases[-1][1]
        if evaluation.questions == 0:
            return None
        self.parts.progress.start(f"test split {when}")
        started = time.perf_counter()
        questions = self.parts.source.split("test", evaluation.questions)
        with self.parts.interrupts.stoppable():
            watch, engine = self.parts.progress.watch, self.parts.engine
            found = evaluate(last.evaluated(), engine, questions, "test", watch)
        taken = self.state.seconds.get("evaluation", 0.0) + time.perf_counter() - started
        self.state.seconds["evaluation"] = taken
        return measures_json(found)


def _stop(recipe: Recipe, done: int) -> int:
    """Return the first step from `done` on at which a phase ends or its gate is looked at."""
    if recipe.gate is None or done <= recipe.steps:
        return recipe.steps
    looks = -(-(done - recipe.steps) // recipe.gate.every)
    return min(recipe.steps + looks * recipe.gate.every, recipe.gate.max_steps)
