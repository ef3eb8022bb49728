"""Files of benchmarks: which answers count, and splits on which nothing can be measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning.data_counts import main
from debate_protocol.types import Question
from debate_train.data import DataSource
from debate_train.data.source import Split
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.doubts import split_warnings


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_counts_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"question": "How many are 2 and 3?", "answer": "5"}
    written(tmp_path / "gsm8k_some.jsonl", [row, row, {"question": "And 4?", "answer": "4"}])
    written(tmp_path / "aime24.jsonl", [{"question": "Find x.", "answer": "7"}])
    assert main([str(tmp_path)]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| `")]
    assert table == [
        "| `aime24.jsonl` | aime24 | answer_line | 1 | 0 | 1 | 1 | 0 |",
        "| `gsm8k_some.jsonl` | gsm8k | boxed | 3 | 1 | 2 | 2 | 0 |",
    ]


def test_what_cannot_be_right_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "math500.jsonl", [{"id": "q1", "question": "Find it.", "answer": "\\sqrt{"}])
    written(tmp_path / "unheard_of.jsonl", [{"question": "Who?", "answer": "me"}])
    assert main([str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert "q1" in printed and "unheard_of.jsonl: no benchmark of this name" in printed


@pytest.mark.parametrize(("count", "empty"), [(4, {"test"}), (60, set())])
def test_check_warns_of_splits_without_questions(
    count: int, empty: set[str], tmp_path: Path
) -> None:
    rows = [{"question": f"Tell of {n}."} for n in range(count)]
    recipe = Recipe.model_validate(
        {
            "name": "t",
            "steps": 1,
            "model": {"type": "scratch"},
            "data": {"path": str(written(tmp_path / "rows.jsonl", rows)), "batch_size": 2},
            "debate": {"type": "simultaneous", "num_agents": 3, "max_rounds": 2},
            "reward": {"type": "v2"},
            "evaluation": {"questions": 8, "every": 1},
        }
    )
    said = [text for text in check(recipe).warnings if "split holds no question" in text]
    assert {split for split in ("dev", "test") if any(f"the {split} " in x for x in said)} == empty


class Same(DataSource):
    """Trains on what it is measured on, as a source of somebody's own may."""

    def batch(self, step: int) -> list[Question]:
        return [Question(str(n), f"Tell of {n}.") for n in range(4)]

    def split(self, name: Split, size: int) -> list[Question]:
        return [Question(f"{name}-{n}", f"Tell of {n}.") for n in range(2, size)]


def test_check_warns_of_questions_that_are_trained_on_and_measured() -> None:
    phase = Recipe.model_validate(
        {
            "name": "t",
            "steps": 1,
            "model": {"type": "scratch"},
            "data": {"type": "signs_puzzle"},
            "evaluation": {"questions": 8},
        }
    )
    assert split_warnings(phase, phase.data.open()) == []
    (warning,) = split_warnings(phase, Same())
    assert warning.startswith("data: 2 of the 4 questions of step 1 are in the test split, too")
