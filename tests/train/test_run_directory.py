"""The run directory: created whole or refused; its rows of metrics are written once each."""

import fcntl
import hashlib
import json
import math
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from debate_protocol.transcripts.files import read_transcripts
from debate_protocol.types import Protocol, Question, Transcript, Turn
from debate_train.checkpoints import Checkpoints, RunState, run_hash
from debate_train.checkpoints.run_directory import (
    MetricsFile,
    RunDirectory,
    RunDirectoryError,
)
from debate_train.checkpoints.whole_files import LOCK, DirectoryInUseError, DirectoryLock
from debate_train.errors import RunFailure

RECIPE = "steps: 3\nmodel:\n  name: tiny\n"


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", RECIPE)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


# Creating


def test_create_writes_the_recipe_and_the_environment_without_paths_or_variables(
    tmp_path, monkeypatch
):
    monkeypatch.setenv("SOME_API_KEY", "value-of-a-key")
    run = RunDirectory.create(tmp_path / "a" / "run", RECIPE)
    run.describe({})
    assert run.recipe == RECIPE
    text = (run.path / "environment.json").read_text()
    environment = json.loads(text)
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["device"] and environment["torch_threads"] >= 1
    assert not any(private in text for private in ("value-of-a-key", os.getcwd(), str(tmp_path)))
    folders = ["checkpoints", "evaluations", "tokens", "transcripts"]
    files = [".lock", "environment.json", "metrics.jsonl", "recipe.yaml"]
    assert names_in(run.path) == sorted(folders + files)


@pytest.mark.parametrize("name", ["recipe.yaml", ".hidden", "notes.txt"])
def test_create_refuses_a_folder_that_holds_a_file(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunDirectoryError, match=f"{name}.*--resume"):
        RunDirectory.create(tmp_path, RECIPE)
    assert names_in(tmp_path) == [name]


@pytest.mark.parametrize("name", [".lock", ".recipe.yaml.123"])
def test_create_takes_a_folder_that_a_killed_process_had_only_begun(tmp_path, name):
    (tmp_path / name).write_text("77\n")
    run = RunDirectory.create(tmp_path, RECIPE)
    assert run.recipe == RECIPE
    assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    assert not (tmp_path / ".recipe.yaml.123").exists()


def test_create_leaves_nothing_when_it_cannot_write(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RunDirectoryError, match="No space left on device"):
        RunDirectory.create(tmp_path / "run", RECIPE)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("has_trained", [False, True])
def test_discard_unused_keeps_what_has_trained(run, has_trained):
    if has_trained:
        run.metrics.log("train", 1, {"loss": 1.0})
    for _ in range(2):
        run.discard_unused()
        assert run.path.exists() == has_trained


# Opening


def test_directory_is_used_by_one_run_at_a_time(run):
    with pytest.raises(DirectoryInUseError, match=f"in use by process {os.getpid()}"):
        RunDirectory.open(run.path)
    for _ in range(2):
        with pytest.raises(RunDirectoryError, match=r"it holds checkpoints, evaluations, metrics"):
            RunDirectory.create(run.path, RECIPE)
        run.close()
    RunDirectory.open(run.path).close()


def test_open_removes_what_a_killed_process_left_half_written(run):
    unfinished = [
        run.path / ".results.json.77",
        run.transcripts_path / ".train-000001.jsonl.77.part",
        run.tokens_path / ".tmpcogTf5",
    ]
    notes = run.transcripts_path / ".notes"
    for path in (*unfinished, notes):
        path.touch()
    run.close()
    RunDirectory.open(run.path)
    assert not any(path.exists() for path in unfinished)
    assert notes.exists()


# Rows of metrics


def test_log_appends_rows_that_every_json_reader_takes(run):
    metrics = {"loss": torch.tensor(0.5), "reward": math.nan, "judge": None, "n": 3}
    run.metrics.log("self_play", 1, metrics)
    run.metrics.log("self_play", 2, {"loss": math.inf})
    lines = run.metrics_path.read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    times = [row.pop("time_s") for row in rows]
    assert 0 <= times[0] <= times[1]
    assert rows == [
        {"phase": "self_play", "step": 1, "loss": 0.5, "reward": None, "judge": None, "n": 3},
        {"phase": "self_play", "step": 2, "loss": None},
    ]


def test_begin_drops_what_was_written_after_the_checkpoint(run):
    for step in (1, 2):
        run.metrics.log("warm_start", step, {"loss": 1.0})
    run.metrics.log("warm_start", 2, {"eval/format": 1.0})
    state = RunState(step=2)
    run.count_into(state)
    rows = run.metrics.rows()
    # A second look after the same step was logged, too, when the run was stopped.
    run.metrics.log("warm_start", 2, {"eval/format": 0.5})
    run.metrics.log("self_play", 3, {"loss": 1.0})
    for step in (2, 3, 10):
        (run.transcripts_path / f"self_play-{step:06d}.jsonl").touch()
        (run.tokens_path / f"step-{step}.safetensors").touch()
    run.close()
    reopened = RunDirectory.open(run.path)
    reopened.begin(state)
    assert reopened.metrics.rows() == rows
    assert names_in(run.transcripts_path) == ["self_play-000002.jsonl"]
    assert names_in(run.tokens_path) == ["step-2.safetensors"]
    reopened.begin(RunState())
    assert reopened.metrics.rows() == []


