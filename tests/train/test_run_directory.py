"""The run directory: created whole or refused; its rows of metrics are written once each."""

import hashlib
import json
import math
import os
import resource

import pytest
import torch
from safetensors.torch import load_file, save_file

from debate_protocol.transcripts.files import read_transcripts
from debate_protocol.types import Protocol, Question, Transcript, Turn
from debate_train.checkpoints import Checkpoints, RunState, run_hash
from debate_train.checkpoints.resumes import note_resume
from debate_train.checkpoints.run_directory import (
    MetricsFile,
    RunDirectory,
    RunDirectoryError,
    written,
)
from debate_train.checkpoints.whole_files import DirectoryInUseError
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


@pytest.mark.parametrize("name", ["file", "file/run"])
def test_create_refuses_a_path_that_is_a_file(tmp_path, name):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunDirectoryError, match="cannot write to"):
        RunDirectory.create(tmp_path / name, RECIPE)


def test_create_leaves_nothing_when_it_cannot_write(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(RunDirectoryError, match="No space left on device"):
        RunDirectory.create(tmp_path / "run", RECIPE)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_create_refuses_when_writing_is_not_permitted(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunDirectoryError, match="Permission denied"):
        RunDirectory.create(tmp_path / "run", RECIPE)


@pytest.mark.parametrize("has_trained", [False, True])
def test_discard_unused_keeps_what_has_trained(run, has_trained):
    if has_trained:
        run.metrics.log("train", 1, {"loss": 1.0})
    for _ in range(2):
        run.discard_unused()
        assert run.path.exists() == has_trained


# Opening


def test_open_refuses_when_there_is_no_run(tmp_path):
    with pytest.raises(RunDirectoryError, match="no such folder"):
        RunDirectory.open(tmp_path / "absent")
    with pytest.raises(RunDirectoryError, match=r"found no recipe\.yaml"):
        RunDirectory.open(tmp_path)


def test_directory_is_used_by_one_run_at_a_time(run):
    with pytest.raises(DirectoryInUseError, match=f"in use by process {os.getpid()}"):
        RunDirectory.open(run.path)
    for _ in range(2):
        with pytest.raises(RunDirectoryError, match=r"it holds checkpoints, evaluations, metrics"):
            RunDirectory.create(run.path, RECIPE)
        run.close()
    RunDirectory.open(run.path).close()


def test_open_completes_a_folder_whose_making_was_stopped(run):
    run.checkpoints_path.rmdir()
    run.tokens_path.rmdir()
    run.metrics_path.unlink()
    run.close()
    RunDirectory.open(run.path).metrics.log("train", 1, {"loss": 0.5})
    assert run.checkpoints_path.is_dir() and run.tokens_path.is_dir()
    assert len(run.metrics_path.read_text().splitlines()) == 1


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


def test_note_resume_keeps_the_first_environment(run):
    (run.checkpoints_path / "step-000002").mkdir()
    run.describe({})
    first = json.loads((run.path / "environment.json").read_text())
    for _ in range(2):
        note_resume(run, 2, RECIPE)
    environment = json.loads((run.path / "environment.json").read_text())
    assert len(environment.pop("resumed")) == 2
    assert environment == first


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


def test_rows_after_a_torn_one_are_whole(torn_metrics):
    torn_metrics.log("train", 3, {})
    rows = [json.loads(line) for line in torn_metrics.path.read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 3]
    assert rows == torn_metrics.rows()


# Other files


def test_write_tokens_keeps_dtypes_and_strided_tensors(run):
    tensors = {
        "tokens_BT": torch.arange(6).reshape(2, 3).T,  # not contiguous
        "advantages_BT": torch.tensor([[0.5, -0.5]]),
    }
    stored = load_file(run.write_tokens(3, tensors))
    assert all(torch.equal(stored[name], tensor) for name, tensor in tensors.items())
    assert names_in(run.tokens_path) == ["step-3.safetensors"]


def test_write_transcripts_replaces_the_file_of_the_same_step(run):
    turn = Turn(agent=0, round=0, text="<solution>4</solution>")
    debate = Transcript("d", Question("q", "2+2?", "4"), Protocol(num_agents=1), (turn,))
    run.write_transcripts("self play/2", 7, [debate, debate])
    path = run.write_transcripts("self play/2", 7, [debate])
    assert read_transcripts(path) == [debate]
    assert names_in(run.transcripts_path) == ["self_play_2-000007.jsonl"]


def test_write_results_keeps_the_old_file_when_a_value_cannot_be_written(run):
    path = run.write_results({"table": [{"measure": "direct"}]})
    with pytest.raises(TypeError):
        run.write_results({"table": object()})
    assert json.loads(path.read_text())["table"] == [{"measure": "direct"}]


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


def test_file_that_cannot_be_written_ends_in_one_line(tmp_path):
    message = r"cannot write .*tokens: No space left on device; make"
    with pytest.raises(RunFailure, match=message), written(tmp_path / "tokens"):
        raise OSError(28, "No space left on device")
