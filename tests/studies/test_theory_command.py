"""`python -m debate_studies.theory`, and a run laid beside the theory."""

import json
from pathlib import Path

import pytest

from debate_protocol.transcripts.files import from_json, write_transcripts
from debate_rewards.estimates import Estimate
from debate_studies import theory as command
from debate_studies.theory import in_words, lay_beside, main

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
    assert [row.accuracy for row in rows] == [0.5, 0.56, 0.6]
    assert [row.constant_mass for row in rows] == [None, 0.06, 0.06]
    assert [row.no_prior for row in rows] == [None, 0.06, 0.03]
    assert [row.voters for row in rows] == [5, None, 2.5]
    same = lay_beside({name.removeprefix("train/"): x for name, x in FIGURES.items()}, 5)
    assert same == rows


@pytest.mark.parametrize(
    ("second", "seen"),
    [
        (0.04, "as predicted"),
        (-0.03, "the advantage has changed its sign"),
        (0.0, "the advantage shrinks"),
        (0.2, "the advantage grows"),
    ],
)
def test_words_say_what_was_predicted_and_seen(second: float, seen: str) -> None:
    words = in_words(lay_beside({**FIGURES, "train/drift/round_2": second}, 5))
    assert "+0.060 in round 1, as with a positive advantage" in words[0]
    assert "predicted +0.030 to +0.060" in words[2]
    assert seen in words[2]
    assert "ρ rose, from 0.000 in round 0 to 0.250 in round 2" in words[3]
    assert "effective voters 5.00 and 2.50" in words[3]
    assert words[4].startswith("These figures came without intervals")


def test_words_say_alike_only_where_everybody_hears_everybody() -> None:
    rows = lay_beside(FIGURES, 5)
    assert "agents who are all heard alike" in in_words(rows)[0]
    for topology, seen in (
        ("sparse", "not the same ones"),
        ("central", "the center is heard by all"),
    ):
        words = in_words(rows, topology)[0]
        assert "alike" not in words and seen in words


def test_agents_too_unlike_for_any_number_of_voters_have_none() -> None:
    rows = lay_beside({**FIGURES, "train/rho/round_2": -0.3}, 5)  # Below -1 / (5 - 1).
    assert [row.voters for row in rows] == [5, None, None]
    assert "effective voters 5.00 and not defined" in in_words(rows)[3]


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


@pytest.mark.parametrize(
    ("first", "second", "half", "seen"),
    [
        # An advantage is one where the interval of round 1 leaves out 0.
        (0.06, 0.2, 0.07, "+0.060 [-0.010, +0.130] in round 1, as with no advantage beyond its"),
        (-0.06, 0.0, 0.01, "-0.060 [-0.070, -0.050] in round 1, as with a negative advantage"),
        # Predicted of round 2: from .05 / 2 to .07; what is seen is [.069, .089], or [.08, .1].
        (0.06, 0.079, 0.01, "+0.079 [+0.069, +0.089], predicted +0.025 to +0.070; as predicted."),
        (0.06, 0.09, 0.01, "predicted +0.025 to +0.070; larger than a constant advantage gives"),
        (0.06, 0.01, 0.01, "+0.010 [+0.000, +0.020], predicted +0.025 to +0.070; smaller than a"),
        (0.06, -0.02, 0.01, "predicted +0.025 to +0.070; the advantage has changed its sign"),
        # The same below 0.
        (-0.06, -0.01, 0.01, "predicted -0.070 to -0.025; smaller than a constant advantage"),
        (-0.06, -0.09, 0.01, "predicted -0.070 to -0.025; larger than a constant advantage"),
        (-0.06, 0.02, 0.01, "predicted -0.070 to -0.025; the advantage has changed its sign"),
        # Intervals of ρ that touch, and that do not.
        (0.06, 0.06, 0.055, "Seen: no change of ρ beyond its intervals, from 0.100 [0.045, 0.155]"),
        (0.06, 0.06, 0.04, "Seen: ρ rose, from 0.100 [0.060, 0.140] in round 0 to 0.200"),
    ],
)
def test_words_say_only_what_intervals_show(
    first: float, second: float, half: float, seen: str
) -> None:
    rows = lay_beside(estimates(first, second, half), 5)
    assert (rows[1].drift_low, rows[1].drift_high) == (first - half, first + half)
    words = in_words(rows)
    assert any(seen in sentence for sentence in words), words
    assert not any("without intervals" in sentence for sentence in words)


def test_words_say_what_a_run_does_not_show() -> None:
    words = in_words(lay_beside({"accuracy/round_0": 0.5}, 5))
    assert words[0].startswith("The run has no drift")
    assert words[1].startswith("ρ is not known")
    with pytest.raises(ValueError, match="accuracy"):
        lay_beside({"loss": 1.0}, 5)


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
