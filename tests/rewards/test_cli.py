"""The command `debate-rewards`: scores, verdicts and figures of files, and how it refuses."""

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.rewards.debates import SILENT, debate_of, judged_debate

from debate_protocol.transcripts.files import write_transcripts
from debate_rewards.cli import main
from debate_rewards.math_pool import AnswerComparison, MathPool

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def debates(tmp_path: Path) -> str:
    """Write a file of two debates whose agent 1 is right."""
    path = tmp_path / "debates.jsonl"
    lines = "A1>A2 | A0=A2 | A1>A0"
    write_transcripts(path, [judged_debate(lines, id=name, gold="s1") for name in "ab"])
    return str(path)


def pairs_file(tmp_path: Path, *rows: Any) -> str:
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def run(capsys: Capture, *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def json_lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


# ---- score ----------------------------------------------------------------------------------


def test_score_prints_a_line_for_each_debate(capsys: Capture, debates: str) -> None:
    code, out, _ = run(capsys, "score", debates, "--reward", "v2", "--set", "unvoted=zero")
    first, second = json_lines(out)
    assert code == 0
    assert (first["id"], second["id"]) == ("a", "b")
    assert first["agents"] == [-0.25, 0.5, -0.25]
    streams = {"generator": 1.0, "judge": None}
    assert first["turns"][1] == {"agent": 1, "round": 0, "streams": streams}
    assert first["turns"][4]["streams"] == {"generator": 0.0, "judge": None}
    assert first["metrics"]["v2/total_votes"] == 3


def test_scored_transcripts_carry_reward_and_rightness_in_meta(
    capsys: Capture, debates: str
) -> None:
    _, out, _ = run(capsys, "score", debates, "--reward", "win_rate", "--transcripts")
    for debate in json_lines(out):
        # Agent 1 wins both its votes, the others half of two.
        assert debate["meta"]["reward"] == pytest.approx((0.25 + 1 + 0.25) / 3)
        assert debate["meta"]["right"] in (0.0, 1.0)
        assert debate["turns"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("v22", "did you mean 'v2'"),
        ("v2 --set unvoted=zer", "found 'zer'"),
        ("v2 --set .=1", "expected FIELD=VALUE"),
        ("v2 --set ties.x=1 --set ties=half --set ties.y=1", "ties"),
        ("mixed --set components.a.reward.type=v22", "components.a.reward"),
    ],
)
def test_score_refuses_wrong_settings_in_a_line(
    capsys: Capture, debates: str, arguments: str, message: str
) -> None:
    code, out, err = run(capsys, "score", debates, "--reward", *arguments.split())
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


# ---- verify ---------------------------------------------------------------------------------


def test_verify_prints_verdicts_in_order(capsys: Capture, tmp_path: Path) -> None:
    path = pairs_file(
        tmp_path,
        {"id": 1, "gold": "B", "prediction": "the answer is (B)"},
        {"id": "zwei", "gold": "C", "prediction": r"\boxed{A}"},
        {"id": 3, "gold": "C", "prediction": None},
        {"id": 4, "gold": None, "prediction": "A"},
        {"id": 5, "gold": "B", "prediction": "blue", "choices": ["red", "blue"]},
        {"id": 6, "gold": "B", "prediction": "blue", "choices": {"A": "blue", "B": "red"}},
        {"id": 7, "gold": "A", "prediction": "(B)", "accept": ["B"], "kind": "text"},
    )
    code, out, _ = run(capsys, "verify", path, "--kind", "choice")
    rows = json_lines(out)
    assert code == 0
    assert [row["id"] for row in rows] == [1, "zwei", 3, 4, 5, 6, 7]
    assert [(row["verdict"], row["reason"]) for row in rows[:4]] == [
        ("right", "same_text"),
        ("wrong", "different"),
        ("wrong", "no_answer"),
        ("unverifiable", "no_gold"),
    ]
    assert [row["verdict"] for row in rows[4:]] == ["right", "wrong", "right"]


def test_verify_reads_the_kind_of_a_line(capsys: Capture, tmp_path: Path) -> None:
    path = pairs_file(
        tmp_path,
        {"id": 1, "gold": "yes", "prediction": "It is true.", "kind": "yes_no"},
        {"id": 2, "gold": "yes", "prediction": "It is true."},
    )
    code, out, _ = run(capsys, "verify", path)
    assert (code, [row["verdict"] for row in json_lines(out)]) == (0, ["right", "wrong"])


