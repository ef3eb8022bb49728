"""What a run and its phases work with, and what is saved of each step."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from debate_protocol.types import DebateRun, Question, Transcript
from debate_rewards.reward import RewardConfig, Score
from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine
from debate_train.batches.row_types import PER_TOKEN, Row
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
from debate_train.monitoring.detectors import Due
from debate_train.monitoring.health import HealthWatch
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

StopReason = Literal["finished", "criterion met", "criterion missed", "interrupted"]
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

    def measured(
        self, name: str, played: tuple[Setup, Engine], source: DataSource, split: Split, count: int
    ) -> Measures | None:
        """Measure questions of a split and record them by name; None where a signal stops it."""
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

    def on_target(self, measured: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Rename the means of an evaluation on the recipe's own data: `target/` for `eval/`."""
        if not self.recipe.evaluation.target:
            return {}
        means = measured[-1]
        return {name.replace("eval/", "target/", 1): value for name, value in means.items()}

    def evaluation_is_due(self, done: int) -> bool:
        """Whether the dev split is measured after `done` steps of the phase."""
        criterion = self.recipe.exit_criterion
        at_exit = criterion is not None and criterion.is_due(self.recipe.steps, done)
        return at_exit or is_due(self.recipe.evaluation.every, done)

    def owes_evaluation(self, state: RunState) -> bool:
        """Whether the evaluation after the last step is still to be made."""
        if state.eval_pending:
            return True
        criterion = self.recipe.exit_criterion
        if criterion is None or self._last_means(state) is not None:
            return False
        return criterion.is_due(self.recipe.steps, state.step - state.phase_start)

    def ended(self, state: RunState) -> StopReason | None:
        """Find the reason for which the phase ends after the last step, None if it goes on."""
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
        """Stop a run whose updates are all skipped.

        Raises:
            RunFailure: Too many in a row were skipped.
        """
        num_skipped = int(step.metrics.get("optim/skipped_in_a_row", 0))
        if num_skipped >= self.recipe.trainer.max_skipped:
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


def is_due(every: int, done: int) -> bool:
    """Whether an action is due that is repeated `every` steps, or never (0)."""
    return every > 0 and done % every == 0


@contextmanager
def cpu_threads(recipe: Recipe) -> Iterator[None]:
    """Let torch use the recipe's number of CPU threads, in threads that start here, too."""
    previous = torch.get_num_threads()
    num_threads = recipe.trainer.num_threads()
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


def open_phase(run: RunContext, name: str, recipe: Recipe, trainer: Trainer) -> Phase:
    """Build a phase that plays its debates with the run's engine, or has them demonstrated.

    Raises:
        RecipeError: Its data has no demonstrations.
    """
    source = _source(run, name, recipe)
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

    demonstrator = _demonstrator(run, recipe, source)
    # A phase that learns from a set of examples plays no step: the engine is needed for none.
    idle = None if recipe.offline is None else ScriptedEngine().open(script=lambda request: "")
    staleness = recipe.pipeline.max_staleness
    rollouts = Rollouts(play, run.engine, trainer.weights, staleness, border, demonstrator or idle)
    return Phase(name, recipe, source, trainer, rollouts, demonstrator=demonstrator)


def _source(run: RunContext, name: str, recipe: Recipe) -> DataSource:
    """Return the questions of a phase; it trains on none that another stage is measured on."""
    stages = {repr(run.recipe.data): run.recipe}
    stages |= {repr(one.data): one for one in run.recipe.phase_recipes().values()}
    if len(stages) == 1:
        return run.source
    for key, stage in stages.items():
        if key not in run.sources:
            own = stage.data == run.recipe.data
            run.sources[key] = run.source if own else stage.data.open(stage.seed)
    source = run.sources[repr(recipe.data)]
    others = [one for one in run.sources.values() if one is not source]
    if said := keep_apart(source, others, recipe.data, run.recipe.most_measured):
        run.progress.note(f"{name}: {said}")
    return source


def _demonstrator(run: RunContext, recipe: Recipe, source: DataSource) -> Engine | None:
    """Return what writes the replies in the place of the policy, None if it samples them."""
    script = recipe.rollout.engine.script(source.demonstrate)
    if script is None:
        return None
    if not source.can_demonstrate:
        raise RecipeError(
            f"rollout.engine.type: found demonstrations, but data of type {recipe.data.type} has "
            "none; expected a source that writes them, such as signs_puzzle"
        )
    loaded = run.loaded
    return ScriptedEngine().open(None, loaded.tokenizer, loaded.template_kwargs, script=script)


