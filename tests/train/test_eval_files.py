"""`debate-eval --transcripts`: figures of files, kept so that they can be compared."""

import json
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.transcripts.files import from_json, write_transcripts
from debate_train.commands.evaluate import main


def debates(path: Path, last: list[str]) -> str:
    """Two questions, each debated by two agents for two rounds; only the last answers differ."""
    made: list[dict[str, Any]] = []
    for number, answer in enumerate(("2", "3")):
        texts = ["2", "3", *last[2 * number : 2 * number + 2]]
        turns = [
            {"agent": k % 2, "round": k // 2, "text": f"\\boxed{{{text}}}"}
            for k, text in enumerate(texts)
        ]
        question = {"id": f"q{number}", "text": f"1 + {number + 1}?", "answer": answer}
        made.append(
            {
                "id": str(number),
                "question": question | {"kind": "math"},
                "protocol": {"num_agents": 2, "max_rounds": 2, "contract": "boxed"},
                "turns": turns,
            }
        )
    write_transcripts(path, map(from_json, made))
    return str(path)


def test_files_of_debates_have_figures_and_can_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weak = debates(tmp_path / "weak.jsonl", ["2", "3", "2", "2"])
    good = debates(tmp_path / "good.jsonl", ["2", "2", "3", "3"])
    folder = str(tmp_path / "both")
    assert main(["--transcripts", weak, f"better={good}", "--output", folder]) == 0
    assert "accuracy/round_1" in capsys.readouterr().out
    results = json.loads((tmp_path / "both" / "results.json").read_text())
    found = {one["name"]: one["figures"] for one in results["policies"]}
    # Of the last answers one of four is right, or all.
    assert found["weak"]["accuracy/round_1"]["mean"] == 1 / 4
    assert found["better"]["accuracy/round_1"]["mean"] == 1
    assert found["weak"]["accuracy/round_0"] == found["better"]["accuracy/round_0"]
    assert main(["compare", folder, "--json"]) == 0
    rows = {row["figure"]: row for row in json.loads(capsys.readouterr().out)["compared"]}
    assert rows["accuracy/round_1"]["difference"] == 3 / 4
    assert rows["accuracy/round_0"]["difference"] == 0


def test_rollouts_of_others_are_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {
            "example_id": number // 2,
            "prompt": [{"role": "user", "content": f"1 + {number // 2}?"}],
            "completion": [{"role": "assistant", "content": f"\\boxed{{{said}}}"}],
            "answer": str(1 + number // 2),
            "reward": 0.5,
        }
        for number, said in enumerate((1, 7, 2, 2))
    ]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["--transcripts", str(path), "--kind", "number", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (policy,) = found["policies"]
    # One of two replies to the first question is right, both to the second.
    assert policy["figures"]["replies/accuracy"]["mean"] == 3 / 4
    assert policy["figures"]["reward"]["mean"] == 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{home}/none.jsonl"], "found no file"),
        (["{home}/weak.jsonl", "weak={home}/weak.jsonl"], "found 'weak' twice"),
        (["{home}/weak.jsonl", "--kind", "maths"], "--kind: found 'maths'; expected math, choice"),
        (["{home}/torn.jsonl"], "torn.jsonl"),
        (["{home}/weak.jsonl", "--output", "{home}"], "it holds"),
    ],
)
def test_files_that_cannot_be_measured_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    debates(tmp_path / "weak.jsonl", ["2", "3", "2", "2"])
    (tmp_path / "torn.jsonl").write_text('{"id": 3}\n{"id": 4}\n')
    assert main(["--transcripts", *(one.format(home=tmp_path) for one in arguments)]) == 2
    assert message in capsys.readouterr().err
