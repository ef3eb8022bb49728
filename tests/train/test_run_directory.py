import json
import math
import os

import pytest
import torch
from safetensors.torch import load_file

from debate_protocol.transcripts.files import read_transcripts
from debate_protocol.types import Protocol, Question, Transcript, Turn
from debate_train.checkpoints import RunState
from debate_train.checkpoints.resumes import note_resume
from debate_train.checkpoints.run_directory import RunDirectory, RunDirectoryError
from debate_train.checkpoints.whole_files import DirectoryInUseError

RECIPE = "steps: 3\nmodel:\n  name: tiny\n"


def with_checkpoint(path, step=2):
    run = RunDirectory.create(path, RECIPE)
    (run.checkpoints_path / f"step-{step:06d}").mkdir()
    return run


def test_create_writes_the_recipe_and_the_environment(tmp_path):
    run = RunDirectory.create(tmp_path / "a" / "run", RECIPE)
    run.describe({})
    assert run.recipe == RECIPE
    environment = json.loads((run.path / "environment.json").read_text())
    assert environment["packages"]["torch"] == torch.__version__
    assert environment["device"] and environment["torch_threads"] >= 1
    assert sorted(entry.name for entry in run.path.iterdir()) == [
        ".lock",
        "checkpoints",
        "environment.json",
        "evaluations",
        "metrics.jsonl",
        "recipe.yaml",
        "tokens",
        "transcripts",
    ]


def test_environment_holds_no_values_of_variables_and_no_paths(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "value-of-a-key")
    run = RunDirectory.create(tmp_path / "run", RECIPE)
    run.describe({})
    text = (run.path / "environment.json").read_text()
    assert "value-of-a-key" not in text
    assert os.getcwd() not in text and str(tmp_path) not in text


@pytest.mark.parametrize("name", ["recipe.yaml", ".hidden", "notes.txt"])
def test_create_refuses_when_the_folder_holds_a_file(tmp_path, name):
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunDirectoryError, match="--resume") as caught:
        RunDirectory.create(tmp_path, RECIPE)
    assert name in str(caught.value)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


def test_directory_is_used_by_one_run_at_a_time_when_it_is_not_closed(tmp_path):
    run = RunDirectory.create(tmp_path / "run", RECIPE)
    with pytest.raises(DirectoryInUseError, match=f"in use by process {os.getpid()}"):
        RunDirectory.open(run.path)
    for _ in range(2):
        with pytest.raises(RunDirectoryError, match=r"it holds checkpoints, evaluations, metrics"):
            RunDirectory.create(run.path, RECIPE)
        run.close()
    RunDirectory.open(run.path).close()


def test_create_takes_a_folder_when_one_killed_before_it_wrote_had_it(tmp_path):
    (tmp_path / ".lock").write_text("77\n")
    run = RunDirectory.create(tmp_path, RECIPE)
    assert run.recipe == RECIPE
    assert (tmp_path / ".lock").read_text() == f"{os.getpid()}\n"
    run.close()


def test_discard_unused_keeps_what_has_trained(tmp_path):
    for began in (False, True):
        run = RunDirectory.create(tmp_path / "run", RECIPE)
        if began:
            run.metrics.log("train", 1, {"loss": 1.0})
        run.discard_unused()
        run.discard_unused()
        assert run.path.exists() == began


def test_create_refuses_when_the_path_is_a_file(tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RunDirectoryError, match="cannot write to"):
        RunDirectory.create(tmp_path / "file", RECIPE)
    with pytest.raises(RunDirectoryError, match="cannot write to"):
        RunDirectory.create(tmp_path / "file" / "run", RECIPE)


