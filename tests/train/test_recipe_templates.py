"""Recipes that debate-train writes to begin with, and the schema that editors check them by."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from debate_train.commands.cli import main
from debate_train.recipe import Recipe
from debate_train.recipe.describe import METHODS, recipe_schema, template
from debate_train.recipe.files import SHIPPED, load_recipe, read_yaml, recipe_names


def test_every_template_is_a_recipe_that_ships() -> None:
    shipped = {one.split()[0] for sizes in METHODS.values() for one in sizes.values()}
    assert shipped <= set(recipe_names())


@pytest.mark.parametrize(("method", "size"), [("selfplay", "cpu"), ("sdrl", "8b"), ("acc", "7b")])
def test_template_is_the_recipe_that_ships(method: str, size: str, tmp_path: Path) -> None:
    shipped, *changes = METHODS[method][size].split()
    path = tmp_path / "mine.yaml"
    path.write_text(template(method, size, "mine", ()))
    wanted = load_recipe(shipped, ["name=mine", *changes], model=Recipe).recipe
    assert load_recipe(path, model=Recipe).recipe.phase_recipes() == wanted.phase_recipes()


def test_init_writes_a_new_file_and_says_what_is_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.yaml"
    argv = ["init", str(path), "--method", "selfplay", "steps=3", "tracking.wandb=no"]
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
        (["--method", "sdlr"], "--method: found 'sdlr'; expected one of selfplay, sdrl"),
        (["--method", "sdrl", "--size", "9b"], "--size: found '9b'; expected one of cpu, 4b, 8b"),
        (["--method", "sdrl", "stepz=1"], "stepz: unknown key; did you mean 'steps'?"),
    ],
)
def test_init_refuses_what_there_is_not(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", str(tmp_path / "r.yaml"), *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = recipe_schema(Recipe)
    jsonschema_rs.meta.validate(schema)
    return jsonschema_rs.validator_for(schema)


def test_schema_holds_every_recipe_that_ships(validator: Any) -> None:
    files = sorted(SHIPPED.glob("**/*.yaml"))
    assert len(files) > 30
    found = {file.stem: list(validator.iter_errors(read_yaml(file).data)) for file in files}
    assert {name: map(str, errors) for name, errors in found.items() if errors} == {}


@pytest.mark.parametrize(
    "data",
    [
        {"stepz": 1},
        {"steps": "many"},
        {"steps": -1},
        {"reward": {"type": "v3"}},
        {"reward": {"type": "v2", "components": {}}},
        {"trainer": {"schedule": "steep"}},
        {"phases": {"first": {"stepz": 1}}},
        {"debate": {"type": "simultaneous", "max_rounds": 1.5}},
    ],
)
def test_schema_refuses_what_no_recipe_may_hold(data: Any, validator: Any) -> None:
    assert not validator.is_valid(data)


@pytest.mark.parametrize(
    "data",
    [
        {"extends": "quickstart", "steps": "${oc.env:STEPS}"},
        {"name": 1.10, "trainer": {"schedule": "${other}"}},
        {"reward": {"ties": "half"}, "phases": {"first": None, "second": {"exit_criterion": None}}},
    ],
)
def test_schema_takes_what_the_reader_takes(data: Any, validator: Any) -> None:
    assert validator.is_valid(data)


def test_schema_describes_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    tokens = schema["$defs"]["Rollout"]["properties"]["max_tokens"]
    assert tokens["description"] == "Most tokens of one reply."
    assert (tokens["minimum"], tokens["default"]) == (1, 1024)
