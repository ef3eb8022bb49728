"""Transcripts as files of other programs, which their viewers and readers open.

inspect (`to_inspect`): one evaluation log, a sample for each debate; `inspect view` shows it.
verifiers (`to_verifiers`): one episode for each debate, a trace for each agent, as `traces.jsonl`
of `vf-eval` has them (verifiers 0.4, schema 1).
TRL (`rollout_rows`): one row for each turn, with `prompt` and `completion` as messages, as the
completions of its trainers have them.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from statistics import fmean, stdev

from debate_protocol.transcripts.files import to_json
from debate_protocol.types import Message, Transcript, Turn

_INSPECT_VERSION = 2
INSPECT_METRICS = ("inspect_ai/mean", "inspect_ai/stderr")
_STOPS = {"length": "max_tokens"}
"""What inspect calls how a reply ended, where it is not `stop`."""


def lines_for(program: str, transcripts: Sequence[Transcript], name: str) -> Iterator[bytes]:
    """Yield the lines of a file of `inspect`, `verifiers` or `trl`.

    Half characters, which the program may refuse, become `?`. `name` is that of inspect's log.
    """
    rows: Iterable[dict[str, object]]
    if program == "inspect":
        now = datetime.now(UTC).isoformat(timespec="seconds")
        rows = [to_inspect(transcripts, name, now)]
    elif program == "verifiers":
        rows = map(to_verifiers, transcripts)
    else:
        rows = rollout_rows(transcripts)
    for row in rows:
        yield (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def to_inspect(transcripts: Sequence[Transcript], name: str, created: str) -> dict[str, object]:
    """Build an evaluation log of inspect, as a JSON value.

    The messages of a sample are the question and the turns in order, each under agent and round;
    the output is the last turn, the target the right answer. The metadata of the sample have the
    keys of the turns shown to agents. The scores are the numbers in the transcript's `meta`, except
    the seed.

    Args:
        transcripts: The debates.
        name: Name of the log.
        created: Time of creation, ISO 8601 with a time zone.
    """
    scores = []
    for transcript in transcripts:
        numbers = _numbers(transcript)
        numbers.pop("seed", None)
        scores.append(numbers)
    score_names = sorted(set[str]().union(*scores))
    scorer_metrics = [{"name": metric} for metric in INSPECT_METRICS]

    # Further debates on a question are its further epochs.
    epochs: Counter[str] = Counter()
    samples = []
    for transcript, numbers in zip(transcripts, scores, strict=True):
        epochs[transcript.question.id] += 1
        values = {key: {"value": value} for key, value in numbers.items()}
        samples.append(_sample(transcript, epochs[transcript.question.id]) | {"scores": values})
    return {
        "version": _INSPECT_VERSION,
        "status": "success",
        "eval": {
            "created": created,
            "task": name,
            "dataset": {"name": name, "samples": len(epochs), "sample_ids": list(epochs)},
            "model": "debate",
            "config": {"epochs": max(epochs.values(), default=1)},
            # Without them, inspect calls the mean an accuracy when it computes metrics again.
            "scorers": [
                {"name": score_name, "metrics": scorer_metrics} for score_name in score_names
            ],
        },
        # Its reader of headers stops at `stats`, and wants these three in this order.
        "plan": {},
        "results": {
            "total_samples": len(samples),
            "completed_samples": len(samples),
            "scores": _means(transcripts, scores),
        },
        "stats": {"started_at": created, "completed_at": created},
        "samples": samples,
    }


def to_verifiers(transcript: Transcript) -> dict[str, object]:
    """Build an episode of verifiers, as a JSON value.

    A trace has the messages of one agent as a tree: prompts that extend each other make one
    branch. The numbers in the transcript's `meta` are metrics of each trace, `reward` the reward.
    The first trace's `info` has the transcript itself, for `import_rollouts` to read back.
    """
    question = transcript.question
    data = {"id": question.id, "prompt": question.text, "answer": question.answer or ""}
    task = {"type": "Debate", "data": data}
    speakers = sorted({turn.agent for turn in transcript.turns})
    traces = [_trace(transcript, agent, task) for agent in speakers]
    for trace in traces[:1]:
        trace["info"] = {"agent": speakers[0], "debate": to_json(transcript)}
    return {
        "id": transcript.id,
        "env": {"id": "debate"},
        "task": task,
        "ok": True,
        "traces": traces,
    }


def rollout_rows(transcripts: Sequence[Transcript]) -> Iterator[dict[str, object]]:
    """Yield a row for each turn, in the keys of TRL's completions.

    Where a transcript has no prompt of a turn, the question is the prompt. Rows have the numbers
    of the transcript's `meta`, such as `reward`.
    """
    for transcript in transcripts:
        for turn in transcript.turns:
            yield {
                "step": 0,
                "id": transcript.question.id,
                "prompt": _prompt(transcript, turn),
                "completion": [{"role": "assistant", "content": turn.text}],
                "answer": transcript.question.answer or "",
                **_numbers(transcript),
                "debate": transcript.id,
                "agent": turn.agent,
                "round": turn.round,
            }


def _trace(transcript: Transcript, agent: int, task: Mapping[str, object]) -> dict[str, object]:
    nodes: list[dict[str, object]] = []
    calls: list[dict[str, object]] = []
    node_indices: dict[tuple[int | None, str, str], int] = {}

    def add_node(parent: int | None, message: Message, *, sampled: bool) -> int:
        # Messages of prompts are shared between turns. A reply is a node of its own even where two
        # are equal: each was sampled. A later prompt continues from the newest.
        key = (parent, message["role"], message["content"])
        if sampled or key not in node_indices:
            node_indices[key] = len(nodes)
            nodes.append({"parent": parent, "message": dict(message), "sampled": sampled})
        return node_indices[key]

    for turn in transcript.turns:
        if turn.agent != agent:
            continue
        parent = None
        for message in _prompt(transcript, turn):
            parent = add_node(parent, message, sampled=False)
        reply = Message(role="assistant", content=turn.text)
        call: dict[str, object] = {"node": add_node(parent, reply, sampled=True)}
        if turn.token_counts is not None:
            num_prompt, num_sampled = turn.token_counts
            call["usage"] = {"prompt_tokens": num_prompt, "completion_tokens": num_sampled}
        calls.append(call)
    numbers = _numbers(transcript)
    reward = numbers.pop("reward", None)
    return {
        "id": f"{transcript.id}/{agent}",
        "task": task,
        "agent": {"config": {}, "name": f"agent {agent}"},
        "nodes": nodes,
        "calls": calls,
        "rewards": {} if reward is None else {"reward": {"score": reward}},
        "metrics": numbers,
        "info": {"agent": agent},
        "is_completed": True,
        "ok": True,
    }


def _sample(transcript: Transcript, epoch: int) -> dict[str, object]:
    question = transcript.question
    turn_messages = [_message(turn) for turn in transcript.turns]
    shown_keys = {}
    for turn in transcript.turns:
        shown_keys[f"agent {turn.agent}, round {turn.round}"] = [list(key) for key in turn.shown]
    sample: dict[str, object] = {
        "id": question.id,
        "epoch": epoch,
        "input": question.text,
        "target": question.answer or "",
        "messages": [{"role": "user", "content": question.text}, *turn_messages],
        "metadata": {
            "debate": transcript.id,
            "agents": transcript.protocol.num_agents,
            **{key: transcript.meta[key] for key in ("seed", "ended") if key in transcript.meta},
            "shown": shown_keys,
        },
    }
    if transcript.turns:
        last_turn = transcript.turns[-1]
        stop_reason = "stop"
        if last_turn.reply is not None:
            stop_reason = _STOPS.get(last_turn.reply.finish, "stop")
        choice = {"message": turn_messages[-1], "stop_reason": stop_reason}
        sample["output"] = {"model": "debate", "choices": [choice], "completion": last_turn.text}
    return sample


def _means(
    transcripts: Sequence[Transcript], scores: Sequence[Mapping[str, float]]
) -> list[dict[str, object]]:
    """Average scores as inspect does: the epochs of a question first, then the questions."""
    values: dict[str, dict[str, list[float]]] = {}
    for transcript, numbers in zip(transcripts, scores, strict=True):
        for name, value in numbers.items():
            values.setdefault(name, {}).setdefault(transcript.question.id, []).append(value)
    results: list[dict[str, object]] = []
    for name, by_question in values.items():
        question_means = list(map(fmean, by_question.values()))
        num_questions = len(question_means)
        error = stdev(question_means) / math.sqrt(num_questions) if num_questions > 1 else 0.0
        metrics = {"mean": fmean(question_means), "stderr": error}
        results.append(
            {
                "name": name,
                "scorer": name,
                "scored_samples": sum(map(len, by_question.values())),
                "metrics": {key: {"name": key, "value": value} for key, value in metrics.items()},
            }
        )
    return results


def _message(turn: Turn) -> dict[str, object]:
    where = f"Agent {turn.agent}, round {turn.round}"
    failed = f" (failed: {turn.failure})" if turn.failure is not None else ""
    return {"role": "assistant", "content": f"{where}{failed}\n\n{turn.text}", "source": "generate"}


def _prompt(transcript: Transcript, turn: Turn) -> list[Message]:
    if turn.prompt is not None:
        return list(turn.prompt)
    return [Message(role="user", content=transcript.question.text)]


def _numbers(transcript: Transcript) -> dict[str, float]:
    numbers = {}
    for name, value in transcript.meta.items():
        # To Python true is a number, and JSON knows neither NaN nor infinity.
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and math.isfinite(value):
            numbers[name] = value
    return numbers