def test_open_drops_a_torn_line_and_time_goes_on(run):
    first_row = {"phase": "self_play", "step": 1, "time_s": 100.0}
    run.metrics_path.write_text(json.dumps(first_row) + '\n{"phase": "self_pl')
    run.close()
    reopened = RunDirectory.open(run.path)
    reopened.metrics.log("self_play", 2, {})
    first, second = reopened.metrics.rows()
    assert first == first_row
    assert 100.0 <= second["time_s"] < 110.0


@pytest.fixture
def torn_metrics(tmp_path):
    """Log a row, and a second one of which only the beginning fits on the disk."""
    metrics = MetricsFile(tmp_path / "metrics.jsonl")
    metrics.log("train", 1, {"loss": 0.5})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (metrics.path.stat().st_size + 7, hard))
    try:
        with pytest.raises(RunFailure, match="cannot write"):
            metrics.log("train", 2, {"loss": 0.25})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert metrics.path.read_bytes().endswith(b'\n{"phase')
    return metrics


def test_state_does_not_count_a_row_that_was_written_in_part(torn_metrics):
    state = RunState()
    torn_metrics.count_into(state)
    first_line = torn_metrics.path.read_bytes().splitlines(keepends=True)[0]
    assert state.rows == 1
    assert state.metrics_sha256 == hashlib.sha256(first_line).hexdigest()
    MetricsFile(torn_metrics.path).go_back(state.rows)
    assert torn_metrics.path.read_bytes() == first_line


# Other files


def test_write_transcripts_replaces_the_file_of_the_same_step(run):
    turn = Turn(agent=0, round=0, text="<solution>4</solution>")
    debate = Transcript("d", Question("q", "2+2?", "4"), Protocol(num_agents=1), (turn,))
    run.write_transcripts("self play/2", 7, [debate, debate])
    path = run.write_transcripts("self play/2", 7, [debate])
    assert read_transcripts(path) == [debate]
    assert names_in(run.transcripts_path) == ["self_play_2-000007.jsonl"]


@pytest.mark.parametrize("damage", ["missing", "null"])
def test_results_do_not_count_when_their_evaluation_is_another(run, damage):
    evaluation = run.evaluations_path / "after-000003.json"
    evaluation.write_text("{}")
    run.note_record(evaluation)
    run.write_results({"table": []})
    assert run.has_results
    if damage == "missing":
        evaluation.unlink()
    else:
        evaluation.write_text("null\n")
    assert not run.has_results


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_files_of_libraries_have_the_mode_that_the_umask_gives(tmp_path, mask):
    def save(folder):
        (folder / "adapter").mkdir()
        save_file({"a": torch.ones(1)}, folder / "adapter/model.safetensors")

    previous_mask = os.umask(mask)
    try:
        run = RunDirectory.create(tmp_path / "run", RECIPE)
        tokens = run.write_tokens(1, {"a": torch.ones(1)})
        checkpoints = Checkpoints(run.checkpoints_path, run_hash(RECIPE), 1)
        checkpoint = checkpoints.write(RunState(step=1), save)
    finally:
        os.umask(previous_mask)
    files = [path for path in checkpoint.rglob("*") if path.is_file()]
    assert len(files) == 3
    assert {path.stat().st_mode & 0o777 for path in (tokens, *files)} == {0o666 & ~mask}


def assert_locked_by(process_id: int, folder: Path) -> None:
    with pytest.raises(DirectoryInUseError, match=f"in use by process {process_id};"):
        DirectoryLock(folder)


def test_lock_names_the_process_that_has_it(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with pytest.raises(DirectoryInUseError) as refusal:
        DirectoryLock(tmp_path)
    message = f"--output: found {tmp_path} in use by process {os.getpid()}; expected no other"
    assert str(refusal.value).startswith(message)
    lock.release()
    lock.release()
    assert (tmp_path / LOCK).read_bytes() == b""
    DirectoryLock(tmp_path).release()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    yield read_end, write_end
    os.close(read_end)
    os.close(write_end)


@pytest.mark.parametrize("child_releases", [False, True])
def test_lock_does_not_stay_when_a_forked_process_outlives_it(
    tmp_path: Path, pipe: tuple[int, int], child_releases: bool
) -> None:
    read_end, write_end = pipe
    lock = DirectoryLock(tmp_path)
    child = os.fork()
    if child == 0:
        if child_releases:  # As an orderly end of the child would; the lock stays its parent's.
            lock.release()
        os.write(write_end, b".")
        signal.pause()
    try:
        assert os.read(read_end, 1) == b"."
        assert_locked_by(os.getpid(), tmp_path)
        lock.release()
        DirectoryLock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_lock_does_not_stay_when_a_started_program_outlives_it(tmp_path: Path) -> None:
    lock = DirectoryLock(tmp_path)
    with subprocess.Popen(["sleep", "60"], close_fds=False) as process:
        try:
            lock.release()
            again = DirectoryLock(tmp_path)
            assert (tmp_path / LOCK).read_text() == f"{os.getpid()}\n"
            assert process.poll() is None
            again.release()
        finally:
            process.kill()


def test_lock_is_refused_when_its_directory_was_removed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock = fcntl.flock

    def remove_before(number: int, how: int) -> None:
        (tmp_path / LOCK).unlink()
        flock(number, how)

    monkeypatch.setattr("fcntl.flock", remove_before)
    with pytest.raises(DirectoryInUseError, match="in use by another process"):
        DirectoryLock(tmp_path)


def test_lock_warns_when_the_disk_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(number: int, how: int) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", refuse)
    DirectoryLock(tmp_path).release()
    assert "found a disk without locks (Function not implemented)" in caplog.text
