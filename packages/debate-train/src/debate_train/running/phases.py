"""The phases of a run, in order; a phase is rolled back if it made the policy worse."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from debate_train.checkpoints.policy_files import load_policy
from debate_train.checkpoints.trainer_state import load_random_states
from debate_train.errors import RunFailure
from debate_train.evaluation.measuring import measures_json
from debate_train.models.loaded_model import LoadedModel, export_weights, trained_adapters
from debate_train.playing.phase_start import FILE, PhaseStart
from debate_train.recipe import Recipe
from debate_train.running.loop import evaluate_dev, train
from debate_train.running.offline_phase import measure_held_out, open_examples, score_start
from debate_train.running.results import changes_of, print_results, results_table, write_results
from debate_train.running.run_context import (
    Phase,
    RunContext,
    Saving,
    StopReason,
    cpu_threads,
    open_phase,
)

DONE = 0
INTERRUPTED = 130


def run_phases(run: RunContext) -> int:
    """Run the incomplete phases, measure the policy, and compute the exit code."""
    phases = list(run.recipe.phase_recipes().items())
    state = run.state
    checkpoint = run.start
    if checkpoint is not None:
        load_policy(checkpoint, run.loaded)
        # A finished run may measure again at once, before any phase gives the engine weights.
        run.engine.load(export_weights(run.loaded, state.step))
        load_random_states(checkpoint)
        if state.phase == len(phases):
            run.progress.note("this run is finished: none of its phases trains more")
            run.begin()
            if run.directory.has_results:
                return DONE
    elif run.loaded.remote is not None:
        # The engine has no weights of its own to measure with before the first phase.
        run.engine.load(export_weights(run.loaded, state.step))
    for name, recipe in phases[state.phase :]:
        if _skips_later_phases(run):
            run.progress.note(f"{name}: skipped, as a phase before it missed its exit criterion")
            continue
        with cpu_threads(recipe):
            stop_reason = _run_phase(run, name, recipe, checkpoint)
        if stop_reason == "interrupted":
            return _note_interrupt(run)
        checkpoint = None
    # The last phase, too, may miss a criterion with `if_missed: fail`.
    _skips_later_phases(run)
    return DONE if _finish(run) else _note_interrupt(run)


def _run_phase(run: RunContext, name: str, recipe: Recipe, checkpoint: Path | None) -> StopReason:
    """Run a phase to the end, from the start or from a checkpoint within the phase."""
    state = run.state
    if _measures_test_split_before(run, name):
        state.before = _measure_test_split(run, "before")
        if state.before is None:
            return "interrupted"
    learner = replace(run.loaded, training=trained_adapters(recipe.model.lora, recipe.debate))
    trainer = recipe.trainer.open(learner, recipe.loss, recipe.steps)
    try:
        phase = open_phase(run, name, recipe, trainer)
        # The checkpoint at a phase's start is of the phase before, with another optimizer.
        if checkpoint is not None and state.step > state.phase_start:
            trainer.load(checkpoint)
            phase.rollouts.load(checkpoint)
            load_random_states(checkpoint)
        run.engine.load(trainer.weights(version=state.step))
        run.begin()

        is_new = checkpoint is None or state.step == state.phase_start
        phase = replace(phase, start=_open_phase_start(run, phase, is_new=is_new))
        saving = Saving(run, phase)
        if is_new and not _save_start(run, phase, saving):
            return "interrupted"
        if name in state.starts:
            start_step, start_means = state.starts[name]
            if start_step == state.phase_start:
                saving.monitor.know_start(start_means)
        examples = None
        if recipe.offline is not None and (recipe.steps or recipe.exit_criterion is not None):
            examples = open_examples(run, phase)
            if examples is None:
                return "interrupted"
            score_start(run, phase, examples)

        run.progress.start(name, recipe.steps)
        # keep_if decides within: a failure of its evaluation must not lose the last steps.
        with saving.checkpoint_on_failure():
            stop_reason = train(run, phase, saving, examples)
            is_interrupted = stop_reason == "interrupted"
            is_kept = None if is_interrupted else decide_keeping(run, phase, saving)
            if is_kept is None:
                saving.checkpoint_if_new()
                return "interrupted"
            run.engine.load(trainer.weights(version=state.step))
            if examples is not None:
                measure_held_out(run, phase, examples)
        _note_exit(run, phase, stop_reason)
        if not is_kept:
            phase = roll_back(run, phase, learner)
            trainer = phase.trainer
            run.engine.load(trainer.weights(version=state.step))
            saving.follow(phase)

        # The checkpoint after a phase belongs to the next: its steps and baselines begin at zero.
        state.starts.pop(name, None)
        state.phase += 1
        state.phase_start = state.step
        state.baselines = {}
        saving.checkpoint()
        return stop_reason
    finally:
        trainer.close()


def measure_starts(run: RunContext, phase: Phase) -> bool:
    """Measure the dev split for each phase with a `keep_if` about this phase's start.

    The measures are no row of metrics, because these rows belong to steps.

    Returns:
        False where a signal stopped it.
    """
    state = run.state
    for later_phase, recipe in run.recipe.phase_recipes().items():
        rule = recipe.keep_if
        if rule is None or later_phase in state.starts:
            continue
        if (rule.since or later_phase) != phase.name:
            continue
        with phase.rollouts.serving(version=state.step) as engine:
            measures = run.measured(
                "start",
                (recipe.evaluated(), engine),
                phase.source,
                "dev",
                recipe.evaluation.questions,
            )
        if measures is None:
            return False
        means = measures.means()
        state.starts[later_phase] = (state.step, means)
        value = _format_mean(means, rule.metric)
        run.progress.note(
            f"{phase.name} {state.step}: dev split: {rule.metric} {value} at its start"
        )
    return True


def decide_keeping(run: RunContext, phase: Phase, saving: Saving) -> bool | None:
    """Decide by `keep_if` whether an ended phase is kept, and note it; `None` after a signal."""
    state = run.state
    rule = phase.recipe.keep_if
    if rule is None:
        return True
    if phase.name not in state.starts:
        run.progress.note(
            f"warning: {phase.name}: kept, as keep_if was not in the recipe when it began"
        )
        return True
    # The last step may have had an evaluation anyway.
    is_measured = state.last_eval is not None and state.last_eval[:2] == (phase.name, state.step)
    if not is_measured and not evaluate_dev(run, phase, saving):
        return None
    assert state.last_eval is not None
    start_step, start_means = state.starts[phase.name]
    end_means = state.last_eval[2]
    is_kept = rule.keeps(start_means, end_means)
    state.kept[phase.name] = is_kept

    allowed = f" (may fall by {rule.tolerance:g})" if rule.tolerance else ""
    outcome = "kept" if is_kept else f"NOT KEPT: the weights of step {start_step} come back"
    run.progress.note(
        f"{phase.name}: {rule.metric} {_format_mean(end_means, rule.metric)}, "
        f"at the start of {rule.since or phase.name} "
        f"{_format_mean(start_means, rule.metric)}{allowed}: {outcome}"
    )
    return is_kept


def _format_mean(means: Mapping[str, float], metric: str) -> str:
    value = means.get(metric)
    return "no case" if value is None else f"{value:.3f}"


def roll_back(run: RunContext, phase: Phase, learner: LoadedModel) -> Phase:
    """Load the weights compared by `keep_if`, and open a trainer without other state.

    The optimizer may begin again: the next phase opens a new optimizer in any case.
    """
    state = run.state
    recipe = phase.recipe
    start_step, _ = state.starts[phase.name]
    phase.trainer.close()
    load_policy(run.checkpoints.at(start_step), run.loaded)
    if state.best is not None and state.best.step == state.step:
        state.best = None  # Its checkpoint will have other weights than were measured.
    return replace(phase, trainer=recipe.trainer.open(learner, recipe.loss, recipe.steps))


def _save_start(run: RunContext, phase: Phase, saving: Saving) -> bool:
    """Save the start of a phase for a rollback; False after a signal."""
    if not measure_starts(run, phase):
        return False
    may_come_back = any(step == run.state.step for step, _ in run.state.starts.values())
    # Later phases start where the one before wrote a checkpoint; the first has none yet.
    if may_come_back and not saving.has_checkpoint():
        saving.note_random_states()
        saving.checkpoint()
    return True


def _open_phase_start(run: RunContext, phase: Phase, *, is_new: bool) -> PhaseStart | None:
    """Write or read the weights for the comparison of self-play; `None` for phases without them."""
    mode = phase.recipe.start_mode()
    folder = run.directory.path
    if mode is None:
        return None
    weights = phase.trainer.weights(version=run.state.phase_start)
    if is_new:
        return PhaseStart.begun(mode, weights, folder, phase.name)
    start = PhaseStart.kept(mode, weights, folder, phase.name)
    if start is None:
        run.progress.note(
            f"warning: {folder / FILE} is not as this phase has written it: it is no more measured "
            "against its start"
        )
    return start


def _note_exit(run: RunContext, phase: Phase, stop_reason: StopReason) -> None:
    """Record and print whether a phase met the exit criterion."""
    state = run.state
    criterion = phase.recipe.exit_criterion
    if criterion is None or state.last_eval is None:
        return
    is_met = stop_reason == "criterion met"
    state.exit_criteria[phase.name] = is_met
    run.progress.note(
        f"{phase.name}: exit criterion {'met' if is_met else 'MISSED'} after "
        f"{state.step - state.phase_start} steps: {criterion.compared(state.last_eval[2])}"
    )


def _skips_later_phases(run: RunContext) -> bool:
    """Whether a phase missed an exit criterion with `if_missed: skip_rest`.

    Raises:
        RunFailure: A phase missed an exit criterion with `if_missed: fail`.
    """
    phases = run.recipe.phase_recipes()
    skips = False
    for name, is_met in run.state.exit_criteria.items():
        criterion = phases[name].exit_criterion
        # A resumed run may have lost the criterion from its recipe.
        if is_met or criterion is None:
            continue
        if criterion.if_missed == "fail":
            raise RunFailure(
                f"phase {name} missed its exit criterion, and exit_criterion.if_missed is fail: "
                "the run ends; its last checkpoint has the weights of that phase"
            )
        skips = skips or criterion.if_missed == "skip_rest"
    return skips


def _measures_test_split_before(run: RunContext, phase_name: str) -> bool:
    """Whether the test split is measured now, before this phase, for the table of results."""
    phase_names = list(run.recipe.phase_recipes())
    before = run.recipe.evaluation.before
    if before is False or run.recipe.evaluation.questions == 0 or run.state.before is not None:
        return False
    measured_phase = before if before in phase_names else phase_names[-1]
    return phase_name == measured_phase


def _measure_test_split(run: RunContext, when: str) -> dict[str, Any] | None:
    """Measure the policy on the test split; `None` after a signal."""
    run.progress.start(f"test split {when}")
    began = time.perf_counter()
    state = run.state
    last_phase, recipe = list(run.recipe.phase_recipes().items())[-1]
    setup = recipe.evaluated()
    engine = run.engine
    # After self-play the policy is also measured against the last phase's start.
    mode = recipe.start_mode()
    if when == "after" and mode is not None:
        current = export_weights(run.loaded, state.step)
        start = PhaseStart.kept(mode, current, run.directory.path, last_phase)
        if start is not None:
            setup = start.added_to(setup)
            engine = start.beside(engine, current)
    num_questions = run.recipe.evaluation.questions
    measures = run.measured(when, (setup, engine), run.source, "test", num_questions)
    if measures is None:
        return None
    earlier_seconds = state.seconds.get("evaluation", 0.0)
    state.seconds["evaluation"] = earlier_seconds + time.perf_counter() - began
    return measures_json(measures)


def _finish(run: RunContext) -> bool:
    """Measure the trained policy and write the results; False where a signal stops it."""
    state = run.state
    run.begin()
    if run.recipe.evaluation.questions == 0:
        return True
    after = _measure_test_split(run, "after")
    if after is None:
        return False
    if run.recipe.evaluation.before is False:
        state.before = {}
    elif state.before is None:  # A missed exit criterion skipped the phase before which it is due.
        state.before = after
    setup = list(run.recipe.phase_recipes().values())[-1].evaluated()
    # Without a measurement before, no figure has changed.
    changes = {}
    if state.before is not after:
        changes = changes_of(run.directory, list(setup.listed()))
    rows = results_table(state.before or {}, after, setup, changes)
    run.tracker.summarise(write_results(run.directory, rows, after, state, setup))
    run.progress.close()
    print_results(rows, after, setup)
    return True


def _note_interrupt(run: RunContext) -> int:
    """Print where `--resume` goes on, and return the exit code."""
    checkpoints = run.checkpoints.complete()
    if checkpoints:
        step = int(checkpoints[-1].name.removeprefix("step-"))
        run.progress.note(f"interrupted; go on from step {step} with --resume")
    else:
        run.progress.note("interrupted before the first step was complete; --resume begins again")
    return INTERRUPTED
