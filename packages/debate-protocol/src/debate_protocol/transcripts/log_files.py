"""Transcripts as files of other programs, which their viewers and readers open.

inspect (`to_inspect`): one evaluation log, a sample for each debate; `inspect view` shows it.
verifiers (`to_verifiers`): one episode for each debate, a trace for each agent, as `traces.jsonl`
of `vf-eval` has them (verifiers 0.4, schema 1).
TRL (`rollout_rows`): one row for each turn, with `prompt` and `completion` as messages, as the
completions of its trainers have them.
"""

import json
import math
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
    else:
        is_verifiers = program == "verifiers"
        rows = map(to_verifiers, transcripts) if is_verifiers else rollout_rows(transcripts)
    for row in rows:
        yield (json.dumps(row, ensure_ascii=False) + "\n").encode("utf-8", "replace")


def to_inspect(transcripts: Sequence[Transcript], name: str, created: str) -> dict[str, object]:
    """Return an evaluation log of inspect, as JSON holds it.

    A sample's messages are its question and its turns in order, each under its agent and round; its
    output is the last turn, its target the right answer. What agents were shown is in the metadata
    of the sample. Its scores are the numbers in the `meta` of the transcript but for its seed.

    Args:
        transcripts: The debates.
        name: What the log is called.
        created: When it was made, ISO 8601 with its time zone.
    """
    scores = [
        {key: value for key, value in _numbers(transcript).items() if key != "seed"}
        for transcript in transcripts
    ]
    epochs: dict[str, int] = {}
    samples = []
    for transcript, named in zip(transcripts, scores, strict=True):
        epoch = epochs[transcript.question.id] = epochs.get(transcript.question.id, 0) + 1
        values = {key: {"value": value} for key, value in named.items()}
        samples.append(_sample(transcript, epoch) | {"scores": values})
    return {
        "version": _INSPECT_VERSION,
        "status": "success",
        "eval": {
            "created": created,
            "task": name,
            "dataset": {"name": name, "samples": len(epochs), "sample_ids": list(epochs)},
            "model": "debate",
            "config": {"epochs": max(epochs.values(), default=1)},
            # Without them, who computes the metrics again calls the mean an accuracy.
            "scorers": [
                {"name": name, "metrics": [{"name": metric} for metric in INSPECT_METRICS]}
                for name in sorted({name for named in scores for name in named})
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
    """Return an episode of verifiers, as JSON holds it.

    A trace has the messages of one agent as a tree: turns whose prompts extend each other are one
    branch. The numbers in the transcript's `meta` are metrics of each trace, `reward` its reward.
    The first trace's `info` keeps the transcript itself, which `import_rollouts` reads back.
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
    """Yield a row for each turn that was said, in the keys of TRL's completions.

    Where a transcript keeps no prompt of a turn, its prompt is the question. Rows keep the numbers
    in the transcript's `meta`, such as `reward`.
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
    places: dict[tuple[int | None, str, str], int] = {}

    def placed(parent: int | None, message: Message, *, sampled: bool) -> int:
        key = (parent, message["role"], message["content"])
        if sampled or key not in places:
            places[key] = len(nodes)
            nodes.append({"parent": parent, "message": dict(message), "sampled": sampled})
        return places[key]

    for turn in transcript.turns:
        if turn.agent != agent:
            continue
        parent = None
        for message in _prompt(transcript, turn):
            parent = placed(parent, message, sampled=False)
        reply = Message(role="assistant", content=turn.text)
        call: dict[str, object] = {"node": placed(parent, reply, sampled=True)}
        if turn.token_counts is not None:
            read, said = turn.token_counts
            call["usage"] = {"prompt_tokens": read, "completion_tokens": said}
        calls.append(call)
    numbers = dict(_numbers(transcript))
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
    said = [_message(turn) for turn in transcript.turns]
    sample: dict[str, object] = {
        "id": question.id,
        "epoch": epoch,
        "input": question.text,
        "target": question.answer or "",
        "messages": [{"role": "user", "content": question.text}, *said],
        "metadata": {
            "debate": transcript.id,
            "agents": transcript.protocol.num_agents,
            **{key: transcript.meta[key] for key in ("seed", "ended") if key in transcript.meta},
            "shown": {
                f"agent {turn.agent}, round {turn.round}": [list(key) for key in turn.shown]
                for turn in transcript.turns
            },
        },
    }
    if transcript.turns:
        last = transcript.turns[-1]
        stop = "stop" if last.reply is None else _STOPS.get(last.reply.finish, "stop")
        choice = {"message": said[-1], "stop_reason": stop}
        sample["output"] = {"model": "debate", "choices": [choice], "completion": last.text}
    return sample


def _means(
    transcripts: Sequence[Transcript], scores: Sequence[Mapping[str, float]]
) -> list[dict[str, object]]:
    """Average scores as inspect does: the epochs of a question first, then the questions."""
    values: dict[str, dict[str, list[float]]] = {}
    for transcript, named in zip(transcripts, scores, strict=True):
        for name, value in named.items():
            values.setdefault(name, {}).setdefault(transcript.question.id, []).append(value)
    results: list[dict[str, object]] = []
    for name, by_question in values.items():
        question_means = [fmean(of_question) for of_question in by_question.values()]
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


def _numbers(transcript: Transcript) -> Mapping[str, float]:
    return {
        name: value
        for name, value in transcript.meta.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }
