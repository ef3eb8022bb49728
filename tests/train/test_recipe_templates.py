"""Recipes that debate-train writes to begin with."""

from pathlib import Path

import pytest

from debate_train.commands.cli import main
from debate_train.recipe import Recipe
from debate_train.recipe.describe import template
from debate_train.recipe.files import load_recipe


@pytest.mark.parametrize("shipped", ["quickstart", "sdrl_freq_math", "curriculum_puzzle"])
def test_template_is_the_recipe_that_ships(shipped: str, tmp_path: Path) -> None:
    changes = ["steps=3", "name=mine"]
    path = tmp_path / "mine.yaml"
    path.write_text(template(shipped, "mine", changes[:1]))
    wanted = load_recipe(shipped, changes, model=Recipe).recipe
    assert load_recipe(path, model=Recipe).recipe.phase_recipes() == wanted.phase_recipes()


def test_init_writes_a_new_file_and_says_what_is_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.yaml"
    argv = ["init", str(path), "--like", "quickstart", "steps=3", "tracking.wandb=no"]
    assert main(argv) == 0
    assert capsys.readouterr().out == f"{path}: next, debate-train {path} --check\n"
    recipe = load_recipe(path, model=Recipe).recipe
    assert (recipe.name, recipe.steps, recipe.tracking.wandb) == ("own", 3, False)
    assert "steps=3, tracking.wandb=no" in path.read_text()
    path.rename(tmp_path / "kept.yaml")
    for target in ("kept.yaml", "nowhere.yaml"):
        path.unlink(missing_ok=True)
        path.symlink_to(target)
        assert main(argv) == 2
        assert "found a file; expected the name of a new one" in capsys.readouterr().err
    assert not (tmp_path / "nowhere.yaml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--like", "quickstrat"], "no such recipe"),
        (["stepz=1"], "stepz: unknown key; did you mean 'steps'?"),
    ],
)
def test_init_refuses_what_there_is_not(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "r.yaml"), *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
