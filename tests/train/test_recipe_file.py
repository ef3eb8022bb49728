"""Reading, extending, merging, resolving and validating recipe files."""

import runpy
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field

from debate_train.errors import RecipeError
from debate_train.recipe import Recipe
from debate_train.recipe.files import LoadedRecipe, find_recipe, load_recipe
from debate_train.recipe.merging import merge
from debate_train.recipe.resolved import resolved_yaml
from debate_train.recipe.schema import Schema
from debate_train.recipe_names import SHIPPED, named_recipe
from train.small_recipes import Plain, Small, Strict, Tracking, Zero, write


def load(path: Path, *overrides: str) -> LoadedRecipe[Small]:
    return load_recipe(path, overrides, model=Small)


def phases(loaded: LoadedRecipe[Small]) -> dict[str, Small]:
    base = loaded.recipe.model_dump(exclude_unset=True, exclude={"phases"})
    schema = Schema((Small,))
    return {
        name: Small.model_validate(merge(base, difference, schema))
        for name, difference in loaded.recipe.phases.items()
    }


ZERO = "name: a\ntrainer:\n  type: zero\n  learning_rate: 2e-5\n  zero_stage: 3\n  offload: true\n"


def test_load_reads_numbers_in_exponent_form(tmp_path: Path) -> None:
    assert load(write(tmp_path, ZERO)).recipe.trainer.learning_rate == 2e-5


def test_override_sets_nested_value_when_dotted(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\n")
    recipe = load(path, "trainer.type=plain", "trainer.learning_rate=3e-4", "steps=2").recipe
    assert (recipe.trainer.learning_rate, recipe.steps) == (3e-4, 2)


def test_override_takes_mapping_as_difference_when_in_flow_form(tmp_path: Path) -> None:
    recipe = load(write(tmp_path, ZERO), "trainer={zero_stage: 1}").recipe
    assert recipe.trainer == Zero(learning_rate=2e-5, zero_stage=1, offload=True)


@pytest.mark.parametrize("typed", ["no", "1.10", "007", "on", "1e3", "a: b", "#1", "a #b", "x=y"])
def test_override_keeps_text_as_typed_when_field_is_text(tmp_path: Path, typed: str) -> None:
    assert load(write(tmp_path, "name: a\n"), f"name={typed}").recipe.name == typed


def test_file_keeps_text_as_typed_when_field_is_text(tmp_path: Path) -> None:
    path = write(tmp_path, "name: 1.10\ntracking: {mode: off, tags: [no, 1.10]}\n")
    recipe = load(path).recipe
    assert recipe.name == "1.10"
    assert recipe.tracking == Tracking(mode="off", tags=["no", "1.10"])


def test_override_is_null_when_empty_and_optional(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\ntracking: {key: k}\n")
    assert load(path, "tracking.key=").recipe.tracking.key is None


def test_type_change_drops_what_only_the_old_variant_has(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, ZERO), "trainer.type=plain")
    assert loaded.recipe.trainer == Plain(learning_rate=2e-5)
    assert loaded.notes == ("trainer.type: zero -> plain drops zero_stage, offload",)


def test_type_change_lets_keys_given_together_win_whatever_their_order(tmp_path: Path) -> None:
    path = write(tmp_path, ZERO)
    wanted = Plain(learning_rate=0.5, warmup_steps=7)
    change = ["trainer.learning_rate=0.5", "trainer.warmup_steps=7", "trainer.type=plain"]
    assert load(path, *change).recipe.trainer == wanted
    assert load(path, *reversed(change)).recipe.trainer == wanted


def test_type_change_in_extends_and_phase_drops_old_keys(tmp_path: Path) -> None:
    write(tmp_path, ZERO, "base.yaml")
    path = write(
        tmp_path,
        "extends: base.yaml\nphases: {one: {trainer: {type: plain}}, two: {steps: 3}, three: }\n",
    )
    found = phases(load(path))
    assert list(found) == ["one", "two", "three"]
    assert found["one"].trainer == Plain(learning_rate=2e-5)
    assert (found["two"].steps, found["three"].steps) == (3, 10)
    assert found["two"].trainer == Zero(learning_rate=2e-5, zero_stage=3, offload=True)
    child = write(tmp_path, "extends: r.yaml\ntrainer: {type: plain}\n", "c.yaml")
    assert load(child).recipe.trainer == Plain(learning_rate=2e-5)


def test_phase_keeps_text_as_typed(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nphases: {p: {name: 1.10}}\n")
    assert phases(load(path))["p"].name == "1.10"


def test_extends_merges_mapping_wise_through_two_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, ZERO, "base.yaml")
    write(tmp_path, "extends: ../base.yaml\nsteps: 4\n", "sub/mid.yaml")
    path = write(tmp_path, "extends: sub/mid.yaml\nname: b\ntrainer: {zero_stage: 0}\n")
    recipe = load(path).recipe
    assert (recipe.name, recipe.steps) == ("b", 4)
    assert recipe.trainer == Zero(learning_rate=2e-5, zero_stage=0, offload=True)


def test_bare_name_finds_shipped_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes").mkdir()
    write(tmp_path, ZERO, "recipes/mine.yaml")
    monkeypatch.chdir(tmp_path)
    assert load(Path("mine")).path == Path("recipes/mine.yaml")
    assert load(Path("mine.yaml")).path == Path("recipes/mine.yaml")


def test_recipe_of_the_package_is_found_by_name_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_recipe("quickstart") == SHIPPED / "quickstart.yaml"
    assert find_recipe("evaluation/sdrl.yaml") == SHIPPED / "evaluation/sdrl.yaml"
    write(tmp_path, "extends: quickstart\nname: own\nsteps: 3\n", "own.yaml")
    recipe = load_recipe("own.yaml", model=Recipe).recipe
    assert (recipe.name, recipe.steps, recipe.debate.num_agents) == ("own", 3, 5)


@pytest.mark.parametrize("name", ["/quickstart", "../recipes/quickstart", ".", ""])
def test_name_that_leaves_its_folder_is_none(name: str) -> None:
    assert named_recipe(name) is None


def test_name_that_is_misspelt_gets_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError, match=r"did you mean 'sdrl_freq_puzzle'\?$"):
        find_recipe("sdrl_freq_puzle")


