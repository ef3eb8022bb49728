"""Replies of an evaluation that is under way: kept as they come, so that none is sampled twice.

An evaluation follows from its replies. One that was stopped plays its debates again from the start,
is answered by the journal where a reply is known, and samples the rest: the calls of a batch engine
are then those of an evaluation that nobody stopped.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from debate_protocol.types import Reply
from debate_rollout.engine import (
    Capability,
    Engine,
    Finished,
    Request,
    StreamingEngine,
    Weights,
    streaming,
)
from debate_train.checkpointing.whole_files import cut_torn_line, open_plain
from debate_train.errors import UsageError
from debate_train.evaluation.shared_turns import ask_key
from debate_train.run_files.collected_files import written

_LINE = TypeAdapter(dict[str, Reply])


class ReplyJournal:
    """A file of one line for each call of the engine: the replies of the call, by `ask_key`.

    A line is there as a whole or not at all, so the replies of one call are kept together.

    Args:
        path: The file, which need not be there.

    Raises:
        UsageError: A line of it cannot be read.
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
        text = json.dumps(line, separators=(",", ":"))
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
                found = _LINE.validate_python(json.loads(line))
            except (ValueError, RecursionError):
                raise UsageError(
                    f"{path}:{number}: found no replies of an evaluation; expected the file as "
                    "debate-eval has written it: remove it, and its policy is measured again"
                ) from None
            for key, reply in found.items():
                known.setdefault(key, reply)
    return known


class JournaledEngine:
    """An engine whose replies are kept before anyone sees them.

    Args:
        engine: Samples.
        journal: Takes the replies.
    """

    def __init__(self, engine: Engine, journal: ReplyJournal) -> None:
        self._engine, self._journal = engine, journal
        self._keys: dict[int, str] = {}

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Those of the engine."""
        return self._engine.capabilities

    @property
    def renderer(self) -> Any:
        """That of the engine."""
        return self._engine.renderer

    @property
    def context_window(self) -> int | None:
        """That of the engine."""
        return self._engine.context_window

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Return one reply a request, in order."""
        replies = self._engine.generate(requests)
        keys = [ask_key(request.ask) for request in requests]
        self._journal.append(zip(keys, replies, strict=False))  # The driver counts them.
        return replies

    def load(self, weights: Weights) -> None:
        """Serve these weights."""
        self._engine.load(weights)

    def close(self) -> None:
        """Close the engine."""
        self._engine.close()

    def submit(self, request: Request) -> int:
        """Take a request and return its ticket."""
        ticket = self._streaming.submit(request)
        self._keys[ticket] = ask_key(request.ask)
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return the requests that have ended since the last call."""
        ended = self._streaming.collect(timeout_s)
        keys = [self._keys.pop(one.ticket) for one in ended]
        kept = [
            (key, one.outcome)
            for key, one in zip(keys, ended, strict=True)
            if isinstance(one.outcome, Reply)
        ]
        if kept:
            self._journal.append(kept)
        return ended

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        self._keys.pop(ticket, None)
        self._streaming.cancel(ticket)

    @property
    def _streaming(self) -> StreamingEngine:
        engine = streaming(self._engine)
        assert engine is not None  # Where it does not stream, `capabilities` does not say it does.
        return engine
