"""Transcripts as files of other programs, which their viewers and readers open.

inspect (`to_inspect`): one evaluation log, a sample for each debate; `inspect view` shows it.
verifiers and TRL (`rollout_rows`): one row for each turn, with `prompt` and `completion` as
messages, as `results.jsonl` of `vf-eval` and the completions of TRL's trainers have them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence

from debate_protocol.types import Message, Transcript, Turn

_INSPECT_VERSION = 2
_STOPS = {"length": "max_tokens"}
"""What inspect calls how a reply ended, where it is not `stop`."""


def to_inspect(transcripts: Sequence[Transcript], name: str, created: str) -> dict[str, object]:
    """Return an evaluation log of inspect, as JSON holds it.

    A sample's messages are its question and its turns in order, each under its agent and round; its
    output is the last turn, its target the right answer, and its scores the numbers in the
    transcript's `meta`. What agents were shown is in the metadata of the sample.

    Args:
        transcripts: The debates.
        name: What the log is called.
        created: When it was made, ISO 8601 with its time zone.
    """
    epochs: dict[str, int] = {}
    samples = []
    for transcript in transcripts:
        epoch = epochs[transcript.question.id] = epochs.get(transcript.question.id, 0) + 1
        samples.append(_sample(transcript, epoch))
    return {
        "version": _INSPECT_VERSION,
        "status": "success",
        "eval": {
            "created": created,
            "task": name,
            "dataset": {"name": name, "samples": len(epochs), "sample_ids": list(epochs)},
            "model": "debate",
            "config": {"epochs": max(epochs.values(), default=1)},
        },
        "results": {"total_samples": len(samples), "completed_samples": len(samples)},
        "samples": samples,
    }


def rollout_rows(transcripts: Sequence[Transcript], program: str) -> Iterator[dict[str, object]]:
    """Yield a row for each turn that was said, in the keys of `verifiers` or `trl`.

    Where a transcript keeps no prompt of a turn, its prompt is the question. Rows keep the numbers
    in the transcript's `meta`, such as `reward`, which both programs show.
    """
    numbers: dict[str, int] = {}
    for transcript in transcripts:
        question = transcript.question
        number = numbers.setdefault(question.id, len(numbers))
        for turn in transcript.turns:
            row: dict[str, object] = {
                "prompt": _prompt(transcript, turn),
                "completion": [{"role": "assistant", "content": turn.text}],
                "answer": question.answer or "",
                **_numbers(transcript),
                "debate": transcript.id,
                "agent": turn.agent,
                "round": turn.round,
            }
            if program == "verifiers":
                row = {"example_id": number, "task": "debate", "reward": 0.0, **row}
                if turn.token_counts is not None:
                    read, said = turn.token_counts
                    row["token_usage"] = {"input_tokens": read, "output_tokens": said}
            else:
                row = {"step": 0, "id": question.id, **row}
            yield row


def _sample(transcript: Transcript, epoch: int) -> dict[str, object]:
    question = transcript.question
    said = [_message(turn) for turn in transcript.turns]
    sample: dict[str, object] = {
        "id": question.id,
        "epoch": epoch,
        "input": question.text,
        "target": question.answer or "",
        "messages": [{"role": "user", "content": question.text}, *said],
        "scores": {name: {"value": value} for name, value in _numbers(transcript).items()},
        "metadata": {
            "debate": transcript.id,
            "agents": transcript.protocol.num_agents,
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
