"""What a run works with: its context and engine, and the results that it ends with."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from debate_protocol.types import Question, Transcript
from debate_rewards.reward import RewardConfig, Score
from debate_rollout.engine import Engine
from debate_rollout.engines import ScriptedEngine
from debate_rollout.routing import RoutedEngine
from debate_train.batches.rows import Step
from debate_train.checkpointing.checkpoints import Best, Checkpoints, RunState
from debate_train.checkpointing.run_directory import RunDirectory
from debate_train.data import DataSource
from debate_train.evaluation.measuring import Measures
from debate_train.evaluation.settings import Setup
from debate_train.interrupts import Interrupts, RecipeError, RunFailure
from debate_train.models.loaded_model import LoadedModel
from debate_train.models.policies import Trained, brings_model, open_on
from debate_train.monitoring.health import alarms_of
from debate_train.monitoring.progress import Progress
from debate_train.playing.phase_start import MODE, PhaseStart
from debate_train.playing.rollouts import Rollouts
from debate_train.recipe import Recipe
from debate_train.recipe.check_parts import (
    engine_errors,
    missing_libraries,
    policy_errors,
    used_policies,
)
from debate_train.running.run_records import in_words
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


def refuse_unusable_engine(recipe: Recipe) -> None:
    """Refuse an engine or a tracker that cannot be opened, before a model is loaded for it.

    Raises:
        RecipeError: A library is missing, or the engine has not what training needs.
    """
    errors = [*engine_errors(recipe), *policy_errors(recipe), *missing_libraries(recipe)]
    errors += recipe.tracking.missing_libraries()
    if errors:
        raise RecipeError("\n".join(errors))


def open_engine(recipe: Recipe, loaded: LoadedModel) -> Engine:
    """Return the engine that samples from the policy, and from all others that speak."""
    trained = Trained(recipe.rollout.engine, recipe.model, recipe.seed)
    policies = used_policies(recipe)
    if not policies:
        return open_on(trained.engine, trained.model, loaded)
    with ExitStack() as opened:
        engine = open_on(trained.engine, trained.model, loaded)
        opened.callback(engine.close)
        others: dict[str, Engine] = {}
        for name, policy in policies.items():
            others[name] = policy.open(trained, loaded)
            opened.callback(others[name].close)
        opened.pop_all()
    return RoutedEngine(engine, others)


def open_sampling(recipe: Recipe, source: DataSource) -> Engine:
    """Return the engine that samples from the recipe's model, where nothing is trained.

    Weights are loaded here only for engines that take a model: endpoints alone need none.
    """
    config, model = recipe.rollout.engine, recipe.model
    script = config.script(source.demonstrate)
    if script is not None:
        return ScriptedEngine().open(script=script)
    trained = Trained(config, model, recipe.seed)
    others = used_policies(recipe)
    brought = [one.engine_config(trained) for one in others.values() if brings_model(one, trained)]
    if others and not config.needs_model and len(brought) == len(others):
        opened = [engine.open(None, None) for engine in brought]
        return RoutedEngine(config.open(None, None), dict(zip(others, opened, strict=True)))
    if others:
        return open_engine(recipe, model.load(recipe.seed))
    if not config.needs_model:
        return config.open(None, None)
    folder = model.folder() if config.takes_folders else None
    if folder is None:
        loaded = model.load(recipe.seed)
        return config.alone().open(loaded.model, loaded.tokenizer, loaded.template_kwargs)
    if "tokens" not in config.capabilities:
        return config.open(folder, None)
    config = config.for_checkpoint(model.dtype)
    return config.open(folder, model.load_tokenizer(), model.template_kwargs)


def measures_json(measures: Measures) -> dict[str, dict[str, float]]:
    """Return measures as JSON holds them."""
    return {
        name: {key: value for key, value in asdict(measure).items() if value is not None}
        for name, measure in measures.found.items()
    }


def write_results(
    directory: RunDirectory,
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    state: Mapping[str, Any],
    setup: Setup,
    changes: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> dict[str, float | str]:
    """Write results.json; return what a tracked run is summarised by.

    Args:
        directory: Of the run.
        before: Measures on the test split.
        after: The same at the end.
        state: Of the run.
        setup: What they were measured with.
        changes: Of figures on the same questions, as far as they are known (`changes_of`).
    """
    rows = _rows(before, after, setup, changes or {})
    directory.write_results(
        {
            "summary": in_words(rows, setup.headline),
            "headline": list(setup.headline),
            "table": rows,
            "measured": setup.described(),
            "before": before,
            "after": after,
            "exit_criteria": state["exit_criteria"],
            "kept": state["kept"],
            "held_out": state["held_out"],
            "health": alarms_of(directory.metrics()),
            "steps": state["step"],
            "seconds": state["seconds"],
        }
    )
    return {"results/summary": in_words(rows, setup.headline)} | _flat(rows)


def _flat(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return each measure before and after, and its change, each with the ends of its interval."""
    found = {}
    for row in rows:
        where = f"results/{row['name'].removeprefix('eval/')}"
        for when in ("before", "after"):
            found[f"{where}/{when}"] = row[when]["mean"]
            found |= {f"{where}/{when}_{end}": row[when][end] for end in ("low", "high")}
        paired = row.get("change")
        if paired is None:
            found[f"{where}/change"] = row["after"]["mean"] - row["before"]["mean"]
        else:  # Of the same questions, as its interval.
            found[f"{where}/change"] = paired["difference"]
            found |= {f"{where}/change_{end}": paired[end] for end in ("low", "high")}
    return found


