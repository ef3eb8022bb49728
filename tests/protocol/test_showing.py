"""A debate as text for a terminal: what is shown, what is disarmed, how lines are broken."""

from typing import Any

from debate_protocol.transcripts.files import from_json
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


def test_show_disarms_everything_that_acts_on_a_terminal() -> None:
    armed = "\x1b[31m\x07\x9b2J\u202e\r"
    transcript = Transcript(
        armed,
        Question("q", armed, armed),
        Protocol(2, topology=armed, contract=armed),
        (Turn(0, 0, armed, failure=armed),),
        {"ended": armed},
    )
    shown = shown_debate(transcript)
    assert not set(shown) & set(armed[:1] + "\x07\x9b\u202e\r")
    # Name, contract, topology, question, answer, failure, text and end.
    assert shown.count("\\x1b[31m") == 8


def test_show_says_what_stands_beside_a_turn_and_what_failed() -> None:
    turn = Turn(0, 0, "", failure="context_overflow", continuations=(Turn(0, 1, "x"),))
    shown = shown_debate(Transcript("d", Question("d", "q"), Protocol(1), (turn,)))
    assert "  beside it: 0 branches, 1 continuations\n  failed: context_overflow\n" in shown


def test_show_names_a_declared_contract() -> None:
    rules = {"num_agents": 1, "contract": {"name": "poem", "sections": ["draft", "poem"]}}
    turns = [{"agent": 0, "round": 0, "text": "<draft>a</draft><poem>b</poem>"}]
    data = {"question": {"text": "Write."}, "protocol": rules, "turns": turns}
    shown = shown_debate(from_json(data))
    assert "parallel, poem, topology all" in shown
    assert "  draft\n    a\n  poem\n    b\n" in shown
