"""Debates of later steps in a checkpoint: played ahead, with weights that will be gone.

A line for each step, then one for each of its debates: the transcript and all replies.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from debate_protocol.transcripts.files import TranscriptError, from_json, json_line, to_json
from debate_protocol.types import Branch, Reply, Transcript, Turn
from debate_train.errors import UsageError
from debate_train.playing.step_debates import StepDebates, metrics_of

_FILE = "lookahead.jsonl"
_REPLY: TypeAdapter[Reply | None] = TypeAdapter(Reply | None)


def write_lookahead(directory: Path, played: Mapping[int, Sequence[Transcript]]) -> None:
    """Write the debates of steps into a checkpoint."""
    with (directory / _FILE).open("wb") as file:
        for step in sorted(played):
            debates = played[step]
            head = {"step": step, "debates": len(debates), "metrics": metrics_of(debates)}
            file.write(json_line(head))
            for transcript in debates:
                replies = [turn.reply for turn in transcript.sampled_turns()]
                records = [None if reply is None else asdict(reply) for reply in replies]
                file.write(json_line({"transcript": to_json(transcript), "replies": records}))


def read_lookahead(directory: Path) -> dict[int, Sequence[Transcript]]:
    """Read the debates of steps from a checkpoint; empty where nothing was written.

    Raises:
        UsageError: The file is damaged.
    """
    path = directory / _FILE
    if not path.exists():
        return {}
    debates: dict[int, Sequence[Transcript]] = {}
    try:
        with path.open("rb") as file:
            lines = (json.loads(line) for line in file)
            for head in lines:
                transcripts = [_parse_transcript(next(lines)) for _ in range(head["debates"])]
                debates[head["step"]] = StepDebates(transcripts, head["metrics"])
    except (OSError, ValueError, LookupError, TypeError, StopIteration, TranscriptError) as error:
        raise UsageError(
            f"checkpoint {directory}: {_FILE} cannot be read ({error}); expected what a run "
            "with pipeline.max_staleness above 0 wrote; remove this checkpoint to go on from the "
            "one before"
        ) from error
    return debates


def _parse_transcript(record: Mapping[str, Any]) -> Transcript:
    transcript = from_json(record["transcript"])
    replies = iter(record["replies"])
    return replace(transcript, turns=tuple(_with_reply(turn, replies) for turn in transcript.turns))


def _with_reply(turn: Turn, replies: Iterator[Any]) -> Turn:
    # The replies are in the order of Transcript.sampled_turns: a turn, its branches, then its
    # continuations. Keyword arguments are evaluated in that order.
    return replace(
        turn,
        reply=_REPLY.validate_python(next(replies)),
        branches=tuple(
            Branch(branch.guide, _with_reply(branch.turn, replies)) for branch in turn.branches
        ),
        continuations=tuple(_with_reply(next_turn, replies) for next_turn in turn.continuations),
    )
