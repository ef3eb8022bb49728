import json
import re
from pathlib import Path

import pytest

from debate_protocol.transcripts import write_transcripts
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
    assert report["intervals"]["avg@k"] == pytest.approx([1 / 3] * 3)


def test_readme_example_runs_and_prints_what_it_says(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    promised = re.findall(r"# → (.*)", example)
    exec(compile(example, str(README), "exec"), {})
    assert capsys.readouterr().out.splitlines() == promised
