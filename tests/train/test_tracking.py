import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import wandb
from pydantic import ValidationError

from debate_protocol.forms import Simultaneous
from debate_rewards import Verifiable
from debate_rollout.drivers import play
from debate_rollout.engines import ScriptedEngine
from debate_train.advantages import Grouped
from debate_train.batches.rows import Step, build_batch
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.commands.cli import main
from debate_train.data import SignsPuzzle
from debate_train.models.scratch import word_tokenizer
from debate_train.monitoring import tracking
from debate_train.monitoring.services import (
    COLUMNS,
    Logged,
    _is_online,
    shareable,
    shareable_page,
)
from debate_train.monitoring.tracking import Tracker, Tracking, turn_table
from debate_train.running.results import _flatten


@pytest.fixture(autouse=True)
def no_login(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


class Run:
    """What `wandb.init` gives."""

    url = "https://example.org/run"
    settings = SimpleNamespace(_offline=False)

    def __init__(self):
        self.metrics, self.sent, self.summary = [], [], {}

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))

    def log(self, row, step):
        if step == 1:
            raise ConnectionError("no route\nto the host")
        self.sent.append((row, step))

    def finish(self, exit_code):
        raise AssertionError("a run that is off is not ended")


def test_run_has_its_name_and_notes_and_an_address_when_online(tmp_path, monkeypatch, capfd):
    asked, made = [], Run()
    monkeypatch.setattr("wandb.init", lambda **named: asked.append(named) or made)
    run = RunDirectory.create(tmp_path / "run", "a: 1\n")
    tracking = Tracking(name="shown", notes="why it was run", group="seeds")
    assert tracking.open(run, "recipe", {"a": 1}).names == ["W&B"]
    (arguments,) = asked
    named = {"name": "shown", "notes": "why it was run", "group": "seeds", "config": {"a": 1}}
    assert {key: arguments[key] for key in named} == named
    assert arguments["settings"].host == "" and arguments["resume"] == "allow"
    assert "W&B: https://example.org/run" in capfd.readouterr().err
    assert made.metrics == [("step", None), ("*", "step")]
    assert os.environ["WANDB_DATA_DIR"] == str((run.path / "wandb" / "data").resolve())


def test_an_outage_ends_tracking_and_not_the_run(tmp_path, monkeypatch, capfd):
    made = Run()
    monkeypatch.setattr("wandb.init", lambda **_: made)
    run = RunDirectory.create(tmp_path / "run", "a: 1\n")
    tracker = Tracking().open(run, "recipe", {})
    capfd.readouterr()
    for step in (1, 2, 3):
        tracker.log("p", step, {"loss": 0.5, "tokens_per_s": 9, "round": 0, "a/b": None})
    tracker.summarise({"gain": 1})
    tracker.keep(None, None)
    tracker.close()
    row = {"optim/loss": 0.5, "time/tokens_per_s": 9, "train/round": 0, "phase": "p", "step": 1}
    assert made.sent == [(row, 0)] and made.summary == {}
    assert capfd.readouterr().err == (
        "warning: W&B is off from here on (no route); metrics.jsonl has all rows\n"
    )


@pytest.mark.parametrize("mode", ["online", "offline"])
def test_a_run_that_cannot_be_started_costs_one_warning(tmp_path, monkeypatch, capfd, mode):
    def init(**_):
        raise OSError("no room\nat all")

    monkeypatch.setenv("WANDB_MODE", mode)
    monkeypatch.setattr("wandb.init", init)
    run = RunDirectory.create(tmp_path / "run", "a: 1\n")
    tracker = Tracking().open(run, "recipe", {})
    assert tracker.names == []
    tracker.log("p", 1, {"loss": 1.0})
    said = capfd.readouterr().err
    assert said.count("warning: W&B is off from here on (no room)") == 1
    assert "kept offline" not in said


@pytest.mark.slow
def test_a_server_that_never_answers_leaves_a_run_that_wandb_sync_finds(
    tmp_path, monkeypatch, capfd
):
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    run = RunDirectory.create(tmp_path / "a run", "a: 1\n")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # It accepts, and says nothing.
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        begin = time.monotonic()
        tracker = Tracking().open(run, "recipe", {})
        # 6 to 8 s on an idle machine (wandb's own waits were 57); other tests run beside this one.
        assert time.monotonic() - begin < 20
        assert tracker.names == ["W&B"]
        tracker.log("p", 1, {"loss": 1.0})
        tracker.close()
        wandb.teardown()  # the last block of an offline run is written after `finish` returned
    reached, sync = capfd.readouterr().err.splitlines()[-2:]
    assert reached.startswith("W&B cannot be reached (")
    command = sync.removeprefix("W&B: to send the run: ").replace("sync", "sync --dry-run")
    command = f"{Path(sys.executable).parent / 'wandb'} {command.removeprefix('wandb ')}"
    found = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert "Would sync 1 run(s)" in found.stderr
    (kept,) = run.path.glob("wandb/offline-run-*/*.wandb")
    assert b"optim/loss" in kept.read_bytes()


def test_a_folder_that_cannot_be_made_costs_one_warning(tmp_path, capfd):
    run = RunDirectory.create(tmp_path / "run", "a: 1\n")
    (run.path / "wandb").write_text("in the way")
    assert Tracking().open(run, "recipe", {}).names == []
    assert "warning: W&B is off from here on (" in capfd.readouterr().err