def test_verify_gives_workers_the_limit(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(pool: MathPool, gold: str, prediction: str, limit_s: float) -> AnswerComparison:
        return AnswerComparison("gold_timeout", limit_s)

    monkeypatch.setattr(MathPool, "compare", compare)
    path = pairs_file(tmp_path, {"id": 1, "gold": "9^{9^{9^{8}}}", "prediction": "\\boxed{9}"})
    code, out, _ = run(capsys, "verify", path, "--limit-s", "0.3")
    expected = {"id": 1, "verdict": "unverifiable", "reason": "gold_timeout", "seconds": 0.3}
    assert (code, list(json_lines(out)[0].items())) == (0, list(expected.items()))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{\n{}", "pairs.jsonl:2: not JSON"),
        ("[]", "pairs.jsonl:2: expected an object"),
        ('{"id": 1, "gold": ["1"], "prediction": "1"}', "pairs.jsonl:2, gold"),
        ('{"id": 1, "gold": "1", "prediction": "1", "kind": "a"}', "2, kind: found 'a', expected"),
    ],
)
def test_verify_names_the_line_that_cannot_be_read(
    capsys: Capture, tmp_path: Path, line: str, message: str
) -> None:
    path = pairs_file(tmp_path, {"id": 0, "gold": "1", "prediction": "1"})
    with Path(path).open("a") as file:
        file.write(line)
    code, out, err = run(capsys, "verify", path, "--kind", "number")
    assert (code, out) == (2, "")
    assert message in err


# ---- stats ----------------------------------------------------------------------------------


def test_stats_prints_metrics_and_intervals(capsys: Capture, debates: str) -> None:
    code, out, _ = run(capsys, "stats", debates)
    report = json.loads(out)
    assert code == 0
    assert (report["debates"], report["questions"]) == (2, 2)
    assert report["metrics"]["decision/peer_vote"] == 1
    # Two questions of the same value: a share w = z² / (2 + z²) of others could be all wrong, or
    # all right.
    share = 1.959964**2 / (2 + 1.959964**2)
    interval = [1 / 3, (1 - share) / 3, 1 / 3 + share * 2 / 3]
    assert report["intervals"]["avg@k"] == pytest.approx(interval, rel=1e-6)


# ---- input ----------------------------------------------------------------------------------


class StandardInput:
    """Standard input with these bytes."""

    def __init__(self, data: bytes) -> None:
        self.buffer = io.BytesIO(data)


def test_commands_read_standard_input(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, debates: str
) -> None:
    for arguments in (["score", "--reward", "v2"], ["stats"]):
        monkeypatch.setattr(sys, "stdin", StandardInput(Path(debates).read_bytes()))
        assert run(capsys, *arguments, "-") == run(capsys, *arguments, debates)
    row = b'{"id": "\\ud800", "gold": 0.5, "prediction": "1/2", "more": []}\n'
    monkeypatch.setattr(sys, "stdin", StandardInput(b"\n" + row))
    code, out, _ = run(capsys, "verify", "-", "--kind", "number")
    (verdict,) = json_lines(out)
    assert (code, verdict["verdict"], verdict["id"]) == (0, "right", "\ud800")
    monkeypatch.setattr(sys, "stdin", StandardInput(b'{"id": 1, "gold": "\xff"}\n{}'))
    code, out, err = run(capsys, "verify", "-")
    assert (code, out) == (2, "")
    assert err.startswith("debate-rewards: standard input:1: not JSON")


@pytest.mark.parametrize(
    ("agent", "round", "message"),
    [
        (7, 0, "agents 0 to 2"),
        (0, 5, "rounds 0 to 1"),
        (0, 0, "found twice"),
    ],
)
def test_commands_refuse_turns_that_cannot_be(
    capsys: Capture, tmp_path: Path, agent: int, round: int, message: str
) -> None:
    debate = debate_of(SILENT, gold="s1", max_rounds=2)
    impossible = replace(debate.turns[0], agent=agent, round=round)
    file = tmp_path / "debates.jsonl"
    write_transcripts(file, [replace(debate, turns=(*debate.turns, impossible))])
    for command in (["stats"], ["score", "--reward", "v2"], ["score", "--reward", "verifiable"]):
        code, _, err = run(capsys, *command, str(file))
        assert code == 2
        assert message in err
