"""The training loop: play, score, batch, update, refresh, log; evaluate, save and stop when due."""

import time
import zlib

from debate_rewards.reward import score_debates
from debate_train.batches.rows import Step, build_batch
from debate_train.evaluation.measuring import evaluate
from debate_train.monitoring.progress import timed
from debate_train.offline.example_set import Imitation, PhaseExamples
from debate_train.playing import metrics_of
from debate_train.running.run_context import Phase, RunContext, Saving, StopReason, keep_sample
from debate_train.running.run_records import keep_evaluation


def train(
    run: RunContext, phase: Phase, saving: Saving, examples: PhaseExamples | None = None
) -> StopReason:
    """Train a phase from where the run is until it ends or a signal stops it; return why.

    What fails raises; `saving` then has the last complete step. With `examples` steps learn from
    these in the place of debates.
    """
    recipe, state, trainer, rollouts = phase.recipe, run.state, phase.trainer, phase.rollouts
    contract, is_sampled = str(recipe.debate.contract_rules()), recipe.rollout.engine.is_sampled
    imitates = recipe.loss.learns_from == "demonstrations"
    imitation = Imitation(contract, is_demonstrated=not is_sampled) if imitates else None
    with rollouts.open():
        saving.note_random_states()
        if phase.owes_evaluation(state) and evaluate_dev(run, phase, saving):
            saving.checkpoint()  # The run had been stopped between a step and its evaluation.
        while (ended := why_stop(run, phase)) is None:
            number, began = state.step, time.perf_counter()
            if examples is None:
                step = played(run, phase, imitation, number, began)
            else:
                assert recipe.offline is not None
                size, place = recipe.offline.batch_size, number - state.phase_start
                step = examples.step(number, place, size, recipe.seed)
            keep_sample(run, phase, step)
            with run.interrupts.guarded():  # An update that has begun ends, and counts.
                step.metrics.update(trainer.step(step.batch) | rollouts.times)
                rollouts.complete(number)
                saving.complete(step)
            with timed(step.metrics, "weights"):
                rollouts.refresh(version=state.step)
            saving.log()
            if state.eval_pending and not run.interrupts.asked:
                evaluate_dev(run, phase, saving)
            saving.note_random_states()
            phase.refuse_endless_skips(step)
            saving.watch.refuse_alarms()
            if saving.is_due() and phase.ended(state) is None:  # Its end has one of its own.
                saving.checkpoint()
        if ended == "interrupted":
            saving.checkpoint_if_new()
    return ended


def played(
    run: RunContext, phase: Phase, imitation: Imitation | None, number: int, began: float
) -> Step:
    """Return what a step learns from: its debates are played, scored and made into rows."""
    recipe, rollouts, advantage = phase.recipe, phase.rollouts, phase.recipe.advantage
    transcripts = rollouts.take(number)
    with timed(rollouts.times, "score"):
        scores = score_debates(phase.reward_at(number - run.state.phase_start), transcripts)
    with timed(rollouts.times, "rows"):
        compared = advantage.compute(transcripts, scores, run.state.baselines)
        seed = zlib.crc32(f"{recipe.seed}/minibatches/{number}".encode())
        taught = compared.trained_turns(transcripts)
        batch = build_batch(taught, compared.turns, advantage.streams, run.loaded.tokenizer, seed)
        batch, counts = (batch, {}) if imitation is None else imitation.fit(transcripts, batch)
    metrics = counts | compared.metrics(transcripts) | metrics_of(transcripts)
    return Step(number, transcripts, scores, batch, metrics, compared.baselines, began)


def why_stop(run: RunContext, phase: Phase) -> StopReason | None:
    """Return why no further step is made, None if one is."""
    return "interrupted" if run.interrupts.asked else phase.ended(run.state)


def evaluate_dev(run: RunContext, phase: Phase, saving: Saving) -> bool:
    """Measure the policy on the dev split and log it; False where a signal stopped that."""
    state, watch = run.state, run.progress.watch
    with phase.rollouts.serving(version=state.step) as serving:
        played = phase.evaluated(serving, state.step)
        measured = run.interrupts.stoppable(
            lambda: [evaluate(*played, asked, "dev", watch) for asked in phase.dev_splits(run)]
        )
    if measured is None:
        return False
    kept = phase.recipe.recording.debates > 0
    keep_evaluation(run.directory, "dev", state.step, measured[0], with_debates=kept)
    means = [one.means() for one in measured]
    found, target = means[0], phase.on_target(means)
    state.last_eval, state.eval_pending = (phase.name, state.step, found), False
    run.note_best(found)
    saving.log_eval(found | target, measured[0].votes())
    return True
