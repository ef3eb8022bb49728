import os
import time
from types import SimpleNamespace
from typing import ClassVar

import pytest
from pydantic import ValidationError

from debate_train.run_files.run_directory import RunDirectory
from debate_train.run_files.tracking import Tracking, WandbRun, _mode, without_secrets


@pytest.fixture(autouse=True)
def no_login(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def stored(run):
    """Bytes of all files that wandb wrote for a run."""
    files = [path for path in run.path.rglob("*") if path.is_file() and "wandb" in path.parts]
    return b"".join(path.read_bytes() for path in files)


def whole_record(run, last):
    """What would be sent of a run; its process writes it within a moment of the run's end."""
    (record,) = run.path.rglob("*.wandb")  # Logs beside it stay here.
    until = time.monotonic() + 60
    while last not in (content := record.read_bytes()) and time.monotonic() < until:
        time.sleep(0.05)
    assert last in content
    return content


def test_offline_run_holds_the_metrics_and_no_secret(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("SOME_SERVICE_TOKEN", "value-of-a-secret")
    monkeypatch.setattr("sys.argv", ["debate-train", "key=value-on-the-command-line"])
    run = RunDirectory.create(tmp_path / "run", "a: 1\n")
    tracker = Tracking(group="seeds").open(run, "first", {"data": {"url": "x/value-of-a-secret"}})
    assert isinstance(tracker, WandbRun) and tracker.offline
    tracker.log("self_play", 1, {"reward/total": 0.5, "judge/accuracy": None})
    run.log("self_play", 1, {"reward/total": 0.5})
    tracker.summarise({"gain": 0.25})
    tracker.close()
    tracker.close()
    tracker.log("self_play", 2, {})  # after the end: nothing happens

    resumed = Tracking().open(run, "first", {})
    resumed.log("self_play", 2, {"reward/total": 0.75})
    resumed.close(failed=True)

    content = stored(run)
    for text in (b"reward/total", b"self_play", b"gain", b"x/[secret]"):
        assert text in content
    assert b"judge/accuracy" not in content
    assert b"value-of-a-secret" not in content and b"on-the-command-line" not in content
    identity = (run.path / "wandb" / "run-id.txt").read_text().strip()
    assert len(list(run.path.glob(f"wandb/offline-run-*-{identity}*"))) == 2
    printed = capfd.readouterr()
    assert printed.out == "" and printed.err == ""


def test_run_is_drawn_over_the_training_step_and_names_no_host(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("socket.gethostname", lambda: "host-of-this-machine")
    run = RunDirectory.create(tmp_path / "run", "a: 1\n")
    tracker = Tracking(name="shown", notes="why it was run").open(run, "recipe", {})
    axis = tracker._run._settings
    assert (axis.run_name, axis.run_notes, axis.host) == ("shown", "why it was run", "")
    for step, loss in ((5, 0.5), (10, 0.125)):
        tracker.log("self_play", step, {"loss": loss})
    tracker.close()
    content = whole_record(run, last=b"0.125")
    assert b"why it was run" in content
    assert b"host-of-this-machine" not in content
    with pytest.MonkeyPatch.context() as patch:  # Online runs have an address.
        patch.setattr("wandb.init", lambda **_: Online())
        Tracking().open(run, "recipe", {})
    assert "W&B: https://example.org/run" in capfd.readouterr().err
    assert Online.metrics == [("step", None), ("*", "step")]


class Online:
    """A run that is kept online."""

    url = "https://example.org/run"
    settings = SimpleNamespace(_offline=False)
    metrics: ClassVar = []

    def define_metric(self, name, step_metric=None):
        self.metrics.append((name, step_metric))


def test_an_outage_ends_tracking_and_not_the_run(tmp_path, monkeypatch, capfd):
    class Broken(Online):
        sent: ClassVar = []
        metrics: ClassVar = []

        def log(self, row, step):
            if step == 1:
                raise ConnectionError("no route\nto the host")
            self.sent.append((row, step))

        def finish(self, exit_code):
            raise AssertionError("a run that is off is not ended")

    monkeypatch.setattr("wandb.init", lambda **_: Broken())
    run = RunDirectory.create(tmp_path / "run", "a: 1\n")
    tracker = Tracking().open(run, "recipe", {})
    capfd.readouterr()
    for step in (1, 2, 3):
        tracker.log("p", step, {"loss": 0.5, "tokens_per_s": 9, "judge/accuracy": None})
    tracker.summarise({"gain": 1})
    tracker.close()
    row = {"optim/loss": 0.5, "time/tokens_per_s": 9, "phase": "p", "step": 1}
    assert Broken.sent == [(row, 0)]
    assert capfd.readouterr().err == (
        "warning: W&B is off from here on (no route); metrics.jsonl has all rows\n"
    )


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
    assert _mode() == "offline"
    (tmp_path / "netrc").write_text("machine example.org login a password b\n")
    assert _mode() == "offline"
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password key\n")
    assert _mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert _mode() == "offline"
    monkeypatch.delenv("WANDB_MODE")
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    assert _mode() == "online"


def test_without_secrets_blots_values_by_the_names_of_their_variables():
    environment = {
        "HF_TOKEN": "abcdefgh",
        "PASSWORD": "abcdefgh-long",
        "SHORT_KEY": "1",
        "HOME": "/root",
    }
    value = {"a": ["abcdefgh-long", "x abcdefgh"], "b": {"home": "/root", "n": 1, "m": None}}
    assert without_secrets(value, environment) == {
        "a": ["[secret]", "x [secret]"],
        "b": {"home": "/root", "n": 1, "m": None},
    }


def test_unknown_setting_is_refused():
    with pytest.raises(ValidationError):
        Tracking.model_validate({"projekt": "x"})
