"""Rollouts of other programs as transcripts."""

import json
from pathlib import Path
from typing import Any

import pytest

from debate_report.rollout_files import import_rollouts
from debate_rewards.metrics import debate_statistics
from debate_train.errors import UsageError

VERIFIERS: list[dict[str, Any]] = [
    {
        "example_id": 3,
        "prompt": [
            {"role": "system", "content": "Think."},
            {"role": "user", "content": "2 + 2 = ?"},
        ],
        "completion": [{"role": "assistant", "content": "So \\boxed{4}"}],
        "answer": "4",
        "reward": 1.0,
        "timing": {"total_ms": 1.5},
        "is_completed": True,
        "is_truncated": False,
        "stop_condition": "max_turns_reached",
        "metrics": {"correct_answer": 1.0},
        "correct_answer": 1.0,
        "error": None,
    },
    {
        "example_id": 3,
        "prompt": [{"role": "user", "content": [{"type": "text", "text": "2 + 2 = ?"}]}],
        "completion": [
            {"role": "assistant", "content": "\\boxed{4}?"},
            {"role": "tool", "content": "no", "tool_call_id": "1"},
            {"role": "assistant", "content": "\\boxed{5}"},
        ],
        "answer": "4",
        "reward": 0.0,
        "metrics": {},
    },
    {"example_id": 4, "prompt": "1 + 1 = ?", "completion": None, "answer": "2", "reward": 0.0},
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_results_of_verifiers_are_replies_with_their_answers(tmp_path: Path) -> None:
    found = import_rollouts(written(tmp_path / "results.jsonl", VERIFIERS), kind="number")
    assert [one.question.id.partition("-")[0] for one in found] == ["3", "3", "4"]
    first, second, failed = found
    assert (first.question.text, first.question.answer) == ("2 + 2 = ?", "4")
    assert first.turns[0].text == "So \\boxed{4}"
    assert first.meta == {
        "reward": 1.0, "correct_answer": 1.0, "is_completed": 1.0, "is_truncated": 0.0,
        "verdict": "right", "verdict_by": "reward",
    }  # fmt: skip
    assert second.question.text == "2 + 2 = ?"
    assert second.turns[0].text == "\\boxed{5}"
    prompt = second.turns[0].prompt
    assert prompt is not None
    assert [message["role"] for message in prompt] == ["user", "assistant", "user"]
    assert (second.meta["replies"], failed.turns[0].text) == (2, "")
    assert debate_statistics(found)["correct"].value == 1 / 3


TRL: list[dict[str, Any]] = [
    {"step": 5, "prompt": "2 + 2 = ?", "completion": "\\boxed{4}", "accuracy_reward": 1.0,
     "solution": "4", "advantage": 0.7},
    {"step": 5, "prompt": "2 + 2 = ?", "completion": "\\boxed{5}", "accuracy_reward": 0.0,
     "solution": "4", "advantage": -0.7},
    {"step": 5, "prompt": "1 + 1 = ?", "completion": "2", "accuracy_reward": 0.0,
     "solution": "2", "advantage": 0.0},
]  # fmt: skip


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_completions_of_trl_are_replies_to_the_same_prompts(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"completions_00005{suffix}"
    if suffix == ".parquet":
        pandas = pytest.importorskip("pandas")
        pytest.importorskip("datasets")
        pandas.DataFrame(TRL).to_parquet(path)
    else:
        written(path, TRL)
    found = import_rollouts(path, kind="number")
    assert found[0].question.id == found[1].question.id != found[2].question.id
    assert (found[0].question.text, found[0].question.answer) == ("2 + 2 = ?", "4")
    assert found[0].meta == {
        "step": 5, "accuracy_reward": 1.0, "advantage": 0.7, "reward": 1.0, "verdict": "right",
        "verdict_by": "accuracy_reward",
    }  # fmt: skip
    figures = debate_statistics(found)
    assert figures["correct"].value == 1 / 3
    assert "tokens/answer" not in figures
    unknown = import_rollouts(
        written(tmp_path / "plain.jsonl", [{"prompt": "?", "completion": "\\boxed{4}"}])
    )
    assert unknown[0].question.answer is None
    assert "correct" not in debate_statistics(unknown)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found no rows; expected traces and task"),
        ("{]", "line 1: not JSON"),
        ("[1]", ":1: expected an object"),
        ('{"text": "a"}', "found rows with text; expected traces and task"),
        ('{"prompt": 1, "completion": "a"}', "row 1: prompt: found int; expected a text or"),
    ],
)
def test_files_that_are_no_rollouts_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "file.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        import_rollouts(path)


def test_import_names_columns_contracts_and_files_that_are_not_there(tmp_path: Path) -> None:
    path = written(tmp_path / "rows.jsonl", TRL)
    with pytest.raises(UsageError, match="found no column 'gold'; expected one of accuracy_reward"):
        import_rollouts(path, answer="gold")
    with pytest.raises(UsageError, match="contract: "):
        import_rollouts(path, contract="box")
    with pytest.raises(UsageError, match="rollouts: there is no file"):
        import_rollouts(tmp_path / "none.parquet")
