"""Recipe files: reading, extending, changing by arguments and phases, and writing to a run."""

import runpy
import shutil
from pathlib import Path
from typing import Annotated, Literal

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import Field

from debate_train.commands.cli import main
from debate_train.errors import RecipeError
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.describe import template
from debate_train.recipe.files import find_recipe, load_recipe
from debate_train.recipe.merging import merge
from debate_train.recipe.resolved import resolved_yaml
from debate_train.recipe.schema import Schema
from debate_train.recipe_names import SHIPPED, named_recipe
from train.small_recipes import FILE, Plain, Small, Strict, Tracking, Zero, write

ZERO = "name: a\ntrainer:\n  type: zero\n  learning_rate: 2e-5\n  zero_stage: 3\n  offload: true\n"


def load(path, *overrides):
    return load_recipe(path, overrides, model=Small)


def load_text(folder, text, *overrides):
    return load(write(folder, text), *overrides).recipe


def load_phases(loaded):
    base = loaded.recipe.model_dump(exclude_unset=True, exclude={"phases"})
    schema = Schema((Small,))
    phases = loaded.recipe.phases.items()
    return {name: Small.model_validate(merge(base, change, schema)) for name, change in phases}


def test_arguments_change_nested_values_by_key_or_by_mapping(tmp_path):
    recipe = load_text(tmp_path, "name: a\n", "trainer.type=plain", "trainer.learning_rate=3e-4")
    assert recipe.trainer == Plain(learning_rate=3e-4)
    recipe = load_text(tmp_path, ZERO, "trainer={zero_stage: 1}")
    assert recipe.trainer == Zero(learning_rate=2e-5, zero_stage=1, offload=True)
    recipe = load_text(tmp_path, "name: a\ntracking: {key: k}\n", "tracking.key=")
    assert recipe.tracking.key is None


@pytest.mark.parametrize("typed", ["no", "007", "1e3", "#1", "x=y"])
def test_argument_keeps_text_as_typed_when_the_field_is_text(tmp_path, typed):
    assert load_text(tmp_path, "name: a\n", f"name={typed}").name == typed


def test_change_of_type_drops_what_only_the_old_variant_has(tmp_path):
    loaded = load(write(tmp_path, ZERO), "trainer.type=plain")
    assert loaded.recipe.trainer == Plain(learning_rate=2e-5)
    assert loaded.notes == ("trainer.type: zero -> plain drops zero_stage, offload",)
    # Keys beside the type win, in whatever order.
    changes = ["trainer.learning_rate=0.5", "trainer.warmup_steps=7", "trainer.type=plain"]
    for arguments in (changes, changes[::-1]):
        recipe = load_text(tmp_path, ZERO, *arguments)
        assert recipe.trainer == Plain(learning_rate=0.5, warmup_steps=7)


def test_change_of_type_in_a_phase_and_in_a_file_that_extends_drops_old_keys(tmp_path):
    write(tmp_path, ZERO, "base.yaml")
    text = "extends: base.yaml\nphases: {one: {trainer: {type: plain}}, two: {steps: 3}, three: }\n"
    phases = load_phases(load(write(tmp_path, text)))
    assert phases["one"].trainer == Plain(learning_rate=2e-5)
    assert phases["two"].trainer == Zero(learning_rate=2e-5, zero_stage=3, offload=True)
    assert [(name, phase.steps) for name, phase in phases.items()] == [
        ("one", 10),
        ("two", 3),
        ("three", 10),
    ]
    child = write(tmp_path, "extends: r.yaml\ntrainer: {type: plain}\n", "c.yaml")
    assert load(child).recipe.trainer == Plain(learning_rate=2e-5)


def test_extends_merges_through_two_files_in_other_folders(tmp_path):
    (tmp_path / "sub").mkdir()
    write(tmp_path, ZERO, "base.yaml")
    write(tmp_path, "extends: ../base.yaml\nsteps: 4\n", "sub/mid.yaml")
    recipe = load_text(tmp_path, "extends: sub/mid.yaml\nname: b\ntrainer: {zero_stage: 0}\n")
    assert (recipe.name, recipe.steps) == ("b", 4)
    assert recipe.trainer == Zero(learning_rate=2e-5, zero_stage=0, offload=True)


# Recipes by name


