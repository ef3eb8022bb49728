"""The phases of a run, in order, and its results; a phase that made it worse is rolled back."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from debate_train.checkpoints import RunState
from debate_train.checkpoints.policy_files import load_policy
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.checkpoints.trainer_state import load_random_states
from debate_train.errors import RunFailure
from debate_train.evaluation.measuring import measures_json
from debate_train.evaluation.settings import Setup
from debate_train.models.loaded_model import LoadedModel, export_weights, trained_adapters
from debate_train.monitoring.health import alarms_of
from debate_train.playing.phase_start import FILE, MODE, PhaseStart
from debate_train.recipe import Recipe
from debate_train.running.loop import evaluate_dev, train
from debate_train.running.offline_phase import measure_held_out, open_examples, score_start
from debate_train.running.run_context import Phase, RunContext, Saving, StopReason, open_phase
from debate_train.running.run_records import changes_of, in_words


def measure_starts(run: RunContext, phase: Phase) -> bool:
    """Measure the dev split for the phases that are kept by what it is at this phase's start.

    It is no row of metrics, which are of steps.

    Returns:
        False where a signal stopped it.
    """
    state = run.state
    for keeper, recipe in run.recipe.phase_recipes().items():
        rule = recipe.keep_if
        is_now = rule is not None and (rule.since or keeper) == phase.name
        if rule is None or not is_now or keeper in state.starts:
            continue
        with phase.rollouts.serving(version=state.step) as engine:
            played, count = (recipe.evaluated(), engine), recipe.evaluation.questions
            found = run.measured("start", played, phase.source, "dev", count)
        if found is None:
            return False
        state.starts[keeper] = (state.step, found.means())
        value = found.means().get(rule.metric)
        shown = "no case" if value is None else f"{value:.3f}"
        run.progress.note(
            f"{phase.name} {state.step}: dev split: {rule.metric} {shown} at its start"
        )
    return True


def is_kept(run: RunContext, phase: Phase, saving: Saving) -> bool | None:
    """Decide whether a phase that has ended is kept, and say so; None where a signal stopped it."""
    state, rule = run.state, phase.recipe.keep_if
    if rule is None:
        return True
    if phase.name not in state.starts:
        run.progress.note(
            f"warning: {phase.name}: kept, as keep_if was not in the recipe when it began"
        )
        return True
    is_measured = (state.last_eval or ("", 0))[:2] == (phase.name, state.step)
    if not is_measured and not evaluate_dev(run, phase, saving):
        return None
    assert state.last_eval is not None
    (step, before), after = state.starts[phase.name], state.last_eval[2]
    kept = state.kept[phase.name] = rule.keeps(before, after)
    values = [
        "no case" if found is None else f"{found:.3f}"
        for found in (means.get(rule.metric) for means in (before, after))
    ]
    allowed = f" (may fall by {rule.tolerance:g})" if rule.tolerance else ""
    outcome = "kept" if kept else f"NOT KEPT: the weights of step {step} come back"
    run.progress.note(
        f"{phase.name}: {rule.metric} {values[1]}, at the start of {rule.since or phase.name} "
        f"{values[0]}{allowed}: {outcome}"
    )
    return kept


def roll_back(run: RunContext, phase: Phase, learner: LoadedModel) -> Phase:
    """Return the phase with the weights that it is compared with, and a trainer that has none else.

    Optimizers are of one phase, so that the next has one of its own anyway.
    """
    state, recipe = run.state, phase.recipe
    start = run.checkpoints.at(state.starts[phase.name][0])
    phase.trainer.close()
    load_policy(start, run.loaded)
    if state.best is not None and state.best.step == state.step:
        state.best = None  # Its checkpoint holds other weights than were measured.
    return replace(phase, trainer=recipe.trainer.open(learner, recipe.loss, recipe.steps))


DONE, INTERRUPTED = 0, 130


def run_phases(run: RunContext) -> int:
    """Run what is left to run; return the exit code."""
    phases, state = list(run.recipe.phase_recipes().items()), run.state
    checkpoint = run.start
    if checkpoint is not None:
        load_policy(checkpoint, run.loaded)
        run.engine.load(export_weights(run.loaded, state.step))
        load_random_states(checkpoint)
        if state.phase == len(phases):
            run.progress.note("this run is finished: none of its phases trains more")
            run.begin()
            if run.directory.has_results:
                return DONE
    for name, recipe in phases[state.phase :]:
        if _rest_is_skipped(run):
            run.progress.note(f"{name}: skipped, as a phase before it missed its exit criterion")
            continue
        if _run_phase(run, name, recipe, checkpoint) == "interrupted":
            return _interrupted(run)
        checkpoint = None
    _rest_is_skipped(run)  # The last phase, too, may have to end the run.
    return DONE if _finish(run) else _interrupted(run)


def _run_phase(run: RunContext, name: str, recipe: Recipe, checkpoint: Path | None) -> StopReason:
    """Run one phase to its end, from a checkpoint within it if one is given."""
    state = run.state
    names, wanted = list(run.recipe.phase_recipes()), run.recipe.evaluation.before
    first = wanted if wanted in names else names[-1]
    if name == first and wanted is not False and state.before is None and _is_measured(run):
        state.before = _measure(run, "before")
        if state.before is None:
            return "interrupted"
    learner = replace(run.loaded, training=trained_adapters(recipe.model.lora, recipe.debate))
    trainer = recipe.trainer.open(learner, recipe.loss, recipe.steps)
    try:
        phase = open_phase(run, name, recipe, trainer)
        if checkpoint is not None and state.step > state.phase_start:
            trainer.load(checkpoint)
            phase.rollouts.load(checkpoint)
            load_random_states(checkpoint)
        run.engine.load(trainer.weights(version=state.step))
        run.begin()
        is_new = checkpoint is None or state.step == state.phase_start
        phase = replace(phase, start=_start(run, phase, is_new=is_new))
        saving = Saving(run, phase)
        if is_new and not _begun(run, phase, saving):
            return "interrupted"
        if state.starts.get(name, (None,))[0] == state.phase_start:
            saving.watch.know_start(state.starts[name][1])
        examples = None
        if recipe.offline is not None and (recipe.steps or recipe.exit_criterion is not None):
            examples = open_examples(run, phase)
            if examples is None:
                return "interrupted"
            score_start(run, phase, examples)
        run.progress.start(name, recipe.steps)
        with saving.of_failures():
            ended = train(run, phase, saving, examples)
            kept = None if ended == "interrupted" else is_kept(run, phase, saving)
            if kept is None:
                saving.checkpoint_if_new()
                return "interrupted"
            run.engine.load(trainer.weights(version=state.step))
            if examples is not None:
                measure_held_out(run, phase, examples)
        _note_exit(run, phase, ended)
        if not kept:
            phase = roll_back(run, phase, learner)
            trainer = phase.trainer
            run.engine.load(trainer.weights(version=state.step))
            saving.follow(phase)
        _end(run, name)
        saving.checkpoint()
        return ended
    finally:
        trainer.close()


def _begun(run: RunContext, phase: Phase, saving: Saving) -> bool:
    """Keep the start of a phase that may come back; return False where a signal stopped that."""
    if not measure_starts(run, phase):
        return False
    needed = any(step == run.state.step for step, _ in run.state.starts.values())
    if needed and not saving.has_checkpoint():  # Before the first step of a run.
        saving.note_random_states()
        saving.checkpoint()
    return True


def _end(run: RunContext, name: str) -> None:
    """Let the run stand after a phase."""
    state = run.state
    state.starts.pop(name, None)
    state.phase, state.phase_start, state.baselines = state.phase + 1, state.step, {}


def _start(run: RunContext, phase: Phase, *, is_new: bool) -> PhaseStart | None:
    """Return what the policy is measured against from now on, if anything."""
    mode, folder = phase.recipe.start_mode(), run.directory.path
    if mode is None:
        return None
    weights = phase.trainer.weights(version=run.state.phase_start)
    if is_new:
        return PhaseStart.begun(mode, weights, folder, phase.name)
    found = PhaseStart.kept(mode, weights, folder, phase.name)
    if found is None:
        run.progress.note(
            f"warning: {folder / FILE} is not as this phase has written it: it is no more measured "
            "against its start"
        )
    return found


def _note_exit(run: RunContext, phase: Phase, ended: StopReason) -> None:
    """Keep and say whether the phase reached what it had to, if anything."""
    state, criterion = run.state, phase.recipe.exit_criterion
    if criterion is None or state.last_eval is None:
        return
    is_met = state.exit_criteria[phase.name] = ended == "criterion met"
    run.progress.note(
        f"{phase.name}: exit criterion {'met' if is_met else 'MISSED'} after "
        f"{state.step - state.phase_start} steps: {criterion.compared(state.last_eval[2])}"
    )


def _rest_is_skipped(run: RunContext) -> bool:
    """Return whether later phases are skipped, as one missed its exit criterion.

    Raises:
        RunFailure: One did whose `if_missed` is `fail`.
    """
    phases, skipped = run.recipe.phase_recipes(), False
    for name, is_met in run.state.exit_criteria.items():
        criterion = phases[name].exit_criterion
        if is_met or criterion is None:
            continue
        if criterion.if_missed == "fail":
            raise RunFailure(
                f"phase {name} missed its exit criterion, and exit_criterion.if_missed is fail: "
                "the run ends; its last checkpoint has the weights of that phase"
            )
        skipped = skipped or criterion.if_missed == "skip_rest"
    return skipped


def _finish(run: RunContext) -> bool:
    """Measure the policy that was trained and write the results; False where a signal stops it."""
    state = run.state
    run.begin()
    if not _is_measured(run):
        return True
    after = _measure(run, "after")
    if after is None:
        return False
    if run.recipe.evaluation.before is False:
        state.before = {}
    elif state.before is None:  # A missed exit criterion kept the last phase from starting.
        state.before = after
    setup = _last(run).evaluated()
    found = {} if state.before is after else changes_of(run.directory, list(setup.listed()))
    rows = results_table(state.before or {}, after, setup, found)
    run.tracker.summarise(write_results(run.directory, rows, after, state, setup))
    run.progress.close()
    print_results(rows, after, state.seconds, setup)
    return True


def _interrupted(run: RunContext) -> int:
    if written := run.checkpoints.complete():
        step = int(written[-1].name.removeprefix("step-"))
        run.progress.note(f"interrupted; go on from step {step} with --resume")
    else:
        run.progress.note("interrupted before the first step was complete; --resume begins again")
    return INTERRUPTED


def _last(run: RunContext) -> Recipe:
    return list(run.recipe.phase_recipes().values())[-1]


def _is_measured(run: RunContext) -> bool:
    return run.recipe.evaluation.questions > 0


def _measure(run: RunContext, when: str) -> dict[str, Any] | None:
    """Return the measures on the test split, None where a signal stops it."""
    run.progress.start(f"test split {when}")
    started = time.perf_counter()
    setup, engine = _last(run).evaluated(), run.engine
    if when == "after" and (mode := _last(run).start_mode()) is not None:
        current = export_weights(run.loaded, run.state.step)
        name = list(run.recipe.phase_recipes())[-1]
        start = PhaseStart.kept(mode, current, run.directory.path, name)
        if start is not None:
            setup, engine = start.added_to(setup), start.beside(engine, current)
    count = run.recipe.evaluation.questions
    found = run.measured(when, (setup, engine), run.source, "test", count)
    if found is None:
        return None
    taken = run.state.seconds.get("evaluation", 0.0) + time.perf_counter() - started
    run.state.seconds["evaluation"] = taken
    return measures_json(found)


def write_results(
    directory: RunDirectory,
    rows: Sequence[Mapping[str, Any]],
    after: Mapping[str, Any],
    state: RunState,
    setup: Setup,
) -> dict[str, float | str]:
    """Write results.json; return what a tracked run is summarised by.

    Args:
        directory: Of the run.
        rows: Of the table, see `results_table`.
        after: Measures on the test split at the end.
        state: Of the run.
        setup: What they were measured with.
    """
    directory.write_results(
        {
            "summary": in_words(rows, setup.headline),
            "headline": list(setup.headline),
            "table": rows,
            "measured": setup.described(),
            "before": state.before,
            "after": after,
            "exit_criteria": state.exit_criteria,
            "kept": state.kept,
            "held_out": state.held_out,
            "health": alarms_of(directory.metrics.rows()),
            "steps": state.step,
            "seconds": state.seconds,
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


def results_table(
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
    rows: Sequence[Mapping[str, Any]],
    after: Mapping[str, Any],
    seconds: Mapping[str, float],
    setup: Setup,
) -> None:
    """Print the table from before to after, how it was measured, and how long each part took."""
    table = Table(title="test split, the same questions before and after", box=SIMPLE_HEAD)
    table.add_column("measure")
    for column in ("questions", "before", "after", "change [95 %]"):
        table.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        change = f"{row['after']['mean'] - row['before']['mean']:+z.3f}"
        if paired := row.get("change"):
            values = [f"{paired[key]:+z.3f}" for key in ("difference", "low", "high")]
            change = f"{values[0]} [{values[1]}, {values[2]}]"
        ends = [f"{row[when]['mean']:.3f}" for when in ("before", "after")]
        table.add_row(row["measure"], f"{row['after']['questions']}", *ends, change)
    console = Console()
    for name, shown in setup.listed().items():
        if not rows and name in after:
            console.print(f"{shown}: {_shown(after[name])}", highlight=False)
    if rows:
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


def _shown(measure: Mapping[str, float]) -> str:
    return f"{measure['mean']:.3f} [{measure['low']:.3f}, {measure['high']:.3f}]"
