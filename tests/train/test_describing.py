"""What debate-train says of recipes without running one."""

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


def test_recipes_lists_every_recipe_with_its_heading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recipes"]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert set(lines) == {
        path.relative_to(SHIPPED).with_suffix("").as_posix() for path in SHIPPED.glob("**/*.yaml")
    }
    assert lines["sdrl_freq_puzzle"].startswith("SDRL-freq on the signs puzzle: one tiny model")
    assert main(["recipes", "MACA"]) == 0
    assert capsys.readouterr().out.split()[0] == "papers/baseline_maca_llama3_8b_boolq"


def test_print_writes_the_whole_recipe_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["papers/quickstart_mixed", "seed=7", "--print", "--nproc", "2"]) == 0
    printed = capsys.readouterr().out
    self_play = yaml.safe_load(printed)["phases"]["self_play"]
    assert self_play["reward"]["components"]["truth"]["weight"] == 0.3
    Path("again.yaml").write_text(printed)
    again = load_recipe("again.yaml", model=Recipe).recipe.phase_recipes()
    loaded = load_recipe("papers/quickstart_mixed", ["seed=7"], model=Recipe).recipe.phase_recipes()
    assert again == loaded


def models(place: Schema, found: dict[type[BaseModel], None]) -> dict[type[BaseModel], None]:
    """Return every model of ours that a recipe may hold."""
    for model in place.models:
        if model not in found and model.__module__.startswith("debate_"):
            found[model] = None
            for field in model.model_fields.values():
                models(schema_of(annotation_of(field)), found)
    if place.values is not None:
        models(place.values, found)
    return found


def test_every_field_of_a_recipe_has_a_description() -> None:
    ours = models(Schema((Recipe,)), {})
    assert len(ours) > 100
    missing = [
        f"{model.__name__}.{name}"
        for model in ours
        for name in model.model_fields
        if name != "type" and not description(model, name).endswith(".")
    ]
    missing += [model.__name__ for model in ours if not summary(model)]
    assert missing == []


def test_descriptions_come_from_below_a_field_and_from_sections_of_docstrings() -> None:
    class Listed(BaseModel):
        """A model.

        Args:
            first: What is None
                here.

        Other text: not a field.
        """

        first: int = 0
        other: int = 0
        second: int = 0
        """Below."""

    class Inherits(Listed):
        first: int = 1

    assert description(Inherits, "first") == "What is null here."
    assert description(Inherits, "second") == "Below."
    assert description(Inherits, "other") == ""


def explained(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main([*argv]) == 0
    return capsys.readouterr().out


def test_explain_says_what_a_key_means(capsys: pytest.CaptureFixture[str]) -> None:
    assert explained(capsys, "--explain", "rollout.max_tokens").splitlines() == [
        "rollout.max_tokens",
        "  Most tokens of one reply.",
        "  type: int",
        "  range: >= 1",
        "  default: 1024",
    ]
    components = explained(capsys, "--explain", "reward.components")
    assert components.startswith("reward.components  (type: mixed)\n  Names to rewards")
    assert "    weight  How much it counts" in components


def test_explain_lists_variants_and_where_they_differ(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reward = explained(capsys, "--explain", "reward.type")
    assert "default: type v2" in reward
    assert "\n    mixed               Several rewards together" in reward
    sizes = explained(capsys, "--explain", "data.batch_size")
    assert (
        "(type: questions, benchmark)" in sizes
        and "(type: reasoning_gym, mixture, signs_puzzle)" in sizes
    )


def test_explain_of_a_recipe_shows_its_own_variant_and_value(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET", "hidden-value")
    size = explained(capsys, "quickstart", "data.batch_size=7", "--explain", "data.batch_size")
    assert "questions, benchmark" not in size and "  here: 7\n" in size
    deep = "phases.self_play.reward.components.truth.weight"
    assert "  here: 0.3\n" in explained(capsys, "papers/quickstart_mixed", "--explain", deep)
    assert "here: type v2, with the keys" in explained(capsys, "quickstart", "--explain", "reward")
    argv = ["quickstart", "tracking.notes=${oc.env:A_SECRET}", "--explain", "tracking.notes"]
    assert "hidden-value" not in explained(capsys, *argv)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--explain", "trainer.lerning_rate"], "did you mean 'learning_rate'?"),
        (["--explain", "learning_rate"], "did you mean 'trainer.learning_rate'"),
        (["--explain", "lr"], "did you mean 'trainer.learning_rate'"),
        (["--explain", "agents"], "did you mean 'debate.num_agents'"),
        (["--explain", "epochs"], "did you mean 'trainer.epochs'"),
        (["--explain", "trainer.optimizer.x.y"], "trainer.optimizer.x: unknown key"),
        (
            ["quickstart", "--explain", "reward.components"],
            "expected it with type mixed",
        ),
        (["--explain", ""], "expected one of name, seed, steps"),
    ],
)
def test_explain_of_no_key_names_the_nearest(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("word", "key"),
    [
        ("lr", "trainer.learning_rate"),
        ("agents", "debate.num_agents"),
        ("epochs", "trainer.epochs"),
    ],
)
def test_explain_names_the_key_that_a_word_of_the_field_means(
    capsys: pytest.CaptureFixture[str], word: str, key: str
) -> None:
    assert main(["--explain", word]) == 2
    assert f"did you mean {key!r}" in capsys.readouterr().err
