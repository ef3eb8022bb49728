"""The training loop: play, score, batch, update, refresh, log; evaluate, save and stop when due."""

import time
import zlib

from debate_rewards.reward import score_debates
from debate_train.batches.rows import Step, build_batch
from debate_train.evaluation.measuring import evaluate
from debate_train.losses import divide_gradient
from debate_train.monitoring.progress import timed
from debate_train.offline.example_set import Imitation, PhaseExamples
from debate_train.playing import metrics_of
from debate_train.running.run_context import Phase, RunContext, Saving, StopReason, keep_sample
from debate_train.running.run_records import keep_evaluation


def train(
    run: RunContext, phase: Phase, saving: Saving, examples: PhaseExamples | None = None
) -> StopReason:
    """Train a phase from the run's last step until it ends or a signal stops it.

    After an error `saving` has the last complete step. With `examples` steps learn from these in
    the place of debates.
    """
    recipe = phase.recipe
    state = run.state
    rollouts = phase.rollouts
    trainer = phase.trainer
    imitation = None
    if recipe.loss.learns_from == "demonstrations":
        imitation = Imitation(
            str(recipe.debate.contract_rules()),
            is_demonstrated=not recipe.rollout.engine.is_sampled,
        )
    with rollouts.open():
        saving.note_random_states()
        if phase.evaluation_is_pending(state) and evaluate_dev(run, phase, saving):
            saving.checkpoint()  # The run had been stopped between a step and its evaluation.
        while (stop_reason := why_stop(run, phase)) is None:
            number = state.step
            began = time.perf_counter()
            if examples is None:
                step = play_and_score(run, phase, imitation, number, began)
            else:
                assert recipe.offline is not None
                step_of_phase = number - state.phase_start
                step = examples.step(number, step_of_phase, recipe.offline.batch_size, recipe.seed)

            # Before the update: a step that cannot be recorded must not change the weights.
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
            # Evaluation draws random numbers, too: a resumed run goes on with the states after it.
            saving.note_random_states()
            phase.refuse_endless_skips(step)
            saving.monitor.refuse_alarms()
            # The end of a phase has a checkpoint of its own.
            if saving.is_due() and phase.ended(state) is None:
                saving.checkpoint()
        if stop_reason == "interrupted":
            saving.checkpoint_if_new()
    return stop_reason


def play_and_score(
    run: RunContext, phase: Phase, imitation: Imitation | None, number: int, began: float
) -> Step:
    """Play the debates of a step, score them and build their rows."""
    rollouts = phase.rollouts
    advantage = phase.recipe.advantage
    transcripts = rollouts.take(number)
    times = rollouts.times  # `take` begins new ones.
    with timed(times, "score"):
        reward = phase.reward_at(number - run.state.phase_start)
        scores = score_debates(reward, transcripts)
    counts: dict[str, float] = {}
    with timed(times, "rows"):
        advantages = advantage.compute(transcripts, scores, run.state.baselines)
        batch = build_batch(
            advantages.trained_turns(transcripts),
            advantages.turns,
            advantage.streams,
            run.loaded.tokenizer,
            seed=zlib.crc32(f"{phase.recipe.seed}/minibatches/{number}".encode()),
        )
        batch = divide_gradient(batch, phase.recipe.loss, advantage.shares)
        if imitation is not None:
            batch, counts = imitation.fit(transcripts, batch)
    return Step(
        number=number,
        transcripts=transcripts,
        scores=scores,
        batch=batch,
        metrics=counts | advantages.metrics(transcripts) | metrics_of(transcripts),
        baselines=advantages.baselines,
        began=began,
    )


def why_stop(run: RunContext, phase: Phase) -> StopReason | None:
    """Find the reason to make no further step; `None` to go on."""
    return "interrupted" if run.interrupts.asked else phase.ended(run.state)


def evaluate_dev(run: RunContext, phase: Phase, saving: Saving) -> bool:
    """Measure the policy on the dev split and log it; False after a signal."""
    state = run.state
    with phase.rollouts.serving(version=state.step) as serving:
        setup, engine = phase.evaluated(serving, state.step)
        measures = run.interrupts.stoppable(
            lambda: [
                evaluate(setup, engine, questions, "dev", run.progress.watch)
                for questions in phase.dev_splits(run)
            ]
        )
    if measures is None:
        return False
    # The first split is the phase's own; a second one is the recipe's, for `evaluation.target`.
    phase_measures = measures[0]
    with_debates = phase.recipe.recording.debates > 0
    keep_evaluation(run.directory, "dev", state.step, phase_measures, with_debates=with_debates)
    means = [split_measures.means() for split_measures in measures]
    state.last_eval = (phase.name, state.step, means[0])
    state.eval_pending = False
    run.note_best(means[0])
    saving.log_eval(means[0] | phase.target_means(means), phase_measures.votes())
    return True
