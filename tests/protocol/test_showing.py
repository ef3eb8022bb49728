"""A debate as text for a terminal: what is shown, what is disarmed, how lines are broken."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debate_protocol.cli import main
from debate_protocol.transcripts.files import from_json, write_transcripts
from debate_protocol.transcripts.showing import shown_debate
from debate_protocol.types import Protocol, Question, Transcript, Turn, TurnKey

LONG = "We move 3 from both sides, which leaves 2x = 8, and halve it, so that x must be 4."


def debate(*texts: str, **rules: Any) -> Transcript:
    turns = tuple(Turn(agent, 0, text) for agent, text in enumerate(texts))
    return Transcript("d1", Question("d1", "Solve 2x + 3 = 11.", "4"), Protocol(2, **rules), turns)


def test_show_prints_question_turns_and_sections_when_all_is_well() -> None:
    first = debate("<solution>4</solution><evaluation>N/A</evaluation>", "no idea")
    second = Turn(1, 1, "<solution>5\n  so</solution>", (TurnKey(0, 0),))
    text = shown_debate(
        Transcript(
            "d1", first.question, Protocol(2, 2), (*first.turns, second), {"ended": "max_rounds"}
        )
    )
    assert text == (
        "Debate d1\n2 agents, 2 rounds, parallel, three_section, topology all\n\n"
        "Solve 2x + 3 = 11.\n\nKnown answer: 4\n\n── Round 1 ──\n\n"
        "Agent 0, who saw nobody\n  solution\n    4\n  evaluation\n    N/A\n\n"
        "Agent 1, who saw nobody\n  failed: no answer can be read\n    no idea\n\n"
        "── Round 2 ──\n\nAgent 1, who saw 0 (round 1)\n  solution\n    5\n      so\n\n"
        "Ended: max_rounds\n"
    )


def test_show_breaks_lines_before_words_when_a_width_is_given() -> None:
    text = shown_debate(debate(f"<solution>{LONG}\n\n  - {LONG}</solution>"), width=40)
    lines = text.split("\n")
    start = lines.index("  solution") + 1
    assert lines[start : start + 7] == [
        #   40 columns, of which 4 are the indent: "    We move 3 from both sides, which" is 36
        "    We move 3 from both sides, which",
        "    leaves 2x = 8, and halve it, so that",
        "    x must be 4.",
        "",
        "      - We move 3 from both sides, which",
        "      leaves 2x = 8, and halve it, so",
        "      that x must be 4.",
    ]


def test_show_cuts_long_words() -> None:
    lines = shown_debate(debate(f"<solution>{'x' * 45}</solution>"), width=24).split("\n")
    start = lines.index("  solution") + 1
    assert lines[start : start + 3] == ["    " + "x" * 20, "    " + "x" * 20, "    xxxxx"]


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(codec=None, categories=None)), st.integers(20, 60))
def test_show_keeps_all_signs_and_the_width_whatever_the_text(text: str, width: int) -> None:
    shown = shown_debate(debate(text, contract="boxed"), width=width)
    body = shown.split("no answer can be read\n")[-1]
    plain = shown_debate(debate(text, contract="boxed")).split("no answer can be read\n")[-1]
    assert body.split() == plain.split() or "".join(body.split()) == "".join(plain.split())
    if body.isascii():
        assert all(len(line) <= width for line in body.split("\n"))


def test_show_disarms_everything_that_acts_on_a_terminal() -> None:
    armed = "\x1b[31m\x07\x9b2J\u202e\r"
    transcript = Transcript(
        armed,
        Question("q", armed, armed),
        Protocol(2, topology=armed, contract=armed),
        (Turn(0, 0, armed, failure=armed),),
        {"ended": armed},
    )
    shown = shown_debate(transcript, width=60)
    assert not set(shown) & set(armed[:1] + "\x07\x9b\u202e\r")
    # Name, contract, topology, question, answer, failure, text and end.
    assert shown.count("\\x1b[31m") == 8


def test_show_says_what_stands_beside_a_turn_and_what_failed() -> None:
    turn = Turn(0, 0, "", failure="context_overflow", continuations=(Turn(0, 1, "x"),))
    shown = shown_debate(Transcript("d", Question("d", "q"), Protocol(1), (turn,)))
    assert "  beside it: 0 branches, 1 continuations\n  failed: context_overflow\n" in shown


@pytest.mark.parametrize(("columns", "longest"), [("30", 30), (None, len(LONG) + 4)])
def test_show_command_takes_the_width_of_the_terminal(
    tmp_path: Any,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    columns: str | None,
    longest: int,
) -> None:
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    else:
        monkeypatch.delenv("COLUMNS", raising=False)
    file = tmp_path / "d.jsonl"
    write_transcripts(file, [debate(f"<solution>{LONG}</solution>")])
    assert main(["show", str(file)]) == 0
    lines = capsys.readouterr().out.split("\n")
    assert max(len(line) for line in lines if "," not in line or "Agent" not in line) <= max(
        longest, len("2 agents, 1 rounds, parallel, three_section, topology all")
    )
    assert (f"    {LONG}" in lines) is (columns is None)


def test_show_names_a_declared_contract() -> None:
    rules = {"num_agents": 1, "contract": {"name": "poem", "sections": ["draft", "poem"]}}
    turns = [{"agent": 0, "round": 0, "text": "<draft>a</draft><poem>b</poem>"}]
    data = {"question": {"text": "Write."}, "protocol": rules, "turns": turns}
    shown = shown_debate(from_json(data))
    assert "parallel, poem, topology all" in shown
    assert "  draft\n    a\n  poem\n    b\n" in shown