def test_one_service_that_fails_leaves_the_others_and_views_that_fail_the_rows(capfd):
    class Service:
        def __init__(self, name):
            self.name, self.rows, self.ends = name, [], []

        def log(self, row):
            self.rows.append(row)
            if self.name == "b":
                raise ValueError("full")

        def close(self, failed):
            self.ends.append(failed)

    def view(phase, step):
        raise KeyError("unreadable")

    services = [Service("a"), Service("b"), Service("c")]
    tracker = Tracker(7, view)
    for service in services:
        tracker.add(service.name, lambda service=service: service)
    for step in (1, 2):
        tracker.log("p", step, {"loss": 0.5}, made=object())
    assert tracker.names == ["a", "c"]
    tracker.close(failed=True)
    tracker.close()
    a, b, c = services
    assert a.rows == c.rows == [Logged(n, "p", n - 6, {"optim/loss": 0.5}, []) for n in (7, 8)]
    assert len(b.rows) == 1 and (a.ends, b.ends, c.ends) == ([True], [], [True])
    assert capfd.readouterr().err.splitlines() == [
        "warning: no turns are tracked from here on ('unreadable')",
        "warning: b is off from here on (full); metrics.jsonl has all rows",
    ]


def test_a_library_that_is_missing_is_named_with_how_to_install_it(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    wanted = Tracking(wandb=False, tensorboard=True)
    (missing,) = wanted.missing_libraries()
    assert missing.startswith("tracking.tensorboard: found true")
    assert "pip install 'tensorboard" in missing
    assert list(Tracking().missing_libraries()) == []
    command = ["quickstart", "tracking.tensorboard=true", "--output", str(tmp_path / "run")]
    assert main(command) == 2
    assert "tracking.tensorboard: found true" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_open_does_nothing_when_tracking_is_off(tmp_path, monkeypatch):
    run = RunDirectory.create(tmp_path / "run", "a: 1\n")
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for tracker in (Tracking(wandb=False).open(run, "x", {}), Tracking().open(run, "x", {})):
        tracker.log("p", 1, {"loss": 1.0})
        tracker.summarise({})
        tracker.close()
        tracker.close()
    assert not (run.path / "wandb").exists()


def test_mode_is_offline_without_a_key_and_as_wandb_mode_says(monkeypatch, tmp_path):
    assert not _is_online()
    (tmp_path / "netrc").write_text("machine example.org login a password b\n")
    assert not _is_online()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password key\n")
    assert _is_online()
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert not _is_online()
    monkeypatch.delenv("WANDB_MODE")
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    assert _is_online()


def test_what_is_shared_has_no_secret_and_no_place_on_a_disk():
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
    kept = ["https://host/a/b/c", "org/model", "runs/a/b", "~/data/a", "1/2/3", "/", "a / b"]
    assert shareable(kept, {}) == kept
    assert shareable(["file:///data/a/b", "from /data/a/b on"], {}) == ["…/b", "from …/b on"]


def test_a_page_that_is_shared_has_none_either(monkeypatch, tmp_path):
    monkeypatch.setenv("A_TOKEN", "abcdefgh-long")
    monkeypatch.setenv("HOME", "/people/someone")
    text = f"<b>/data/sets/a.jsonl</b> {tmp_path} /people/someone/x abcdefgh-long</b></i>"
    page = shareable_page(text, {"data": {"path": ["/data/sets/a.jsonl"]}}, tmp_path)
    assert page == "<b>…/a.jsonl</b> … ~/x [secret]</b></i>"


def test_unknown_setting_is_refused():
    with pytest.raises(ValidationError):
        Tracking.model_validate({"projekt": "x"})


def test_table_says_of_each_turn_what_it_earned():
    source, tokenizer = SignsPuzzle(batch_size=2).open(), word_tokenizer()
    player = ScriptedEngine().open(None, tokenizer, script=source.demonstrate)
    form = Simultaneous(num_agents=3, max_rounds=2, style="compact", personas="none")
    played = play([form.start(q, seed=0) for q in source.batch(0)], player, max_tokens=64)
    scores = Verifiable()(played)
    advantage = Grouped(baseline="none")
    given = advantage(played, scores)
    batch = build_batch(played, given, advantage.streams, tokenizer)
    table = turn_table("p", Step(4, played, scores, batch, {}), most=7)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in table]
    assert [(r["debate"], r["agent"], r["round"]) for r in rows] == [
        (debate.id, turn.agent, turn.round) for debate in played for turn in debate.turns
    ][:7]
    assert {(r["phase"], r["step"], r["role"]) for r in rows} == {("p", 5, "debater")}
    means: dict = {}  # Of each agent's turns in order: rows, and segments within them, are so.
    for own in batch.rows:
        for segment in range(1, own.segments.max() + 1):
            inside = own.over_tokens("segments") == segment
            mean = own.over_tokens("advantages")[inside].sum() / inside.sum()
            means.setdefault((played[own.debate].id, own.agent), []).append(float(mean))
    for row in rows:
        value = float(row["credit"].removeprefix("generator "))
        assert abs(value) == 1 and row["advantage"] * value > 0
        mean = means[row["debate"], row["agent"]][row["round"]]
        assert row["advantage"] == pytest.approx(mean, rel=1e-6)
    assert {r["credit"] for r in rows} == {"generator 1", "generator -1"}


def test_the_change_of_a_summary_is_of_the_same_questions_as_its_interval() -> None:
    before, after = ({"mean": mean, "low": 0.0, "high": 1.0} for mean in (0.5, 0.7))
    row = {"name": "eval/judge/accuracy", "before": before, "after": after}
    found = _flatten([row | {"change": {"difference": 0.1, "low": 0.05, "high": 0.15}}])
    ends = [found[f"results/judge/accuracy/change{end}"] for end in ("", "_low", "_high")]
    assert ends == [0.1, 0.05, 0.15]
    assert _flatten([row])["results/judge/accuracy/change"] == pytest.approx(0.2)
