"""`metrics.jsonl`: a row for each step and each look, and none of them lost to a full disk."""

import hashlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path

from debate_train.checkpointing.checkpoints import RunState
from debate_train.checkpointing.whole_files import open_plain, write_whole
from debate_train.run_files.collected_files import last_time, plain, written


class MetricsFile:
    """Rows `{"phase", "step", "time_s", **metrics}`, appended one at a time.

    `time_s` counts the seconds this run has worked, those before a resume included. A row that
    cannot be written waits in memory: a checkpoint that can be written all the same carries it,
    and a resume puts it in its place. The update that it describes is made and cannot be undone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._unwritten: list[str] = []
        self._whole: int | None = None
        self._kept: tuple[int, Sequence[str]] | None = None
        self._seconds_before = 0.0
        self._opened_at = time.monotonic()

    def log(self, phase: str, step: int, metrics: Mapping[str, object]) -> None:
        """Append one row and flush it. A number that is not finite is written as null.

        Raises:
            RunFailure: It could not be written, and waits.
        """
        time_s = round(self._seconds_before + time.monotonic() - self._opened_at, 3)
        row = {"phase": phase, "step": step, "time_s": time_s}
        row |= {name: plain(value) for name, value in metrics.items()}
        self._unwritten.append(json.dumps(row, ensure_ascii=False, allow_nan=False))
        with written(self.path):
            self._append()
        self._unwritten.clear()

    def _append(self) -> None:
        number = open_plain(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        with os.fdopen(number, "ab", buffering=0) as file:
            if self._whole is None:
                self._whole = os.fstat(number).st_size
            else:  # An earlier row may have been written in part.
                os.ftruncate(number, self._whole)
            left = memoryview("".join(f"{row}\n" for row in self._unwritten).encode())
            while left:
                left = left[file.write(left) :]
        self._whole = None

    def rows(self) -> list[dict[str, object]]:
        """Return all rows so far, in order; of a resumed run those that are kept."""
        return [json.loads(line) for line in self._lines()]

    def _lines(self) -> list[bytes]:
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            content = b""
        lines = BytesIO(content[: self._whole]).readlines()
        if self._kept is not None:
            count, carried = self._kept
            lines = [*lines[:count], *_encoded(carried)]
        return [*lines, *_encoded(self._unwritten)]

    def count_into(self, state: RunState) -> None:
        """Bring the rows so far to the disk, and let a state know them and carry the others.

        Raises:
            RunFailure: The file cannot be read.
        """
        with written(self.path):
            if not self._unwritten:
                with self.path.open("rb") as file:
                    os.fsync(file.fileno())
            lines = self._lines()
        state.rows, state.unwritten = len(lines), list(self._unwritten)
        state.metrics_sha256 = hashlib.sha256(b"".join(lines)).hexdigest()

    def return_to(self, rows: int, carried: Sequence[str]) -> None:
        """Show only the rows of a checkpoint, which carries the last of them, until `go_back`."""
        self._kept = (rows - len(carried), carried)

    def go_back(self, rows: int, carried: Sequence[str] = ()) -> int:
        """Keep the rows of a checkpoint, those included that it carries; return how many went."""
        self._kept = None
        lines = self._lines()
        kept = [*lines[: rows - len(carried)], *_encoded(carried)]
        write_whole(self.path, b"".join(kept))
        self.go_on()
        return max(0, len(lines) - len(kept))

    def go_on(self) -> None:
        """Count the seconds of the run on from those of the last row."""
        self._seconds_before = last_time(self.path)
        self._opened_at = time.monotonic()


def _encoded(rows: Sequence[str]) -> list[bytes]:
    return [f"{row}\n".encode() for row in rows]
