import json

import pytest

from debate_protocol.types import Message, Protocol, Question, Transcript, Turn
from debate_report import write_report
from debate_train.checkpoints import RunState
from debate_train.checkpoints.run_directory import RunDirectory
from debate_train.evaluation.measuring import Measures
from debate_train.running.results import changes_of, in_words
from debate_train.running.run_records import keep_evaluation

NAME = "eval/majority/accuracy"


def row(change, measure="majority vote", name=NAME):
    return {"measure": measure, "name": name, "change": change}


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create(tmp_path / "run", "steps: 1\n")


def debate():
    prompt = (Message(role="user", content="a prompt"),)
    return Transcript("d", Question("q", "?"), Protocol(1, 1), (Turn(0, 0, "said", (), prompt),))


def test_values_and_debates_of_an_evaluation_are_kept(run):
    values = {NAME: {"a": 1.0, "b": 0.0}, "eval/judge/accuracy": {"b": 0.5}}
    found = Measures({}, {"debate": [debate()]}, values)
    keep_evaluation(run, "dev", 20, found, with_debates=True)
    kept = json.loads((run.evaluations_path / "dev-000020.json").read_text())
    assert kept["step"] == 20 and kept["values"] == values
    debates = run.evaluations_path / "dev-debate-000020.jsonl"
    assert "said" in debates.read_text() and "a prompt" not in debates.read_text()
    assert {f"evaluations/{name}" for name in ("dev-000020.json", debates.name)} == set(run.records)
    keep_evaluation(run, "dev", 10, found, with_debates=False)
    run.begin(RunState(step=10))
    assert [path.name for path in run.evaluations_path.iterdir()] == ["dev-000010.json"]


def test_changes_are_paired_question_by_question(run):
    # Of 20 questions 8 turn right and none turns wrong: McNemar p = 2 / 2^8.
    before = {str(k): float(k < 8) for k in range(20)}
    after = {str(k): float(k < 16) for k in range(20)}
    for name, step, values in (("before", 3, before), ("after", 9, after)):
        keep_evaluation(run, name, step, Measures({}, {}, {NAME: values}), with_debates=False)
    found = changes_of(run, [NAME, "eval/improvement"])[NAME]
    change = found.pop("change")
    assert [change[key] for key in ("difference", "p", "won", "lost")] == [0.4, 2 / 2**8, 8, 0]
    assert 0 < change["low"] < 0.4 < change["high"] and not found
    (run.evaluations_path / "after-000009.json").write_text("{")
    assert changes_of(run, [NAME]) == {}


def test_both_ends_are_of_the_questions_that_have_a_value_at_both(run):
    # Of a, b and c the judge gains 0.25 on average; d and e, which had a value once, would hide it.
    before = {"a": 0.5, "b": 0.25, "c": 0.0, "d": 1.0}
    after = {"a": 0.5, "b": 0.5, "c": 0.5, "e": 0.0}
    name = "eval/judge/accuracy"
    for when, values in (("before", before), ("after", after)):
        keep_evaluation(run, when, 3, Measures({}, {}, {name: values}), with_debates=False)
    change = changes_of(run, [name])[name]
    assert (change["before"]["mean"], change["after"]["mean"]) == (0.25, 0.5)
    assert change["change"]["difference"] == 0.25
    assert {change[end]["questions"] for end in ("before", "after", "change")} == {3}
    for when, question in (("before", "d"), ("after", "e")):
        apart = Measures({}, {}, {name: {question: 1.0}})
        keep_evaluation(run, when, 4, apart, with_debates=False)
    assert changes_of(run, [name]) == {name: None}
    assert change["before"]["low"] <= 0.25 <= change["before"]["high"]


def test_a_change_is_said_in_words(run):
    def change(low, high, difference=0.05):
        return {"questions": 64, "before": 0.5, "after": 0.5 + difference, "won": 9, "lost": 6,
                "difference": difference, "low": low, "high": high}  # fmt: skip

    rows = [row(change(0.1, 0.3), "judge accuracy", "eval/judge/accuracy"), row(change(-0.1, 0.2))]
    assert in_words(rows, ["eval/judge/accuracy"]) == (
        "Judge accuracy rose: 50.0 % to 55.0 %, +5.0 points [+10.0, +30.0], on the same 64 "
        "questions (9 up, 6 down)."
    )
    assert in_words(rows, [NAME]) == (
        "Majority vote did not change beyond chance: 50.0 % to 55.0 %, +5.0 points [-10.0, +20.0], "
        "on the same 64 questions (9 up, 6 down). Also beyond chance: judge accuracy (+5.0 points)."
    )
    assert in_words(rows, [NAME, "eval/judge/accuracy"]).count("questions (9 up") == 2
    assert "Majority vote fell:" in in_words([row(change(-0.2, -0.01))], ["eval/not/measured"])
    tokens = row(change(1, 2), "tokens", "eval/tokens/answer")
    assert in_words([tokens, {"measure": "x"}], []) == ""
    sides = {"before": {"mean": 0.5}, "after": {"mean": 0.55}}
    run.write_results({"summary": in_words(rows, [NAME]), "table": [rows[1] | sides]})
    page = write_report(run.path).read_text()
    assert "Majority vote did not change beyond chance" in page
    assert "[−10.0, +20.0]" in page and "9 up, 6 down of 64" in page
