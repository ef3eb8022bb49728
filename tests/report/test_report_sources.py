"""Pages of what is no run: rollouts of other programs, an evaluation."""

import json
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from debate_report import report_main

TRL = {"step": 5, "prompt": "2 + 2 = ?", "completion": "\\boxed{4}", "solution": "4"}
TRACE = {
    "id": "t",
    "task": {"data": {"idx": 3, "prompt": "2 + 2 = ?", "answer": "4"}},
    "nodes": [
        {"parent": None, "message": {"role": "user", "content": "2 + 2 = ?"}, "sampled": False},
        {"parent": 0, "message": {"role": "assistant", "content": "\\boxed{5}"}, "sampled": True},
    ],
    "info": {"prime_rl": {"advantage": -0.5, "step": 2}},
}


def first_turn(page: str) -> dict[str, Any]:
    block = page.partition('id="texts-0">')[2].partition("<")[0]
    found = json.loads(zlib.decompress(b64decode(block)))[0]["turns"][0]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("row", "starts", "tokens"),
    [
        (TRL | {"advantage": 0.75, "reward": 1.0}, [0], [[1, 0.75, 1]]),
        (
            TRL | {"tokens": ["\\boxed", "{4", "}"], "advantages": [1.0, 1.0, -2.0]},
            [0, 6, 8],
            [[1, 1.0, 1], [1, 1.0, 1], [1, -2.0, 1]],
        ),
        (TRACE, [0], [[1, -0.5, 1]]),
    ],
    ids=["trl", "by token", "prime-rl"],
)
def test_rollouts_show_which_token_earned_what(
    tmp_path: Path, row: dict[str, Any], starts: list[int], tokens: list[list[float]]
) -> None:
    file = tmp_path / "rollouts.jsonl"
    file.write_text(json.dumps(row) + "\n")
    assert report_main([str(file)]) == 0
    turn = first_turn((tmp_path / "rollouts.jsonl.html").read_text())
    assert (turn["starts"], turn["tokens"]) == (starts, tokens)
    assert turn["verdict"] == ("wrong" if row is TRACE else "right")


def test_evaluations_are_tables(tmp_path: Path) -> None:
    figure = {"mean": 0.5, "low": 0.25, "high": 0.75}
    policies = [{"name": "first", "figures": {"a": figure}}, {"name": "last", "figures": {}}]
    results = {"rows": {"a": "accuracy"}, "listed": ["a"], "policies": policies}
    (tmp_path / "results.json").write_text(json.dumps(results))
    assert report_main([str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    assert "<th" in page and "0.500 [0.250, 0.750]" in page and "<td>–</td>" in page


def test_checkpoints_that_played_each_other_are_a_coloured_grid(tmp_path: Path) -> None:
    def against(name: str, share: float) -> dict[str, Any]:
        prefix = f"eval/against-{name}/learned/vote_win_rate"
        return {prefix: {"mean": share}, f"{prefix}/seat_2": {"mean": share / 2}}

    policies = [
        {"name": "early", "figures": against("a", 0.5) | against("b", 0.2)},
        {"name": "late", "figures": against("a", 0.9)},
    ]
    (tmp_path / "results.json").write_text(json.dumps({"rows": {}, "policies": policies}))
    assert report_main([str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text()
    rows = ["votes won, against", *("early", "50 %", "20 %"), *("late", "90 %", "–")]
    rows += ["seat 2, against", *("early", "25 %", "10 %"), *("late", "45 %", "–")]
    places = [0]
    for text in rows:
        places.append(page.index(f">{text}<", places[-1]))
    assert 'class="heat2">50 %' in page and 'class="heat4">90 %' in page


def test_file_of_something_else_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "x.jsonl").write_text('{"completion": 1}\n')
    assert report_main([str(tmp_path / "x.jsonl")]) == 2
    assert "found rows with completion; expected" in capsys.readouterr().err
