"""--check-data: whether a question's own answer counts as right."""

import json
from pathlib import Path

import pytest

from debate_protocol.types import Question
from debate_train.commands.cli import main
from debate_train.data.questions import answered

ROWS = [
    {"id": "good", "question": "1 + 1?", "answer": "2"},
    {"id": "half", "question": "1 / 2?", "answer": r"\frac{1}{2}"},
    {"id": "word", "question": "The opposite of full?", "answer": "empty", "kind": "text"},
    {"id": "open", "question": "Say something.", "answer": None},
    {"id": "much", "question": "How many?", "answer": "many", "kind": "number"},
    {"id": "brace", "question": "Close it: { [", "answer": "] }", "kind": "text"},
]


@pytest.mark.parametrize("contract", ["three_section", "answer_line"])
def test_rows_whose_own_answer_is_not_right_are_named(
    tmp_path: Path, repository: Path, contract: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS * 2))
    empty = tmp_path / "held.jsonl"
    empty.write_text(json.dumps({"question": "3?", "answer": "3"}))
    recipe = str(repository / "recipes" / "selfplay_v2.yaml")
    keys = [f"data.path={path}", f"data.test_path={empty}", "data.holdout=0.0001"]
    keys += [f"debate.contract={contract}", "data.answer_pattern=null", "data.kind=null"]
    assert main([recipe, *keys, "--check-data"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "train: 5 answers, checked against themselves: 4 right, 0 wrong, 1 unverifiable" in lines
    assert "test: 1 answers, checked against themselves: 1 right, 0 wrong, 0 unverifiable" in lines
    (bad,) = [line for line in lines if "question " in line and "counts as" in line]
    assert bad.startswith("train: question much: its own answer 'many' (number) counts as")


def test_rows_that_are_only_evaluated_on_are_checked_too(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"id": 1, "problem": "How many?", "answer": "025"}) + "\n")
    recipe = str(repository / "recipes" / "selfplay_v2.yaml")
    data = f"data={{type: benchmark, name: aime24, path: {path}}}"
    assert main([recipe, data, "--check-data"]) == 0
    assert "test: 1 answers, checked against themselves: 1 right" in capsys.readouterr().out


def test_answers_are_written_as_the_contract_asks() -> None:
    number = Question("q", "?", "-3")
    text = Question("q", "?", "} {", {"kind": "text"})
    assert answered(number, "xml") == answered(number, "boxed") == r"\boxed{-3}"
    assert answered(number, "answer_line") == "Answer: -3"
    assert answered(text, "boxed") == r"\boxed{\} \{}"
