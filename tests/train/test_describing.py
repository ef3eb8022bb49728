"""What debate-train says of recipes without running one."""

from pathlib import Path

import pytest
import yaml

from debate_train.commands.cli import main
from debate_train.reading.recipe_file import load_recipe
from debate_train.reading.shipped_recipes import SHIPPED
from debate_train.recipe import Recipe


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
    assert capsys.readouterr().out.split()[0] == "baseline_maca_llama3_8b_boolq"


def test_print_writes_the_whole_recipe_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["quickstart_mixed", "seed=7", "--print", "--nproc", "2"]) == 0
    printed = capsys.readouterr().out
    self_play = yaml.safe_load(printed)["phases"]["self_play"]
    assert self_play["reward"]["components"]["truth"]["weight"] == 0.3
    Path("again.yaml").write_text(printed)
    again = load_recipe("again.yaml", model=Recipe).recipe.phase_recipes()
    loaded = load_recipe("quickstart_mixed", ["seed=7"], model=Recipe).recipe.phase_recipes()
    assert again == loaded
