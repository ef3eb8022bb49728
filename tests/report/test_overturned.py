"""The debate that the report of a run shows first: where votes and the majority disagree."""

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from debate_protocol.types import Protocol, Question, Transcript, Turn, TurnKey
from debate_report import write_report
from debate_report.browsing import read_all
from debate_report.overturned import choose, marked_tokens, weigh
from debate_report.run_files import read_run
from debate_train.checkpoints.run_directory import RunDirectory

AGENTS = 5


def debate(name: str, answers: Sequence[str], best: int) -> Transcript:
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
    "mended": debate("mended", "55546", best=3),
    "missed": debate("missed", "55546", best=0),
    "spoiled": debate("spoiled", "44456", best=3),
    "followed": debate("followed", "44456", best=0),
    "changed": debate("changed", "55567", best=3),
}


def recorded(path: Path, debates: Sequence[Transcript], phase: str = "train", step: int = 1):
    run = RunDirectory.create(path, "steps: 1\n")
    run.write_transcripts(phase, step, debates)
    return read_all(read_run(path)).found


@pytest.mark.parametrize("outcome", CASES)
def test_votes_are_compared_with_the_majority_of_the_answers_they_judge(
    tmp_path: Path, outcome: str
) -> None:
    (debate_read,) = recorded(tmp_path / "run", [CASES[outcome]])
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