def test_create_leaves_nothing_when_it_cannot_write(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(RunDirectoryError, match="No space left on device"):
        RunDirectory.create(tmp_path / "run", RECIPE)
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_create_refuses_when_writing_is_not_permitted(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(RunDirectoryError, match="Permission denied"):
        RunDirectory.create(tmp_path / "run", RECIPE)


def test_open_refuses_when_there_is_no_run(tmp_path):
    with pytest.raises(RunDirectoryError, match="no such folder"):
        RunDirectory.open(tmp_path / "absent")
    with pytest.raises(RunDirectoryError, match=r"found no recipe\.yaml"):
        RunDirectory.open(tmp_path)


def test_open_completes_a_folder_whose_making_was_stopped(tmp_path):
    run = RunDirectory.create(tmp_path / "run", RECIPE)
    for folder in (run.checkpoints_path, run.tokens_path):
        folder.rmdir()
    run.metrics_path.unlink()
    run.close()
    RunDirectory.open(run.path).metrics.log("train", 1, {"loss": 0.5})
    assert run.checkpoints_path.is_dir() and run.tokens_path.is_dir()
    assert len(run.metrics_path.read_text().splitlines()) == 1


def test_open_removes_what_a_killed_process_left_half_written(tmp_path):
    run = RunDirectory.create(tmp_path / "run", RECIPE)
    left = [run.path / ".results.json.77", run.transcripts_path / ".train-000001.jsonl.77.part"]
    left.append(run.tokens_path / ".tmpcogTf5")
    kept = run.transcripts_path / ".notes"
    for path in (*left, kept):
        path.touch()
    run.close()
    RunDirectory.open(run.path)
    assert [path.exists() for path in (*left, kept)] == [False, False, False, True]


def test_note_resume_keeps_the_first_environment(tmp_path):
    run = with_checkpoint(tmp_path / "run")
    run.describe({})
    first = json.loads((run.path / "environment.json").read_text())
    for _ in range(2):
        note_resume(run, 2, RECIPE)
    environment = json.loads((run.path / "environment.json").read_text())
    assert len(environment.pop("resumed")) == 2
    assert environment == first


def test_log_appends_rows_that_every_json_reader_takes(tmp_path):
    run = RunDirectory.create(tmp_path / "run", RECIPE)
    run.metrics.log(
        "self_play", 1, {"loss": torch.tensor(0.5), "reward": math.nan, "judge": None, "n": 3}
    )
    run.metrics.log("self_play", 2, {"loss": math.inf})
    lines = run.metrics_path.read_text().splitlines()
    rows = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    times = [row.pop("time_s") for row in rows]
    assert 0 <= times[0] <= times[1]
    assert rows == [
        {"phase": "self_play", "step": 1, "loss": 0.5, "reward": None, "judge": None, "n": 3},
        {"phase": "self_play", "step": 2, "loss": None},
    ]


def test_go_back_drops_what_was_written_after_a_checkpoint(tmp_path):
    run = with_checkpoint(tmp_path / "run")
    for step in (1, 2):
        run.metrics.log("warm_start", step, {"loss": 1.0})
    run.metrics.log("warm_start", 2, {"eval/format": 1.0})
    state = RunState(step=2)
    run.count_into(state)
    before = run.metrics.rows()
    # A second look after the same step was logged, too, when the run was stopped.
    run.metrics.log("warm_start", 2, {"eval/format": 0.5})
    run.metrics.log("self_play", 3, {"loss": 1.0})
    for step in (2, 3, 10):
        (run.transcripts_path / f"self_play-{step:06d}.jsonl").touch()
        (run.tokens_path / f"step-{step}.safetensors").touch()
    run.close()
    run = RunDirectory.open(run.path)
    run.begin(state)
    assert run.metrics.rows() == before
    assert [path.name for path in run.transcripts_path.iterdir()] == ["self_play-000002.jsonl"]
    assert [path.name for path in run.tokens_path.iterdir()] == ["step-2.safetensors"]
    run.begin(state)
    run.begin(RunState())
    assert run.metrics.rows() == []


def test_open_drops_a_torn_line_and_time_goes_on(tmp_path):
    run = with_checkpoint(tmp_path / "run")
    row = {"phase": "self_play", "step": 1, "time_s": 100.0}
    run.metrics_path.write_text(json.dumps(row) + '\n{"phase": "self_pl')
    run.close()
    run = RunDirectory.open(run.path)
    run.metrics.log("self_play", 2, {})
    first, second = run.metrics.rows()
    assert first == row
    assert 100.0 <= second["time_s"] < 110.0


def test_write_tokens_keeps_dtypes_and_strided_tensors(tmp_path):
    run = RunDirectory.create(tmp_path / "run", RECIPE)
    tensors = {
        "tokens_BT": torch.arange(6).reshape(2, 3).T,  # not contiguous
        "advantages_BT": torch.tensor([[0.5, -0.5]]),
    }
    path = run.write_tokens(3, tensors)
    assert path.name == "step-3.safetensors"
    read = load_file(path)
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)
    assert [entry.name for entry in run.tokens_path.iterdir()] == [path.name]


def test_write_transcripts_replaces_the_file_of_the_same_step(tmp_path):
    run = RunDirectory.create(tmp_path / "run", RECIPE)
    turn = Turn(agent=0, round=0, text="<solution>4</solution>")
    debate = Transcript("d", Question("q", "2+2?", "4"), Protocol(num_agents=1), (turn,))
    run.write_transcripts("self play/2", 7, [debate, debate])
    path = run.write_transcripts("self play/2", 7, [debate])
    assert path == run.transcripts_path / "self_play_2-000007.jsonl"
    assert read_transcripts(path) == [debate]
    assert [entry.name for entry in run.transcripts_path.iterdir()] == [path.name]


def test_write_results_keeps_the_old_file_when_a_value_cannot_be_written(tmp_path):
    run = RunDirectory.create(tmp_path / "run", RECIPE)
    path = run.write_results({"table": [{"measure": "direct", "before": {"mean": 0.5}}]})
    with pytest.raises(TypeError):
        run.write_results({"table": object()})
    assert json.loads(path.read_text())["table"][0]["before"] == {"mean": 0.5}


def test_create_takes_a_folder_in_which_a_killed_process_had_only_begun(tmp_path):
    (tmp_path / ".recipe.yaml.123").write_text(RECIPE[:9])
    assert RunDirectory.create(tmp_path, RECIPE).recipe == RECIPE
    assert not (tmp_path / ".recipe.yaml.123").exists()


@pytest.mark.parametrize("damage", ["missing", "null"])
def test_results_do_not_count_when_their_evaluation_is_another(tmp_path, damage):
    run = RunDirectory.create(tmp_path / "run", RECIPE)
    evaluation = run.evaluations_path / "after-000003.json"
    evaluation.write_text("{}")
    run.note_record(evaluation)
    run.write_results({"table": []})
    assert run.has_results
    evaluation.unlink() if damage == "missing" else evaluation.write_text("null\n")
    assert not run.has_results
