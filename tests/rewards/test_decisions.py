"""What a debate decides, and which debates go on: rules on debates and gates made by hand."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter
from tests.rewards.debates import SILENT, debate_of, judged_debate

from debate_protocol.types import Gate, Protocol, Question, Reply, Transcript, Turn
from debate_rewards import Agreed, AtMost, GateRule, Informative, InOrder, debate_metrics
from debate_rewards.decisions import bradley_terry, central, confidence, majority, peer_vote

BY_ROUND = [["00", "10", "20"], ["01", "11", "21"], ["02", "12", "22"]]


def test_the_majority_is_the_largest_class_of_the_last_round() -> None:
    # "C." and "c" are one class, told by its first member.
    assert majority(debate_of(SILENT, SILENT, solutions=["abb", ["C.", "c", "b"]]), 0) == "C."
    assert majority(debate_of("fail | fail | ", solutions=["abc"]), 0) == "c"
    assert majority(debate_of("fail | fail | fail"), 0) is None
    assert peer_vote(debate_of("fail | fail | fail"), 0) is None


def test_the_majority_is_drawn_among_equals_repeatably_and_fairly() -> None:
    debates = [debate_of(SILENT, solutions=["abc"], id=f"d{number}") for number in range(300)]
    answers = [majority(debate, 7) for debate in debates]
    assert answers == [majority(debate, 7) for debate in debates]
    # 100 each expected; standard deviation √(300 · 1/3 · 2/3) = 8.2, and four of them are 33.
    for answer in "abc":
        assert abs(answers.count(answer) - 100) < 33


@pytest.mark.parametrize(
    ("rounds", "answer"),
    [
        # Net: 1 is +2, the others −1. The answer that was judged counts, not what 1 says later.
        pytest.param((SILENT, "A1>A2 | A0=A2 | A1>A0"), "10", id="the judged answer"),
        pytest.param(
            (SILENT, "A1>A2 | A0=A2 | A1>A0", "A2>A1 | A2>A0 | "),
            "21",
            id="the last round of votes",
        ),
        pytest.param((SILENT, "fail | | fail"), "11", id="no votes: drawn from the last round"),
    ],
)
def test_peer_votes_decide_for_the_best_judged_turn(rounds: tuple[str, ...], answer: str) -> None:
    assert peer_vote(debate_of(*rounds, solutions=BY_ROUND), 0) == answer


@pytest.mark.parametrize(
    ("last_round", "rules", "answer"),
    [
        (SILENT, {}, "01"),
        (SILENT, {"center": 2}, "21"),
        ("| | absent", {"center": 2}, "20"),  # It did not speak in the last round.
        ("absent | absent | fail", {"center": 2}, None),
    ],
)
def test_the_center_decides_by_its_last_answer(
    last_round: str, rules: dict[str, Any], answer: str | None
) -> None:
    debate = debate_of(SILENT, last_round, solutions=BY_ROUND, topology="central", **rules)
    assert central(debate) == answer
    with pytest.raises(ValueError, match="found topology 'all', expected 'central'"):
        central(debate_of(SILENT))


def test_strengths_decide_for_the_strongest_agent() -> None:
    # 0 beats 1 twice, 1 beats 2 twice, 2 beats 3 once.
    debate = judged_debate("A1>A2 | A2>A3 | A0>A1 | A0>A1; A1>A2", gold="s0")
    assert bradley_terry(debate, 0) == "s0"
    assert debate_metrics([debate])["decision/bradley_terry"] == 1
    silent = judged_debate("| | |")
    assert {bradley_terry(silent, seed) for seed in range(40)} == {"s0", "s1", "s2", "s3"}


def test_confidence_weighs_answers_by_their_token_probabilities() -> None:
    def with_logps(*logps: float) -> Transcript:
        debate = debate_of(SILENT, solutions=["455"], gold="4", meta={"kind": "number"})
        turns = []
        for turn, logp in zip(debate.turns, logps, strict=True):
            turns.append(replace(turn, reply=Reply("", token_ids=(1, 1, 1), logps=(logp,) * 3)))
        return replace(debate, turns=tuple(turns))

    # Two sure of 5 at exp(−3) each, .0996 together, against 4 at exp(−.5) = .6065.
    sure_of_4 = with_logps(-0.5, -3, -3)
    assert (majority(sure_of_4, 0), confidence(sure_of_4, 0)) == ("5", "4")
    assert debate_metrics([sure_of_4])["decision/confidence"] == 1
    assert confidence(with_logps(-0.5, -0.6, -0.7), 0) == "5"
    without_replies = debate_of(SILENT, solutions=["455"], gold="4", meta={"kind": "number"})
    assert confidence(without_replies, 0) is None
    assert "decision/confidence" not in debate_metrics([without_replies])


# ---- gates ----------------------------------------------------------------------------------


def gate(answers: str, id: str = "q", name: str = "round_0", gold: str | None = "4") -> Gate:
    """Stop a debate after these answers; `-` is a turn without one."""
    turns = []
    for agent, answer in enumerate(answers.split()):
        turns.append(Turn(agent, 0, "" if answer == "-" else f"\\boxed{{{answer}}}"))
    question = Question(id, "?", gold, {"kind": "number"})
    protocol = Protocol(len(turns), contract="boxed")
    return Gate(Transcript(id, question, protocol, tuple(turns)), name)


MIXED = gate("4 5")
RIGHT = gate("4 4.0")
WRONG = gate("5 -")


def test_informative_drops_groups_that_are_all_right_or_all_wrong() -> None:
    assert Informative()([MIXED, RIGHT, WRONG]) == ["go_on", "drop", "drop"]
    assert Informative()([]) == []
    replies = [gate("4", "a"), gate("5", "a"), gate("4", "b"), gate("4", "b")]
    assert Informative()(replies) == ["drop"] * 4
    assert Informative(group="question")(replies) == ["go_on", "go_on", "drop", "drop"]


@pytest.mark.parametrize("others", ["keep", "drop"])
def test_at_most_draws_the_same_debates_in_any_order(others: Any) -> None:
    gates = [gate("4", id=str(number)) for number in range(20)]
    rule = AtMost(go_on=8, others=others)
    decisions = rule(gates, seed=3)
    assert (decisions.count("go_on"), decisions.count(others)) == (8, 12)
    assert rule(gates[::-1], seed=3) == decisions[::-1]
    assert rule(gates, seed=4) != decisions
    assert AtMost(go_on=20)(gates) == ["go_on"] * 20
    assert AtMost(go_on=0)(gates) == ["keep"] * 20
    assert AtMost(go_on=1)([gate("4", id="\ud800")]) == ["go_on"]


def test_agreed_ends_debates_whose_answers_are_the_same() -> None:
    gates = [RIGHT, MIXED, gate("4 4 5"), gate("- -"), gate("4 -")]
    assert Agreed()(gates) == ["keep", "go_on", "go_on", "go_on", "go_on"]
    # 2 of 3 is enough for a share of 0.6; 1 of 2 is not.
    assert Agreed(share=0.6)(gates) == ["keep", "go_on", "keep", "go_on", "go_on"]


def test_in_order_hands_each_rule_what_the_rule_before_let_go_on() -> None:
    rules = [{"type": "informative"}, {"type": "at_most", "go_on": 2}]
    rule: Any = TypeAdapter(GateRule).validate_python({"type": "in_order", "rules": rules})
    assert isinstance(rule, InOrder)
    # Every second gate is informative.
    gates = [gate(f"4 {4 + number % 2}", id=str(number)) for number in range(8)]
    decisions = rule(gates, seed=1)
    assert decisions[::2] == ["drop"] * 4
    assert sorted(decisions[1::2]) == ["go_on", "go_on", "keep", "keep"]
