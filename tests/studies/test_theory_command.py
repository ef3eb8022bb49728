"""`python -m debate_studies.theory`, and a run laid beside the theory."""

import json
from pathlib import Path

import pytest

from debate_protocol.transcripts.files import from_json, write_transcripts
from debate_rewards.estimates import Estimate
from debate_studies import theory as command
from debate_studies.theory import lay_beside, main

FIGURES = {
    "train/accuracy/round_0": 0.5,
    "train/accuracy/round_1": 0.56,
    "train/accuracy/round_2": 0.6,
    "train/drift/round_1": 0.06,
    "train/drift/round_2": 0.04,
    "train/rho/round_0": 0.0,
    "train/rho/round_2": 0.25,
    "train/loss": 3.0,
}


def test_a_run_is_laid_beside_the_curve() -> None:
    rows = lay_beside(FIGURES, num_agents=5)
    assert [row["accuracy"] for row in rows] == [0.5, 0.56, 0.6]
    assert [row["constant_mass"] for row in rows] == [None, 0.06, 0.06]
    assert [row["no_prior"] for row in rows] == [None, 0.06, 0.03]
    assert [row["voters"] for row in rows] == [5, None, 2.5]
    same = lay_beside({name.removeprefix("train/"): x for name, x in FIGURES.items()}, 5)
    assert same == rows


def estimates(first: float, second: float, half: float) -> dict[str, Estimate]:
    """Drifts of two rounds and ρ, each with an interval of this half width."""
    values = {
        "drift/round_1": first,
        "drift/round_2": second,
        "rho/round_0": 0.1,
        "rho/round_2": 0.2,
    }
    found = {name: Estimate(v, v - half, v + half, 9) for name, v in values.items()}
    return {f"accuracy/round_{k}": Estimate(0.5, 0.4, 0.6, 9) for k in range(3)} | found


def debate(number: int, answers: list[str], num_agents: int = 2) -> dict[str, object]:
    turns = [
        {"agent": i % num_agents, "round": i // num_agents, "text": f"\\boxed{{{answer}}}"}
        for i, answer in enumerate(answers)
    ]
    return {
        "id": str(number),
        "question": {"id": "q", "text": "1 + 1?", "answer": "2", "kind": "math"},
        "protocol": {"num_agents": num_agents, "contract": "boxed"},
        "turns": turns,
    }


def test_the_command_reads_transcripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "debates.jsonl"
    debates = [debate(0, ["2", "3", "2", "2"]), debate(1, ["3", "2", "3", "3"])]
    write_transcripts(file, map(from_json, debates))
    assert main(["--transcripts", str(file), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    # Round 0: one of two right in both debates, ρ = (0 − 1/2) / (1/2 − 1/2) has no value;
    # round 1: all right, or none.
    assert [row["accuracy"] for row in found["run"]] == [0.5, 0.5]
    assert found["run"][1]["drift"] == 0
    assert found["run"][1]["rho"] == 1
    assert found["run"][1]["voters"] == 1
    write_transcripts(file, map(from_json, [*debates, debate(2, ["2"] * 3, 3)]))
    assert main(["--transcripts", str(file)]) == 2
    assert "debates of 2 and of 3 agents" in capsys.readouterr().err


def test_the_command_prints_tables_and_json(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "VOTES", command.VOTES[:1])
    assert main(["--debates", "100"]) == 0
    text = capsys.readouterr().out
    assert "| neutral | ring | mixed |" in text
    assert main(["--debates", "100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["drift"]) == 28
    assert found["votes"][0]["prior"] == [48, 2]
    assert f"| {found['drift'][0]['drift']:.4f} |" in text


@pytest.mark.parametrize(
    "options", [["--debates", "3"], ["--debates", "2000000"], ["--seed", "-1"]]
)
def test_options_out_of_range_are_refused(
    options: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options) == 2
    assert options[0] in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--transcripts", "nowhere.jsonl"]) == 2
    assert "nowhere.jsonl" in capsys.readouterr().err
