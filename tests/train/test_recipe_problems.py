"""What a wrong recipe is told: place, found, expected, nearest name, in a few lines."""

import pytest

from debate_train.commands.cli import main
from debate_train.errors import RecipeError
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from train.small_recipes import FILE, Small, write

ZERO = "name: a\ntrainer:\n  type: zero\n  learning_rate: 2e-5\n  zero_stage: 3\n  offload: true\n"


def refusal(path, *overrides, model=Small):
    with pytest.raises(RecipeError) as error:
        load_recipe(path, overrides, model=model)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name: a\ntrainer:\n  type: zero\n  lerning_rate: 1\n",
            "{}:4: trainer.lerning_rate: unknown key; did you mean 'learning_rate'?",
        ),
        (
            "name: a\ntrainer:\n  type: zreo\n",
            "{}:3: trainer.type: found 'zreo'; expected one of plain, zero; did you mean 'zero'?",
        ),
        ("name: a\nsteps: 0\n", "{}:2: steps: found 0; expected at least 1"),
        ("steps: 1\n", "{}: name: missing; expected a value for name"),
        (
            "name: a\nphases:\n  warm:\n    stepz: 3\n",
            "phase warm: {}:4: stepz: unknown key; did you mean 'steps'?",
        ),
    ],
    ids=["key", "type", "bound", "missing", "phase"],
)
def test_file_is_told_place_found_and_nearest_name(tmp_path, text, message):
    path = write(tmp_path, text)
    assert refusal(path) == message.format(path)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["steps=yes"], "command line: steps: found yes; expected a number"),
        (["learning_rate=1"], "learning_rate: unknown key; did you mean 'trainer.learning_rate'?"),
        (["trainer=zeor"], "expected trainer.type, one of plain, zero; did you mean 'zero'?"),
        (["tracking.tags.0=y"], "tracking.tags: found a mapping of keys; expected a valid list"),
        (["phases={warm: {phases: {x: {}}}}"], "phases do not nest"),
        (["=1"], "expected key=value"),
        (["a..b=1"], "expected key=value"),
    ],
)
def test_argument_is_told_key_found_and_nearest_name(tmp_path, overrides, message):
    path = write(tmp_path, ZERO + "tracking: {tags: [x]}\n")
    assert message in refusal(path, *overrides)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1\n", ":1: found no `key: value` lines"),
        ("!!set {a, b}", ":1: found no `key: value` lines"),
        ("name: [a\n", "not readable as YAML"),
        ("name: a\ntrainer:\n  type: python\n", ":3: trainer.type: found 'python'; expected one"),
        ("name: ${nope}\n", "name: Interpolation key 'nope' not found"),
        ("name: ???\n", "name: found ??? (left open)"),
        ("", "name: missing"),
        ("seed: " + "9" * 5000, ": not readable as YAML (Exceeds the limit (4300 digits)"),
        ("? {? [1]: 2}\n: 1", ":1: not readable as YAML (found unhashable key"),
        ('seed: "\\UFFFFFFFF"', ":1: not readable as YAML"),
        ("seed: [" + "1," * 10_000 + "1]", "exceeds the configured limit of 10000"),
    ],
)
def test_unreadable_file_is_told_in_one_message(tmp_path, text, message):
    assert message in refusal(write(tmp_path, text))


def test_many_problems_stay_within_eight_lines(tmp_path):
    lines = [f"key{number}: 1\n" for number in range(20)]
    messages = refusal(write(tmp_path, "name: a\n" + "".join(lines))).splitlines()
    assert len(messages) == 8
    assert messages[-1] == "... and 13 more"


def test_missing_files_name_the_nearest(tmp_path):
    write(tmp_path, ZERO, "base.yaml")
    path = write(tmp_path, "# a comment\nextends: bsae.yaml\n")
    message = refusal(path)
    assert message.startswith(f"{path}:2: extends: no file")
    assert message.endswith("did you mean 'base.yaml'?")
    assert refusal(tmp_path / "baze.yaml").endswith(f"did you mean '{tmp_path}/base.yaml'?")


def test_extends_refuses_a_ring(tmp_path):
    write(tmp_path, "extends: b.yaml\n", "a.yaml")
    path = write(tmp_path, "extends: a.yaml\n", "b.yaml")
    assert "b.yaml -> a.yaml -> b.yaml" in refusal(path)


@pytest.mark.parametrize(
    "line", ["steps: ${oc.env:DEBATE_KEY}", "trainer: {type: '${oc.env:DEBATE_KEY}'}"]
)
def test_environment_value_is_not_shown_in_errors(tmp_path, monkeypatch, line):
    monkeypatch.setenv("DEBATE_KEY", "s3cret-value")
    message = refusal(write(tmp_path, f"name: a\n{line}\n"))
    assert "s3cret-value" not in message
    assert "${oc.env:DEBATE_KEY}" in message


# Whole recipes: bounds, and names that no file can have


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("seed=.inf", "seed: found .inf; expected a finite number"),
        ("debate.num_agents=1000", "debate.num_agents: found 1000; expected at most 128"),
        ("name=../../x", "name: found '../../x'; expected text that matches ^"),
        ("name=" + "n" * 300, "expected text that matches ^"),
        ("phases={../x: {}}", "phases"),
        ("tracking.notes=why", "tracking.notes: found a key of earlier releases; expected WANDB_"),
        ("trainer.max_skipped=9", "expected no such key: the run stops after 5 skipped updates"),
        ("reward={type: v2, format_penalty: -.inf}", "format_penalty: found -.inf; expected a "),
        ("data={type: questions}", "data.path: missing; expected a value for"),
        ("debate.personas=[]", "debate.personas: found a list; expected at least 1 item"),
        (
            "reward={type: mixed, components: {}}",
            "found a mapping of keys; expected at least 1 item",
        ),
    ],
    ids=lambda value: value[:30],
)
def test_value_of_a_whole_recipe_is_refused_with_its_key(override, message, tmp_path):
    assert message in refusal(write(tmp_path, FILE), override, model=Recipe)


def test_list_with_wrong_items_is_not_called_too_short(tmp_path):
    message = refusal(
        write(tmp_path, FILE), "debate.personas=[{name: A, temprature: 1}]", model=Recipe
    )
    assert message.endswith("temprature: unknown key; did you mean 'temperature'?")


LONG = "n" * 300


@pytest.mark.parametrize(
    "arguments",
    [
        ["{recipe}", "data={type: questions, path: ./" + LONG + "}"],
        [LONG],
        ["a\0b.yaml"],
        ["{recipe}", "--output=caf\udce9"],
    ],
    ids=["data", "long", "null byte", "output"],
)
def test_command_refuses_a_name_that_no_file_can_have(arguments, tmp_path, capsys):
    recipe = write(tmp_path, FILE)
    command = [argument.replace("{recipe}", str(recipe)) for argument in arguments]
    assert main([*command, "--check"]) == 2
    error = capsys.readouterr().err
    assert error and "Traceback" not in error


def test_command_escapes_what_a_terminal_would_act_on(tmp_path, capsys):
    assert main([str(write(tmp_path, FILE + '"\\e[2Jseed": 1\n')), "--check"]) == 2
    assert ":8: \\x1b[2Jseed: unknown key" in capsys.readouterr().err
