"""The study of ACC-Debate on the puzzle: its arms are recipes that hold, its tables add up."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import acc_study as study
from benchmarks.learning import acc_tables as tables
from debate_train.commands.cli import main as train
from debate_train.commands.evaluate import main as evaluate


@pytest.mark.parametrize("arm", ["team", "sft", "society"])
def test_arm_is_a_recipe_that_can_be_trained_and_measured(
    arm: str, base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "arm.json"
    file.write_text(json.dumps(study.arm_recipe(arm, Path(base))))
    assert train([str(file), "--check"]) == 0
    assert evaluate([str(file), "--check"]) == 0
    said = capsys.readouterr().out
    # Each side alone debates with the other as the start has it.
    assert ("context of policy start" in said) == (arm == "team")


def test_start_is_a_recipe_that_can_be_trained(tmp_path: Path) -> None:
    file = tmp_path / "start.json"
    file.write_text(json.dumps(study.start_recipe()))
    assert train([str(file), "--check"]) == 0


def line(seed: int, arm: str, right: dict[str, float]) -> dict[str, Any]:
    """Round 0 is right on half of what the last round is, in each mode."""
    modes = ("", "actor_alone/", "critic_alone/")
    figures = {
        f"{mode}accuracy/round_{round}": [v / (2 - round // 4) for v in right.values()]
        for mode in modes
        for round in range(5)
    }
    return {"seed": seed, "arm": arm, "questions": list(right), "figures": figures}


def test_tables_compare_the_same_questions_and_seeds() -> None:
    values = {"start": (0.2, 0.4), "acc": (0.6, 0.4), "plus": (0.6, 0.8), "sft": (0.4, 0.4)}
    lines = [
        line(seed, arm, {"a": first, "b": second + 0.1 * seed * (arm == "acc")})
        for arm, (first, second) in (values | {"society": (0.2, 0.0)}).items()
        for seed in (0, 1)
        if (seed, arm) != (1, "sft")
    ]
    found = tables.Study([*lines, line(2, "start", {"a": 1.0, "b": 1.0})])
    assert found.seeds == [0, 1]  # Nothing but the start is there of the third.
    assert not any("SFT" in row for row in tables.contrasts(found))  # It is there of one alone.
    row = tables.contrasts(found)[2].split(" | ")
    # (.6 + .4) / 2 − (.2 + .4) / 2 = .20, and .25 of the second seed: .225 ± 12.706 · .025
    assert row[:3] == ["| ACC-Debate − untrained", "+22.5 ± 31.8", "+20.0, +25.0"]
    assert row[3].startswith("[+") and float(row[4].rstrip(" |")) <= 1
    untrained = tables.by_round(found)[2]
    assert untrained.startswith("| untrained | 15.0 ± 0.0 | ")
    assert untrained.endswith(" | 30.0 ± 0.0 | +15.0 ± 0.0 | +100.0 ± 0.0 |")
