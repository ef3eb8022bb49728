"""What a step is measured by, under the names that the papers use."""

import logging
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev

import numpy as np

from debate_protocol.parsing import Contract, answer_line, final_box, get_contract
from debate_protocol.prompts import answer_form
from debate_protocol.types import Transcript, roles_by_agent
from debate_rewards.answer_rewards import turn_verdicts
from debate_rewards.decisions import last_turns
from debate_rewards.metrics import debate_metrics
from debate_rewards.reward import ReadDebate, ReadTurn, read_debate
from debate_train.batches.row_types import Row
from debate_train.batches.rows import Step
from debate_train.losses import gradient_shares
from debate_train.monitoring.detectors import Facts
from debate_train.monitoring.throughput import peak_memory_gib
from debate_train.recipe import Recipe

_ANSWERS = ("correct", "pass@k", "avg@k", "cons@k")


def paper_metrics(
    transcripts: Sequence[Transcript],
    rows: Sequence[Row],
    watched: Mapping[str, float],
    dataset: str,
    num_agents: int,
) -> dict[str, float]:
    """Return the metrics of a step's debates that have a name in a paper.

    Args:
        transcripts: The debates of a step, single-turn replies beside them included.
        rows: What is trained on, with advantages.
        watched: `debate_rewards.metrics.debate_metrics` of the debates.
        dataset: The name of the data, in `train_{dataset}/…`.
        num_agents: Of a debate; a transcript of fewer is a single reply beside the debates.

    Source: Tinker debate note, section 3.1 (`train_…`); exact formulation, "Per-step env metrics";
    SDRL (paper), Figure 4.
    """
    named = {f"train_{dataset}/{name}": watched[name] for name in _ANSWERS if name in watched}
    debates = [read_debate(transcript) for transcript in transcripts]
    whole = [d for d in debates if d.transcript.protocol.num_agents == num_agents]
    asked = [debate for debate in whole if _asks_for_a_form(debate)]
    replies = [
        _has_form(turn, _contract(debate).kind)
        for debate in asked
        for turn in last_turns(debate).values()
    ]
    if replies:
        named[f"train_{dataset}/format"] = fmean(replies)
    return named | transition_metrics(debates) | self_debate_metrics(debates, rows)


def transition_metrics(debates: Sequence[ReadDebate]) -> dict[str, float]:
    """Return `round`, `parse_error` and `consensus_reached`, each a mean over all turns.

    `round` counts from 0; `consensus_reached` is 1 on a turn after which every agent of its round
    has said YES (where a round is spoken in parallel, on all its turns), and is left out where no
    contract asks for consensus.
    """
    turns = [turn for debate in debates for turn in debate.transcript.turns]
    if not turns:
        return {}
    found = {
        "round": fmean(turn.round for turn in turns),
        "parse_error": fmean(
            _failed(debate, index)
            for debate in debates
            for index in range(len(debate.transcript.turns))
        ),
    }
    asking = [d for d in debates if "consensus" in _contract(d).sections]
    reached = [one for debate in asking for one in _consensus(debate)]
    return found | ({"consensus_reached": fmean(reached)} if reached else {})


def self_debate_metrics(debates: Sequence[ReadDebate], rows: Sequence[Row]) -> dict[str, float]:
    """Return the four curves of SDRL's Figure 4, and what was built before its filter.

    `sdrl/debate_prompts` are debate prompts with a second answer whose advantage is not 0, and
    `sdrl/debate_samples` such answers: what the update is made of. `…_built` and `…_drawn` count
    all. The accuracies are over questions that were debated.

    Args:
        debates: All debates of the step; those of other forms are passed over.
        rows: Rows of the step, whose `debate` is the index of their transcript.
    """
    taught = {(row.debate, row.agent) for row in rows if row.advantages.any()}
    prompts = samples = built = drawn = 0
    held = []
    for index, debate in enumerate(debates):
        second = [key for key in debate.turns if key.round == 1]
        if debate.transcript.protocol.topology != "pair" or not second:
            continue
        held.append(debate)
        used = sum((index, key.agent) in taught for key in second)
        prompts, samples = prompts + (used > 0), samples + used
        built, drawn = built + 1, drawn + len(second)
    if not held:
        return {}
    counted = {
        "sdrl/debate_prompts": prompts,
        "sdrl/debate_samples": samples,
        "sdrl/debate_prompts_built": built,
        "sdrl/debate_samples_drawn": drawn,
    }
    return {name: float(count) for name, count in counted.items()} | _revised(held)