def keep_sample(run: RunContext, phase: Phase, step: Step) -> None:
    """Write the transcripts and the token rows of the step's first debates, where that is due.

    It is called before the update, which cannot be undone where they cannot be written.
    """
    recording, directory = phase.recipe.recording, run.directory
    number = step.number + 1
    done, debates = number - run.state.phase_start, recording.debates
    if debates == 0 or not step.transcripts or not (done == 1 or is_due(recording.every, done)):
        return
    directory.write_transcripts(phase.name, number, step.transcripts[:debates])
    rows = [row for row in step.batch.rows if row.debate < debates]
    if not rows:
        return
    first, scores = step.transcripts[:debates], step.scores[:debates]
    written = not phase.recipe.rollout.engine.is_sampled
    tokenizer = run.loaded.tokenizer
    credit = credit_of(first, scores, step.batch, tokenizer, demonstrated=written)
    write_credit(directory, number, credit)
    kept = padded_rows(rows)
    kept["debate_B"] = torch.tensor([row.debate for row in rows])
    kept["agent_B"] = torch.tensor([row.agent for row in rows])
    directory.write_tokens(number, kept)


def padded_rows(rows: Sequence[Row]) -> dict[str, Tensor]:
    """Return rows of unequal length as right-padded tensors (B, T); padding has mask 0."""
    return {
        f"{name}_BT": pad_sequence(
            [torch.from_numpy(row.over_tokens(name)) for row in rows],
            batch_first=True,
            padding_value=fill,
        )
        for name, (fill, _, _) in PER_TOKEN.items()
    }


class Saving:
    """Writes the metrics and the checkpoints of a phase, each of its last complete step.

    A step is complete once its update is made. What is recorded of it afterwards is recorded
    before a checkpoint of it is written.
    """

    def __init__(self, run: RunContext, phase: Phase) -> None:
        self._run = run
        self._phase = phase
        self._state = run.state
        self._counted = time.perf_counter()
        self._saved_at = time.monotonic()
        self._saved = run.state.step
        self._random: RandomStates | None = None
        self._unrecorded: Step | None = None
        self._seconds: dict[str, float] = {}
        """Of checkpoints since the last step."""
        recipe = phase.recipe
        num_processes = own_place().size
        self._speed = Speed.of(
            recipe.rollout.engine,
            run.loaded.model,
            num_processes,
            recipe.trainer.epochs,
            recipe.tracking.peak_tflops,
        )
        # The rows of a resumed run: detectors look back over steps before the resume.
        earlier_rows = run.directory.metrics.rows()
        self.watch = HealthWatch(
            phase.name, recipe.health, facts_of(recipe), earlier_rows, run.state.phase_start
        )

    def follow(self, phase: Phase) -> None:
        """Save the trainer of this phase from now on, which is the same phase with another one."""
        self._phase = phase

    def has_checkpoint(self) -> bool:
        """Whether the last complete step has a checkpoint."""
        name = f"step-{self._state.step:06d}"
        return name in [path.name for path in self._run.checkpoints.complete()]

    def note_random_states(self) -> None:
        """Note the random states that a checkpoint of the last complete step is to hold."""
        self._random = random_states()

    def complete(self, step: Step) -> None:
        """Count a step whose update is made: from here on a checkpoint may hold it."""
        state = self._state
        self._unrecorded = step
        state.step = step.number + 1
        state.baselines = dict(step.baselines)
        state.eval_pending = self._phase.evaluation_is_due(state.step - state.phase_start)
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
        self._unrecorded = None
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

    def log_eval(self, found: dict[str, float], more: dict[str, float]) -> None:
        """Write what an evaluation of the dev split found; the display has no room for `more`."""
        recipe = self._phase.recipe
        asked = [name for name, _ in recipe.exit_criterion.wanted] if recipe.exit_criterion else []
        listed = dict.fromkeys([*recipe.evaluated().listed(), *asked])
        shown = "  ".join(
            f"{name.removeprefix('eval/')} {found[name]:.3f}" for name in listed if name in found
        )
        alarms = self._write(more | found, "evaluation")
        self._run.progress.note(f"{self._phase.name} {self._state.step}: dev split: {shown}")
        for alarm in alarms:
            self._run.progress.note(alarm)

    def _write(self, found: dict[str, float], due: Due, made: Step | None = None) -> list[str]:
        """Write a row with what the health watch adds to it; return its new alarms."""
        run, name, step = self._run, self._phase.name, self._state.step
        more, alarms = self.watch.see(step, found, due)
        run.directory.metrics.log(name, step, found | more)
        run.tracker.log(name, step, found | more, made)
        return alarms

    def is_due(self) -> bool:
        """Whether the recipe asks for a checkpoint, or the best policy is in none."""
        settings = self._phase.recipe.checkpoint
        state = self._state
        minutes = (time.monotonic() - self._saved_at) / 60
        is_old = 0 < settings.every_minutes <= minutes
        is_best = state.best is not None and state.best.step == state.step != self._saved
        return is_due(settings.every, state.step - state.phase_start) or is_old or is_best

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
                with suppress(RunFailure):  # The row is lost; its step is not.
                    self.log()
            self.checkpoint()
        except Exception as error:
            note(f"no checkpoint of step {step}: {error}")
        else:
            note(f"a checkpoint of step {step} is written; go on with --resume")
