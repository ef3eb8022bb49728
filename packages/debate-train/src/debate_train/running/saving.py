"""What is kept of complete steps: their metrics and checkpoints, also of a run that fails."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import fmean, pstdev

import numpy as np
import torch
from torch import Tensor

from debate_protocol.types import roles_by_agent
from debate_rewards.metrics import debate_metrics
from debate_train.batches.row_types import Row
from debate_train.batches.rows import PER_TOKEN, Step
from debate_train.checkpointing.tensor_files import (
    RandomStates,
    random_states,
    save_random_states,
)
from debate_train.interrupts import RunFailure
from debate_train.losses import gradient_shares
from debate_train.monitoring.detectors import Due, Facts
from debate_train.monitoring.health import HealthWatch
from debate_train.monitoring.throughput import Speed, peak_memory_gib, timed
from debate_train.recipe import Recipe
from debate_train.running.paper_metrics import paper_metrics
from debate_train.running.run_context import Phase, RunContext, StepEnd, is_due
from debate_train.running.run_records import credit_of, write_credit
from debate_train.trainers.processes import own_place

_log = logging.getLogger(__name__)


def step_metrics(step: Step, recipe: Recipe, seconds: float) -> tuple[dict[str, float], str | None]:
    """Return all metrics of a step, and what kept some of them from being measured, if anything.

    Args:
        step: one that was trained: what cannot be measured of it must not undo that.
        recipe: its phase's.
        seconds: its wall time.
    """
    try:
        return _measured(step, recipe, seconds), None
    except Exception as error:
        # Of any kind, as rewards and metrics of others run here, too: the update is made, and a
        # run of days is worth more than one row. The row counts it and the display says it.
        _log.debug("step %d is not measured", step.number + 1, exc_info=True)
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        found = {"time/step_s": seconds, "failures/metrics": 1.0}
        return found | step.metrics, problem


def _measured(step: Step, recipe: Recipe, seconds: float) -> dict[str, float]:
    whole_step = {"time/step_s": seconds, "memory/peak_gib": peak_memory_gib()}
    if recipe.offline is not None and not step.transcripts:  # Of examples: nothing was played.
        return whole_step | gradient_shares(step.batch, recipe.loss) | step.metrics
    every = [turn.token_counts for x in step.transcripts for turn in x.sampled_turns()]
    counts = [found for found in every if found is not None]
    turns = max(1, len(counts))
    prompts, sampled = (sum(column) for column in zip(*counts, strict=True)) if counts else (0, 0)
    debates = len(step.transcripts)
    agents = recipe.debate.num_agents
    returns = [value for s in step.scores for value in s.agents if value is not None]
    mixed = [len({v for v in s.agents if v is not None}) > 1 for s in step.scores]
    demonstrated = not recipe.rollout.engine.is_sampled
    played = zip(step.transcripts, step.scores, strict=True)
    whole = [(debate, score) for debate, score in played if debate.protocol.num_agents == agents]
    held, scores = [debate for debate, _ in whole], [score for _, score in whole]
    watched = {} if demonstrated else debate_metrics(held, scores=scores)
    metrics = mean_metrics([score.metrics for score in step.scores])
    for name, value in watched.items():
        metrics[name if name.startswith(("judge/", "reward/")) else f"train/{name}"] = value
    metrics |= {
        "env/all/ac_tokens_per_turn": sampled / turns,
        "env/all/ob_tokens_per_turn": prompts / turns,
        "env/all/turns_per_episode": turns / max(1, debates),
        "env/all/total_episodes": float(debates),
        "env/all/total_turns": float(turns),
        "env/all/by_group/frac_mixed": fmean(mixed) if mixed else 0.0,
        **whole_step,
    }
    replies = [turn.reply for x in step.transcripts for turn in x.sampled_turns()]
    ends = [reply.finish for reply in replies if reply is not None]
    if ends:
        metrics["rollout/truncated_fraction"] = ends.count("length") / len(ends)
    if step.batch.turns:  # Turns without tokens, such as those that found no room, have no rows.
        metrics["rollout/merged_turn_fraction"] = 1 - len(step.batch.rows) / step.batch.turns
    if not demonstrated:
        metrics |= staleness(step) | paper_metrics(
            step.transcripts, step.batch.rows, watched, recipe.data.dataset, agents
        )
    if lengths := [sampled for _, sampled in counts]:
        metrics |= {
            "tokens_per_s": sampled / seconds,
            "rollout/reply_tokens_max": float(max(lengths)),
            "rollout/reply_tokens_min": float(min(lengths)),
        }
    metrics |= role_rewards(step)
    if returns:
        metrics["reward/std"] = pstdev(returns)
        metrics["reward/total"] = metrics["env/all/reward/total"] = fmean(returns)
    return metrics | gradient_shares(step.batch, recipe.loss) | step.metrics


def role_rewards(step: Step) -> dict[str, float]:
    """Return the mean return of each role's agents; nothing where all agents are equals.

    Where a policy plays against another, the mean over both says nothing about either.
    """
    earned: dict[str, list[float]] = {}
    for transcript, score in zip(step.transcripts, step.scores, strict=True):
        roles = roles_by_agent(transcript.protocol)
        if len(transcript.protocol.roles) > 1:
            for role, value in zip(roles, score.agents, strict=False):
                if value is not None:
                    earned.setdefault(role.name, []).append(value)
    return {f"reward/role/{name}": fmean(values) for name, values in earned.items()}


def staleness(step: Step) -> dict[str, float]:
    """Return how many steps older than the policy the weights were that sampled its tokens."""
    ages = [step.number - row.versions[row.mask > 0] for row in step.batch.rows]
    found = np.concatenate([np.zeros(0), *ages])
    if not len(found):
        return {}
    return {
        "rollout/staleness_mean": float(found.mean()),
        "rollout/staleness_max": float(found.max()),
    }


def mean_metrics(found: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over the debates that have it."""
    names = dict.fromkeys(name for metrics in found for name in metrics)
    return {name: fmean(m[name] for m in found if name in m) for name in names}


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
    longest = max(len(row) for row in rows)
    kept = {}
    for name, (fill, dtype) in PER_TOKEN.items():
        padded = np.full((len(rows), longest), fill, dtype)
        for b, row in enumerate(rows):
            padded[b, : len(row)] = getattr(row, name)
        kept[f"{name}_BT"] = torch.from_numpy(padded)
    return kept


