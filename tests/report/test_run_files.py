"""What a run leaves for its report: evaluations, credit, and why nothing was learned."""

import json
import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from debate_protocol.types import Message, Protocol, Question, Reply, Transcript, Turn
from debate_report import report_main, write_report
from debate_report.debates import read_credit
from debate_report.nothing_learned import ZERO, why_nothing_learned
from debate_rewards.reward import Credit, Score
from debate_train.batches.row_types import Batch
from debate_train.checkpoints import RunState
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.evaluation.measuring import Measures
from debate_train.running.results import changes_of, in_words, outcome_sentence
from debate_train.running.run_records import credit_of, keep_evaluation, write_credit
from json_lines import write_rows
from train.made_rows import row_of

MAJORITY = "eval/majority/accuracy"
DEAD = {ZERO: 1.0}
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


def change_row(change, measure="majority vote", name=MAJORITY):
    return {"measure": measure, "name": name, "change": change}


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", "steps: 1\n")


def debate():
    prompt = (Message(role="user", content="a prompt"),)
    return Transcript("d", Question("q", "?"), Protocol(1, 1), (Turn(0, 0, "said", (), prompt),))


def test_changes_are_paired_question_by_question(run):
    # Of 20 questions 8 turn right and none turns wrong: McNemar p = 2 / 2^8.
    before = {str(k): float(k < 8) for k in range(20)}
    after = {str(k): float(k < 16) for k in range(20)}
    for name, step, values in (("before", 3, before), ("after", 9, after)):
        keep_evaluation(run, name, step, Measures({}, {}, {MAJORITY: values}), with_debates=False)
    paired = changes_of(run, [MAJORITY, "eval/improvement"])[MAJORITY]
    change = paired.pop("change")
    assert [change[key] for key in ("difference", "p", "won", "lost")] == [0.4, 2 / 2**8, 8, 0]
    assert 0 < change["low"] < 0.4 < change["high"]
    assert not paired
    (run.evaluations_path / "after-000009.json").write_text("{")
    assert changes_of(run, [MAJORITY]) == {}


def test_a_change_is_said_in_words(run):
    def change(low, high, difference=0.05):
        return {"questions": 64, "before": 0.5, "after": 0.5 + difference, "won": 9, "lost": 6,
                "difference": difference, "low": low, "high": high}  # fmt: skip

    rows = [
        change_row(change(0.1, 0.3), "judge accuracy", "eval/judge/accuracy"),
        change_row(change(-0.1, 0.2)),
    ]
    assert in_words(rows, ["eval/judge/accuracy"]) == (
        "Judge accuracy rose: 50.0 % to 55.0 %, +5.0 points [+10.0, +30.0], on the same 64 "
        "questions (9 up, 6 down)."
    )
    assert in_words(rows, [MAJORITY]) == (
        "Majority vote did not change beyond chance: 50.0 % to 55.0 %, +5.0 points [-10.0, +20.0], "
        "on the same 64 questions (9 up, 6 down). Also beyond chance: judge accuracy (+5.0 points)."
    )
    assert in_words(rows, [MAJORITY, "eval/judge/accuracy"]).count("questions (9 up") == 2
    assert "Majority vote fell:" in in_words(
        [change_row(change(-0.2, -0.01))], ["eval/not/measured"]
    )
    tokens = change_row(change(1, 2), "tokens", "eval/tokens/answer")
    assert in_words([tokens, {"measure": "x"}], []) == outcome_sentence([tokens]) == ""
    fallen = change_row(change(-0.2, -0.1), "valid format", "eval/format")
    assert outcome_sentence([*rows, fallen, tokens]) == (
        "Beyond chance: judge accuracy rose; valid format fell."
    )
    assert outcome_sentence(rows[1:]) == "No measure changed beyond chance."
    sides = {"before": {"mean": 0.5}, "after": {"mean": 0.55}}
    run.write_results({"summary": in_words(rows, [MAJORITY]), "table": [rows[1] | sides]})
    page = write_report(run.path).read_text()
    assert "Majority vote did not change beyond chance" in page
    assert "[−10.0, +20.0]" in page
    assert "9 up, 6 down of 64" in page


def reply(ids, starts):
    return Reply("abcdef", token_ids=ids, starts=starts)


def token_row(tokens, advantages, streams, segments, agent=0, debate=0):
    return row_of(
        tokens,
        np.ones(len(tokens)),
        advantages=advantages,
        streams=streams,
        segments=segments,
        agent=agent,
        debate=debate,
    )


