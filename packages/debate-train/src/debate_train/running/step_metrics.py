"""Metrics of a step, by the papers' names."""

import logging
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

import numpy as np

from debate_protocol.parsing import free_answer, get_contract
from debate_protocol.prompts import answer_form
from debate_protocol.types import Transcript, Turn, roles_by_agent
from debate_rewards.answer_rewards import turn_verdicts
from debate_rewards.decisions import last_turns
from debate_rewards.metrics import debate_metrics
from debate_rewards.reward import ReadDebate, read_debate
from debate_train.batches.row_types import Row
from debate_train.batches.rows import Step
from debate_train.losses import gradient_shares
from debate_train.monitoring.figures import Facts
from debate_train.monitoring.throughput import peak_memory_gib
from debate_train.recipe import Recipe

# Metrics of answers that papers report for the training set.
_ANSWER_METRICS = ("correct", "pass@k", "avg@k", "cons@k")

_log = logging.getLogger(__name__)


def step_metrics(step: Step, recipe: Recipe, seconds: float) -> tuple[dict[str, float], str | None]:
    """Compute all metrics of a step, and describe the problem if some cannot be measured.

    Args:
        step: a step after the update; no failure here may undo the update.
        recipe: of the step's phase.
        seconds: wall time of the step.
    """
    try:
        return _measure_step(step, recipe, seconds), None
    except Exception as error:
        # Of any kind, as rewards and metrics of others run here, too: the update is made, and a
        # run of days is worth more than one row. The row counts it and the display says it.
        _log.debug("step %d is not measured", step.number + 1, exc_info=True)
        problem = f"{type(error).__name__}: {error}".splitlines()[0]
        metrics = {"time/step_s": seconds, "failures/metrics": 1.0}
        return metrics | step.metrics, problem


def _measure_step(step: Step, recipe: Recipe, seconds: float) -> dict[str, float]:
    resources = {"time/step_s": seconds, "memory/peak_gib": peak_memory_gib()}
    if recipe.offline is not None and not step.transcripts:  # Of examples: nothing was played.
        return resources | gradient_shares(step.batch, recipe.loss) | step.metrics

    # Single replies beside the debates have fewer agents, and are no debates: they would count as
    # first rounds.
    num_agents = recipe.debate.num_agents
    debates = []
    scores = []
    for transcript, score in zip(step.transcripts, step.scores, strict=True):
        if transcript.protocol.num_agents == num_agents:
            debates.append(transcript)
            scores.append(score)
    # A script's replies say nothing about the policy.
    is_demonstrated = not recipe.rollout.engine.is_sampled
    debate_figures = {} if is_demonstrated else debate_metrics(debates, scores=scores)
    metrics = mean_metrics([score.metrics for score in step.scores])
    for name, value in debate_figures.items():
        has_group = name.startswith(("judge/", "reward/"))
        metrics[name if has_group else f"train/{name}"] = value

    # Turns and tokens. Imported transcripts count no tokens, and their turns count for nothing.
    sampled_turns: list[Turn] = []
    for transcript in step.transcripts:
        sampled_turns += transcript.sampled_turns()
    token_counts = [turn.token_counts for turn in sampled_turns if turn.token_counts is not None]
    reply_lengths = [num_sampled for _, num_sampled in token_counts]
    num_prompt_tokens = sum(num_prompt for num_prompt, _ in token_counts)
    num_sampled_tokens = sum(reply_lengths)
    num_turns = max(1, len(token_counts))
    # A debate with equal returns teaches nothing under a baseline of its own agents.
    returns_vary = []
    returns = []
    for score in step.scores:
        agent_returns = [value for value in score.agents if value is not None]
        returns_vary.append(len(set(agent_returns)) > 1)
        returns += agent_returns
    dropped_tokens = step.metrics.get("sampling/dropped_tokens", 0.0)
    metrics |= {
        "env/all/ac_tokens_per_turn": num_sampled_tokens / num_turns,
        "env/all/ob_tokens_per_turn": num_prompt_tokens / num_turns,
        "env/all/turns_per_episode": num_turns / max(1, len(step.transcripts)),
        "env/all/total_episodes": float(len(step.transcripts)),
        "env/all/total_turns": float(num_turns),
        "env/all/sampled_tokens": num_sampled_tokens + dropped_tokens,
        "env/all/by_group/frac_mixed": fmean(returns_vary) if returns_vary else 0.0,
        **resources,
    }
    finishes = [turn.reply.finish for turn in sampled_turns if turn.reply is not None]
    if finishes:
        metrics["rollout/truncated_fraction"] = finishes.count("length") / len(finishes)
    if step.batch.turns:  # Turns without tokens, such as those that found no room, have no rows.
        metrics["rollout/merged_turn_fraction"] = 1 - len(step.batch.rows) / step.batch.turns

    if not is_demonstrated:
        metrics |= staleness(step)
        metrics |= paper_metrics(
            step.transcripts, step.batch.rows, debate_figures, recipe.data.dataset, num_agents
        )
    if reply_lengths:
        metrics["tokens_per_s"] = num_sampled_tokens / seconds
        metrics["rollout/reply_tokens_max"] = float(max(reply_lengths))
        metrics["rollout/reply_tokens_min"] = float(min(reply_lengths))
    metrics |= role_rewards(step)
    if returns:
        mean_return = fmean(returns)
        metrics["reward/std"] = pstdev(returns)
        metrics["reward/total"] = mean_return
        metrics["env/all/reward/total"] = mean_return
    # The trainer's own metrics come last: they are measured, not derived.
    return metrics | gradient_shares(step.batch, recipe.loss) | step.metrics


