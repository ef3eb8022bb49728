"""How whole recipes merge: streams of another reward, phases that are removed, numbers as typed."""

from pathlib import Path

import pytest
import yaml

from debate_train.errors import RecipeError
from debate_train.recipe import Recipe
from debate_train.recipe.files import LoadedRecipe, load_recipe
from debate_train.recipe.resolved import resolved_yaml
from train.small_recipes import FILE, write

V2 = FILE.replace("advantage: {", "advantage: {streams: {generator: {}, judge: {weight: 0.5}}, ")
PHASES = V2 + "phases:\n  first:\n  second: {reward: {type: win_rate}}\n"


def load(folder: Path, text: str, *overrides: str) -> LoadedRecipe[Recipe]:
    return load_recipe(write(folder, text), overrides, model=Recipe)


def streams(recipe: Recipe) -> dict[str, float]:
    return {name: stream.weight for name, stream in recipe.advantage.streams.items()}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["reward.type=win_rate"], {"return": 1.0}),
        (["reward.type=verifiable"], {"generator": 1.0}),
        (["reward.type=conl"], {"generator": 1.0, "judge": 0.5, "critic": 1.0}),
        # What is named beside the type holds, and nothing else is added.
        (["reward.type=win_rate", "advantage.streams.return.weight=2"], {"return": 2.0}),
        (
            ["reward.type=conl", "advantage.streams.judge.weight=2"],
            {"generator": 1.0, "judge": 2.0},
        ),
        (["reward.judge_credit=line"], {"generator": 1.0, "judge": 0.5}),
    ],
)
def test_streams_follow_the_type_of_the_reward(
    tmp_path: Path, overrides: list[str], expected: dict[str, float]
) -> None:
    loaded = load(tmp_path, V2, *overrides)
    assert streams(loaded.recipe) == expected
    again = load(tmp_path, resolved_yaml(loaded))
    assert again.recipe == loaded.recipe


def test_streams_follow_the_reward_of_a_phase_and_of_a_file_that_extends(tmp_path: Path) -> None:
    loaded = load(tmp_path, PHASES)
    for recipe in (loaded.recipe, load(tmp_path, resolved_yaml(loaded)).recipe):
        by_phase = {name: streams(phase) for name, phase in recipe.phase_recipes().items()}
        assert by_phase == {"first": {"generator": 1.0, "judge": 0.5}, "second": {"return": 1.0}}
    write(tmp_path, V2, "base.yaml")
    child = "extends: base.yaml\nreward: {type: win_minus_loss}\n"
    assert streams(load(tmp_path, child).recipe) == {"return": 1.0}


def test_phase_that_is_set_to_null_is_removed(tmp_path: Path) -> None:
    loaded = load(tmp_path, PHASES, "phases.second=null")
    assert list(loaded.phases) == list(yaml.safe_load(resolved_yaml(loaded))["phases"]) == ["first"]
    assert any("phases.second" in note for note in loaded.notes)
    # A new phase may have no differences.
    assert list(load(tmp_path, PHASES, "phases.third=null").phases) == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("line", "override"),
    [
        ("steps: 010\n", None),
        ("steps: 1:30\n", None),
        ("", "steps=010"),
        ("", "seed=1:30"),
        ("", "trainer={learning_rate: 1:30}"),
        ("phases: {only: {steps: 010}}\n", None),
        ("", "phases.only.steps=010"),
    ],
)
def test_numbers_of_old_yaml_are_refused(tmp_path: Path, line: str, override: str | None) -> None:
    text = FILE.replace("steps: 3\n", "") + ("" if "steps" in line[:5] else "steps: 3\n") + line
    with pytest.raises(RecipeError, match=r"which YAML reads as (8|90)") as refusal:
        load(tmp_path, text, *([override] if override else []))
    assert "decimal" in str(refusal.value)


def test_text_and_plain_numbers_are_taken_as_typed(tmp_path: Path) -> None:
    loaded = load(tmp_path, FILE, "name=010", "steps=0", "phases.only.data.batch_size=10")
    assert (loaded.recipe.name, loaded.recipe.steps) == ("010", 0)
