"""Figures of recorded debates, and several runs on one page."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from debate_protocol.types import Protocol, Question, Transcript, Turn, TurnKey
from debate_report import report_main
from debate_report.browsing import read_all
from debate_report.overturned import choose, marked_tokens, weigh
from debate_report.page import make_comparison, write_report
from debate_report.run_files import read_run
from debate_report.society import _rounds, _votes
from debate_train.checkpoints.run_directory import RunDirectory
from report.report_runs import debate


def run_of(path, seed, after, reward="v2"):
    run = RunDirectory.create(
        path, f"seed: {seed}\nmodel: {{type: scratch}}\nreward: {{type: {reward}}}\n"
    )
    for step in (1, 2, 3):
        run.metrics.log("train", step, {"loss": seed / step, "reward/total": step / 9})
    change = {"low": 0.01, "high": 0.25, "won": 9, "lost": 2}
    row = {"measure": "majority vote", "before": {"mean": 0.5}, "after": {"mean": after}}
    run.write_results({"summary": f"Seed {seed} rose.", "table": [row | {"change": change}]})
    return run


@pytest.fixture
def recorded(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "steps: 1\n")
    run.write_transcripts(
        "train", 1, [debate("mended", "455", "444"), debate("spoiled", "445", "555")]
    )
    return read_all(read_run(run.path)).found


def test_rounds_count_right_answers_and_agreement(recorded):
    # Round 1: 4 5 5 and 4 4 5, round 2: 4 4 4 and 5 5 5; 4 is right.
    assert list(_rounds(recorded)) == [
        ["1", "6", "50.0 %", "–", "–", "0.0 %", "–"],
        ["2", "6", "50.0 %", "66.7 %", "66.7 %", "100.0 %", "–"],
    ]


def test_votes_are_counted_by_judge(recorded):
    # Of 4 5 5: 1 > 2 (both wrong), 2 > 0 (wrong), 0 = 1 (half). Of 4 4 5: 1 > 2 (right), 2 > 0
    # (wrong), 0 = 1 (both right).
    assert _votes(recorded) == [
        ["judge", "accuracy", "=", "for 0", "for 1", "for 2"],
        ["0", "100.0 %", "0.0 %", "–", "100.0 %", "0.0 %"],
        ["1", "0.0 %", "0.0 %", "0.0 %", "–", "100.0 %"],
        ["2", "50.0 %", "100.0 %", "50.0 %", "50.0 %", "–"],
    ]


def test_runs_stand_side_by_side_with_the_deviation_between_them(tmp_path, capsys):
    runs = [
        run_of(tmp_path / f"s{seed}" / "run", seed, after) for seed, after in ((1, 0.6), (2, 0.8))
    ]
    output = tmp_path / "both.html"
    assert report_main([str(run.path) for run in runs] + ["--output", str(output)]) == 0
    assert capsys.readouterr().out.strip() == str(output)
    text = " ".join(re.sub("<[^>]*>", " ", output.read_text()).split())
    # Changes of 0.1 and 0.3: their mean is 0.2, their deviation sqrt(2 · 0.1²).
    assert "+0.200 ± 0.141" in text
    assert "0.600 (+0.100)" in text
    assert "s1/run" in text
    assert "s2/run" in text
    assert report_main([str(runs[0].path), str(tmp_path)]) == 2
    assert "is not a run directory" in capsys.readouterr().err


def test_evaluated_debates_of_both_ends_are_there(tmp_path):
    run = RunDirectory.create(tmp_path / "run", "steps: 1\n")
    run.write_transcripts("train", 3, [debate("own", "444", "444")])
    source = next(run.transcripts_path.iterdir()).read_bytes()
    for name in ("before-debate", "after-debate", "after-direct", "dev-debate"):
        (run.evaluations_path / f"{name}-000003.jsonl").write_bytes(source)
    files = read_run(run.path)
    assert [recorded.phase for recorded in read_all(files).found] == [
        "train",
        "test questions before the run, debate",
        "test questions after the run, debate",
    ]


def test_change_of_a_run_is_that_on_the_same_questions(tmp_path):
    runs = [run_of(tmp_path / f"seed_{k}", k, 0.7) for k in (0, 1)]
    results = json.loads((runs[0].path / "results.json").read_text())
    # As where the later evaluation has a value for other questions, too.
    results["table"][0]["change"]["difference"] = 0.124
    runs[0].write_results(results)
    page = make_comparison([read_run(run.path) for run in runs])
    assert "(+0.124" in page
    assert "(+0.200" in page
    assert "+12.4" in write_report(runs[0].path).read_text()
    assert "+0.162 ± 0.054" in page.replace("−", "-")  # deviation .076 / √2


AGENTS = 5


def judged_debate(name: str, answers: Sequence[str], best: int) -> Transcript:
    """Five agents answer; in round 2 each prefers agent `best`, and holds the others equal."""
    turns = []
    for agent, answer in enumerate(answers):
        turns.append(Turn(agent, 0, f"<solution>{answer}</solution>\n<comparison></comparison>"))
    for agent in range(AGENTS):
        others = [other for other in range(AGENTS) if other != agent]
        lines = []
        for place, left in enumerate(others):
            for right in others[place + 1 :]:
                sign = ">" if left == best else "<" if right == best else "="
                lines.append(f"Agent {left} {sign} Agent {right}")
        votes = "\n".join(lines)
        text = f"<solution>{answers[agent]}</solution>\n<comparison>{votes}</comparison>"
        turns.append(Turn(agent, 1, text, tuple(TurnKey(other, 0) for other in others)))
    question = Question(name, f"What is 2 + 2, {name}?", "4", {"kind": "number"})
    protocol = Protocol(AGENTS, 2, contract="three_section")
    return Transcript(name, question, protocol, tuple(turns))


CASES = {
    "mended": judged_debate("mended", "55546", best=3),
    "missed": judged_debate("missed", "55546", best=0),
    "spoiled": judged_debate("spoiled", "44456", best=3),
    "followed": judged_debate("followed", "44456", best=0),
    "changed": judged_debate("changed", "55567", best=3),
}


def recorded_cases(path: Path, debates: Sequence[Transcript], phase: str = "train", step: int = 1):
    run = RunDirectory.create(path, "steps: 1\n")
    run.write_transcripts(phase, step, debates)
    return read_all(read_run(path)).found


@pytest.mark.parametrize("outcome", CASES)
def test_votes_are_compared_with_the_majority_of_the_answers_they_judge(
    tmp_path: Path, outcome: str
) -> None:
    (debate_read,) = recorded_cases(tmp_path / "run", [CASES[outcome]])
    found = weigh(0, debate_read)
    assert found is not None and found.outcome == outcome
    assert len(found.majority.agents) == 3


def test_the_page_shows_a_wrong_majority_that_votes_overturned_and_counts_all(
    tmp_path: Path,
) -> None:
    run = RunDirectory.create(tmp_path / "run", "steps: 1\n")
    run.metrics.log("train", 1, {"loss": 1.0})
    run.write_transcripts("train", 1, list(CASES.values()))
    run.write_transcripts("train", 2, [CASES["followed"]])
    page = write_report(run.path).read_text()
    part = page[page.index('<section id="overturned">') : page.index('<section id="curves">')]
    text = " ".join(re.sub("<[^>]*>", " ", part).split())
    assert "Votes overturned a wrong majority: 3 of 5 agents say 5 ✗ wrong" in text
    assert "the others’ votes prefer 4 ✓ right" in text
    # Agent 3 wins all 3 votes of each of 4 judges; any other agent is judged by 4, against 3
    # others each: it loses to agent 3 and ties with two, but nobody else can judge agent 3.
    assert "Agent 3: 4 ✓ right 12 of 12 votes" in text
    assert "Of 6 recorded debates" in text and "votes overturned 3 majorities" in text
    assert "(1 wrong ones for a right answer, 1 right ones)" in text
    assert "left 1 wrong ones" in text
    assert 'href="#debate-0"' in part


def test_the_newest_debate_of_an_outcome_is_chosen_and_demonstrations_are_not(
    tmp_path: Path,
) -> None:
    run = RunDirectory.create(tmp_path / "run", "steps: 1\n")
    for step in (1, 7, 3):
        run.write_transcripts("train", step, [CASES["spoiled"], CASES["mended"]])
    found = read_all(read_run(run.path)).found
    voted = [weigh(number, one) for number, one in enumerate(found)]
    chosen = choose([one for one in voted if one is not None])
    assert (chosen.outcome, chosen.debate.step) == ("mended", 7)


def test_tokens_are_colored_by_their_share_of_the_strongest_advantage() -> None:
    credit = {"starts": [0, 10, 13], "tokens": [[1, 0.25, 1], [2, -1.5, 2]]}
    tokens = marked_tokens("<solution>4 5 and", credit, strongest=1.5)
    assert [token.text for token in tokens] == ["<solution>", "4 5", " and"]
    # .25 / 1.5 of six steps is one step.
    assert [token.kind for token in tokens] == ["token up a1 tag", "token down a6", "token down a6"]
    assert tokens[0].note == "advantage +0.25" and tokens[1].note == "advantage −1.5"
    (whole,) = marked_tokens("no credit", {}, strongest=0.0)
    assert (whole.text, whole.kind) == ("no credit", "")