def test_name_finds_a_recipe_of_the_folder_and_of_the_package(tmp_path, monkeypatch):
    (tmp_path / "recipes").mkdir()
    write(tmp_path, ZERO, "recipes/mine.yaml")
    monkeypatch.chdir(tmp_path)
    assert load(Path("mine")).path == load(Path("mine.yaml")).path == Path("recipes/mine.yaml")
    assert find_recipe("quickstart") == SHIPPED / "quickstart.yaml"
    assert find_recipe("evaluation/sdrl.yaml") == SHIPPED / "evaluation/sdrl.yaml"
    write(tmp_path, "extends: quickstart\nname: own\nsteps: 3\n", "own.yaml")
    recipe = load_recipe("own.yaml", model=Recipe).recipe
    assert (recipe.name, recipe.steps, recipe.debate.num_agents) == ("own", 3, 5)
    with pytest.raises(RecipeError, match=r"did you mean 'sdrl_freq_puzzle'\?$"):
        find_recipe("sdrl_freq_puzle")


@pytest.mark.parametrize("name", ["/quickstart", "../recipes/quickstart", ".", ""])
def test_name_that_leaves_its_folder_names_nothing(name):
    assert named_recipe(name) is None


# What a run writes


def assert_reads_back(folder, loaded):
    again = load(write(folder, resolved_yaml(loaded), "again.yaml"))
    assert again.recipe == loaded.recipe
    assert load_phases(again) == load_phases(loaded)


def test_environment_value_is_used_and_never_written(tmp_path, monkeypatch):
    secret = "s3cret-value"
    monkeypatch.setenv("DEBATE_KEY", secret)
    loaded = load(
        write(
            tmp_path,
            "name: ${tracking.key}\nsteps: 2\n"
            "tracking:\n  key: ${oc.env:DEBATE_KEY}\n"
            "  tags: ['x-${oc.env:DEBATE_KEY}', 'n-${steps}']\n"
            "phases: {p: {name: '${oc.decode:${oc.env:DEBATE_KEY}}'}}\n",
        )
    )
    assert loaded.recipe.name == load_phases(loaded)["p"].name == secret
    assert loaded.recipe.tracking.tags == [f"x-{secret}", "n-2"]
    written = resolved_yaml(loaded)
    assert secret not in written
    assert yaml.safe_load(written)["tracking"]["tags"] == ["x-${oc.env:DEBATE_KEY}", "n-2"]
    assert_reads_back(tmp_path, loaded)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("tracking: {project: '\\${x}'}", "${x}"),
        ("tracking: {project: 'a \\${oc.env:HOME} b'}", "${oc.env:HOME}"),
        ("tracking: {project: '\\\\\\${seed}'}", "${seed}"),
        ("trainer: {type: torch, max_grad_norm: .inf}", "max_grad_norm=inf"),
    ],
)
def test_escaped_and_infinite_values_read_back_from_what_a_run_writes(line, text, tmp_path):
    loaded = load_recipe(write(tmp_path, f"{FILE}{line}\n"), model=Recipe)
    assert text in str(loaded.recipe)
    written = resolved_yaml(loaded)
    again = load_recipe(write(tmp_path, written, "again.yaml"), model=Recipe)
    assert again.recipe == loaded.recipe
    assert resolved_yaml(again) == written


@pytest.mark.parametrize("shipped", ["quickstart", "curriculum_puzzle"])
def test_template_is_the_recipe_that_ships(shipped, tmp_path):
    path = write(tmp_path, template(shipped, "mine", ["steps=3"]))
    expected = load_recipe(shipped, ["steps=3", "name=mine"], model=Recipe).recipe
    assert load_recipe(path, model=Recipe).recipe.phase_recipes() == expected.phase_recipes()


