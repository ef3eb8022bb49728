"""The command `debate-rewards`: scores, verdicts and figures of files, and how it refuses."""

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.rewards.debates import SILENT, debate_of, judged_debate, on_question

from debate_protocol.transcripts.files import write_transcripts
from debate_rewards.cli import main
from debate_rewards.math_pool import AnswerComparison, MathPool

README = Path(__file__).parents[2] / "packages" / "debate-rewards" / "README.md"
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


def test_score_takes_nested_settings(capsys: Capture, debates: str) -> None:
    settings = [
        "components.peers.reward.type=v2",
        "components.peers.weight=0.7",
        "components.truth.reward.type=verifiable",
        "components.truth.weight=0.3",
    ]
    flags = []
    for setting in settings:
        flags += ["--set", setting]
    code, out, _ = run(capsys, "score", debates, "--reward", "mixed", *flags)
    assert code == 0
    streams = json_lines(out)[0]["turns"][0]["streams"]
    assert streams["generator"] == pytest.approx(0.7 * -0.5 - 0.3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("v22", "did you mean 'v2'"),
        ("v2 --set unvotd=zero", "did you mean 'unvoted'"),
        ("v2 --set unvoted=zer", "found 'zer'"),
        ("v2 --set unvoted", "expected FIELD=VALUE"),
        ("v2 --set .=1", "expected FIELD=VALUE"),
        ("v2 --set type=win_rate", "named by --reward"),
        ("v2 --set ties.x=1 --set ties=half --set ties.y=1", "ties"),
        ("mixed", "--set components: mixed needs this field"),
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
        {"id": 7, "gold": "A", "prediction": "(B)", "accept": ["B"]},
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
        ("{", "pairs.jsonl:2: the last line is cut off"),
        ("[]", "pairs.jsonl:2: expected an object"),
        ('{"id": 1, "gold": "1"}', "'prediction' is missing"),
        ('{"id": 1, "gold": ["1"], "prediction": "1"}', "pairs.jsonl:2, gold"),
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


@pytest.mark.parametrize("limit", ["0", "nan", "1e9"])
def test_verify_refuses_impossible_limits(capsys: Capture, tmp_path: Path, limit: str) -> None:
    code, _, err = run(capsys, "verify", str(tmp_path / "none"), f"--limit-s={limit}")
    assert code == 2
    assert "--limit-s: found" in err


def test_verify_fails_in_a_line_where_no_worker_starts(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(*arguments: object) -> AnswerComparison:
        raise RuntimeError("pip install 'math-verify'")

    monkeypatch.setattr(MathPool, "compare", compare)
    path = pairs_file(tmp_path, {"id": 1, "gold": r"\sin q", "prediction": r"\boxed{\cos q}"})
    code, out, err = run(capsys, "verify", path)
    assert (code, out) == (1, "")
    assert err.splitlines() == ["debate-rewards: pip install 'math-verify'"]


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


def test_stats_has_every_statistic_with_its_interval(capsys: Capture, tmp_path: Path) -> None:
    path = tmp_path / "debates.jsonl"
    solutions = [["s0", "s1", "s1"], ["s1", "s1", "s2"]]
    written = []
    for name in "ab":
        debate = judged_debate("A1>A2 | A0<A2 | A1>A0", id=name, solutions=solutions, gold="s1")
        written.append(on_question("q", debate))
    write_transcripts(path, written)
    code, out, _ = run(capsys, "stats", str(path), "--seed", "3", "--level", "0.9")
    report = json.loads(out)
    assert code == 0
    assert (report["debates"], report["questions"]) == (2, 1)
    assert (report["seed"], report["level"]) == (3, 0.9)
    expected = "format correct pass@k avg@k cons@k maj@k judge/accuracy judge/strict_accuracy"
    expected += " winner_truth_correlation diversity/round_0 diversity/round_1 drift/round_1"
    expected += " flips/right_to_wrong flips/wrong_to_right rho/round_0 rho/round_1 unread"
    expected += " decision/majority decision/peer_vote"
    assert set(expected.split()) <= set(report["metrics"])
    assert list(report["metrics"]) == list(report["intervals"])
    for name, (value, low, high) in report["intervals"].items():
        assert report["metrics"][name] == value
        assert low <= value <= high


@pytest.mark.parametrize("level", ["0", "1", "nan"])
def test_stats_refuses_impossible_levels(capsys: Capture, debates: str, level: str) -> None:
    code, _, err = run(capsys, "stats", debates, "--level", level)
    assert code == 2
    assert err.startswith("debate-rewards: --level: found")


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


def test_commands_read_what_comes_before_a_torn_line(capsys: Capture, debates: str) -> None:
    path = Path(debates)
    path.write_bytes(path.read_bytes()[:-20])
    code, out, err = run(capsys, "stats", debates)
    assert (code, json.loads(out)["debates"]) == (0, 1)
    assert "debates.jsonl:2: the last line is cut off" in err


@pytest.mark.parametrize("command", ["verify", "stats", "score --reward v2"])
def test_commands_refuse_files_with_nothing_in_them_or_that_are_missing(
    capsys: Capture, tmp_path: Path, command: str
) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    code, out, err = run(capsys, *command.split(), str(tmp_path / "empty.jsonl"))
    assert (code, out) == (2, "")
    assert "empty.jsonl: found no " in err
    code, out, err = run(capsys, *command.split(), str(tmp_path / "none.jsonl"))
    assert (code, out) == (2, "")
    assert "none.jsonl" in err


@pytest.mark.parametrize(
    ("agent", "round", "message"),
    [
        (7, 0, "agents 0 to 2"),
        (-1, 0, "agents 0 to 2"),
        (0, 5, "rounds 0 to 1"),
        (0, -1, "rounds 0 to 1"),
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


def test_commands_refuse_accepted_answers_that_are_no_list(capsys: Capture, tmp_path: Path) -> None:
    debates = tmp_path / "debates.jsonl"
    write_transcripts(debates, [debate_of(SILENT, gold="s1", meta={"accept": "17"})])
    pairs = pairs_file(tmp_path, {"id": "d", "gold": "1", "prediction": "2", "accept": "17"})
    for command in (
        ["stats", str(debates)],
        ["score", str(debates), "--reward", "verifiable"],
        ["verify", pairs],
    ):
        code, out, err = run(capsys, *command)
        assert (code, out) == (2, "")
        assert "accept: found '17', expected a list of texts" in err


def test_readme_examples_run_and_print_what_they_say(capsys: Capture) -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        exec(compile(example, str(README), "exec"), {})
        assert capsys.readouterr().out.splitlines() == re.findall(r"# → (.*)", example)