SECRET = "s3cret-value"


def test_environment_value_is_used_and_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBATE_KEY", SECRET)
    text = (
        "name: ${tracking.key}\nsteps: 2\n"
        "tracking: {key: '${oc.env:DEBATE_KEY}', tags: ['x-${oc.env:DEBATE_KEY}', 'n-${steps}']}\n"
        "phases: {p: {name: '${oc.decode:${oc.env:DEBATE_KEY}}'}}\n"
    )
    loaded = load(write(tmp_path, text))
    assert loaded.recipe.name == loaded.recipe.tracking.key == SECRET
    assert loaded.recipe.tracking.tags == [f"x-{SECRET}", "n-2"]
    assert phases(loaded)["p"].name == SECRET
    written = resolved_yaml(loaded)
    assert SECRET not in written
    assert yaml.safe_load(written)["tracking"]["tags"] == ["x-${oc.env:DEBATE_KEY}", "n-2"]
    again = load(write(tmp_path, written, "again.yaml"))
    assert again.recipe == loaded.recipe
    assert phases(again) == phases(loaded)


def test_resolved_yaml_reads_back_as_the_same_recipe(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, ZERO + "phases: {p: {steps: 3}}\n"), "trainer.zero_stage=1")
    again = load(write(tmp_path, resolved_yaml(loaded), "again.yaml"))
    assert again.recipe == loaded.recipe
    assert phases(again) == phases(loaded)


_VALUES = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=8,
)
_MAPPINGS = st.dictionaries(st.sampled_from("abcd"), _VALUES, max_size=4)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(_MAPPINGS, _MAPPINGS)
def test_merge_holds_every_change_and_is_settled_when_repeated(
    base: dict[str, Any], change: dict[str, Any]
) -> None:
    nowhere = Schema()
    merged = merge(base, change, nowhere)
    assert merge(merged, change, nowhere) == merged
    assert merge(base, {}, nowhere) == base
    for key, value in change.items():
        if not isinstance(value, dict):
            assert merged[key] == value
    assert set(merged) == set(base) | set(change)


class Many(Strict):
    type: Literal["many"] = "many"
    agents: int = 5
    rounds: int = 3
    adapter: Tracking | None = None


class One(Strict):
    type: Literal["one"] = "one"
    agents: Literal[1] = 1
    rounds: int = 1
    adapter: None = None


class Form(Strict):
    form: Annotated[Many | One, Field(discriminator="type")]


def test_merge_drops_shared_key_that_the_new_variant_cannot_hold() -> None:
    base = {"form": {"type": "many", "agents": 5, "rounds": 2, "adapter": {"key": "k"}}}
    merged = merge(base, {"form": {"type": "one"}}, Schema((Form,)))
    assert merged == {"form": {"type": "one", "rounds": 2}}


def test_page_of_all_keys_is_as_its_program_writes_it(tmp_path: Path) -> None:
    folder = Path(__file__).resolve().parents[2] / "docs" / "reference"
    program = shutil.copy(folder / "make_keys.py", tmp_path)
    runpy.run_path(str(program), run_name="__main__")
    assert (tmp_path / "keys.md").read_text() == (folder / "keys.md").read_text()
