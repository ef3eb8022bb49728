"""Trackers: what is sent, what an outage costs, and a tracked run read back record by record."""

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb
import yaml
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.commands.cli import main
from debate_train.monitoring import tracking
from debate_train.monitoring.services import (
    COLUMNS,
    Logged,
    Start,
    TensorBoardRun,
    WandbRun,
    _is_online,
    _records,
    shareable,
    shareable_page,
)
from debate_train.monitoring.tracking import Tracker, Tracking, grouped
from debate_train.running import loop
from train.small_runs import RECIPE, at_call

OFF = "warning: W&B is off from here on ("


@pytest.fixture
def no_login(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.fixture
def run(tmp_path, no_login):
    return RunDirectory.create(tmp_path / "run", "a: 1\n")


class FakeRun:
    """What `wandb.init` gives; its second row is lost."""

    url = "https://example.org/run"
    settings = SimpleNamespace(_offline=False)

    def __init__(self, starting_step=0):
        self.starting_step = starting_step
        self.metrics = []
        self.rows = []
        self.summary = {}

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def log(self, row, step):
        if step == 1:
            raise ConnectionError("no route\nto the host")
        self.rows.append((row, step))

    def finish(self, exit_code):
        raise AssertionError("a run that is off is not ended")


def test_an_outage_ends_tracking_and_not_the_run(run, monkeypatch, capfd):
    fake = FakeRun()
    monkeypatch.setattr("wandb.init", lambda **_: fake)
    tracker = Tracking().open(run, "recipe", {})
    capfd.readouterr()
    for step in (1, 2, 3):
        tracker.log("p", step, {"loss": 0.5, "tokens_per_s": 9, "round": 0, "a/b": None})
    tracker.summarise({"gain": 1})
    tracker.keep(None, None)
    tracker.close()
    row = {"optim/loss": 0.5, "time/tokens_per_s": 9, "train/round": 0, "phase": "p", "step": 1}
    assert fake.rows == [(row, 0)]
    assert fake.summary == {}
    assert capfd.readouterr().err == f"{OFF}no route); metrics.jsonl has all rows\n"


def test_a_server_gets_the_rows_that_it_does_not_have(run, monkeypatch):
    for step in (1, 2, 3, 4):
        run.metrics.log("p", step, {"loss": step / 4, "a/b": None})
    fake = FakeRun(starting_step=2)
    monkeypatch.setattr("wandb.init", lambda **_: fake)
    Tracking().open(run, "recipe", {})
    assert fake.rows == [
        ({"optim/loss": 0.75, "phase": "p", "step": 3}, 2),
        ({"optim/loss": 1.0, "phase": "p", "step": 4}, 3),
    ]


def test_a_folder_that_cannot_be_made_costs_one_warning(run, capfd):
    (run.path / "wandb").write_text("in the way")
    assert Tracking().open(run, "recipe", {}).names == []
    assert OFF in capfd.readouterr().err


@pytest.mark.slow
def test_a_server_that_never_answers_leaves_a_run_that_wandb_sync_finds(run, monkeypatch, capfd):
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It accepts, and says nothing.
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        tracker = Tracking().open(run, "recipe", {})
        assert tracker.names == ["W&B"]
        tracker.log("p", 1, {"loss": 1.0})
        tracker.close()
        wandb.teardown()  # the last block of an offline run is written after `finish` returned
    reached, sync = capfd.readouterr().err.splitlines()[-2:]
    assert reached.startswith("W&B cannot be reached (")
    arguments = sync.removeprefix("W&B: to send the run: wandb sync ")
    command = f"{Path(sys.executable).parent / 'wandb'} sync --dry-run {arguments}"
    process = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert "Would sync 1 run(s)" in process.stderr
    (file,) = run.path.glob("wandb/offline-run-*/*.wandb")
    assert b"optim/loss" in file.read_bytes()


class FakeService:
    def __init__(self, name, fails=False):
        self.name = name
        self.fails = fails
        self.rows = []
        self.ends = []

    def log(self, row):
        self.rows.append(row)
        if self.fails:
            raise ValueError("full")

    def close(self, failed):
        self.ends.append(failed)


def test_one_service_that_fails_leaves_the_others_and_views_that_fail_the_rows(capfd):
    def view(phase, step):
        raise KeyError("unreadable")

    services = {name: FakeService(name, fails=name == "b") for name in "abc"}
    tracker = Tracker(7, view)
    for name, service in services.items():
        tracker.add(name, lambda service=service: service)
    for step in (1, 2):
        tracker.log("p", step, {"loss": 0.5}, made=object())
    assert tracker.names == ["a", "c"]
    tracker.close(failed=True)
    tracker.close()
    rows = [Logged(number, "p", number - 6, {"optim/loss": 0.5}, []) for number in (7, 8)]
    assert services["a"].rows == services["c"].rows == rows
    assert len(services["b"].rows) == 1
    assert [service.ends for service in services.values()] == [[True], [], [True]]
    assert capfd.readouterr().err.splitlines() == [
        "warning: no turns are tracked from here on ('unreadable')",
        "warning: b is off from here on (full); metrics.jsonl has all rows",
    ]


def test_a_library_that_is_missing_is_named_with_how_to_install_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    (message,) = Tracking(wandb=False, tensorboard=True).missing_libraries()
    assert message.startswith("tracking.tensorboard: found true")
    assert "pip install 'tensorboard" in message
    assert list(Tracking().missing_libraries()) == []
    output = tmp_path / "run"
    assert main(["quickstart", "tracking.tensorboard=true", "--output", str(output)]) == 2
    assert "tracking.tensorboard: found true" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.usefixtures("no_login")
@pytest.mark.parametrize(
    ("netrc", "environment", "expected"),
    [
        ("", {}, False),
        ("machine example.org login a password b\n", {}, False),
        ("machine api.wandb.ai login user password key\n", {}, True),
        ("machine api.wandb.ai login user password key\n", {"WANDB_MODE": "offline"}, False),
        ("", {"WANDB_API_KEY": "k" * 40}, True),
    ],
)
def test_mode_is_offline_without_a_key_and_as_wandb_mode_says(
    monkeypatch, tmp_path, netrc, environment, expected
):
    (tmp_path / "netrc").write_text(netrc)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert _is_online() == expected


def test_what_is_shared_has_no_secret_and_no_place_on_a_disk(monkeypatch, tmp_path):
    environment = {
        "HF_TOKEN": "abcdefgh",
        "PASSWORD": "abcdefgh-long",
        "SHORT_KEY": "1",
        "HOME": "/people",
    }
    value = {"a": ["abcdefgh-long", "x abcdefgh"], "b": {"path": "/mnt/m/base", "n": 1, "m": None}}
    assert shareable(value, environment) == {
        "a": ["[secret]", "x [secret]"],
        "b": {"path": "…/base", "n": 1, "m": None},
    }
    public = ["https://host/a/b/c", "org/model", "runs/a/b", "~/data/a", "1/2/3", "/", "a / b"]
    assert shareable(public, {}) == public
    assert shareable(["file:///data/a/b", "from /data/a/b on"], {}) == ["…/b", "from …/b on"]
    # A page has none, either.
    monkeypatch.setenv("A_TOKEN", "abcdefgh-long")
    monkeypatch.setenv("HOME", "/people/someone")
    text = f"<b>/data/sets/a.jsonl</b> {tmp_path} /people/someone/x abcdefgh-long</b></i>"
    page = shareable_page(text, {"data": {"path": ["/data/sets/a.jsonl"]}}, tmp_path)
    assert page == "<b>…/a.jsonl</b> … ~/x [secret]</b></i>"


# A run of three steps that failed in the third and was resumed, tracked offline

SECRET = "value-of-a-secret"
TRACKED = (
    "tracking={wandb: true, tensorboard: true, project: tracked, turns: 3, "
    "checkpoints: true, "
    f"tags: [/data/someone/sets/file.txt, {SECRET}]}}",
    "recording={debates: 1, every: 1}",
)


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """Track a run; keep its folder, its rows, and the records of its two starts."""
    folder = tmp_path_factory.mktemp("tracked")
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    command = [str(recipe), *TRACKED, f"--output={folder / 'run'}"]

    def fail():
        raise RuntimeError("a bug")

    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("NETRC", str(folder / "netrc"))
        patch.setenv("SOME_SERVICE_TOKEN", SECRET)
        with pytest.MonkeyPatch.context() as broken:
            at_call(broken, loop, "build_batch", 3, fail)
            assert main(command) == 1
        assert main([*command, "--resume"]) == 0
        # A run's `finish` returns before its last block is written: the end of the service waits.
        wandb.teardown()
    files = sorted((folder / "run/wandb").glob("offline-run-*/*.wandb"))
    lines = (folder / "run/metrics.jsonl").read_text().splitlines()
    return SimpleNamespace(
        folder=folder / "run",
        rows=[json.loads(line) for line in lines],
        starts=[list(_records(file.read_bytes())) for file in files],
    )


def records_of(tracked, kind):
    records = chain.from_iterable(tracked.starts)
    return [getattr(r, kind) for r in records if r.WhichOneof("record_type") == kind]


def read_history(start):
    """Read each row that was sent: its number, and its values by name."""
    rows = []
    for record in start:
        if record.WhichOneof("record_type") == "history":
            values = {}
            for item in record.history.item:
                values["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
            rows.append((record.history.step.num, values))
    return rows


def test_a_resumed_run_goes_on_as_the_same_one_without_a_repeat(tracked):
    identity = (tracked.folder / "wandb/run-id.txt").read_text().strip()
    assert [record.run_id for record in records_of(tracked, "run")] == [identity] * 2
    first, second = (read_history(start) for start in tracked.starts)
    assert [(number, row["step"]) for number, row in first] == [(0, 1), (1, 2), (2, 2)]
    assert [(number, row["step"]) for number, row in second] == [(3, 3)]
    for (_, sent), row in zip(first + second, tracked.rows, strict=True):
        assert (sent["phase"], sent["step"]) == (row["phase"], row["step"])
        assert sent.get("optim/loss") == row.get("loss")
        assert sent.get("eval/format") == row.get("eval/format")
        assert sent.get("train/parse_error") == row.get("parse_error")
        top_level = {name for name in sent if "/" not in name}
        assert top_level <= {"step", "phase", "_step", "_runtime", "_timestamp", "_wandb"}
    assert [record.exit_code for record in records_of(tracked, "exit")] == [1, 0]


@pytest.mark.usefixtures("no_login")
def test_rows_that_a_killed_process_did_not_write_are_written_by_the_next(tracked, tmp_path):
    shutil.copytree(tracked.folder, tmp_path / "run")
    first, second = sorted((tmp_path / "run/wandb").glob("offline-run-*"))
    shutil.rmtree(second)
    (file,) = first.glob("*.wandb")
    # The file ends within its second row.
    content = file.read_bytes()
    length = len(content)
    while len(read_history(_records(content[:length]))) >= 2:
        length -= 1
    file.write_bytes(content[:length])
    run_directory = RunDirectory.open(tmp_path / "run")
    Tracking().open(run_directory, "recipe", {}).close()
    run_directory.close()
    wandb.teardown()
    (file,) = set(file.parent.parent.glob("offline-run-*/*.wandb")) - {file}
    rows = read_history(_records(file.read_bytes()))
    assert [(number, values["step"]) for number, values in rows] == [(1, 2), (2, 2), (3, 3)]
    sent = {name for name in rows[0][1] if not name.startswith("_")}
    names = {grouped(name) for name, value in tracked.rows[1].items() if value is not None}
    assert sent == names - {"train/time_s", "train/phase", "train/step"} | {"phase", "step"}


@pytest.mark.usefixtures("no_login")
def test_steps_are_sent_once_when_a_run_goes_on_with_fewer_evaluations(tmp_path):
    # Rows of steps 1, 2 and 3, the last two with evaluations; the checkpoint was before those of 3.
    # A phase this long makes records of more than one block of wandb's files.
    phase = "p" * 70_000
    rows = {"first": (1, 2, 2, 3, 3), "second": (1, 2, 3, 4, 5)}
    for name, steps in rows.items():
        earlier = [Logged(number, phase, step, {}) for number, step in enumerate(steps[:2])]
        service = WandbRun(Start(tmp_path, rows=() if name == "first" else earlier))
        for number, step in enumerate(steps):
            if name == "first" or number >= len(earlier):
                service.log(Logged(number, phase, step, {}))
        service.close(False)
        wandb.teardown()
    sent = []
    for file in sorted(tmp_path.glob("wandb/offline-run-*/*.wandb")):
        sent += [(number, row["step"]) for number, row in read_history(_records(file.read_bytes()))]
    assert sorted(sent) == [(0, 1), (1, 2), (2, 2), (3, 3), (4, 3), (5, 4), (6, 5)]


def test_the_summary_has_the_results_with_their_intervals(tracked):
    sent = {}
    for summary in records_of(tracked, "summary"):
        sent.update({update.key: json.loads(update.value_json) for update in summary.update})
    results = json.loads((tracked.folder / "results.json").read_text())
    assert sent["results/summary"] == results["summary"]
    for row in results["table"]:
        name = "results/" + row["name"].removeprefix("eval/")
        for when in ("before", "after"):
            assert sent[f"{name}/{when}"] == row[when]["mean"]
            assert sent[f"{name}/{when}_low"] == row[when]["low"]
        assert sent[f"{name}/change_high"] == row["change"]["high"]


def test_report_and_recipe_are_artifacts_within_the_run(tracked):
    artifacts = records_of(tracked, "artifact")
    kinds = [artifact.type for artifact in artifacts]
    assert kinds == ["run_table"] + ["recipe", "report", "model"] * 2
    entries = {artifact.type: artifact.manifest.contents for artifact in artifacts}
    names = {entry.path for entry in entries["model"]}
    assert {"manifest.json", "model.safetensors"} <= names
    for artifact in artifacts:
        for entry in artifact.manifest.contents:
            folder = tracked.folder.resolve() / "wandb"
            assert Path(entry.local_path).is_relative_to(folder)
    assert "</html>" in Path(entries["report"][0].local_path).read_text()
    recipe = yaml.safe_load(Path(entries["recipe"][0].local_path).read_text())
    assert recipe["model"]["hidden_size"] == 8 and "weights" not in recipe
    assert recipe["tracking"]["tags"] == ["…/file.txt", "[secret]"]


def test_no_host_user_path_or_secret_is_sent(tracked):
    sent = ""
    for artifact in records_of(tracked, "artifact"):
        if artifact.type != "model":  # A checkpoint goes as it is.
            for entry in artifact.manifest.contents:
                sent += Path(entry.local_path).read_text()
    for start in tracked.starts:
        for record in start:
            shared = type(record).FromString(record.SerializeToString())
            for entry in shared.artifact.manifest.contents:
                entry.ClearField("local_path")  # It stays here, for `wandb sync`.
            sent += str(shared)
    for record in records_of(tracked, "run"):
        assert record.host == ""
        assert {"model", "tracking", "weights"} <= {update.key for update in record.config.update}
    for text in (SECRET, str(tracked.folder), "/data/someone", os.path.expanduser("~/")):
        assert text not in sent
    for name in (socket.gethostname(), getpass.getuser()):
        assert f'"{name}"' not in sent


def test_readers_of_event_files_get_steps_that_were_played_again_once(tmp_path):
    for last, losses in ((None, {1: 4.0, 2: 3.0, 3: 2.0}), (1, {2: 3.5, 3: 2.5})):
        events = TensorBoardRun(Start(tmp_path), last)
        for step, loss in losses.items():
            events.log(Logged(step - 1, "train", step, {"optim/loss": loss}))
        events.close(False)
    folder = str(tmp_path / "tensorboard")
    of_scripts = event_accumulator.EventAccumulator(folder).Reload().Scalars("optim/loss")
    of_page = EventAccumulator(folder).Reload().Tensors("optim/loss")
    values = [(1, 4.0), (2, 3.5), (3, 2.5)]
    assert [(event.step, event.value) for event in of_scripts] == values
    assert [(event.step, make_ndarray(event.tensor_proto)) for event in of_page] == values


def test_tensorboard_draws_each_step_once(tracked):
    folder = tracked.folder / "tensorboard"
    assert len(list(folder.iterdir())) == 2
    events = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    losses = events.Tensors("optim/loss")
    rows = [row for row in tracked.rows if "loss" in row]
    assert [event.step for event in losses] == [row["step"] for row in rows] == [1, 2, 3]
    for event, row in zip(losses, rows, strict=True):
        assert float(make_ndarray(event.tensor_proto)) == pytest.approx(row["loss"], rel=1e-6)
    turns = events.Tensors("transcripts/turns/text_summary")[0]
    (table,) = make_ndarray(turns.tensor_proto)
    lines = [json.loads(line) for line in table.decode().splitlines()]
    assert [tuple(line) for line in lines] == [COLUMNS] * 2
    (results,) = events.Tensors("results/text_summary")
    assert b"results/summary" in make_ndarray(results.tensor_proto).item()
