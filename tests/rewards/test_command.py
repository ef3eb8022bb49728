import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from debate_protocol.transcripts.files import write_transcripts
from debate_rewards.cli import main

SILENT = ["", "", ""]
README = Path(__file__).parents[2] / "packages" / "debate-rewards" / "README.md"


@pytest.fixture
def debates(hold, tmp_path):
    path = tmp_path / "debates.jsonl"
    rounds = (SILENT, ["A1>A2", "A0=A2", "A1>A0"])
    write_transcripts(path, [hold(*rounds, id=i, answer="s1") for i in ("a", "b")])
    return str(path)


def run(capsys, *arguments):
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_score_prints_one_line_a_debate(capsys, debates):
    code, out, _ = run(capsys, "score", debates, "--reward", "v2", "--set", "unvoted=zero")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [line["id"] for line in lines] == ["a", "b"]
    assert lines[0]["agents"] == [-0.25, 0.5, -0.25]
    assert lines[0]["turns"][1] == {
        "agent": 1,
        "round": 0,
        "streams": {"generator": 1.0, "judge": None},
    }
    assert lines[0]["turns"][4]["streams"] == {"generator": 0.0, "judge": None}
    assert lines[0]["metrics"]["v2/total_votes"] == 3


def test_scored_transcripts_carry_reward_and_rightness_in_meta(capsys, debates):
    main(["score", str(debates), "--reward", "win_rate", "--transcripts"])
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    main(["score", str(debates), "--reward", "win_rate"])
    scores = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [debate["id"] for debate in printed] == [score["id"] for score in scores]
    for debate, score in zip(printed, scores, strict=True):
        known = [value for value in score["agents"] if value is not None]
        assert debate["meta"]["reward"] == pytest.approx(sum(known) / len(known))
        assert debate["meta"]["right"] in (0.0, 1.0)
        assert debate["turns"]


def test_score_takes_nested_settings_for_a_mixed_reward(capsys, debates):
    settings = [
        "components.peers.reward.type=v2",
        "components.peers.weight=0.7",
        "components.truth.reward.type=verifiable",
        "components.truth.weight=0.3",
    ]
    flags = [part for setting in settings for part in ("--set", setting)]
    code, out, _ = run(capsys, "score", debates, "--reward", "mixed", *flags)
    assert code == 0
    first = json.loads(out.splitlines()[0])
    assert first["turns"][0]["streams"]["generator"] == pytest.approx(0.7 * -0.5 - 0.3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--reward", "v22"], "did you mean 'v2'"),
        (["--reward", "v2", "--set", "unvotd=zero"], "did you mean 'unvoted'"),
        (["--reward", "v2", "--set", "unvoted=zer"], "found 'zer'"),
        (["--reward", "v2", "--set", "unvoted"], "expected FIELD=VALUE"),
        (["--reward", "mixed"], "--set components: mixed needs this field"),
        (["--reward", "mixed", "--set", "components.a.reward.type=v22"], "components.a.reward"),
        (["--reward", "v2", "--set", "type=win_rate"], "named by --reward"),
        (["--reward", "v2", "--set", ".=1"], "expected FIELD=VALUE"),
        (
            ["--reward", "v2", "--set", "ties.x=1", "--set", "ties=half", "--set", "ties.y=1"],
            "ties",
        ),
    ],
)
def test_score_says_what_was_expected_when_called_wrongly(capsys, debates, arguments, message):
    code, out, err = run(capsys, "score", debates, *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_score_refuses_unreadable_files_and_impossible_debates(capsys, tmp_path):
    code, _, err = run(capsys, "score", str(tmp_path / "none.jsonl"), "--reward", "v2")
    assert code == 2
    assert "none.jsonl" in err
    bad = tmp_path / "bad.jsonl"
    turns = [{"agent": 5, "round": 0, "text": ""}]
    data = {"question": {"text": "?"}, "protocol": {"num_agents": 3}, "turns": turns}
    bad.write_text(json.dumps(data))
    code, _, err = run(capsys, "score", str(bad), "--reward", "v2")
    assert code == 2
    assert "agent 5" in err
    empty = tmp_path / "empty.jsonl"
    empty.write_text("")
    assert run(capsys, "score", str(empty), "--reward", "v2")[0] == 2


def test_verify_prints_verdicts_in_order(capsys, tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"id": 1, "gold": "B", "prediction": "the answer is (B)"},
        {"id": "zwei", "gold": "C", "prediction": r"\boxed{A}"},
        {"id": 3, "gold": "C", "prediction": None},
        {"id": 4, "gold": None, "prediction": "A"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = run(capsys, "verify", str(path), "--kind", "choice")
    lines = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(line["id"], line["verdict"], line["reason"]) for line in lines] == [
        (1, "right", "same_text"),
        ("zwei", "wrong", "different"),
        (3, "wrong", "no_answer"),
        (4, "unverifiable", "no_gold"),
    ]
    assert all(line["seconds"] >= 0 for line in lines)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{\n{}", "pairs.jsonl:2: not JSON"),
        ("{", "pairs.jsonl:2: the last line is cut off"),
        ("[]", "pairs.jsonl:2: expected an object"),
        ('{"id": 1, "gold": "1"}', "'prediction' is missing"),
        ('{"id": 1, "gold": ["1"], "prediction": "1"}', "pairs.jsonl:2, gold"),
    ],
)
def test_verify_names_the_line_that_cannot_be_read(capsys, tmp_path, row, message):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"id": 0, "gold": "1", "prediction": "1"}\n' + row)
    code, out, err = run(capsys, "verify", str(path), "--kind", "number")
    assert (code, out) == (2, "")
    assert message in err


