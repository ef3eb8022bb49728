"""Rows of metrics: whole, in order, each once, whatever the disk does."""

import hashlib
import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from debate_train.checkpoints import RunState
from debate_train.checkpoints.run_directory import MetricsFile
from debate_train.errors import RunFailure


@contextmanager
def room_for(size: int) -> Iterator[None]:
    """Let no file grow beyond a size; what fits of a write is written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def rows(tmp_path: Path) -> MetricsFile:
    rows = MetricsFile(tmp_path / "metrics.jsonl")
    rows.log("train", 1, {"loss": 0.5})
    with room_for(rows.path.stat().st_size + 7), pytest.raises(RunFailure, match="cannot write"):
        rows.log("train", 2, {"loss": 0.25})
    assert rows.path.read_bytes().count(b"\n") == 1
    assert rows.path.read_bytes().endswith(b'\n{"phase')  # The row is torn.
    return rows


def test_state_does_not_count_a_row_that_was_written_in_part(rows: MetricsFile) -> None:
    state = RunState()
    rows.count_into(state)
    first = rows.path.read_bytes().splitlines(keepends=True)[0]
    assert (state.rows, state.metrics_sha256) == (1, hashlib.sha256(first).hexdigest())
    resumed = MetricsFile(rows.path)
    resumed.go_back(state.rows)
    assert rows.path.read_bytes() == first


def test_rows_after_a_torn_one_are_whole(rows: MetricsFile) -> None:
    rows.log("train", 3, {})
    found = [json.loads(line)["step"] for line in rows.path.read_text().splitlines()]
    assert found == [1, 3] == [row["step"] for row in rows.rows()]