def test_credit_is_that_of_the_turns_own_tokens_in_characters(tmp_path):
    # One row holds both turns of agent 0, with a shown token (9) before each; agent 1 has no row.
    turns = (
        Turn(0, 0, "abcdef", reply=reply((1, 2, 3), (0, 2, 4))),
        Turn(1, 0, "abcdef", reply=reply((1, 2), (0, 3))),
        Turn(0, 1, "abcdef", reply=reply((1, 2), (0, 1))),
    )
    debate = Transcript("d", Question("q", "?"), Protocol(2, 2), turns)
    joined = token_row(
        [9, 1, 2, 3, 9, 1, 2],
        [0, 0.5, 0.5, -1.25, 0, 2, 2],
        [0, 1, 1, 3, 0, 1, 1],
        [0, 1, 1, 1, 0, 2, 2],
    )
    other = token_row([1, 2], [7, 7], [1, 1], [1, 1], agent=1, debate=1)  # Of another debate.
    credits = (
        Credit(0, 0, "generator", 0.123456),
        Credit(0, 0, "generator", 9.0, span=(0, 1)),
        Credit(0, 1, "judge", None),
        Credit(0, 1, "judge", -1.0, component="truth"),
    )
    score = Score(credits, (0.5, None))
    batch = Batch((other, joined), ("generator", "judge"), 7, 3)
    credit = credit_of([debate], [score], batch, None, demonstrated=False)

    run = RunDirectory.create(tmp_path / "run", "steps: 1\n")
    path = write_credit(run, 3, credit)
    assert path.relative_to(run.path).as_posix() in run.records
    assert read_credit(path) == {
        "schema": "debate-credit/1",
        "demonstrated": False,
        "streams": ["generator", "judge"],
        "debates": [
            {
                "id": "d",
                "returns": [0.5, None],
                "turns": [
                    {"agent": 0, "round": 0, "values": {"generator": 0.1235},
                     "starts": [0, 2, 4], "tokens": [[2, 0.5, 1], [1, -1.25, 3]]},
                    {"agent": 1, "round": 0, "values": {}, "starts": [], "tokens": []},
                    {"agent": 0, "round": 1, "values": {"judge/truth": -1.0},
                     "starts": [0, 1], "tokens": [[2, 2.0, 1]]},
                ],
            }
        ],
    }  # fmt: skip
    run.begin(RunState(step=2))
    assert not path.exists()


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        ([{**DEAD, "judged/unread": 1.0, "advantage/zero/no_value": 1.0}], "judged/unread"),
        ([{**DEAD, "train/format_all": 0.0}], "100% of the turns could not be read"),
        ([{**DEAD, "train/format_all": 1.0, "advantage/zero/no_value": 1.0}], "no_value"),
        ([{**DEAD, "advantage/zero/no_value": 0.5}], "worth the same"),
        ([DEAD, {ZERO: 0.9}], None),
        ([{"eval/format": 1.0}], None),
    ],
)
def test_the_cause_is_said_where_no_turn_has_an_advantage(
    rows: list[dict[str, float]], reason: str | None
) -> None:
    cause = why_nothing_learned(rows)
    assert cause is None if reason is None else reason in (cause or "")


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_report_of_a_run_that_learned_nothing_begins_with_that(
    tmp_path: Path, share: float
) -> None:
    rows = [{"phase": "train", "step": n, "loss": 0.0, ZERO: share} for n in range(1, 4)]
    write_rows(tmp_path / "metrics.jsonl", rows)
    page = write_report(tmp_path).read_text()
    assert ("Nothing could be learned in the last 3 steps" in page) == (share == 1.0)


def first_turn(page: str) -> dict[str, Any]:
    block = page.partition('id="texts-0">')[2].partition("<")[0]
    turn = json.loads(zlib.decompress(b64decode(block)))[0]["turns"][0]
    assert isinstance(turn, dict)
    return turn


@pytest.mark.parametrize(
    ("row", "starts", "tokens"),
    [
        (TRL | {"advantage": 0.75, "reward": 1.0}, [0], [[1, 0.75, 1]]),
        (
            TRL | {"tokens": ["\\boxed", "{4", "}"], "advantages": [1.0, 1.0, -2.0]},
            [0, 6, 8],
            [[2, 1.0, 1], [1, -2.0, 1]],
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
    positions = [0]
    for text in rows:
        positions.append(page.index(f">{text}<", positions[-1]))
    assert 'class="heat2">50 %' in page
    assert 'class="heat4">90 %' in page
