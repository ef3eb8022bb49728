"""Reading, extending, merging, resolving and validating recipe files."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from debate_train.errors import RecipeError
from debate_train.recipe_file import LoadedRecipe, load_recipe, phase_recipes, resolved_yaml
from debate_train.recipe_merge import merge
from debate_train.recipe_schema import Schema


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Plain(_Strict):
    type: Literal["plain"] = "plain"
    learning_rate: float = Field(1e-3, gt=0)
    warmup_steps: int = 0


class Zero(_Strict):
    type: Literal["zero"] = "zero"
    learning_rate: float = Field(1e-3, gt=0)
    zero_stage: Literal[0, 1, 2, 3] = 2
    offload: bool = False


class Tracking(_Strict):
    key: str | None = None
    tags: list[str] = []
    mode: Literal["on", "off"] = "on"


class Small(_Strict):
    """A recipe in miniature."""

    name: str
    steps: int = Field(10, ge=1)
    trainer: Annotated[Plain | Zero, Field(discriminator="type")] = Plain()
    tracking: Tracking = Tracking()
    weights: dict[str, Plain] = Field(default_factory=dict)
    phases: dict[str, dict[str, Any]] = Field(default_factory=dict)


def write(folder: Path, text: str, name: str = "r.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def load(path: Path, *overrides: str, allow_code: bool = False) -> LoadedRecipe[Small]:
    return load_recipe(path, overrides, model=Small, allow_code=allow_code)


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load(path, *overrides)
    return str(caught.value)


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


def test_override_refuses_yes_when_field_is_a_number(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "name: a\n"), "trainer.type=plain", "steps=yes")
    assert message == "command line: steps: found yes; expected a number"


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


def test_type_change_refuses_key_given_together_when_new_variant_lacks_it(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, ZERO), "trainer.type=plain", "trainer.zero_stage=1")
    assert message.startswith("command line: trainer.zero_stage: unknown key")


def test_type_change_in_extends_and_phase_drops_old_keys(tmp_path: Path) -> None:
    write(tmp_path, ZERO, "base.yaml")
    path = write(
        tmp_path,
        "extends: base.yaml\nphases: {one: {trainer: {type: plain}}, two: {steps: 3}, three: }\n",
    )
    phases = load(path).phases
    assert list(phases) == ["one", "two", "three"]
    assert phases["one"].trainer == Plain(learning_rate=2e-5)
    assert (phases["two"].steps, phases["three"].steps) == (3, 10)
    assert phases["two"].trainer == Zero(learning_rate=2e-5, zero_stage=3, offload=True)
    child = write(tmp_path, "extends: r.yaml\ntrainer: {type: plain}\n", "c.yaml")
    assert load(child).recipe.trainer == Plain(learning_rate=2e-5)


def test_phase_recipes_is_the_recipe_itself_when_it_has_no_phases(tmp_path: Path) -> None:
    recipe = load(write(tmp_path, "name: a\n")).recipe
    assert phase_recipes(recipe) == {"a": recipe}


def test_phase_keeps_text_as_typed(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nphases: {p: {name: 1.10}}\n")
    assert load(path).phases["p"].name == "1.10"


def test_phase_error_names_phase_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nphases:\n  warm:\n    stepz: 3\n")
    assert refusal(path) == f"phase warm: {path}:4: stepz: unknown key; did you mean steps?"


def test_phase_refuses_phases_within(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nphases:\n  warm:\n    phases: {x: {}}\n")
    assert "phases do not nest" in refusal(path)


def test_extends_merges_mapping_wise_through_two_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, ZERO, "base.yaml")
    write(tmp_path, "extends: ../base.yaml\nsteps: 4\n", "sub/mid.yaml")
    path = write(tmp_path, "extends: sub/mid.yaml\nname: b\ntrainer: {zero_stage: 0}\n")
    recipe = load(path).recipe
    assert (recipe.name, recipe.steps) == ("b", 4)
    assert recipe.trainer == Zero(learning_rate=2e-5, zero_stage=0, offload=True)


def test_extends_refuses_ring(tmp_path: Path) -> None:
    write(tmp_path, "extends: b.yaml\n", "a.yaml")
    path = write(tmp_path, "extends: a.yaml\n", "b.yaml")
    assert "b.yaml -> a.yaml -> b.yaml" in refusal(path)


def test_extends_names_nearest_file_when_missing(tmp_path: Path) -> None:
    write(tmp_path, ZERO, "base.yaml")
    path = write(tmp_path, "# a comment\nextends: bsae.yaml\n")
    assert refusal(path).startswith(f"{path}:2: extends: no file")
    assert refusal(path).endswith("did you mean base.yaml?")


def test_unknown_key_names_line_and_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\ntrainer:\n  type: zero\n  lerning_rate: 1\n")
    assert (
        refusal(path) == f"{path}:4: trainer.lerning_rate: unknown key; did you mean learning_rate?"
    )


def test_unknown_key_points_to_the_place_where_it_exists(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "name: a\n"), "learning_rate=1")
    assert (
        message == "command line: learning_rate: unknown key; did you mean trainer.learning_rate?"
    )


def test_unknown_variant_names_line_found_and_tags(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\ntrainer:\n  type: zreo\n")
    assert refusal(path) == (
        f"{path}:3: trainer.type: found 'zreo'; expected one of plain, zero; did you mean zero?"
    )


def test_wrong_type_names_found_and_expected(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nsteps: many\ntrainer: {type: zero, zero_stage: 7}\n")
    assert refusal(path).splitlines() == [
        f"{path}:2: steps: found 'many'; expected a whole number",
        f"{path}:3: trainer.zero_stage: found 7; expected 0, 1, 2 or 3",
    ]


def test_out_of_bounds_says_the_bound(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nsteps: 0\n")
    assert refusal(path) == f"{path}:2: steps: found 0; expected at least 1"


def test_missing_key_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "steps: 1\n")
    assert refusal(path) == f"{path}: name: missing; expected a value for name"


def test_many_problems_stay_within_eight_lines(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\n" + "".join(f"key{i}: 1\n" for i in range(20)))
    lines = refusal(path).splitlines()
    assert len(lines) == 8
    assert lines[-1] == "... and 13 more"


def test_override_below_a_list_or_text_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\ntracking: {tags: [x]}\n")
    assert "tracking.tags is a list (['x'])" in refusal(path, "tracking.tags.0=y")
    assert "name is a value ('a')" in refusal(path, "name.x=y")


@pytest.mark.parametrize("argument", ["steps", "=1", "a..b=1", ".a=1"])
def test_override_refuses_what_is_not_key_value(tmp_path: Path, argument: str) -> None:
    assert "expected key=value" in refusal(write(tmp_path, "name: a\n"), argument)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- 1\n", ":1: found no `key: value` lines"),
        ("hello", ":1: found no `key: value` lines"),
        ("name: a\nname: b\n", ":2: not readable as YAML (found duplicate key name)"),
        ("name: [a\n", "not readable as YAML"),
        ("name: !!python/object:os.x {}\n", "not readable as YAML"),
        ("name: ${\n", "interpolation"),
        ("name: ${nope}\n", "name: Interpolation key 'nope' not found"),
        ("name: ${oc.env:DEBATE_NOT_SET}\n", "name: Environment variable 'DEBATE_NOT_SET'"),
        ("name: ???\n", "name: found ??? (left open)"),
        ("a: &a {b: *a}\n", "alias"),
        ("", "name: missing"),
    ],
)
def test_unreadable_file_is_one_message(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refusal(write(tmp_path, text))


def test_missing_file_names_nearest(tmp_path: Path) -> None:
    write(tmp_path, ZERO, "selfplay.yaml")
    assert refusal(tmp_path / "selfplai.yaml").endswith(f"did you mean {tmp_path}/selfplay.yaml?")


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"name: \xff\xfe")
    assert "byte 6 is not UTF-8" in refusal(path)


def test_bare_name_finds_shipped_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "recipes").mkdir()
    write(tmp_path, ZERO, "recipes/mine.yaml")
    monkeypatch.chdir(tmp_path)
    assert load(Path("mine")).path == Path("recipes/mine.yaml")
    assert load(Path("mine.yaml")).path == Path("recipes/mine.yaml")


def test_code_is_refused_unless_allowed(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\ntrainer:\n  type: python\n")
    assert f"{path}:3: trainer.type: found 'python'" in refusal(path)
    assert "--allow-code" in refusal(path)
    with pytest.raises(RecipeError, match="expected one of plain, zero"):
        load(path, allow_code=True)


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
    assert loaded.phases["p"].name == SECRET
    written = resolved_yaml(loaded)
    assert SECRET not in written
    assert yaml.safe_load(written)["tracking"]["tags"] == ["x-${oc.env:DEBATE_KEY}", "n-2"]
    again = load(write(tmp_path, written, "again.yaml"))
    assert again.recipe == loaded.recipe
    assert again.phases == loaded.phases


def test_environment_value_is_not_shown_in_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBATE_KEY", SECRET)
    message = refusal(write(tmp_path, "name: a\nsteps: ${oc.env:DEBATE_KEY}\n"))
    assert SECRET not in message
    assert "${oc.env:DEBATE_KEY}" in message
    path = write(tmp_path, "name: a\ntrainer: {type: '${oc.env:DEBATE_KEY}'}\n")
    assert SECRET not in refusal(path)


def test_resolved_yaml_reads_back_as_the_same_recipe(tmp_path: Path) -> None:
    loaded = load(write(tmp_path, ZERO + "phases: {p: {steps: 3}}\n"), "trainer.zero_stage=1")
    again = load(write(tmp_path, resolved_yaml(loaded), "again.yaml"))
    assert again.recipe == loaded.recipe
    assert again.phases == loaded.phases


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


class Many(_Strict):
    type: Literal["many"] = "many"
    agents: int = 5
    rounds: int = 3
    adapter: Tracking | None = None


class One(_Strict):
    type: Literal["one"] = "one"
    agents: Literal[1] = 1
    rounds: int = 1
    adapter: None = None


class Form(_Strict):
    form: Annotated[Many | One, Field(discriminator="type")]


def test_merge_drops_shared_key_that_the_new_variant_cannot_hold() -> None:
    base = {"form": {"type": "many", "agents": 5, "rounds": 2, "adapter": {"key": "k"}}}
    merged = merge(base, {"form": {"type": "one"}}, Schema((Form,)))
    assert merged == {"form": {"type": "one", "rounds": 2}}
