"""Own contracts, templates, personas and topologies in recipe files: read, refused, written."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from debate_train.errors import RecipeError
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.files import LoadedRecipe, load_recipe
from debate_train.recipe.resolved import resolved_yaml

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


def load(folder: Path, text: str = OWN, *overrides: str) -> LoadedRecipe[Recipe]:
    path = folder / "own.yaml"
    path.write_text(text)
    return load_recipe(path, overrides, model=Recipe)


def test_recipe_brings_its_own_contract_templates_and_personas(tmp_path: Path) -> None:
    form: Any = load(tmp_path).recipe.debate
    contract = form.contract_rules()
    # What YAML would read as a number or as true is the text that was typed.
    assert (contract.name, contract.instructions) == ("007", {"verdict": "yes"})
    assert contract.stop == "</comparison>"
    assert [persona.name for persona in form.personas] == ["Optimist", "no"]
    assert form.style.opening.startswith("$question\n\n$debate\n\nIt costs $$5.")
    report = check(load(tmp_path).recipe)
    assert report.errors == report.warnings == []


def test_recipe_with_an_own_contract_reads_back_as_written_to_a_run(tmp_path: Path) -> None:
    loaded = load(tmp_path)
    again = load(tmp_path, resolved_yaml(loaded))
    assert again.recipe == loaded.recipe
    assert resolved_yaml(again) == resolved_yaml(loaded)
    bare = OWN.replace("name: 007", "name: 007\n    stop: null")
    written = resolved_yaml(load(tmp_path, bare))
    assert yaml.safe_load(written)["debate"]["contract"]["stop"] is None
    assert load(tmp_path, written).recipe.debate.stop_strings() == ()


def test_phase_and_argument_change_to_a_named_contract_and_back(tmp_path: Path) -> None:
    phases = "phases: {one: {debate: {contract: five_section}}, two: {debate: {degree: 2}}}\n"
    loaded = load(tmp_path, OWN + phases)
    one, two = loaded.recipe.phase_recipes().values()
    assert one.debate.contract == "five_section"
    assert two.debate.contract_rules().name == "007"
    assert load(tmp_path, OWN, "debate.contract=boxed", "debate.style=full").recipe.debate.contract
    named = OWN[: OWN.index("  contract:")] + "  contract: boxed\n"
    own = load(tmp_path, named, "debate.contract={name: mine, sections: [verdict]}").recipe.debate
    assert own.contract_rules().sections == ("verdict",)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: 007", "nam: x",
         r"own.yaml:12: debate.contract.nam: unknown key; did you mean 'name'\?"),
        ("[verdict, comparison]", "[verdict, Comparison]", "section 'Comparison'; expected a low"),
        ("verdict: yes", "verdikt: x", "instructions for 'verdikt'.*did you mean 'verdict'"),
        ("name: 007", "name: boxed", "'boxed' is built in; choose another name"),
        ("$question\n", "$qestion\n",
         r"own.yaml:17: debate.style.opening: found \$qestion.* did you mean '\$question'\?"),
        ("degree: 5", "degree: 7", "found 7; topology sparse expects .* of 1 to 5"),
        ("    opening: |", "    openin: |",
         r"debate.style.openin: unknown key; did you mean 'opening'\?"),
        ("{name: no, style: Doubt.}", "{nmae: x}",
         r"debate.personas.1.nmae: unknown key; did you mean 'name'\?"),
        ("sparse", "sparce", "topology: found 'sparce'; expected .* did you mean 'sparse'"),
    ],
)  # fmt: skip
def test_recipe_is_refused_with_its_line_when_a_part_of_its_own_is_wrong(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in OWN
    with pytest.raises(RecipeError, match=message):
        load(tmp_path, OWN.replace(old, new, 1))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("debate.contract=tree_section", "did you mean 'three_section'"),
        ("debate.style=ful", "debate.style: found 'ful'; expected full or compact; did you mean"),
        ("debate.personas=non", "debate.personas: found 'non'; expected default or none; did you"),
        ("debate.contract=", "debate.contract: found nothing; expected a valid string"),
    ],
)
def test_argument_is_refused_with_the_nearest_name_when_it_names_nothing(
    tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(RecipeError, match=message):
        load(tmp_path, OWN, override)
