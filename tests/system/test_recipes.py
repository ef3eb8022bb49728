"""Every recipe that ships passes --check; bad input ends in one message and the right code."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from debate_train.commands.cli import main
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.recipe.resolved import resolved_yaml

ROOT = Path(__file__).resolve().parents[2]
RECIPES = sorted([*(ROOT / "recipes").glob("*.yaml"), *(ROOT / "recipes/papers").glob("*.yaml")])
TINY = [
    "steps=400",
    "model={type: scratch, hidden_size: 16, layers: 1, heads: 2, kv_heads: 1}",
    "data.batch_size=2",
    "evaluation={every: 0, questions: 0}",
    "phases=null",
    "tracking.wandb=false",
]


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_few_recipes_stand_at_the_first_level() -> None:
    assert 0 < len(list((ROOT / "recipes").glob("*.yaml"))) <= 20


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_passes_check(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(path), "--check"]) == 0
    printed = capsys.readouterr()
    assert "a step:" in printed.out
    assert "context: at most" in printed.out
    few_judges = "one judge a round" in printed.err
    assert few_judges == (path.stem in ("selfplay_v2_n3", "selfplay_v2_easier"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_reads_back_as_written_to_a_run(path: Path, tmp_path: Path) -> None:
    loaded = load_recipe(path, model=Recipe)
    written = tmp_path / "recipe.yaml"
    written.write_text(resolved_yaml(loaded))
    again = load_recipe(written, model=Recipe)
    assert again.recipe.model_copy(update={"phases": loaded.recipe.phases}) == loaded.recipe
    assert resolved_yaml(again) == resolved_yaml(loaded)
    assert again.recipe.phase_recipes() == loaded.recipe.phase_recipes()


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_saves_at_least_four_times_a_phase_or_by_the_clock(path: Path) -> None:
    recipe = load_recipe(path, model=Recipe).recipe
    every, minutes = recipe.checkpoint.every, recipe.checkpoint.every_minutes
    assert 0 < minutes <= 15
    assert every == 0 or all(every <= p.steps / 4 for p in recipe.phase_recipes().values())


def test_phase_of_guided_pairs_is_taken_back_where_debates_got_worse() -> None:
    phases = {
        f"{path.stem}/{name}": phase
        for path in RECIPES
        for name, phase in load_recipe(path, model=Recipe).recipe.phase_recipes().items()
        if phase.offline is not None and phase.offline.type == "guided_pairs"
    }
    assert len(phases) > 10
    kept = {phase.keep_if.metric for phase in phases.values() if phase.keep_if is not None}
    assert kept == {"eval/last_round/accuracy"}
    assert [name for name, phase in phases.items() if phase.keep_if is None] == []


def test_phase_of_another_variant_gets_the_defaults_of_that_variant() -> None:
    loaded = load_recipe("recipes/papers/selfplay_v2_harder.yaml", model=Recipe)
    phases = loaded.recipe.phase_recipes()
    assert phases["supervised"].loss.aggregation == "token_mean_batch"
    assert phases["self_play"].loss.aggregation == "token_sum"
    assert (phases["supervised"].debate.num_agents, phases["self_play"].debate.num_agents) == (1, 5)
    assert phases["supervised"].trainer.learning_rate == 1e-4
    assert phases["self_play"].trainer.learning_rate == 3e-5


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_recipe_opens_with_what_a_reader_needs(path: Path) -> None:
    header = path.read_text().split("\nname:")[0].split("\nextends:")[0]
    assert header.startswith("# ")
    assert all(not line or line.startswith("#") for line in header.splitlines())


@pytest.mark.parametrize(
    "path", [p for p in RECIPES if p.stem.startswith("selfplay")], ids=lambda path: path.stem
)
def test_selfplay_recipe_takes_local_data_and_one_process(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["rollout.engine.type=transformers", "trainer.type=torch", "data.batch_size=2"]
    data = ["data.path=recipes/data/gsm8k_50.jsonl", "data.test_path=null"]
    assert main([str(path), *changes, *data, "--check"]) == 0
    # Its warm-start wants worked solutions.
    warned = "data.fields.solution" in capsys.readouterr().err
    assert warned == (path.stem == "selfplay_v2_harder")


def test_dapo_recipe_takes_the_other_model_of_its_source(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["recipes/dapo_math.yaml", "model.name=Qwen/Qwen3-4B-Base", "--check"]) == 0
    printed = capsys.readouterr().out
    assert "window 32,768" in printed
    # 3 batches of 256 questions, 8 replies each, of at most 8,196 tokens.
    assert (
        "a step draws up to 3 batches of 256 questions until 256 are kept: at most 50,356,224 "
        "tokens in replies" in printed
    )


def test_max_tokens_of_the_note_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["recipes/selfplay_v2.yaml", "rollout.max_tokens=8196", "--check"]) == 2
    assert "above the window of 40,960" in capsys.readouterr().err


def test_shipped_data_is_whole() -> None:
    lines = (ROOT / "recipes/data/gsm8k_50.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len({row["question"] for row in rows}) == 50
    assert all(row["answer"] and row["license"] == "MIT" for row in rows)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_output_without_write_permission_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.chmod(0o500)
    assert main(["quickstart", *TINY, "--output", str(tmp_path / "run")]) == 2
    assert str(tmp_path / "run") in capsys.readouterr().err


def test_output_below_a_file_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["quickstart", *TINY, "--output", str(tmp_path / "file" / "run")]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "file") in error
    assert "Traceback" not in error
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_wrong_data_leaves_no_run_directory(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    output = tmp_path / "run"
    argv = [
        "quickstart",
        *TINY,
        f"data={{type: questions, path: {empty}}}",
        "--output",
        str(output),
    ]
    assert main(argv) == 2
    assert not output.exists()


@pytest.mark.slow
def test_interrupt_ends_in_130_after_a_checkpoint(tmp_path: Path) -> None:
    output = tmp_path / "run"
    argv = [sys.executable, "-m", "debate_train", "quickstart", *TINY, "--output", str(output)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        argv, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    metrics = output / "metrics.jsonl"
    try:
        while not (metrics.exists() and metrics.read_text().count("\n") >= 2):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        printed = process.communicate()[0]
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in printed
    steps = len(metrics.read_text().splitlines())
    (checkpoint,) = (output / "checkpoints").iterdir()
    assert checkpoint.name == f"step-{steps:06d}"


def test_a_recipe_and_its_phases_are_validated_once_each(monkeypatch: pytest.MonkeyPatch) -> None:
    validated = []
    validate = Recipe.model_validate

    def counted(data: object) -> Recipe:
        validated.append(data)
        return validate(data)

    monkeypatch.setattr(Recipe, "model_validate", counted)
    loaded = load_recipe(ROOT / "recipes/from_nothing.yaml", model=Recipe)
    phases = loaded.recipe.phase_recipes()
    resolved_yaml(loaded)
    assert len(phases) == 3
    assert len(validated) == 1 + 3
    # A changed copy makes them of its differences, which is the same.
    assert loaded.recipe.model_copy().phase_recipes() == phases
    assert len(validated) == 1 + 3 + 3
