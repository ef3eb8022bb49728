"""The state and services of a run and of phases, and the records and checkpoints of steps."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from debate_protocol.types import DebateRun, Question, Transcript
from debate_rewards.reward import RewardConfig, Score
from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine
from debate_train.batches.row_types import PER_TOKEN
from debate_train.batches.rows import Step
from debate_train.checkpoints import Best, Checkpoints, RunState
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.checkpoints.trainer_state import RandomStates, random_states, save_random_states
from debate_train.data import DataSource
from debate_train.data.source import Split, keep_apart
from debate_train.errors import RecipeError, RunFailure
from debate_train.evaluation.measuring import Measures, evaluate
from debate_train.evaluation.settings import Setup
from debate_train.interrupts import Interrupts
from debate_train.models.loaded_model import LoadedModel
from debate_train.monitoring.figures import Due
from debate_train.monitoring.health import HealthMonitor
from debate_train.monitoring.progress import Progress, timed
from debate_train.monitoring.throughput import Speed
from debate_train.monitoring.tracking import Tracker
from debate_train.playing import play_step
from debate_train.playing.phase_start import PhaseStart
from debate_train.playing.rollouts import Rollouts
from debate_train.recipe import Recipe
from debate_train.running.run_records import credit_of, keep_evaluation, write_credit
from debate_train.running.step_metrics import facts_of, step_metrics
from debate_train.trainers import Trainer
from debate_train.trainers.processes import own_place

# Updates in a row whose gradient was not finite, at which a run stops.
MAX_SKIPPED = 5

StopReason = Literal["finished", "criterion met", "criterion missed", "interrupted"]
"""Why a phase stopped: all steps are done, the exit criterion is met or was missed in `max_steps`,
or a signal asked for it."""


@dataclass(frozen=True, slots=True)
class StepEnd:
    """A complete step, for callbacks.

    Attributes:
        phase: Name of the phase.
        step: Number of complete steps of the run.
        metrics: The step's row of `metrics.jsonl`.
        transcripts: Debates of the step; empty where a phase learns from a set of examples.
        scores: Scores of these debates by the reward.
    """

    phase: str
    step: int
    metrics: Mapping[str, float]
    transcripts: Sequence[Transcript]
    scores: Sequence[Score]


@dataclass(frozen=True, slots=True)
class RunContext:
    """The shared state and services of all phases of a run."""

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
    """Progress of the run: phase, step, baselines, evaluations."""
    start: Path | None = None
    """The checkpoint that the run resumes from."""
    on_step_end: Callable[[StepEnd], object] | None = None
    """Called after each step; an interrupt does not wait for it."""
    sources: dict[str, DataSource] = field(default_factory=dict)
    """Opened sources of all stages, where phases have data of their own."""
    begin: Callable[[], object] = lambda: None
    """Drops later files than the checkpoint's, once nothing can be refused any more."""

    def measured(
        self, name: str, played: tuple[Setup, Engine], source: DataSource, split: Split, count: int
    ) -> Measures | None:
        """Measure questions of a split and record them by name; `None` after a signal."""
        setup, engine = played
        questions = source.split(split, count)
        measures = self.interrupts.stoppable(
            lambda: evaluate(setup, engine, questions, split, self.progress.watch)
        )
        if measures is not None:
            keep_evaluation(
                self.directory,
                name,
                self.state.step,
                measures,
                with_debates=self.recipe.recording.debates > 0,
            )
        return measures

    def note_best(self, means: Mapping[str, float]) -> None:
        """Note an evaluation if it is the best so far, where `keep_best` is set."""
        keep_best = self.recipe.checkpoint.keep_best
        if keep_best is None:
            return
        value = means.get(keep_best.metric)
        if value is not None and keep_best.is_better(value, self.state.best):
            self.state.best = Best(self.state.step, keep_best.metric, value)