def _revised(debates: Sequence[ReadDebate]) -> dict[str, float]:
    """Return how often second answers are right, and how much more often than first ones."""
    right: tuple[list[float], list[float]] = ([], [])
    for verdicts in turn_verdicts(debates):
        if any(verdict.verdict == "unverifiable" for verdict in verdicts.values()):
            continue
        for key, verdict in verdicts.items():
            right[key.round].append(float(verdict.verdict == "right"))
    if not right[1]:
        return {}
    second = fmean(right[1])
    return {
        "sdrl/debate_accuracy": second,
        "sdrl/debate_accuracy_improvement": second - fmean(right[0]),
    }


def _contract(debate: ReadDebate) -> Contract:
    return get_contract(debate.transcript.protocol.contract)


def _failed(debate: ReadDebate, index: int) -> bool:
    turn = debate.transcript.turns[index]
    read = debate.turns.get(turn.key)
    return turn.failure is not None if read is None else read.failed


def _consensus(debate: ReadDebate) -> list[float]:
    """Return for each turn whether all agents of its round have said YES by then."""
    rules = debate.transcript.protocol
    found = []
    for turn in debate.turns.values():
        heard = [
            other
            for other in debate.turns.values()
            if other.key.round == turn.key.round
            and (rules.schedule == "parallel" or other.key.agent <= turn.key.agent)
        ]
        agreed = len(heard) == rules.num_agents and all(one.parsed.consensus for one in heard)
        found.append(float(agreed))
    return found


def _asks_for_a_form(debate: ReadDebate) -> bool:
    """Return whether prompts say how an answer is written, which the compact style does not."""
    transcript = debate.transcript
    is_compact = transcript.protocol.extra.get("style") == "compact"
    return not is_compact and bool(answer_form(transcript.question, _contract(debate).kind))


def _has_form(turn: ReadTurn, kind: str) -> bool:
    r"""Return whether an answer stands where it is asked for: in a box, or on an answer line."""
    if turn.failed:
        return False
    text = (turn.parsed.answer or "") if kind == "xml" else turn.turn.text
    found = answer_line(text) if kind == "answer_line" else final_box(text)
    return found is not None and found[0] < found[1]


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
        "env/all/sampled_tokens": sampled + step.metrics.get("sampling/dropped_tokens", 0.0),
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
    ages = [step.number - row.versions for row in step.batch.rows]
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


def facts_of(phase: Recipe) -> Facts:
    """Return what the health watch and preflight need to know of a phase."""
    needs = [part.reward.needs() for part in phase.reward.parts().values()]
    has_votes = any(need.votes for need in needs)
    judge = phase.advantage.streams.get("judge")
    return Facts(
        agents=phase.debate.num_agents,
        several_updates=phase.trainer.makes_several,
        keeps_start=phase.loss.reference_policy == "phase_start",
        questions=phase.evaluation.questions,
        pairs=phase.loss.learns_from == "pairs",
        imitates=phase.loss.learns_from == "demonstrations",
        votes=has_votes,
        peers_alone=has_votes and not any(need.answers for need in needs),
        judges_learn="judge" in phase.reward.streams and judge is not None and judge.weight > 0,
        merges_turns=(
            getattr(phase.debate, "conversation", "") == "append" and phase.debate.max_rounds > 1
        ),
    )