def facts_of(phase: Recipe) -> Facts:
    """Return what the health watch and preflight need to know of a phase."""
    needed = [part.needed() for part in phase.reward.parts().values()]
    votes, judge = any("votes" in one for one in needed), phase.advantage.streams.get("judge")
    return Facts(
        agents=phase.debate.num_agents,
        several_updates=phase.trainer.makes_several,
        keeps_start=phase.loss.reference_policy == "phase_start",
        debates=phase.rollout.debates_per_question,
        questions=phase.evaluation.questions,
        pairs=phase.loss.learns_from == "pairs",
        imitates=phase.loss.learns_from == "demonstrations",
        votes=votes,
        peers_alone=votes and not any("answers" in one for one in needed),
        judges_learn="judge" in phase.reward.streams and judge is not None and judge.weight > 0,
        merges_turns=(
            getattr(phase.debate, "conversation", "") == "append" and phase.debate.max_rounds > 1
        ),
    )


class Saving:
    """Writes the metrics and the checkpoints of a phase, each of its last complete step.

    A step is complete once its update is made. What is recorded of it afterwards is recorded
    before a checkpoint of it is written, or carried by that.
    """

    def __init__(self, run: RunContext, phase: Phase) -> None:
        self._run, self._phase, self._state = run, phase, run.state
        self._counted, self._saved_at = time.perf_counter(), time.monotonic()
        self._saved = run.state.step
        self._random: RandomStates | None = None
        self._unrecorded: Step | None = None
        self._seconds: dict[str, float] = {}
        """Of checkpoints since the last step."""
        self._speed = Speed.of(phase.recipe, run.loaded.model, own_place().size)
        rows, watched = run.directory.metrics(), phase.recipe
        self.watch = HealthWatch(
            phase.name, watched.health, facts_of(watched), rows, run.state.phase_start
        )

    def follow(self, phase: Phase) -> None:
        """Save the trainer of this phase from now on, which is the same phase with another one."""
        self._phase = phase

    def has_checkpoint(self) -> bool:
        """Return whether the last complete step has a checkpoint."""
        return any(
            path.name == f"step-{self._state.step:06d}" for path in self._run.checkpoints.complete()
        )

    def note_random_states(self) -> None:
        """Note the random states that a checkpoint of the last complete step is to hold."""
        self._random = random_states()

    def complete(self, step: Step) -> None:
        """Count a step whose update is made: from here on a checkpoint may hold it."""
        state = self._state
        self._unrecorded = step
        state.step, state.baselines = step.number + 1, dict(step.baselines)
        state.owes_look = self._phase.evaluation_is_due(state.step - state.phase_start)
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
        self._unrecorded = None  # A row that cannot be written is carried by a checkpoint.
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

    def log_look(self, found: dict[str, float], more: dict[str, float]) -> None:
        """Write the measures of a look at the dev split, and what the display has no room for."""
        recipe = self._phase.recipe
        asked = [name for name, _ in recipe.exit_criterion.wanted] if recipe.exit_criterion else []
        listed = dict.fromkeys([*recipe.evaluated().listed(), *asked])
        shown = "  ".join(
            f"{name.removeprefix('eval/')} {found[name]:.3f}" for name in listed if name in found
        )
        alarms, where = (
            self._write(more | found, "evaluation"),
            f"{self._phase.name} {self._state.step}",
        )
        for line in (f"{where}: dev split: {shown}", *alarms):
            self._run.progress.note(line)

    def _write(self, found: dict[str, float], due: Due, made: Step | None = None) -> list[str]:
        """Write a row with what the health watch adds to it; return its new alarms."""
        run, name, step = self._run, self._phase.name, self._state.step
        more, alarms = self.watch.see(step, found, due)
        run.directory.log(name, step, found | more)
        run.tracker.log(name, step, found | more, made)
        return alarms

    def is_due(self) -> bool:
        """Return whether the recipe asks for a checkpoint, or the best policy is in none."""
        wanted, state = self._phase.recipe.checkpoint, self._state
        is_old = 0 < wanted.every_minutes <= (time.monotonic() - self._saved_at) / 60
        is_best = state.best is not None and state.best.step == state.step != self._saved
        return is_due(wanted.every, state.step - state.phase_start) or is_old or is_best

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
                with suppress(RunFailure):  # What cannot be written is carried by the checkpoint.
                    self.log()
            self.checkpoint()
        except Exception as error:
            note(f"no checkpoint of step {step}: {error}")
        else:
            note(f"a checkpoint of step {step} is written; go on with --resume")
