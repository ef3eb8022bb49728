"""Replies of an evaluation that is under way: kept as they come, so that none is sampled twice.

An evaluation follows from its replies. One that was stopped plays its debates again from the start,
is answered by the journal where a reply is known, and samples the rest: the calls of a batch engine
are then those of an evaluation that nobody stopped.
"""

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from debate_protocol.types import Reply
from debate_rollout.engine import Engine
from debate_rollout.forwarding import HeardEngine
from debate_train.checkpointing.whole_files import cut_torn_line, open_plain
from debate_train.errors import UsageError
from debate_train.evaluation.shared_turns import ask_key
from debate_train.run_files.collected_files import as_written, with_hash, written

_LINE = TypeAdapter(dict[str, Reply])


class ReplyJournal:
    """A file of one line for each call of the engine: the replies of the call, by `ask_key`.

    A line is there as a whole or not at all, so the replies of one call are kept together.

    Args:
        path: The file, which need not be there.

    Raises:
        UsageError: A line of it is not as it was written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        cut_torn_line(path)
        self.known = _read(path)
        self._file = os.fdopen(open_plain(path, os.O_WRONLY | os.O_APPEND), "ab")

    def append(self, replies: Iterable[tuple[str, Reply]]) -> None:
        """Keep the replies of one call; of two with one key the first."""
        line: dict[str, object] = {}
        for key, reply in replies:
            line.setdefault(key, asdict(reply))
        text = json.dumps(with_hash({"replies": line}), separators=(",", ":"))
        with written(self._path):
            self._file.write(text.encode() + b"\n")
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _read(path: Path) -> dict[str, Reply]:
    known: dict[str, Reply] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                found = _LINE.validate_python((as_written(line) or {})["replies"])
            except (ValueError, KeyError):
                raise UsageError(
                    f"{path}:{number}: found other replies than an evaluation has kept; expected "
                    "the file as debate-eval has written it: remove it, and its policy is measured "
                    "again"
                ) from None
            for key, reply in found.items():
                known.setdefault(key, reply)
    return known


def journaled(engine: Engine, journal: ReplyJournal) -> HeardEngine:
    """Return an engine whose replies are kept before anyone sees them."""
    return HeardEngine(
        engine,
        lambda replies: journal.append((ask_key(asked.ask), reply) for asked, reply in replies),
    )
