"""Protocols of evaluation that recipes extend: each is valid, and plays what its paper says."""

from pathlib import Path

import pytest

from debate_train.evaluation.settings import Setup
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe

FOLDER = Path(__file__).resolve().parents[2] / "recipes" / "evaluation"
OWN = """\
extends: {file}
name: mine
steps: 1
model: {{type: scratch}}
data: {{type: signs_puzzle}}
reward: {{type: verifiable}}
debate: {{contract: boxed, personas: none}}
"""


def setup(tmp_path: Path, name: str) -> Setup:
    """Return what a recipe that extends a protocol measures with."""
    path = tmp_path / "mine.yaml"
    path.write_text(OWN.format(file=FOLDER / f"{name}.yaml"))
    return load_recipe(path, model=Recipe).recipe.evaluated()


def test_every_protocol_is_known_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.yaml")} == {"sdrl", "sdrl_k32", "acc"}


@pytest.mark.parametrize(
    ("name", "replies", "contract"), [("sdrl", 4, "boxed"), ("sdrl_k32", 32, "answer_line")]
)
def test_protocol_of_sdrl(tmp_path: Path, name: str, replies: int, contract: str) -> None:
    found = setup(tmp_path, name)
    assert (found.runs, found.rollout.sampling["top_p"]) == (5, 0.9)
    assert found.rollout.max_tokens == 8196
    plays = dict(found.plays())
    assert set(plays) == {"direct", "debate", "sparse", "central"}
    assert plays["direct"].turns == replies
    for mode, topology in (("debate", "all"), ("sparse", "sparse"), ("central", "central")):
        rules = plays[mode].form.protocol()
        assert (rules.num_agents, rules.max_rounds, rules.history_rounds) == (5, 2, 1)
        assert (rules.topology, rules.contract) == (topology, contract)
        assert rules.extra["own_rounds"] == 1
        assert {plays[mode].form.temperature_of(agent) for agent in range(5)} == {1.0}
    figures = found.figures()
    assert {"eval/maj/delta", "eval/sparse/maj/delta", "eval/central/central/delta"} <= set(figures)
    assert f"eval/direct/maj@{replies}" in figures
    listed = list(found.listed().values())
    assert [row.partition(" (")[0] for row in listed[:3]] == [
        *("majority of first answers", "majority vote", "majority vote − Maj")
    ]


def test_protocol_of_acc_debate(tmp_path: Path) -> None:
    plays = dict(setup(tmp_path, "acc").plays())
    assert plays["debate"].turns == 5 + 4
    assert [plays[name].turns for name in ("direct", "som2", "som4")] == [1, 10, 20]
    assert list(setup(tmp_path, "acc").listed())[:2] == [
        "eval/last_round/accuracy",
        "eval/improvement",
    ]
    assert {"eval/improvement", "eval/som4/improvement"} <= set(setup(tmp_path, "acc").figures())
    persona = plays["persona"].form
    assert (plays["persona"].turns, persona.protocol().history_rounds) == (10, 1)
    assert [persona.persona(agent).name for agent in (0, 1)] == ["Critic", "Scientist"]
    assert [persona.temperature_of(agent) for agent in (0, 1)] == [1.0, 1.0]