def paper_metrics(
    transcripts: Sequence[Transcript],
    rows: Sequence[Row],
    debate_figures: Mapping[str, float],
    dataset: str,
    num_agents: int,
) -> dict[str, float]:
    """Compute the metrics of a step's debates, under the names of papers.

    Args:
        transcripts: The debates of a step, single-turn replies beside them included.
        rows: The trained rows of the step, with advantages.
        debate_figures: `debate_rewards.metrics.debate_metrics` of the debates.
        dataset: The name of the data, in `train_{dataset}/…`.
        num_agents: Of a debate; a transcript of fewer is a single reply beside the debates.

    Source: Tinker debate note, section 3.1 (`train_…`); exact formulation, "Per-step env metrics";
    SDRL (paper), Figure 4.
    """
    metrics = {}
    for name in _ANSWER_METRICS:
        if name in debate_figures:
            metrics[f"train_{dataset}/{name}"] = debate_figures[name]
    debates = [read_debate(transcript) for transcript in transcripts]
    has_format = []
    for debate in debates:
        if debate.transcript.protocol.num_agents == num_agents:
            has_format += _replies_have_format(debate)
    if has_format:
        metrics[f"train_{dataset}/format"] = fmean(has_format)
    return metrics | transition_metrics(debates) | self_debate_metrics(debates, rows)


def _replies_have_format(debate: ReadDebate) -> list[bool]:
    """Check each last answer: in a box, or on an answer line, as the prompts ask.

    The list is empty where the prompts ask for no format.
    """
    transcript = debate.transcript
    kind = get_contract(transcript.protocol.contract).kind
    # Prompts of the compact style do not describe the format of an answer.
    is_compact = transcript.protocol.extra.get("style") == "compact"
    if is_compact or not answer_form(transcript.question, kind):
        return []
    has_format = []
    for turn in last_turns(debate).values():
        if turn.failed:
            has_format.append(False)
            continue
        # A contract of sections asks for the box inside its answer section.
        text = (turn.parsed.answer or "") if kind == "xml" else turn.turn.text
        span = free_answer(text, kind)
        is_empty = span is None or span[0] == span[1]
        has_format.append(not is_empty)
    return has_format


def transition_metrics(debates: Sequence[ReadDebate]) -> dict[str, float]:
    """Compute `round`, `parse_error` and `consensus_reached`, each a mean over all turns.

    `round` counts from 0; `consensus_reached` is 1 on a turn after which every agent of its round
    has said YES (in rounds with parallel turns, on all turns of the round), and is left out where
    no contract asks for consensus.
    """
    rounds = []
    turns_failed = []
    consensus_reached: list[bool] = []
    for debate in debates:
        for turn in debate.transcript.turns:
            read_turn = debate.turns.get(turn.key)
            rounds.append(turn.round)
            # Feedback of critics has no answer to read: it fails only by its reply.
            has_failed = turn.failure is not None if read_turn is None else read_turn.failed
            turns_failed.append(has_failed)
        contract = get_contract(debate.transcript.protocol.contract)
        if "consensus" in contract.sections:
            consensus_reached += _consensus_after_turns(debate)
    if not rounds:
        return {}
    metrics = {"round": fmean(rounds), "parse_error": fmean(turns_failed)}
    if consensus_reached:
        metrics["consensus_reached"] = fmean(consensus_reached)
    return metrics


def _consensus_after_turns(debate: ReadDebate) -> list[bool]:
    protocol = debate.transcript.protocol
    is_parallel = protocol.schedule == "parallel"
    consensus_reached = []
    for turn in debate.turns.values():
        num_spoken = 0
        all_agree = True
        for other in debate.turns.values():
            is_same_round = other.key.round == turn.key.round
            # One after the other: consensus is reached on the last speaker's turn.
            has_spoken = is_parallel or other.key.agent <= turn.key.agent
            if is_same_round and has_spoken:
                num_spoken += 1
                all_agree = all_agree and bool(other.parsed.consensus)
        consensus_reached.append(num_spoken == protocol.num_agents and all_agree)
    return consensus_reached


