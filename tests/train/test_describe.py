"""What `recipes`, --print and --explain show of recipes without running one."""

from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from debate_train.commands.cli import main
from debate_train.recipe import Recipe
from debate_train.recipe.describe import description, summary
from debate_train.recipe.files import load_recipe
from debate_train.recipe.schema import Schema, annotation_of, schema_of
from debate_train.recipe_names import SHIPPED


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_recipes_lists_every_recipe_with_its_heading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = printed(capsys, "recipes").splitlines()
    headings = dict(line.split(maxsplit=1) for line in lines)
    paths = (path.relative_to(SHIPPED) for path in SHIPPED.glob("**/*.yaml"))
    assert set(headings) == {path.with_suffix("").as_posix() for path in paths}
    heading = "SDRL-freq on the signs puzzle: one tiny model"
    assert headings["sdrl_freq_puzzle"].startswith(heading)
    matches = printed(capsys, "recipes", "MACA")
    assert matches.split()[0] == "papers/baseline_maca_llama3_8b_boolq"


def test_print_writes_the_complete_recipe_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "papers/quickstart_mixed"
    text = printed(capsys, name, "seed=7", "--print", "--nproc", "2")
    self_play = yaml.safe_load(text)["phases"]["self_play"]
    assert self_play["reward"]["components"]["truth"]["weight"] == 0.3
    Path("again.yaml").write_text(text)
    again = load_recipe("again.yaml", model=Recipe)
    assert again.phases == load_recipe(name, ["seed=7"], model=Recipe).phases


def models_of(schema: Schema, models: dict[type[BaseModel], None]) -> dict[type[BaseModel], None]:
    """Collect every model of ours that a recipe may hold."""
    for model in schema.models:
        if model not in models and model.__module__.startswith("debate_"):
            models[model] = None
            for field in model.model_fields.values():
                models_of(schema_of(annotation_of(field)), models)
    if schema.values is not None:
        models_of(schema.values, models)
    return models


def test_every_field_of_a_recipe_has_a_description() -> None:
    models = models_of(Schema((Recipe,)), {})
    assert len(models) > 100
    assert [model.__name__ for model in models if not summary(model)] == []
    undescribed = [
        f"{model.__name__}.{name}"
        for model in models
        for name in model.model_fields
        if name != "type" and not description(model, name).endswith(".")
    ]
    assert undescribed == []


def test_explain_shows_what_a_key_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, "--explain", "rollout.max_tokens").splitlines() == [
        "rollout.max_tokens",
        "  Most tokens of one reply.",
        "  type: int",
        "  range: >= 1",
        "  default: 1024",
    ]
    components = printed(capsys, "--explain", "reward.components")
    assert components.startswith("reward.components  (type: mixed)\n  Names to rewards")
    assert "    weight  How much it counts" in components


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trainer.lerning_rate"], "did you mean 'learning_rate'?"),
        # A word of the field for a key.
        (["lr"], "did you mean 'trainer.learning_rate'"),
        (["epochs"], "did you mean 'trainer.epochs'"),
        (["reward.components", "quickstart"], "expected it with type mixed"),
    ],
)
def test_explain_of_no_key_names_the_nearest(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key, *recipe = arguments
    assert main([*recipe, "--explain", key]) == 2
    assert message in capsys.readouterr().err
