"""Runs that go on: by their own recipe, by a changed one, or refused with nothing changed."""

import json
import os
import shutil
from html import unescape

import pytest
import yaml

from debate_train.checkpoints import run_hash
from debate_train.checkpoints.resumes import recipe_changes
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.commands.cli import main
from debate_train.models import ScratchModel
from train.small_runs import RECIPE

PROJECT = 'tracking: {wandb: false, project: "${oc.env:SERVICE_PROJECT,none}"}'
EVERY_STEP = "checkpoint: {every: 1, keep_last: 5}\n"


# What changed between two recipes

BEFORE = """\
seed: 0
loss: {type: ppo_clip, clip: 0.2}
advantage: {streams: {}}
phases:
  first: {trainer: {learning_rate: 0.001}}
exit_criterion: null
tags: [a, b]
url: ${oc.env:SERVICE_URL}
"""
NOW = """\
seed: 0
loss: {type: sft, aggregation: token_sum}
advantage: {streams: {critic: {weight: .inf}}}
phases:
  first: {trainer: {learning_rate: 0.0005}}
exit_criterion: null
tags: [b]
url: ${oc.env:SERVICE_URL}
"""


def test_recipe_changes_names_full_keys_with_both_values(monkeypatch):
    monkeypatch.setenv("SERVICE_URL", "value-of-the-environment")
    assert recipe_changes(BEFORE, NOW) == {
        "loss.type": {"before": "ppo_clip", "now": "sft"},
        "loss.clip": {"before": 0.2},
        "loss.aggregation": {"now": "token_sum"},
        "advantage.streams": {"before": {}},
        "advantage.streams.critic.weight": {"now": ".inf"},
        "phases.first.trainer.learning_rate": {"before": 0.001, "now": 0.0005},
        "tags": {"before": ["a", "b"], "now": ["b"]},
    }
    assert recipe_changes(BEFORE, BEFORE) == {}
    # What the environment gives is shown as it is written; true is not one.
    changes = recipe_changes(
        "url: http://localhost\na: true\n", "url: ${oc.env:SERVICE_URL}\na: 1\n"
    )
    assert changes["url"]["now"] == "${oc.env:SERVICE_URL}"
    assert changes["a"] == {"before": True, "now": 1}


def test_run_is_the_same_when_its_recipe_means_the_same():
    """Comments, the order of keys and the place of the model say nothing of what was trained."""
    recipe = "name: a\nmodel: {name: ./runs/a, layers: 2}\nphases: {warm: {}, play: {}}\n"
    moved = "# moved\nphases: {warm: {}, play: {}}\nmodel: {layers: 2, name: /b}\nname: a\n"
    assert run_hash(recipe) == run_hash(moved)
    assert run_hash(recipe) != run_hash(moved.replace("layers: 2", "layers: 3"))


# Whole runs: each test goes on with a copy of one that has ended


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "small.yaml"
    text = RECIPE.replace("recording: {debates: 0}\n", "")
    path.write_text(text.replace("tracking: {wandb: false}", PROJECT) + EVERY_STEP)
    return str(path)


