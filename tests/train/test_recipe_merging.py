"""How recipes merge: variants, streams of another reward, phases that are removed."""

from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field

from debate_train.errors import RecipeError
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.recipe.merging import merge
from debate_train.recipe.resolved import resolved_yaml
from debate_train.recipe.schema import Schema
from train.small_recipes import FILE, Strict, Tracking, write

VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
MAPPINGS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


@settings(derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(MAPPINGS, MAPPINGS)
def test_merge_holds_every_change_and_is_settled_when_repeated(base, change):
    schema = Schema()
    merged = merge(base, change, schema)
    assert merge(merged, change, schema) == merged
    assert merge(base, {}, schema) == base
    assert set(merged) == set(base) | set(change)
    for key, value in change.items():
        if not isinstance(value, dict):
            assert merged[key] == value


class Many(Strict):
    type: Literal["many"] = "many"
    agents: int = 5
    rounds: int = 3
    adapter: Tracking | None = None


class Single(Strict):
    type: Literal["single"] = "single"
    agents: Literal[1] = 1
    rounds: int = 1
    adapter: None = None


class Form(Strict):
    form: Annotated[Many | Single, Field(discriminator="type")]


def test_merge_drops_a_shared_key_whose_value_the_new_variant_cannot_hold():
    base = {"form": {"type": "many", "agents": 5, "rounds": 2, "adapter": {"key": "k"}}}
    dropped = []
    merged = merge(base, {"form": {"type": "single"}}, Schema((Form,)), dropped=dropped)
    assert merged == {"form": {"type": "single", "rounds": 2}}
    assert dropped == ["form.type: many -> single drops agents, adapter"]


# Whole recipes

V2 = FILE.replace("advantage: {", "advantage: {streams: {generator: {}, judge: {weight: 0.5}}, ")
PHASES = V2 + "phases:\n  first:\n  second: {reward: {type: win_rate}}\n"


def load(folder, text, *overrides):
    return load_recipe(write(folder, text), overrides, model=Recipe)


def stream_weights(recipe):
    return {name: stream.weight for name, stream in recipe.advantage.streams.items()}


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["reward.type=win_rate"], {"return": 1.0}),
        (["reward.type=conl"], {"generator": 1.0, "judge": 0.5, "critic": 1.0}),
        (
            ["reward.type=conl", "advantage.streams.judge.weight=2"],
            {"generator": 1.0, "judge": 2.0},
        ),
        (["reward.judge_credit=line"], {"generator": 1.0, "judge": 0.5}),
    ],
)
def test_streams_follow_the_type_of_the_reward(tmp_path, overrides, expected):
    loaded = load(tmp_path, V2, *overrides)
    assert stream_weights(loaded.recipe) == expected
    assert load(tmp_path, resolved_yaml(loaded)).recipe == loaded.recipe


def test_streams_follow_the_reward_of_a_phase_and_of_a_file_that_extends(tmp_path):
    loaded = load(tmp_path, PHASES)
    for recipe in (loaded.recipe, load(tmp_path, resolved_yaml(loaded)).recipe):
        first, second = recipe.phase_recipes().values()
        assert stream_weights(first) == {"generator": 1.0, "judge": 0.5}
        assert stream_weights(second) == {"return": 1.0}
    write(tmp_path, V2, "base.yaml")
    child = "extends: base.yaml\nreward: {type: win_minus_loss}\n"
    assert stream_weights(load(tmp_path, child).recipe) == {"return": 1.0}


def test_phase_that_is_set_to_null_is_removed(tmp_path):
    loaded = load(tmp_path, PHASES, "phases.second=null")
    assert list(loaded.phases) == ["first"]
    assert list(yaml.safe_load(resolved_yaml(loaded))["phases"]) == ["first"]
    assert any("phases.second" in note for note in loaded.notes)
    # A new phase may have no differences.
    assert list(load(tmp_path, PHASES, "phases.third=null").phases) == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("line", "overrides"),
    [
        ("steps: 010\n", []),
        ("steps: 3\n", ["steps=010"]),
        ("steps: 3\nphases: {only: {steps: 010}}\n", []),
        ("steps: 3\n", ["phases.only.steps=010"]),
    ],
)
def test_numbers_of_old_yaml_are_refused(tmp_path, line, overrides):
    with pytest.raises(RecipeError, match=r"which YAML reads as (8|90).*decimal"):
        load(tmp_path, FILE.replace("steps: 3\n", line), *overrides)
