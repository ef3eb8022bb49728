"""Hostile and mistaken recipes: exit code 2 with the place, within seconds."""

import os
from pathlib import Path

import pytest
import yaml

from debate_train.commands.cli import main
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.recipe.resolved import resolved_yaml
from train.small_recipes import FILE


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "r.yaml"
    path.write_text(FILE)
    return path


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main([*argv, "--check"]) == 2
    error = capsys.readouterr().err
    assert "Traceback" not in error
    return error


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("seed: !!int abc", ": not readable as YAML (invalid literal"),
        ("seed: " + "9" * 5000, ": not readable as YAML (Exceeds the limit (4300 digits)"),
        ("? {? [1]: 2}\n: 1", ":8: not readable as YAML (found unhashable key"),
        ("seed: !!bool maybe", ": not readable as YAML ('maybe'"),
        ("seed: !!python/object:os.x {}", ":8: not readable as YAML (could not determine a con"),
        ('seed: "\\UFFFFFFFF"', ":8: not readable as YAML"),
        ("seed: [" + "1," * 10_000 + "1]", "exceeds the configured limit of 10000"),
        ('"\\e[2Jseed": 1', ":8: \\x1b[2Jseed: unknown key"),
        ("seed: .inf", ":8: seed: found .inf; expected a finite number"),
        ("reward: {type: v2, format_penalty: -.inf}", "format_penalty: found -.inf; expected a "),
    ],
)
def test_file_is_refused_with_its_line(
    line: str, message: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(FILE + line + "\n")
    error = refused(capsys, str(recipe))
    assert f"{recipe}" in error and message in error


@pytest.mark.parametrize("text", ["!!set {a, b}", "!!omap [a: 1]", "[]", "text"])
def test_file_that_is_no_mapping_is_refused(
    text: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(text)
    assert f"{recipe}:1: found no `key: value` lines" in refused(capsys, str(recipe))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=!!int abc", "seed: found '!!int abc'; expected a valid integer"),
        ("seed=" + "9" * 5000, "seed: found '9999"),
        ("seed=[!!int abc]", "not readable as YAML (invalid literal"),
        ("debate.num_agents=1000", "debate.num_agents: found 1000; expected at most 128"),
        ("debate.max_rounds=1000", "debate.max_rounds: found 1000; expected at most 128"),
        ("debate={type: self_debate, first_turns: 1000}", "first_turns: found 1000; expected at"),
        ("debate={num_agents: 100, max_rounds: 100}", "10,000 turns that refer to each other"),
        ("name=../../x", "name: found '../../x'; expected text that matches ^"),
        ("name=/tmp/x", "name: found '/tmp/x'; expected text that matches ^"),
        ('name="a\\0b"', "expected text that matches ^"),
        ("name=" + "n" * 300, "expected text that matches ^"),
        ("phases={" + ",".join(f"p{i}: {{}}" for i in range(101)) + "}", "at most 100 items"),
        ("phases={../x: {}}", "phases"),
        ("trainer.learning_rate=.inf", "learning_rate: found .inf; expected a finite number"),
        ("trainer.learning_rate=1e400", "learning_rate: found 1e400; expected a finite number"),
    ],
)
def test_argument_is_refused_with_its_key(
    override: str, message: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, str(recipe), override)


@pytest.mark.parametrize("key", ["data.path", "model.name"])
def test_path_is_refused_when_no_file_can_have_its_name(
    key: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {
        "data.path": "data={type: questions, path: %s}",
        "model.name": "model={type: pretrained, name: %s, context_window: 9999}",
    }[key]
    error = refused(capsys, str(recipe), own % ("./" + "n" * 300))
    assert "nnn" in error


@pytest.mark.parametrize(
    "name", ["n" * 300, "caf\udce9.yaml", "a\0b.yaml", "folder/" + "n" * 300 + ".yaml"]
)
def test_recipe_is_refused_when_no_file_can_have_its_name(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(capsys, name)


def test_extends_is_refused_when_no_file_can_have_its_name(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(FILE + f"extends: {'n' * 300}\n")
    assert refused(capsys, str(recipe))


def test_output_is_refused_when_its_name_is_not_text(
    recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "output: found" in refused(capsys, str(recipe), "--output=caf\udce9")


def test_what_is_no_file_is_not_taken_for_a_misspelt_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pipe, ring = tmp_path / "pipe.yaml", tmp_path / "ring.yaml"
    os.mkfifo(pipe)
    ring.symlink_to(ring)
    for path in (pipe, ring):
        error = refused(capsys, str(path))
        assert "found no file that can be read" in error and "did you mean" not in error


@pytest.mark.parametrize(
    ("text", "message"),
    [("name: t\nsteps: 1\n", "model.name: missing"), ("name: t\nsteps: 1\n", "data.path: missing")],
)
def test_key_is_named_when_the_part_it_belongs_to_is_left_out(
    text: str, message: str, recipe: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe.write_text(text)
    assert f"{recipe}: {message}; expected a value for" in refused(capsys, str(recipe))


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("tracking: {project: '\\${x}'}", "${x}"),
        ("tracking: {project: 'a \\${oc.env:HOME} b'}", "${oc.env:HOME}"),
        ("tracking: {project: '\\\\\\${seed}'}", "${seed}"),
        ("trainer: {type: torch, max_grad_norm: .inf}", "max_grad_norm=inf"),
    ],
)
def test_value_is_read_again_from_what_a_run_keeps(written: str, read: str, recipe: Path) -> None:
    recipe.write_text(f"{FILE}{written}\n")
    loaded = load_recipe(recipe, model=Recipe)
    assert read in str(loaded.recipe)
    again = recipe.with_name("kept.yaml")
    again.write_text(resolved_yaml(loaded))
    assert load_recipe(again, model=Recipe).recipe == loaded.recipe
    assert resolved_yaml(load_recipe(again, model=Recipe)) == resolved_yaml(loaded)


def test_phases_are_made_once_and_follow_from_a_changed_copy() -> None:
    recipe = Recipe.model_validate(yaml.safe_load(FILE) | {"phases": {"a": {"steps": 1}}})
    assert recipe.phase_recipes()["a"] is recipe.phase_recipes()["a"]
    changed = recipe.model_copy(update={"seed": 7})
    assert changed.phase_recipes()["a"].seed == 7
    assert recipe == Recipe.model_validate(yaml.safe_load(FILE) | {"phases": {"a": {"steps": 1}}})