def _rows(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    setup: Setup,
    changes: Mapping[str, Mapping[str, Any] | None],
) -> list[dict[str, Any]]:
    """Return the rows of the table; both ends are of the same questions where these are known.

    A figure without a question that has it at both ends has no row.
    """
    return [
        {"measure": shown, "name": name, "before": before[name], "after": after[name]}
        | dict(changes.get(name) or {})
        for name, shown in setup.listed().items()
        if name in before and name in after and changes.get(name, {}) is not None
    ]


def print_results(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    seconds: Mapping[str, float],
    setup: Setup,
    changes: Mapping[str, Mapping[str, Any] | None] | None = None,
) -> None:
    """Print the table from before to after, how it was measured, and how long each part took."""
    table = Table(title="test split, the same questions before and after", box=SIMPLE_HEAD)
    table.add_column("measure")
    for column in ("questions", "before", "after", "change [95 %]"):
        table.add_column(column, justify="right", no_wrap=True)
    rows = _rows(before, after, setup, changes or {})
    for row in rows:
        change = _signed(row["after"]["mean"] - row["before"]["mean"])
        if paired := row.get("change"):
            values = [_signed(paired[key]) for key in ("difference", "low", "high")]
            change = f"{values[0]} [{values[1]}, {values[2]}]"
        ends = [f"{row[when]['mean']:.3f}" for when in ("before", "after")]
        table.add_row(row["measure"], f"{row['after']['questions']}", *ends, change)
    console = Console()
    console.print(table)
    if said := in_words(rows, setup.headline):
        console.print(said, highlight=False)
    if line := _beside_start(after):
        console.print(line, highlight=False)
    console.print(f"measured: {setup.described()}", highlight=False)
    parts = ", ".join(f"{name} {taken:.0f} s" for name, taken in seconds.items())
    console.print(f"time: {parts}", highlight=False)


def _beside_start(after: Mapping[str, Any]) -> str:
    """Return how the policy does among opponents with the weights that its phase began with."""
    own, opponents, votes = (
        after.get(f"eval/{MODE}/{figure}")
        for figure in ("learned/accuracy", "opponent/accuracy", "learned/vote_win_rate")
    )
    if own is None or opponents is None:
        return ""
    said = f"among its start: accuracy {_shown(own)}, of the start {_shown(opponents)}"
    return said + (f", votes won {_shown(votes)}" if votes else "")


def _signed(change: float) -> str:
    return f"{round(change, 3) + 0.0:+.3f}"  # No -0.000.


def _shown(measure: Mapping[str, float]) -> str:
    return f"{measure['mean']:.3f} [{measure['low']:.3f}, {measure['high']:.3f}]"
