"""Debates that were played ahead, beside a checkpoint: JSON lines and safetensors, no pickle.

`lookahead.jsonl` has a line for each step and then one for each of its debates: the transcript and
what is not a number of each reply. Token ids and log-probabilities of all replies stand one after
another in `lookahead.safetensors`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from debate_protocol.transcripts.fields import TranscriptError
from debate_protocol.transcripts.files import from_json, json_line, to_json
from debate_protocol.types import Branch, Reply, Transcript, Turn
from debate_train.errors import UsageError
from debate_train.playing.step_debates import StepDebates, metrics_of

_LINES, _TENSORS = "lookahead.jsonl", "lookahead.safetensors"
_NUMBERS = {"prompt_ids": np.int32, "token_ids": np.int32, "logps": np.float64}


def write_lookahead(directory: Path, played: Mapping[int, Sequence[Transcript]]) -> None:
    """Write the debates of these steps."""
    numbers: dict[str, list[float]] = {name: [] for name in _NUMBERS}
    with (directory / _LINES).open("wb") as file:
        for step in sorted(played):
            head = {"step": step, "debates": len(played[step]), "metrics": metrics_of(played[step])}
            file.write(json_line(head))
            for transcript in played[step]:
                replies = [turn.reply for turn in transcript.sampled_turns()]
                for reply in replies:
                    if reply is not None:
                        for name, found in numbers.items():
                            found += getattr(reply, name)
                records = [None if reply is None else _record(reply) for reply in replies]
                file.write(json_line({"transcript": to_json(transcript), "replies": records}))
    arrays = {name: np.array(found, _NUMBERS[name]) for name, found in numbers.items()}
    save_file(arrays, directory / _TENSORS)


def read_lookahead(directory: Path) -> dict[int, Sequence[Transcript]]:
    """Return the debates by step; none where nothing was written.

    Raises:
        UsageError: A file is missing, or is not what was written.
    """
    path = directory / _LINES
    if not path.exists():
        return {}
    try:
        numbers = _Numbers(load_file(directory / _TENSORS))
        with path.open("rb") as file:
            lines = [json.loads(line) for line in file]
        played: dict[int, Sequence[Transcript]] = {}
        while lines:
            head = lines.pop(0)
            own, lines = lines[: head["debates"]], lines[head["debates"] :]
            if len(own) < head["debates"]:
                raise ValueError(f"step {head['step']} has {len(own)} debates")
            metrics = {str(k): float(v) for k, v in head.get("metrics", {}).items()}
            debates = [_transcript(line, numbers) for line in own]
            played[head["step"]] = StepDebates(debates, metrics)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, TranscriptError) as error:
        raise UsageError(
            f"checkpoint {directory}: {_LINES} cannot be read ({error}); expected what a run with "
            "pipeline.max_staleness above 0 wrote; remove this checkpoint to go on from the one "
            "before"
        ) from error
    return played


def _record(reply: Reply) -> dict[str, object]:
    """Return all of a reply but its numbers, and how many of those it has."""
    return {
        "text": reply.text,
        "finish": reply.finish,
        "temperature": reply.temperature,
        "weight_version": reply.weight_version,
        "version_spans": reply.version_spans,
        "counted": reply.counted,
        "counts": [len(getattr(reply, name)) for name in _NUMBERS],
    }


class _Numbers:
    """Arrays that are read from the front."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = {name: arrays[name] for name in _NUMBERS}
        self._at = dict.fromkeys(_NUMBERS, 0)

    def reply(self, record: Mapping[str, Any]) -> Reply:
        """Return the next reply."""
        found: dict[str, tuple[Any, ...]] = {}
        for name, count in zip(_NUMBERS, record["counts"], strict=True):
            at = self._at[name]
            found[name] = tuple(self._arrays[name][at : at + count].tolist())
            if len(found[name]) < count:
                raise ValueError(f"{_TENSORS} has too few {name}")
            self._at[name] = at + count
        return Reply(
            text=record["text"],
            finish=record["finish"],
            temperature=record["temperature"],
            weight_version=record["weight_version"],
            version_spans=tuple((v, start, end) for v, start, end in record["version_spans"]),
            counted=tuple(counted) if (counted := record.get("counted")) else None,
            **found,
        )


def _transcript(line: Mapping[str, Any], numbers: _Numbers) -> Transcript:
    replies = iter(line["replies"])  # In the order of Transcript.sampled_turns.

    def with_reply(turn: Turn) -> Turn:
        record = next(replies)
        return replace(
            turn,
            reply=None if record is None else numbers.reply(record),
            branches=tuple(Branch(one.guide, with_reply(one.turn)) for one in turn.branches),
            continuations=tuple(with_reply(one) for one in turn.continuations),
        )

    transcript = from_json(line["transcript"])
    return replace(transcript, turns=tuple(with_reply(turn) for turn in transcript.turns))