def test_init_writes_a_new_file_and_says_what_is_next(tmp_path, capsys):
    path = tmp_path / "own.yaml"
    arguments = ["init", str(path), "--like", "quickstart", "steps=3", "tracking.wandb=no"]
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"{path}: next, debate-train {path} --check\n"
    recipe = load_recipe(path, model=Recipe).recipe
    assert (recipe.name, recipe.steps, recipe.tracking.wandb) == ("own", 3, False)
    # It writes over no file, and through no link.
    path.rename(tmp_path / "recipe.yaml")
    path.symlink_to("nowhere.yaml")
    assert main(arguments) == 2
    assert "found a file; expected the name of a new one" in capsys.readouterr().err
    assert not (tmp_path / "nowhere.yaml").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--like", "quickstrat"], "no such recipe"),
        (["stepz=1"], "stepz: unknown key; did you mean 'steps'?"),
    ],
)
def test_init_refuses_unknown_names_and_writes_nothing(words, message, tmp_path, capsys):
    assert main(["init", str(tmp_path / "r.yaml"), *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# Contracts, templates, personas and topologies of a recipe's own

OWN = """\
name: own
steps: 2
model: {type: scratch, context_window: 4096}
data: {type: signs_puzzle, batch_size: 2}
rollout: {max_tokens: 16}
advantage: {baseline: question_round, streams: {generator: {sections: [verdict]}, judge: {}}}
debate:
  num_agents: 6
  topology: sparse
  degree: 5
  contract:
    name: 007
    sections: [verdict, comparison]
    instructions:
      verdict: yes
  style:
    opening: |
      $question

      $debate

      It costs $$5. $task
  personas:
    - {name: Optimist, temperature: 0.5}
    - {name: no, style: Doubt.}
"""


def load_own(folder, text=OWN, *overrides):
    return load_recipe(write(folder, text, "own.yaml"), overrides, model=Recipe)


def test_recipe_brings_its_own_contract_templates_and_personas(tmp_path):
    loaded = load_own(tmp_path)
    debate = loaded.recipe.debate
    contract = debate.contract_rules()
    # What YAML would read as a number or as true is the text that was typed.
    assert (contract.name, contract.instructions) == ("007", {"verdict": "yes"})
    assert contract.stop == "</comparison>"
    assert [persona.name for persona in debate.personas] == ["Optimist", "no"]
    assert debate.style.opening.startswith("$question\n\n$debate\n\nIt costs $$5.")
    report = check(loaded.recipe)
    assert report.errors == []
    assert load_own(tmp_path, resolved_yaml(loaded)).recipe == loaded.recipe


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: 007", "nam: x", r"own.yaml:12: debate.contract.nam: unknown key.*'name'\?"),
        ("verdict: yes", "verdikt: x", "instructions for 'verdikt'.*did you mean 'verdict'"),
        ("$question\n", "$qestion\n", r"own.yaml:17: debate.style.opening: .*'\$question'\?"),
        ("{name: no, style: Doubt.}", "{nmae: x}", r"debate.personas.1.nmae: unknown key"),
        ("sparse", "sparce", "topology: found 'sparce'; expected .* did you mean 'sparse'"),
    ],
)
def test_recipe_is_refused_with_its_line_when_a_rule_of_its_own_is_wrong(
    tmp_path, old, new, message
):
    with pytest.raises(RecipeError, match=message):
        load_own(tmp_path, OWN.replace(old, new, 1))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("debate.contract=tree_section", "did you mean 'three_section'"),
        ("debate.style=ful", "debate.style: found 'ful'; expected full or compact; did you mean"),
        ("debate.contract=", "debate.contract: found nothing; expected a valid string"),
    ],
)
def test_argument_is_refused_with_the_nearest_name_when_it_names_nothing(
    tmp_path, override, message
):
    with pytest.raises(RecipeError, match=message):
        load_own(tmp_path, OWN, override)


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


def load_text_of(folder, text, *overrides):
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
    loaded = load_text_of(tmp_path, V2, *overrides)
    assert stream_weights(loaded.recipe) == expected
    assert load_text_of(tmp_path, resolved_yaml(loaded)).recipe == loaded.recipe


def test_streams_follow_the_reward_of_a_phase_and_of_a_file_that_extends(tmp_path):
    loaded = load_text_of(tmp_path, PHASES)
    for recipe in (loaded.recipe, load_text_of(tmp_path, resolved_yaml(loaded)).recipe):
        first, second = recipe.phase_recipes().values()
        assert stream_weights(first) == {"generator": 1.0, "judge": 0.5}
        assert stream_weights(second) == {"return": 1.0}
    write(tmp_path, V2, "base.yaml")
    child = "extends: base.yaml\nreward: {type: win_minus_loss}\n"
    assert stream_weights(load_text_of(tmp_path, child).recipe) == {"return": 1.0}


def test_phase_that_is_set_to_null_is_removed(tmp_path):
    loaded = load_text_of(tmp_path, PHASES, "phases.second=null")
    assert list(loaded.phases) == ["first"]
    assert list(yaml.safe_load(resolved_yaml(loaded))["phases"]) == ["first"]
    assert any("phases.second" in note for note in loaded.notes)
    # A new phase may have no differences.
    assert list(load_text_of(tmp_path, PHASES, "phases.third=null").phases) == [
        "first",
        "second",
        "third",
    ]


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
        load_text_of(tmp_path, FILE.replace("steps: 3\n", line), *overrides)


def test_page_of_all_keys_is_as_its_program_writes_it(tmp_path):
    folder = Path(__file__).resolve().parents[2] / "docs" / "reference"
    program = shutil.copy(folder / "make_keys.py", tmp_path)
    runpy.run_path(str(program), run_name="__main__")
    assert (tmp_path / "keys.md").read_text() == (folder / "keys.md").read_text()