@pytest.fixture(scope="module")
def finished(recipe, tmp_path_factory):
    """Train two steps, each with a checkpoint."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    assert main([recipe, "--output", str(folder), "steps=2"]) == 0
    return folder


@pytest.fixture
def output(finished, tmp_path):
    return shutil.copytree(finished, tmp_path / "run")


@pytest.fixture
def run(recipe, tmp_path):
    return lambda *arguments: main([recipe, "--output", str(tmp_path / "run"), *arguments])


def damage_checkpoints_after(output, step):
    for path in (output / "checkpoints").glob("step-*"):
        if int(path.name.removeprefix("step-")) > step:
            (path / "state.json").write_text("{}")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_resumes(output):
    return json.loads((output / "environment.json").read_text())["resumed"]


def read_rows(output):
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def test_changes_of_the_recipe_are_kept_when_resumed(run, output, capsys, monkeypatch):
    monkeypatch.setenv("SERVICE_PROJECT", "value-of-the-environment")
    first_recipe = (output / "recipe.yaml").read_bytes()
    report = output / "report.html"
    damage_checkpoints_after(output, 1)
    change = "trainer.learning_rate=0.0005"
    assert run("--resume", "--changed", "steps=3", change) == 0
    warning = (
        "resumed with another recipe from step 2 on: steps: 2 → 3; trainer.learning_rate: 0.01 →"
    )
    assert warning in capsys.readouterr().err
    assert (output / "recipe.yaml").read_bytes() == first_recipe
    later_recipe = output / "recipe-from-step-000002.yaml"
    assert yaml.safe_load(later_recipe.read_text())["trainer"]["learning_rate"] == 0.0005
    assert "${oc.env:SERVICE_PROJECT,none}" in later_recipe.read_text()
    (resume,) = read_resumes(output)
    assert resume["from_step"] == 2
    assert list(resume["changes"]) == ["steps", "trainer.learning_rate"]
    row = "<td>trainer.learning_rate</td><td>0.01 → 0.0005</td>"
    assert f'<th scope="row">from step 2</th>{row}' in unescape(report.read_text())
    for path in (output / "environment.json", report):
        assert "value-of-the-environment" not in path.read_text()
    # The same again changes nothing; the first recipe, from the start, undoes the change.
    damage_checkpoints_after(output, 2)
    assert run("--resume", "--changed", "steps=3", change) == 0
    assert "resumed with another" not in capsys.readouterr().err
    assert read_resumes(output)[-1]["changes"] == {}
    damage_checkpoints_after(output, 1)
    assert run("--resume", "--changed", "steps=2") == 0
    assert not later_recipe.exists()
    assert row not in unescape(report.read_text())


def test_resume_takes_the_runs_own_recipe_and_refuses_another(run, output, capsys):
    metrics = (output / "metrics.jsonl").read_bytes()
    assert run("--resume", "trainer.learning_rate=0.5", "steps=2") == 2
    rows = [line.split() for line in capsys.readouterr().err.splitlines()]
    assert ["trainer.learning_rate", "0.01", "→", "0.5"] in rows
    # With the folder alone, in either place, the run goes on as it was.
    assert main(["--resume", str(output)]) == 0
    assert main(["--resume", "--output", str(output)]) == 0
    assert (output / "metrics.jsonl").read_bytes() == metrics
    # The recipe that was agreed to last is the run's own from then on.
    assert main(["--resume", "--changed", str(output), "steps=3"]) == 0
    assert main(["--resume", str(output)]) == 0


def test_resume_refuses_questions_that_have_changed(run, output, tmp_path, capsys):
    shutil.rmtree(output)
    path = tmp_path / "q.jsonl"
    rows = [json.dumps({"question": f"What is {n}?", "answer": n}) for n in range(40)]
    path.write_text("\n".join(rows))
    data = [f"data={{type: questions, path: {path}, batch_size: 2}}", "reward={type: verifiable}"]
    assert run("steps=2", *data) == 0
    damage_checkpoints_after(output, 1)
    path.write_text("\n".join(rows[:-1]))
    before = contents(output)
    assert main(["--resume", str(output)]) == 2
    message = "data.path: found a file with other content than "
    assert message in capsys.readouterr().err
    assert contents(output) == before
    assert main(["--resume", "--changed", str(output)]) == 0
    # The file that was agreed to last is the run's own from then on.
    assert main(["--resume", str(output)]) == 0
    path.write_text("\n".join(rows))
    assert main(["--resume", str(output)]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--resume"], "expected debate-train --resume RUN"),
        (["--resume", "no-such-run"], "no-such-run"),
    ],
)
def test_resume_refuses_what_names_no_run(arguments, message, capsys):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["model.layers=2"], "model: found another than in "),
        (["phases.other={}"], "phases: found another than in "),
        (["--changed", "loss.kl.weight=0.1"], "found the reference phase_start, of which"),
    ],
)
def test_refused_resume_changes_nothing(run, output, changes, message, capfd):
    shutil.rmtree(output / "checkpoints/step-000002")
    before = contents(output)
    assert run("--resume", "steps=2", *changes) == 2
    assert message in capfd.readouterr().err
    assert contents(output) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "cannot start a run in {}: it holds "),
        (["--resume"], "--output: found {} in use by process {}; expected"),
    ],
)
def test_run_is_refused_when_another_process_uses_the_directory(
    run, tmp_path, capsys, monkeypatch, arguments, message
):
    output = tmp_path / "run"
    other = RunDirectory.create(output, RECIPE)
    monkeypatch.setattr(ScratchModel, "load", pytest.fail)  # Two may not fit on one device.
    before = contents(output)
    assert run(*arguments) == 2
    assert f"debate-train: {message.format(output, os.getpid())}" in capsys.readouterr().err
    assert contents(output) == before
    other.close()


def test_finished_run_trains_no_more_and_measures_again_only_other_questions(run, output, capsys):
    results = output / "results.json"
    first_results = results.read_text()
    first_rows = read_rows(output)
    assert run("--resume", "--changed", "steps=4") == 0
    assert read_rows(output) == first_rows
    printed = "".join(capsys.readouterr())
    assert "this run is finished: none of its phases trains more" in printed
    assert "measuring" not in printed
    assert results.read_text() == first_results
    arguments = ("--resume", "--changed", "steps=4", "evaluation.questions=3")
    assert run(*arguments) == 0
    second_results = json.loads(results.read_text())
    assert second_results != json.loads(first_results)
    # Results that are not those of the last evaluation are written again.
    results.write_text(json.dumps({**second_results, "steps": 99}))
    assert run(*arguments) == 0
    assert json.loads(results.read_text())["steps"] == second_results["steps"]


def test_running_baselines_go_on_where_a_checkpoint_left_them(run, tmp_path):
    arguments = ("advantage={type: role_ema, decay: 0.5}", "debate.num_agents=3", "steps=3")

    def baselines():
        return [
            row.get("advantage/baseline/generator/debater") for row in read_rows(tmp_path / "run")
        ]

    assert run(*arguments) == 0
    whole = baselines()
    assert whole[-1] is not None and len(set(whole)) > 1
    damage_checkpoints_after(tmp_path / "run", 1)
    assert run(*arguments, "--resume") == 0
    assert baselines() == whole


def test_missing_sample_or_metrics_are_named(run, output, capfd):
    (output / "tokens/step-1.safetensors").unlink()
    assert run("--resume", "steps=2") == 2
    message = "tokens/step-1.safetensors is not as it was written before it"
    assert message in capfd.readouterr().err
    (output / "metrics.jsonl").write_text("")
    assert run("--resume", "steps=2") == 2
    assert "rows of metrics.jsonl are not as they were written" in capfd.readouterr().err
