"""A run that is tracked offline, stopped and resumed, read back record by record."""

import getpass
import json
import math
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wandb
import yaml

from debate_protocol.transcripts.files import read_transcripts
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.commands.cli import main
from debate_train.monitoring.services import COLUMNS, Logged, Start
from debate_train.running import loop
from train.small_runs import RECIPE, at_call

SECRET = "value-of-a-secret"
TRACKED = (
    "tracking={wandb: true, tensorboard: true, project: tracked, turns: 3, "
    "turns_every: 2, checkpoints: true, notes: said of it, "
    f"tags: [/data/someone/sets/file.txt, {SECRET}]}}",
    "recording={debates: 1, every: 1}",
)


@dataclass(frozen=True)
class Tracked:
    """What a run of three steps left that failed in the third and was resumed."""

    folder: Path
    parts: list[list[Any]]
    """Records of the run's two starts."""

    @property
    def rows(self) -> list[dict[str, Any]]:
        lines = (self.folder / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def of(self, kind: str) -> list[Any]:
        found = [
            one for part in self.parts for one in part if one.WhichOneof("record_type") == kind
        ]
        return [getattr(one, kind) for one in found]


def records(path: Path) -> Iterator[Any]:
    """Yield the records of a file: LevelDB's log, blocks of 32 KiB after a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts = path.read_bytes(), 7, b""
    while place < len(data):
        if (room := 32768 - place % 32768) < 7:
            place += room
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # Whole, or the last part.
            record = Record()
            record.ParseFromString(parts)
            yield record
            parts = b""


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracked]:
    folder = tmp_path_factory.mktemp("tracked")
    recipe = folder / "recipe.yaml"
    recipe.write_text(RECIPE)
    command = [str(recipe), *TRACKED, f"--output={folder / 'run'}"]

    def fail() -> None:
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
        files = sorted((folder / "run" / "wandb").glob("offline-run-*/*.wandb"))
        yield Tracked(folder / "run", [list(records(f)) for f in files])


def histories(part: list[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each row: its number, and its values by name."""
    for one in part:
        if one.WhichOneof("record_type") == "history":
            items = {"/".join(i.nested_key) or i.key: i.value_json for i in one.history.item}
            yield one.history.step.num, {name: json.loads(text) for name, text in items.items()}


def test_a_resumed_run_goes_on_as_the_same_one_without_a_repeat(tracked: Tracked) -> None:
    identity = (tracked.folder / "wandb" / "run-id.txt").read_text().strip()
    assert [one.run_id for one in tracked.of("run")] == [identity] * 2
    first, second = (list(histories(part)) for part in tracked.parts)
    assert [(number, row["step"]) for number, row in first] == [(0, 1), (1, 2), (2, 2)]
    assert [(number, row["step"]) for number, row in second] == [(3, 3)]
    assert len(tracked.rows) == 4
    for (_, sent), row in zip([*first, *second], tracked.rows, strict=True):
        assert sent["phase"] == row["phase"] == "train" and sent["step"] == row["step"]
        assert sent.get("optim/loss") == row.get("loss")
        assert sent.get("eval/format") == row.get("eval/format")
        assert sent.get("train/parse_error") == row.get("parse_error")


def test_the_part_that_failed_says_so(tracked: Tracked) -> None:
    assert [one.exit_code for one in tracked.of("exit")] == [1, 0]


def test_rows_are_drawn_over_the_step_and_each_name_has_a_group(tracked: Tracked) -> None:
    axes = [(one.name, one.glob_name, one.step_metric) for one in tracked.of("metric")]
    assert axes == [("step", "", ""), ("", "*", "step")] * 2
    names = {name for part in tracked.parts for _, row in histories(part) for name in row}
    own = {"step", "phase", "_step", "_runtime", "_timestamp", "_wandb"}
    assert {name for name in names if "/" not in name} <= own


def test_tables_hold_the_turns(tracked: Tracked) -> None:
    tables = sorted(tracked.folder.glob("wandb/offline-run-*/files/media/table/*/*.table.json"))
    found = [json.loads(path.read_text()) for path in tables]
    assert len(found) == 2  # Of the first step, and of each second one.
    for table in found:
        assert tuple(table["columns"]) == COLUMNS
        rows = [dict(zip(COLUMNS, row, strict=True)) for row in table["data"]]
        step = rows[0]["step"]
        (debate,) = read_transcripts(tracked.folder / "transcripts" / f"train-{step:06d}.jsonl")
        assert [(r["text"], r["agent"], r["round"]) for r in rows] == [
            (turn.text, turn.agent, turn.round) for turn in debate.turns
        ]
        assert {r["question"] for r in rows} == {debate.question.text}
        # Each turn has failed: -1, with no baseline.
        assert {(r["credit"], r["advantage"]) for r in rows} == {("generator -1", -1.0)}


def test_the_summary_has_the_results_with_their_intervals(tracked: Tracked) -> None:
    sent = {u.key: json.loads(u.value_json) for s in tracked.of("summary") for u in s.update}
    results = json.loads((tracked.folder / "results.json").read_text())
    assert sent["results/summary"] == results["summary"]
    for row in results["table"]:
        name = "results/" + row["name"].removeprefix("eval/")
        for when in ("before", "after"):
            ends = [sent[f"{name}/{when}{end}"] for end in ("", "_low", "_high")]
            assert ends == [row[when][key] for key in ("mean", "low", "high")]
        ends = [sent[f"{name}/change_{end}"] for end in ("low", "high")]
        assert ends == [row["change"][key] for key in ("low", "high")]


def test_report_and_recipe_are_artifacts_within_the_run(tracked: Tracked) -> None:
    kinds = [one.type for one in tracked.of("artifact")]
    assert kinds == ["run_table"] * 2 + ["recipe", "report", "model"] * 2
    found = {one.type: one.manifest.contents for one in tracked.of("artifact")}
    assert {"manifest.json", "model.safetensors"} <= {entry.path for entry in found["model"]}
    (report,), (recipe,) = found["report"], found["recipe"]
    assert (report.path, recipe.path) == ("report.html", "recipe.yaml")
    for one in tracked.of("artifact"):
        for entry in one.manifest.contents:
            assert Path(entry.local_path).is_relative_to(tracked.folder.resolve() / "wandb")
    assert "</html>" in Path(report.local_path).read_text()
    said = yaml.safe_load(Path(recipe.local_path).read_text())
    assert said["model"]["hidden_size"] == 8 and "weights" not in said
    assert said["tracking"]["tags"] == ["…/file.txt", "[secret]"]


def test_no_host_user_path_or_secret_is_sent(tracked: Tracked) -> None:
    sent = "".join(
        Path(entry.local_path).read_text()
        for one in tracked.of("artifact")
        if one.type != "model"  # A checkpoint goes as it is.
        for entry in one.manifest.contents
    )
    for part in tracked.parts:
        for one in part:
            record = type(one).FromString(one.SerializeToString())
            for entry in record.artifact.manifest.contents:
                entry.ClearField("local_path")  # It stays here, for `wandb sync`.
            sent += str(record)
    names = [one.key for run in tracked.of("run") for one in run.config.update]
    assert {"model", "tracking", "weights"} <= set(names)
    assert all(one.host == "" and one.notes == "said of it" for one in tracked.of("run"))
    for text in (SECRET, str(tracked.folder), "/data/someone", os.path.expanduser("~/")):
        assert text not in sent
    for name in (socket.gethostname(), getpass.getuser()):
        assert f'"{name}"' not in sent


def test_tensorboard_draws_each_step_once(tracked: Tracked) -> None:
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    folder = tracked.folder / "tensorboard"
    assert len(list(folder.iterdir())) == 2
    found = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    losses = [(e.step, float(make_ndarray(e.tensor_proto))) for e in found.Tensors("optim/loss")]
    rows = [(row["step"], row["loss"]) for row in tracked.rows if "loss" in row]
    assert [step for step, _ in losses] == [1, 2, 3]
    assert losses == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in rows]
    (table,) = make_ndarray(found.Tensors("transcripts/turns/text_summary")[0].tensor_proto)
    turns = [json.loads(line) for line in table.decode().splitlines()]
    assert [tuple(turn) for turn in turns] == [COLUMNS] * 2
    (results,) = found.Tensors("results/text_summary")
    assert b"results/summary" in make_ndarray(results.tensor_proto).item()


def test_tensorboard_drops_steps_that_are_made_again(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    from debate_train.monitoring.services import TensorBoardRun

    for last, steps in ((None, (1, 2, 3)), (1, (2, 3, 4))):
        run = TensorBoardRun(Start(tmp_path), last)
        for step in steps:
            run.log(Logged(step - 1, "p", step, {"optim/loss": 1.0 if last is None else math.pi}))
        run.close(failed=False)
    found = EventAccumulator(str(tmp_path / "tensorboard")).Reload().Tensors("optim/loss")
    values = [(event.step, np.frombuffer(event.tensor_proto.tensor_content)) for event in found]
    assert [step for step, _ in values] == [1, 2, 3, 4]


def test_a_run_directory_with_trackers_is_taken_for_one(tracked: Tracked) -> None:
    run = RunDirectory.open(tracked.folder)
    assert len(run.metrics.rows()) == 4
    run.close()
