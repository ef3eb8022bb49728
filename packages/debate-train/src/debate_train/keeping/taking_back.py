"""Measuring the dev split where phases begin, and taking back what made it worse."""

from dataclasses import replace

from debate_train.checkpointing.policy_files import load_policy
from debate_train.evaluation.measuring import evaluate
from debate_train.models.loaded_model import LoadedModel
from debate_train.recorded.evaluations import keep_evaluation
from debate_train.running.loop import evaluate_dev
from debate_train.running.run_context import Phase, RunContext
from debate_train.running.saving import Saving


def measure_starts(run: RunContext, phase: Phase) -> bool:
    """Measure the dev split for the phases that are kept by what it is at this phase's start.

    It is no row of metrics, which are of steps.

    Returns:
        False where a signal stopped it.
    """
    state, watch = run.state, run.progress.watch
    for keeper, recipe in run.recipe.phase_recipes().items():
        rule = recipe.keep_if
        is_now = rule is not None and (rule.since or keeper) == phase.name
        if rule is None or not is_now or keeper in state.starts:
            continue
        setup, questions = (
            recipe.evaluated(),
            phase.source.split("dev", recipe.evaluation.questions),
        )
        with phase.rollouts.serving(version=state.step) as engine:
            found = run.interrupts.stoppable(
                lambda setup=setup, engine=engine, questions=questions: evaluate(  # type: ignore[misc]
                    setup, engine, questions, "dev", watch
                )
            )
        if found is None:
            return False
        kept = run.recipe.recording.debates > 0
        keep_evaluation(run.directory, "start", state.step, found, with_debates=kept)
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
    is_measured = (state.looked or ("", 0))[:2] == (phase.name, state.step)
    if not is_measured and not evaluate_dev(run, phase, saving):
        return None
    assert state.looked is not None
    (step, before), after = state.starts[phase.name], state.looked[2]
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


def taken_back(run: RunContext, phase: Phase, learner: LoadedModel) -> Phase:
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
