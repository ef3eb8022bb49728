"""What a wrong recipe is told."""

from pathlib import Path

import pytest

from debate_train.errors import RecipeError
from debate_train.recipe.files import LoadedRecipe, load_recipe
from train.small_recipes import Small, write


def load(path: Path, *overrides: str) -> LoadedRecipe[Small]:
    return load_recipe(path, overrides, model=Small)


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load(path, *overrides)
    return str(caught.value)


ZERO = "name: a\ntrainer:\n  type: zero\n  learning_rate: 2e-5\n  zero_stage: 3\n  offload: true\n"
SECRET = "s3cret-value"


def test_override_refuses_yes_when_field_is_a_number(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "name: a\n"), "trainer.type=plain", "steps=yes")
    assert message == "command line: steps: found yes; expected a number"


def test_type_change_refuses_key_given_together_when_new_variant_lacks_it(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, ZERO), "trainer.type=plain", "trainer.zero_stage=1")
    assert message.startswith("command line: trainer.zero_stage: unknown key")


def test_phase_error_names_phase_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nphases:\n  warm:\n    stepz: 3\n")
    assert refusal(path) == f"phase warm: {path}:4: stepz: unknown key; did you mean 'steps'?"


def test_phase_refuses_phases_within(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nphases:\n  warm:\n    phases: {x: {}}\n")
    assert "phases do not nest" in refusal(path)


def test_extends_refuses_ring(tmp_path: Path) -> None:
    write(tmp_path, "extends: b.yaml\n", "a.yaml")
    path = write(tmp_path, "extends: a.yaml\n", "b.yaml")
    assert "b.yaml -> a.yaml -> b.yaml" in refusal(path)


def test_extends_names_nearest_file_when_missing(tmp_path: Path) -> None:
    write(tmp_path, ZERO, "base.yaml")
    path = write(tmp_path, "# a comment\nextends: bsae.yaml\n")
    assert refusal(path).startswith(f"{path}:2: extends: no file")
    assert refusal(path).endswith("did you mean 'base.yaml'?")


def test_unknown_key_names_line_and_nearest(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\ntrainer:\n  type: zero\n  lerning_rate: 1\n")
    assert (
        refusal(path)
        == f"{path}:4: trainer.lerning_rate: unknown key; did you mean 'learning_rate'?"
    )


def test_unknown_key_names_the_type_that_has_it(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\ntrainer: {type: plain, zero_stage: 1}\n")
    assert refusal(path).endswith("trainer.zero_stage: unknown key; expected it with type zero")


def test_unknown_key_points_to_the_place_where_it_exists(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, "name: a\n"), "learning_rate=1")
    assert (
        message == "command line: learning_rate: unknown key; did you mean 'trainer.learning_rate'?"
    )


def test_unknown_variant_names_line_found_and_tags(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\ntrainer:\n  type: zreo\n")
    assert refusal(path) == (
        f"{path}:3: trainer.type: found 'zreo'; expected one of plain, zero; did you mean 'zero'?"
    )


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer=zero", "trainer: found 'zero'; expected trainer.type=zero"),
        ("trainer=zeor", "expected trainer.type, one of plain, zero; did you mean 'zero'?"),
        ("trainer=3", "trainer: found 3; expected a valid mapping"),
    ],
)
def test_variant_named_without_type_is_told_the_key(
    tmp_path: Path, override: str, message: str
) -> None:
    assert message in refusal(write(tmp_path, "name: a\n"), override)


def test_wrong_type_names_found_and_expected(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\nsteps: many\ntrainer: {type: zero, zero_stage: 7}\n")
    assert refusal(path).splitlines() == [
        f"{path}:2: steps: found 'many'; expected a valid integer",
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
    said = "tracking.tags: found a mapping of keys; expected a valid list"
    assert said in refusal(path, "tracking.tags.0=y")
    assert "name: found a mapping of keys; expected a valid string" in refusal(path, "name.x=y")


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
        ("name: !!python/object:os.x {}\n", "determine a constructor for the tag"),
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
    assert refusal(tmp_path / "selfplai.yaml").endswith(f"did you mean '{tmp_path}/selfplay.yaml'?")


def test_bytes_that_are_not_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(b"name: \xff\xfe")
    assert "byte 6 is not UTF-8" in refusal(path)


def test_type_that_names_python_code_is_no_variant(tmp_path: Path) -> None:
    path = write(tmp_path, "name: a\ntrainer:\n  type: python\n")
    assert f"{path}:3: trainer.type: found 'python'; expected one of plain, zero" in refusal(path)


def test_environment_value_is_not_shown_in_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBATE_KEY", SECRET)
    message = refusal(write(tmp_path, "name: a\nsteps: ${oc.env:DEBATE_KEY}\n"))
    assert SECRET not in message
    assert "${oc.env:DEBATE_KEY}" in message
    path = write(tmp_path, "name: a\ntrainer: {type: '${oc.env:DEBATE_KEY}'}\n")
    assert SECRET not in refusal(path)
