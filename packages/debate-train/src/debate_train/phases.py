"""The phases of a run: gates, evaluations, checkpoints, and what is kept of each step."""

import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine
from debate_train.checkpoints import Checkpoints, load_policy
from debate_train.data import DataSource
from debate_train.errors import RecipeError, UsageError
from debate_train.evaluation import evaluate
from debate_train.interrupts import Interrupts
from debate_train.loop import Step, Work, rollouts_of, train
from debate_train.models import LoadedModel
from debate_train.policy import export_weights
from debate_train.progress import Progress
from debate_train.recipe import Demonstrations, Recipe
from debate_train.records import keep_sample, step_metrics
from debate_train.results import measures_json, print_results, write_results
from debate_train.rollouts import Rollouts
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


@dataclass(slots=True)
class State:
    """Where a run is; all that a checkpoint needs beside the trainer's own files."""

    phase: int = 0
    """Number of the phase, from 0."""
    phase_start: int = 0
    """Steps done in the whole run when the phase began."""
    step: int = 0
    """Steps done in the whole run."""
    gates: dict[str, bool] = field(default_factory=dict)
    """For each phase with a gate: whether it opened."""
    before: dict[str, Any] | None = None
    """Measures on the test split when the last phase began."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each part so far."""


class Interrupted(Exception):
    """The run was asked to stop and a checkpoint is written."""


class Phases:
    """Runs the phases of a recipe in order."""

    def __init__(self, recipe: Recipe, desk: Desk) -> None:
        self._recipe, self._desk = recipe, desk
        self._phases = list(recipe.phase_recipes().items())
        self._state = State()
        self._looked: tuple[str, int, dict[str, float]] | None = None
        self._counted = time.perf_counter()
        self._checkpoints = Checkpoints(
            desk.directory.checkpoints_path, recipe.checkpoint.keep_last
        )

    def run(self, resume: bool) -> int:
        """Run what is left to run; return the exit code."""
        latest = self._checkpoints.latest() if resume else None
        if resume and latest is None:
            raise UsageError(
                f"cannot resume {self._desk.directory.path}: found no complete checkpoint; start "
                "afresh without --resume in another folder"
            )
        if latest is not None:
            self._state = State(**latest[1])
            load_policy(latest[0], self._desk.loaded)
            self._desk.engine.load(export_weights(self._desk.loaded, self._state.step))
            names = [name for name, _ in self._phases]
            name = names[min(self._state.phase, len(names) - 1)]
            self._desk.directory.truncate_after(name, self._state.step, names)
        try:
            for name, recipe in self._phases[self._state.phase :]:
                if self._rest_is_skipped():
                    self._desk.progress.note(f"{name}: skipped, as a gate before it stayed shut")
                    continue
                self._phase(name, recipe, None if latest is None else latest[0])
                latest = None
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
        source = desk.source if recipe.data == self._recipe.data else recipe.data.open()
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
            stop = _stop(recipe, done + 1)

    def look(self, name: str, recipe: Recipe, work: Work, rollouts: Rollouts) -> dict[str, float]:
        """Evaluate on the dev split, log it, and return the means by name; once a step."""
        if self._looked is not None and self._looked[:2] == (name, self._state.step):
            return self._looked[2]
        with rollouts.serving(version=self._state.step) as engine:
            questions = work.source.split("dev", recipe.evaluation.questions)
            found = evaluate(recipe, engine, questions, "dev").means()
        self._desk.directory.log(name, self._state.step, found)
        self._desk.tracker.log(name, self._state.step, found)
        shown = "  ".join(f"{key.removeprefix('eval/')} {v:.3f}" for key, v in found.items())
        self._desk.progress.note(f"{name} {self._state.step}: dev split: {shown}")
        self._looked = (name, self._state.step, found)
        return found

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

        self._checkpoints.write(self._state.step, asdict(self._state), save)


class _Keeper:
    """Records the steps of a phase, and looks, saves or stops where it is time to."""

    def __init__(
        self, phases: Phases, name: str, recipe: Recipe, work: Work, rollouts: Rollouts
    ) -> None:
        self._phases, self._name, self._recipe, self._work = phases, name, recipe, work
        self._rollouts = rollouts
        self._ended = time.perf_counter()

    def keep(self, step: Step) -> None:
        """Record one step; raises `Interrupted` after a checkpoint when asked to stop."""
        phases, desk, state = self._phases, self._phases._desk, self._phases._state
        now = time.perf_counter()
        metrics = step_metrics(step, self._recipe, seconds=now - self._ended)
        self._ended = now
        state.step = step.number + 1
        done = state.step - state.phase_start
        desk.directory.log(self._name, state.step, metrics)
        desk.tracker.log(self._name, state.step, metrics)
        desk.progress.step(done, metrics)
        if self._due(self._recipe.recording.every, done) or done == 1:
            keep_sample(desk.directory, self._name, step, self._recipe.recording.debates)
        if self._due(self._recipe.evaluation.every, done):
            phases.look(self._name, self._recipe, self._work, self._rollouts)
        self._ended = time.perf_counter()
        if desk.interrupts.asked:
            phases.checkpoint(self._name, self._work.trainer, self._rollouts)
            raise Interrupted
        if self._due(self._recipe.checkpoint.every, done):
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