def test_stats_prints_metrics_and_intervals(capsys, debates):
    code, out, _ = run(capsys, "stats", debates)
    report = json.loads(out)
    assert code == 0
    assert (report["debates"], report["questions"]) == (2, 2)
    assert report["metrics"]["decision/peer_vote"] == 1
    # Two questions of the same value: a share w = z² / (2 + z²) of others could be all wrong, or
    # all right.
    w = 1.959964**2 / (2 + 1.959964**2)
    ends = [(1 - w) / 3, 1 / 3 + w * 2 / 3]
    assert report["intervals"]["avg@k"] == pytest.approx([1 / 3, *ends], rel=1e-6)


class Stream:
    """Standard input that holds these bytes."""

    def __init__(self, data):
        self.buffer = io.BytesIO(data)


def test_commands_read_standard_input(capsys, monkeypatch, debates):
    data = Path(debates).read_bytes()
    for arguments in (["score", "--reward", "v2"], ["stats"]):
        monkeypatch.setattr(sys, "stdin", Stream(data))
        code, from_input, _ = run(capsys, *arguments, "-")
        assert (code, from_input) == (0, run(capsys, *arguments, debates)[1])
    row = b'{"id": "\\ud800", "gold": 0.5, "prediction": "1/2", "more": []}\n'
    monkeypatch.setattr(sys, "stdin", Stream(b"\n" + row))
    code, out, _ = run(capsys, "verify", "-", "--kind", "number")
    assert (code, json.loads(out)["verdict"], json.loads(out)["id"]) == (0, "right", "\ud800")
    monkeypatch.setattr(sys, "stdin", Stream(b'{"id": 1, "gold": "\xff"}\n{}'))
    code, out, err = run(capsys, "verify", "-")
    assert (code, out) == (2, "")
    assert err.startswith("debate-rewards: standard input:1: not JSON")


def test_commands_read_what_comes_before_a_torn_line(capsys, debates):
    path = Path(debates)
    path.write_bytes(path.read_bytes()[:-20])
    code, out, err = run(capsys, "stats", debates)
    assert (code, json.loads(out)["debates"]) == (0, 1)
    assert "debates.jsonl:2: the last line is cut off" in err


@pytest.mark.parametrize("command", [["verify"], ["stats"], ["score", "--reward", "v2"]])
def test_commands_refuse_input_with_nothing_in_it(capsys, tmp_path, command):
    (tmp_path / "empty.jsonl").write_text("\n")
    code, out, err = run(capsys, *command, str(tmp_path / "empty.jsonl"))
    assert (code, out) == (2, "")
    assert "empty.jsonl: found no " in err


def test_verify_reads_choices_and_other_right_answers(capsys, tmp_path):
    path = tmp_path / "pairs.jsonl"
    rows = [
        {"id": 1, "gold": "B", "prediction": "blue", "choices": ["red", "blue"]},
        {"id": 2, "gold": "B", "prediction": "blue", "choices": {"A": "blue", "B": "red"}},
        {"id": 3, "gold": "A", "prediction": "(B)", "accept": ["B"]},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, out, _ = run(capsys, "verify", str(path), "--kind", "choice")
    found = [json.loads(line)["verdict"] for line in out.splitlines()]
    assert found == ["right", "wrong", "right"]


def test_verify_lines_have_their_fields_in_order(capsys, tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"id": 1, "gold": "9^{9^{9^{8}}}", "prediction": "\\\\boxed{9}"}\n')
    code, out, _ = run(capsys, "verify", str(path), "--limit-s", "0.3")
    assert code == 0
    assert list(json.loads(out)) == ["id", "verdict", "reason", "seconds"]
    assert json.loads(out)["reason"] == "gold_timeout"
    assert 0.3 <= json.loads(out)["seconds"] < 10


@pytest.mark.parametrize("limit", ["0", "-1", "nan", "inf", "1e9"])
def test_verify_refuses_impossible_limits(capsys, tmp_path, limit):
    code, _, err = run(capsys, "verify", str(tmp_path / "none"), f"--limit-s={limit}")
    assert code == 2
    assert "--limit-s: found" in err


def test_verify_fails_with_one_message_without_math_verify(tmp_path):
    (tmp_path / "sympy.py").write_text("raise ImportError('it is not there')")
    row = json.dumps({"id": 1, "gold": r"\sin x", "prediction": r"\boxed{\cos x}"}) + "\n"
    command = [sys.executable, "-m", "debate_rewards", "verify", "-"]
    for kind, code in (("math", 1), ("text", 0)):
        done = subprocess.run(
            [*command, "--kind", kind],
            input=row,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == code
        if code:
            assert len(done.stderr.splitlines()) == 1
            assert "pip install 'math-verify" in done.stderr


def test_stats_has_every_statistic_with_its_interval(capsys, tmp_path, hold):
    path = tmp_path / "debates.jsonl"
    answers = {(agent, number): "s1" for agent in range(3) for number in range(2)}
    answers |= {(0, 0): "s0", (2, 1): "s2"}
    rounds = (SILENT, ["A1>A2", "A0<A2", "A1>A0"])
    held = [hold(*rounds, id=i, answer="s1", answers=answers) for i in "ab"]
    write_transcripts(path, [replace(d, question=replace(d.question, id="q")) for d in held])
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
def test_stats_refuses_impossible_levels(capsys, debates, level):
    code, _, err = run(capsys, "stats", debates, "--level", level)
    assert code == 2
    assert err.startswith("debate-rewards: --level: found")


def test_readme_examples_run_and_print_what_they_say(capsys):
    examples = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 2
    assert len(examples[0].strip().splitlines()) <= 12
    for example in examples:
        exec(compile(example, str(README), "exec"), {})
        assert capsys.readouterr().out.splitlines() == re.findall(r"# → (.*)", example)