@dataclass(frozen=True, slots=True)
class Phase:
    """A phase in training."""

    name: str
    recipe: Recipe
    source: DataSource
    trainer: Trainer
    rollouts: Rollouts
    start: PhaseStart | None = None
    """Opponent of the policy in evaluations, in phases of self-play."""
    demonstrator: Engine | None = None
    """Writes the replies in the place of the run's engine."""

    def evaluated(self, engine: Engine, version: int) -> tuple[Setup, Engine]:
        """Build the setup and the engine of an evaluation of the phase."""
        setup = self.recipe.evaluated()
        if self.start is None:
            return setup, engine
        current = self.trainer.weights(version=version)
        return self.start.added_to(setup), self.start.beside(engine, current)

    def reward_at(self, step: int) -> RewardConfig:
        """Build the reward of a step of the phase, counted from 0."""
        return self.recipe.reward.at(step)

    def dev_splits(self, run: RunContext) -> list[list[Question]]:
        """Select the questions of an evaluation: of the phase, and of `evaluation.target`.

        The target is the recipe's own data, and left out where the phase has no other.
        """
        sources = [self.source]
        if self.recipe.evaluation.target and run.source != self.source:
            sources.append(run.source)
        return [source.split("dev", self.recipe.evaluation.questions) for source in sources]

    def target_means(self, means_of_splits: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Rename the means of an evaluation on the recipe's own data: `target/` for `eval/`."""
        if not self.recipe.evaluation.target:
            return {}
        # Where the phase has the recipe's own data, its only split is also the target's.
        means = means_of_splits[-1]
        return {name.replace("eval/", "target/", 1): value for name, value in means.items()}

    def evaluation_is_due(self, num_steps: int) -> bool:
        """Say whether to measure the dev split after this number of steps of the phase."""
        criterion = self.recipe.exit_criterion
        at_exit = criterion is not None and criterion.is_due(self.recipe.steps, num_steps)
        return at_exit or is_due(self.recipe.evaluation.every, num_steps)

    def evaluation_is_pending(self, state: RunState) -> bool:
        """Say whether the evaluation after the last step is still to be made."""
        if state.eval_pending:
            return True
        criterion = self.recipe.exit_criterion
        if criterion is None or self._last_means(state) is not None:
            return False
        # A resumed run may have an exit criterion that the recipe lacked at that step.
        return criterion.is_due(self.recipe.steps, state.step - state.phase_start)

    def ended(self, state: RunState) -> StopReason | None:
        """Find the reason to end the phase after the last step; `None` to go on."""
        num_steps = state.step - state.phase_start
        criterion = self.recipe.exit_criterion
        if criterion is None:
            return "finished" if num_steps >= self.recipe.steps else None
        means = self._last_means(state)
        if means is None or not criterion.is_due(self.recipe.steps, num_steps):
            return None
        if criterion.is_met(means):
            return "criterion met"
        return "criterion missed" if num_steps >= criterion.max_steps else None

    def refuse_endless_skips(self, step: Step) -> None:
        """Stop a run after too many skipped updates in a row.

        Raises:
            RunFailure: The number of skipped updates has reached `MAX_SKIPPED`.
        """
        num_skipped = int(step.metrics.get("optim/skipped_in_a_row", 0))
        if num_skipped >= MAX_SKIPPED:
            raise RunFailure(
                f"{self.name} {step.number + 1}: found {num_skipped} updates in a row whose "
                "gradient was not finite, and skipped them; expected finite losses: look at "
                "optim/ratio_max and the advantages in tokens/, lower trainer.learning_rate, then "
                "go on with --resume"
            )

    def _last_means(self, state: RunState) -> dict[str, float] | None:
        """Get the means on the dev split after the last step, if they were measured."""
        if state.last_eval is None:
            return None
        phase, step, means = state.last_eval
        return means if (phase, step) == (self.name, state.step) else None


def is_due(every: int, num_steps: int) -> bool:
    """Say whether an action of every `every` steps is due; it never is for 0."""
    return every > 0 and num_steps % every == 0


@contextmanager
def cpu_threads(recipe: Recipe) -> Iterator[None]:
    """Let torch use the recipe's number of CPU threads, also in threads started here."""
    previous = torch.get_num_threads()
    num_threads = recipe.trainer.num_threads()
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def open_phase(run: RunContext, name: str, recipe: Recipe, trainer: Trainer) -> Phase:
    """Build a phase of debates played by the run's engine, or demonstrated.

    Raises:
        RecipeError: The data has no demonstrations.
    """
    source = _open_source(run, name, recipe)
    phase_start = run.state.phase_start
    criterion = recipe.exit_criterion
    max_turns = max(form.turn_count() for form in recipe.forms)

    def show_progress(debates: list[DebateRun]) -> list[DebateRun]:
        return run.progress.watch(debates, max_turns, "turns")

    def play(step: int, engine: Engine) -> Sequence[Transcript]:
        return play_step(recipe, source, step, engine, show_progress)

    def border(step: int) -> int:
        # Past a check of the criterion it is not known whether the phase goes on.
        if criterion is None:
            return phase_start + recipe.steps
        return phase_start + criterion.next_look(recipe.steps, step + 1 - phase_start)

    demonstrator = None
    script = recipe.rollout.engine.script(source.demonstrate)
    if script is not None:
        if not source.can_demonstrate:
            raise RecipeError(
                "rollout.engine.type: found demonstrations, but data of type "
                f"{recipe.data.type} has none; expected a source that writes them, such as "
                "signs_puzzle"
            )
        tokenizer = run.loaded.tokenizer
        template_kwargs = run.loaded.template_kwargs
        demonstrator = ScriptedEngine().open(None, tokenizer, template_kwargs, script=script)
    replacement: Engine | None = demonstrator
    if replacement is None and recipe.offline is not None:
        # A phase that learns from a set of examples plays no step, so no weights need to be sent
        # to the run's engine.
        replacement = ScriptedEngine().open(script=lambda request: "")
    rollouts = Rollouts(
        play, run.engine, trainer.weights, recipe.pipeline.max_staleness, border, replacement
    )
    return Phase(name, recipe, source, trainer, rollouts, demonstrator=demonstrator)


def _open_source(run: RunContext, name: str, recipe: Recipe) -> DataSource:
    """Open the questions of a phase, without the held-out questions of other stages."""
    stages = {repr(run.recipe.data): run.recipe}
    for phase in run.recipe.phase_recipes().values():
        stages[repr(phase.data)] = phase
    if len(stages) == 1:
        return run.source
    # All stages are opened at once: each must know the held-out questions of the others.
    for key, stage in stages.items():
        if key not in run.sources:
            is_recipes_own = stage.data == run.recipe.data
            run.sources[key] = run.source if is_recipes_own else stage.data.open(stage.seed)
    source = run.sources[repr(recipe.data)]
    others = [other for other in run.sources.values() if other is not source]
    note = keep_apart(source, others, recipe.data, run.recipe.most_measured)
    if note:
        run.progress.note(f"{name}: {note}")
    return source


def keep_sample(run: RunContext, phase: Phase, step: Step) -> None:
    """Write the transcripts, credit and token rows of the step's first debates, if due.

    The loop calls it before the update: without records a step must not change weights.
    """
    recording = phase.recipe.recording
    number = step.number + 1
    step_of_phase = number - run.state.phase_start
    step_is_due = step_of_phase == 1 or is_due(recording.every, step_of_phase)
    if recording.debates == 0 or not step.transcripts or not step_is_due:
        return
    transcripts = step.transcripts[: recording.debates]
    run.directory.write_transcripts(phase.name, number, transcripts)
    rows = [row for row in step.batch.rows if row.debate < recording.debates]
    if not rows:
        return
    credit = credit_of(
        transcripts,
        step.scores[: recording.debates],
        step.batch,
        run.loaded.tokenizer,
        demonstrated=not phase.recipe.rollout.engine.is_sampled,
    )
    write_credit(run.directory, number, credit)

    tensors = {}
    for name, (fill, _, _) in PER_TOKEN.items():
        # Rows of unequal length are padded on the right; padding has mask 0.
        values = [torch.from_numpy(row.over_tokens(name)) for row in rows]
        tensors[f"{name}_BT"] = pad_sequence(values, batch_first=True, padding_value=fill)
    tensors["debate_B"] = torch.tensor([row.debate for row in rows])
    tensors["agent_B"] = torch.tensor([row.agent for row in rows])
    run.directory.write_tokens(number, tensors)


class Saving:
    """Writes the metrics and the checkpoints of a phase, each of the last complete step.

    A step is complete after the update. Metrics are written before any checkpoint of the step, so
    a resumed run has a row for each step.
    """

    def __init__(self, run: RunContext, phase: Phase) -> None:
        self._run = run
        self._phase = phase
        self._state = run.state
        self._counted_until_s = time.perf_counter()
        """The end of the time that `state.seconds` counts already."""
        self._saved_at_s = time.monotonic()
        self._saved_step = run.state.step
        self._random_states: RandomStates | None = None
        self._unrecorded: Step | None = None
        """The last complete step, until its metrics are written."""
        self._seconds: dict[str, float] = {}
        """Time of checkpoints since the last step."""
        recipe = phase.recipe
        self._speed = Speed.of(
            recipe.rollout.engine,
            run.loaded.model,
            own_place().size,
            recipe.trainer.epochs,
            recipe.tracking.peak_tflops,
        )
        # The rows of a resumed run: detectors look back over steps before the resume.
        earlier_rows = run.directory.metrics.rows()
        self.monitor = HealthMonitor(
            phase.name, recipe.health, facts_of(recipe), earlier_rows, run.state.phase_start
        )

    def follow(self, phase: Phase) -> None:
        """Save the trainer of this phase from now on: the same phase with another trainer."""
        self._phase = phase

    def has_checkpoint(self) -> bool:
        """Say whether the last complete step has a checkpoint."""
        name = f"step-{self._state.step:06d}"
        return name in [path.name for path in self._run.checkpoints.complete()]

    def note_random_states(self) -> None:
        """Note the random states for a checkpoint of the last complete step."""
        self._random_states = random_states()

    def complete(self, step: Step) -> None:
        """Count a step after the update: from here on a checkpoint may hold it."""
        state = self._state
        self._unrecorded = step
        state.step = step.number + 1
        state.baselines = dict(step.baselines)
        state.eval_pending = self._phase.evaluation_is_due(state.step - state.phase_start)
        self.note_random_states()

    def log(self) -> None:
        """Write the metrics of the last complete step, then call `on_step_end`."""
        run = self._run
        phase = self._phase
        state = self._state
        step = self._unrecorded
        assert step is not None
        with run.interrupts.guarded():
            seconds = time.perf_counter() - step.began
            metrics, problem = step_metrics(step, phase.recipe, seconds)
            metrics |= self._seconds | self._speed.measured(step.batch, metrics)
            self._seconds.clear()
            # Even if writing fails, the row is not tried again: it may be in the file.
            self._unrecorded = None
            alarms = self._write(metrics, "step", step)
            run.progress.step(state.step - state.phase_start, metrics)
            for alarm in alarms:
                run.progress.note(alarm)
            if problem is not None:
                run.progress.note(
                    f"warning: {phase.name} {state.step}: not all is measured: {problem}"
                )
            if not step.batch.rows:
                run.progress.note(f"{phase.name} {state.step}: no reply has a token to learn from")
        if run.on_step_end is not None:
            number = step.number + 1
            run.on_step_end(StepEnd(phase.name, number, metrics, step.transcripts, step.scores))

    def log_eval(self, means: dict[str, float], more: dict[str, float]) -> None:
        """Write the means of the dev split; `more` goes to the files, not to the display."""
        recipe = self._phase.recipe
        names = list(recipe.evaluated().listed())
        if recipe.exit_criterion is not None:
            names += [name for name, _ in recipe.exit_criterion.wanted]
        displayed = "  ".join(
            f"{name.removeprefix('eval/')} {means[name]:.3f}"
            for name in dict.fromkeys(names)
            if name in means
        )
        alarms = self._write(more | means, "evaluation")
        self._run.progress.note(f"{self._phase.name} {self._state.step}: dev split: {displayed}")
        for alarm in alarms:
            self._run.progress.note(alarm)

    def _write(self, metrics: dict[str, float], due: Due, trained: Step | None = None) -> list[str]:
        """Write a row with the health monitor's additions; return the new alarms."""
        name = self._phase.name
        step = self._state.step
        health_metrics, alarms = self.monitor.see(step, metrics, due)
        self._run.directory.metrics.log(name, step, metrics | health_metrics)
        self._run.tracker.log(name, step, metrics | health_metrics, trained)
        return alarms

    def is_due(self) -> bool:
        """Say whether the recipe asks for a checkpoint, or no checkpoint has the best policy."""
        settings = self._phase.recipe.checkpoint
        state = self._state
        minutes = (time.monotonic() - self._saved_at_s) / 60
        if 0 < settings.every_minutes <= minutes:
            return True
        if state.best is not None and state.best.step == state.step != self._saved_step:
            return True
        return is_due(settings.every, state.step - state.phase_start)

    def checkpoint(self) -> None:
        """Write a checkpoint, the phase's wall time so far included."""
        run = self._run
        phase = self._phase
        state = self._state
        now_s = time.perf_counter()
        earlier_s = state.seconds.get(phase.name, 0.0)
        state.seconds[phase.name] = earlier_s + now_s - self._counted_until_s
        self._counted_until_s = now_s

        def save(directory: Path) -> None:
            phase.rollouts.save(directory)
            phase.trainer.save(directory)
            save_random_states(directory, self._random_states)

        with run.interrupts.guarded(), timed(self._seconds, "checkpoint"):
            run.directory.count_into(state)
            run.checkpoints.write(state, save)
        self._saved_step = state.step
        self._saved_at_s = time.monotonic()

    def checkpoint_if_new(self) -> None:
        """Write a checkpoint unless the last complete step has it."""
        if self._state.step != self._saved_step:
            self.checkpoint()

    @contextmanager
    def checkpoint_on_failure(self) -> Iterator[None]:
        """Write a checkpoint of the last complete step if the block fails.

        Another failure, while it is written, does not hide the first.
        """
        try:
            yield
        except BaseException:  # A second interrupt, too.
            if self._state.step != self._saved_step:
                self._save_last_step()
            raise

    def _save_last_step(self) -> None:
        step = self._state.step
        note = self._run.progress.note
        # Within an update the weights are neither those before the step nor those after it.
        if self._phase.trainer.completed != step - self._state.phase_start:
            where = f"within the update after step {step}, of which"
            if own_place().size > 1:
                where = "in the trainer, and without its other processes"
            note(
                f"the run ended {where} no checkpoint can be written; the last is of step "
                f"{self._saved_step}"
            )
            return
        try:
            if self._unrecorded is not None:
                with suppress(RunFailure):  # The row is lost; its step is not.
                    self.log()
            self.checkpoint()
        except Exception as error:
            note(f"no checkpoint of step {step}: {error}")
        else:
            note(f"a checkpoint of step {step} is written; go on with --resume")
