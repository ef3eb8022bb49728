"""What is kept of each step: its metrics, and now and then a sample of its debates."""

import logging
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

import numpy as np
import torch
from torch import Tensor

from debate_protocol.roles import roles_by_agent
from debate_rewards.metrics.debate_metrics import debate_metrics
from debate_train.batches.row_types import Row
from debate_train.batches.rows import PER_TOKEN
from debate_train.losses.diagnostics import gradient_shares
from debate_train.recipe import Recipe
from debate_train.recorded.credit import credit_of, write_credit
from debate_train.run_files.paper_metrics import paper_metrics
from debate_train.running.run_context import Phase, RunContext, is_due
from debate_train.running.step import Step
from debate_train.timing import peak_memory_gib

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
