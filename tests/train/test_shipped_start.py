"""The start that ships is what its record says, and its first steps come again."""

import hashlib
import json
from pathlib import Path

import pytest

from debate_train import train
from debate_train.models.gguf import SHIPPED_MODELS, folder_of
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe

START = SHIPPED_MODELS / "quickstart_start"
RECORD = json.loads((START / "made_by.json").read_text("utf-8"))
MOST_BYTES = 500_000
# Processors round differently. With seed 1 these losses are .24, .16 and .01 away.
ROUNDING = 1e-4


def test_files_of_the_start_are_those_that_its_record_names() -> None:
    files = [path for path in START.iterdir() if path.name != "made_by.json"]
    hashes = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    assert hashes == RECORD["sha256"]
    assert sum(path.stat().st_size for path in files) < MOST_BYTES


def test_start_is_found_by_name_from_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_recipe("quickstart", model=Recipe).recipe.model.source == str(START)
    assert folder_of("quickstart_strat") == "quickstart_strat"
    # A folder of the working directory goes first.
    (tmp_path / "quickstart_start").mkdir()
    assert folder_of("quickstart_start") == "quickstart_start"


def test_start_has_the_tokenizer_and_shape_of_the_recipe_that_made_it(tmp_path: Path) -> None:
    from transformers import AutoConfig

    model = load_recipe("from_nothing", model=Recipe).recipe.model
    made = model.load(0)
    made.tokenizer.save_pretrained(tmp_path)
    shipped = json.loads((START / "tokenizer.json").read_text("utf-8"))
    assert json.loads((tmp_path / "tokenizer.json").read_text("utf-8")) == shipped
    config = AutoConfig.from_pretrained(START)
    keys = ("vocab_size", "hidden_size", "num_hidden_layers", "head_dim", "max_position_embeddings")
    assert {key: getattr(config, key) for key in keys} == {
        key: getattr(made.model.config, key) for key in keys
    }


def test_first_steps_of_the_start_come_again(tmp_path: Path) -> None:
    losses = RECORD["first_losses"]
    no_steps = "{steps: 0, exit_criterion: null}"
    warm_start = [f"phases.warm_start.steps={len(losses)}", "phases.warm_start.exit_criterion=null"]
    others = [f"phases.settle={no_steps}", "phases.self_play.steps=0", "evaluation.questions=0"]
    trained = train(
        "from_nothing",
        [*warm_start, *others, "tracking.wandb=false"],
        output=tmp_path / "run",
    )
    found = [row["loss"] for row in trained.metrics]
    assert found == pytest.approx(losses, rel=ROUNDING)


def test_quickstart_begins_with_the_start_and_both_play_the_same_debates() -> None:
    quickstart = load_recipe("quickstart", model=Recipe).recipe
    from_nothing = load_recipe("from_nothing", model=Recipe).recipe.phase_recipes()
    assert list(from_nothing) == ["warm_start", "settle", "self_play"]
    parts = [part for part in Recipe.model_fields if part not in ("name", "model", "phases")]
    last = from_nothing["self_play"]
    assert [part for part in parts if getattr(quickstart, part) != getattr(last, part)] == []