def self_debate_metrics(debates: Sequence[ReadDebate], rows: Sequence[Row]) -> dict[str, float]:
    """Compute the four curves of SDRL's Figure 4, and the counts before its filter.

    `sdrl/debate_prompts` counts debate prompts with a second answer of nonzero advantage, and
    `sdrl/debate_samples` such answers: the material of the update. `…_built` and `…_drawn` count
    all. The accuracies are over debated questions.

    Args:
        debates: All debates of the step; other forms are passed over.
        rows: Rows of the step; `debate` is the index of the transcript.
    """
    # A row without any advantage is in the batch and moves nothing.
    trained_agents = {(row.debate, row.agent) for row in rows if row.advantages.any()}
    num_prompts = 0
    num_prompts_built = 0
    num_samples = 0
    num_samples_drawn = 0
    paired_debates = []
    for index, debate in enumerate(debates):
        second_answers = [key for key in debate.turns if key.round == 1]
        if debate.transcript.protocol.topology != "pair" or not second_answers:
            continue
        paired_debates.append(debate)
        num_trained = sum((index, key.agent) in trained_agents for key in second_answers)
        num_prompts_built += 1
        num_samples_drawn += len(second_answers)
        num_samples += num_trained
        if num_trained > 0:
            num_prompts += 1
    if not paired_debates:
        return {}
    metrics = {
        "sdrl/debate_prompts": float(num_prompts),
        "sdrl/debate_samples": float(num_samples),
        "sdrl/debate_prompts_built": float(num_prompts_built),
        "sdrl/debate_samples_drawn": float(num_samples_drawn),
    }

    first_is_right: list[bool] = []
    second_is_right: list[bool] = []
    for verdicts in turn_verdicts(paired_debates):
        # Without a gold answer that can be checked, neither answer is right or wrong.
        if any(verdict.verdict == "unverifiable" for verdict in verdicts.values()):
            continue
        for key, verdict in verdicts.items():
            by_round = (first_is_right, second_is_right)
            by_round[key.round].append(verdict.verdict == "right")
    if second_is_right:
        accuracy = fmean(second_is_right)
        metrics["sdrl/debate_accuracy"] = accuracy
        metrics["sdrl/debate_accuracy_improvement"] = accuracy - fmean(first_is_right)
    return metrics


def role_rewards(step: Step) -> dict[str, float]:
    """Compute the mean return of each role's agents, if there are several roles.

    In debates of two policies, the mean over both is a figure of neither.
    """
    returns_by_role: dict[str, list[float]] = {}
    for transcript, score in zip(step.transcripts, step.scores, strict=True):
        if len(transcript.protocol.roles) <= 1:
            continue
        roles = roles_by_agent(transcript.protocol)
        for role, agent_return in zip(roles, score.agents, strict=False):
            if agent_return is not None:
                returns_by_role.setdefault(role.name, []).append(agent_return)
    return {f"reward/role/{name}": fmean(returns) for name, returns in returns_by_role.items()}


def staleness(step: Step) -> dict[str, float]:
    """Compute the age, in steps, of the sampling weights of the step's tokens."""
    ages_of_rows = [step.number - row.versions for row in step.batch.rows]
    if not any(len(ages) for ages in ages_of_rows):
        return {}
    ages = np.concatenate(ages_of_rows)
    return {
        "rollout/staleness_mean": float(ages.mean()),
        "rollout/staleness_max": float(ages.max()),
    }


def mean_metrics(metrics_of_debates: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Compute the mean of each metric over the debates with a value."""
    values_by_name: dict[str, list[float]] = {}
    for metrics in metrics_of_debates:
        for name, value in metrics.items():
            values_by_name.setdefault(name, []).append(value)
    return {name: fmean(values) for name, values in values_by_name.items()}


def facts_of(phase: Recipe) -> Facts:
    """Collect the facts about a phase for the health monitor and preflight."""
    needs = [component.reward.needs() for component in phase.reward.parts().values()]
    has_votes = any(need.votes for need in needs)
    has_answers = any(need.answers for need in needs)
    judge_stream = phase.advantage.streams.get("judge")
    judge_has_weight = judge_stream is not None and judge_stream.weight > 0
    appends_turns = getattr(phase.debate, "conversation", "") == "append"
    return Facts(
        agents=phase.debate.num_agents,
        several_updates=phase.trainer.makes_several,
        keeps_start=phase.loss.reference_policy == "phase_start",
        questions=phase.evaluation.questions,
        pairs=phase.loss.learns_from == "pairs",
        imitates=phase.loss.learns_from == "demonstrations",
        votes=has_votes,
        peers_alone=has_votes and not has_answers,
        judges_learn="judge" in phase.reward.streams and judge_has_weight,
        merges_turns=appends_turns and phase.debate.max_rounds > 1,
    )
