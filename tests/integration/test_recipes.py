"""Recipes that ship: they pass --check, keep the numbers of their papers, and refuse bad input."""

import json
import runpy
from functools import reduce
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from debate_train.commands.cli import main
from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.recipe.resolved import resolved_yaml
from json_lines import read_rows

ROOT = Path(__file__).resolve().parents[2]
RECIPE_FILES = sorted(
    [*(ROOT / "recipes").glob("*.yaml"), *(ROOT / "recipes/papers").glob("*.yaml")]
)
FOLDER = Path(__file__).resolve().parents[2] / "recipes"
DAPO: dict[str, Any] = {
    # "Self-Debate Reinforcement Learning", section 6.1.1, appendix A.1 and eq. 7.
    "data.batch_size": 256,
    "rollout.debates_per_question": 8,
    "rollout.max_tokens": 8196,
    "trainer.learning_rate": 1.0e-6,
    "trainer.warmup_steps": 10,
    "trainer.minibatch_size": 128,
    "loss.type": "dapo",
    "loss.clip_low": 0.2,
    "loss.clip_high": 0.28,
    "loss.kl.weight": 0.0,
    "loss.aggregation": "token_mean_group",
    "advantage.baseline": "prompt",
    "advantage.scale": "std",
}
SDRL = DAPO | {
    # The same, Algorithm 1, sections 5.1 to 6.1.1 and appendix A.1.
    "rollout.debates_per_question": 1,
    "debate.type": "self_debate",
    "debate.first_turns": 8,
    "debate.second_turns": 8,
    "advantage.leave_out_zeros": (1,),
}
SDRL_PAIRING = {"sdrl_freq_math": "freq", "papers/sdrl_rand_math": "rand"}
PROMPTS = [f"Write {n} words about a harbour." for n in range(40)]


@pytest.fixture(autouse=True)
def _at_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.parametrize("path", RECIPE_FILES, ids=lambda path: path.stem)
def test_recipe_passes_check(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert path.read_text().startswith("# ")  # What it does, its paper, cost and numbers.
    assert main([str(path), "--check"]) == 0
    printed = capsys.readouterr()
    assert "a step:" in printed.out
    assert "context: at most" in printed.out
    few_judges = "one judge a round" in printed.err
    assert few_judges == (path.stem in ("selfplay_v2_n3", "selfplay_v2_easier"))


@pytest.mark.parametrize("path", RECIPE_FILES, ids=lambda path: path.stem)
def test_recipe_reads_back_as_written_to_a_run(path: Path, tmp_path: Path) -> None:
    loaded = load_recipe(path, model=Recipe)
    written = tmp_path / "recipe.yaml"
    written.write_text(resolved_yaml(loaded))
    again = load_recipe(written, model=Recipe)
    assert again.recipe.model_copy(update={"phases": loaded.recipe.phases}) == loaded.recipe
    assert resolved_yaml(again) == resolved_yaml(loaded)
    assert again.recipe.phase_recipes() == loaded.recipe.phase_recipes()


def differing(name: str, source: dict[str, Any]) -> list[str]:
    """The settings of a recipe's last phase that are others than those of its source."""
    loaded = load_recipe(str(FOLDER / f"{name}.yaml"), [], model=Recipe).recipe
    phase = list(loaded.phase_recipes().values())[-1]
    return [key for key, value in source.items() if reduce(getattr, key.split("."), phase) != value]


def test_dapo_recipe_has_the_numbers_of_its_source() -> None:
    assert differing("dapo_math", DAPO) == []
    recipe = load_recipe(str(FOLDER / "dapo_math.yaml"), [], model=Recipe).recipe
    overlong = recipe.reward.parts()["length"].reward.model_dump()
    assert (overlong["max_tokens"], overlong["buffer"], overlong["factor"]) == (8196, 2048, 1.0)
    # 256 x 8 responses in the paper's mini-batches of 128: 16 updates a step.
    assert recipe.steps == 200
    assert 200 * recipe.trainer.update_count(256 * 8) == 3200


@pytest.mark.parametrize(("name", "pairing"), SDRL_PAIRING.items())
def test_sdrl_recipes_have_the_numbers_of_their_source(name: str, pairing: str) -> None:
    assert differing(name, SDRL | {"debate.pairing": pairing}) == []
    recipe = load_recipe(str(FOLDER / f"{name}.yaml"), [], model=Recipe).recipe
    keeping, debating = recipe.rollout.select.rules
    assert (keeping.type, keeping.group) == ("informative", "debate")
    assert (debating.type, debating.go_on, debating.others) == ("at_most", 128, "keep")
    dapo = load_recipe(str(FOLDER / "dapo_math.yaml"), [], model=Recipe).recipe
    assert recipe.reward == dapo.reward
    assert recipe.model.name == "Qwen/Qwen3-4B-Base"


def test_grpo_recipes_leave_out_what_dapo_adds() -> None:
    for name in ("papers/grpo_math", "grpo_puzzle"):
        recipe = load_recipe(str(FOLDER / f"{name}.yaml"), [], model=Recipe).recipe
        phase = list(recipe.phase_recipes().values())[-1]
        assert (phase.rollout.select, phase.rollout.oversample) == (None, 1)
        assert (phase.reward.type, phase.loss.type) == ("verifiable", "grpo")
    changed = ["loss.type", "loss.clip_high", "loss.kl.weight", "loss.aggregation"]
    assert differing("papers/grpo_math", DAPO) == changed


def test_open_prompts_train_by_votes_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "tiny"
    prompts = tmp_path / "prompts.jsonl"
    output = tmp_path / "run"
    runpy.run_path(str(ROOT / "examples/tiny_model.py"))["main"](str(model))
    prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    arguments = [
        str(ROOT / "recipes/selfplay_open.yaml"),
        f"model.name={model}",
        "rollout.engine.type=transformers",
        "rollout.max_tokens=8",
        "trainer.type=torch",
        f"data={{type: questions, path: {prompts}, batch_size: 2}}",
        "steps=1",
        "evaluation={questions: 1, every: 1, direct_samples: 1}",
        "tracking.wandb=false",
    ]
    assert main([*arguments, "--check"]) == 0
    printed = capsys.readouterr().out
    assert "answers are compared as: no answer 40" in printed
    assert main([*arguments, "--check-data"]) == 0
    assert main([*arguments, "--output", str(output)]) == 0
    rows = read_rows(output / "metrics.jsonl")
    step = rows[0]
    look = rows[1]
    # Random weights write no section: every turn failed and was worth -1.
    assert step["reward/total"] == -1
    assert look["eval/format"] == 0
    assert not [name for name in chain.from_iterable(rows) if "accuracy" in name]
    results = json.loads((output / "results.json").read_text())
    assert {row["measure"] for row in results["table"]} == {"valid format"}
