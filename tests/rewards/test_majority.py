"""The majority of replies as a reward."""

import logging
from dataclasses import replace

import pytest

from debate_protocol.types import Transcript
from debate_rewards import Majority, Mixed

SILENT = ["", "", ""]


def values(score):
    return {(c.agent, c.round): c.value for c in score.credits}


def said(*answers: str, round_: int = 0) -> dict[tuple[int, int], str]:
    return {(agent, round_): answer for agent, answer in enumerate(answers)}


def on(question: str, debate: Transcript) -> Transcript:
    return replace(debate, question=replace(debate.question, id=question))


@pytest.mark.parametrize(("kind", "minority"), [("zero_one", 0.0), ("plus_minus", -1.0)])
def test_majority_values_each_turn_by_its_own_round(hold, kind, minority):
    # Round 0: a a b, so a. Round 1: b b a, so b: agent 1 is with it in both.
    answers = said("a", "a", "b") | said("a", "b", "b", round_=1)
    (score,) = Majority(values=kind, scope="debate")([hold(SILENT, SILENT, answers=answers)])
    assert values(score) == {
        (0, 0): 1.0, (1, 0): 1.0, (2, 0): minority,
        (0, 1): minority, (1, 1): 1.0, (2, 1): 1.0,
    }  # fmt: skip
    assert score.agents == ((1 + minority) / 2, 1.0, (1 + minority) / 2)
    assert score.metrics == {"majority/undecided": 0.0, "majority/share": pytest.approx(4 / 6)}


def test_majority_of_the_last_round_values_the_turns_of_all_rounds(hold):
    answers = said("a", "a", "b") | said("a", "b", "b", round_=1)
    (score,) = Majority(scope="debate", round="last")([hold(SILENT, SILENT, answers=answers)])
    # b is the last round's: agent 2 said it from the start.
    assert list(values(score).values()) == [0.0, 0.0, 1.0, 0.0, 1.0, 1.0]


def test_majority_of_a_question_counts_all_its_debates_in_the_batch(hold):
    # Question q: a a b and b b b, so b (4 of 6); question r has its own majority, a.
    batch = [
        on(question, hold(SILENT, id=id, answers=said(*answers)))
        for id, question, answers in [("1", "q", "aab"), ("2", "r", "aab"), ("3", "q", "bbb")]
    ]
    found = [list(values(score).values()) for score in Majority()(batch)]
    assert found == [[0.0, 0.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]
    alone = [list(values(score).values()) for score in Majority(scope="debate")(batch)]
    assert alone == [[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]]


@pytest.mark.parametrize("answers", ["aabb", "abcd"])
def test_majority_has_no_signal_where_two_answers_are_largest(hold, answers):
    (score,) = Majority()([hold([""] * 4, n=4, answers=said(*answers))])
    assert set(values(score).values()) == {None}
    assert all(credit.expected and not credit.penalty for credit in score.credits)
    assert score.agents == (None,) * 4
    assert score.metrics == {"majority/undecided": 1.0}


def test_majority_counts_no_failed_turn_and_leaves_it_its_penalty(hold):
    # Without agent 3, whose text holds no answer, a has two of three.
    (score,) = Majority()([hold(["", "", "", None], n=4, answers=said("a", "a", "b"))])
    assert list(values(score).values()) == [1.0, 1.0, 0.0, -1.0]
    assert [credit.penalty for credit in score.credits] == [False, False, False, True]
    (nobody,) = Majority()([hold([None, None, None])])
    assert list(values(nobody).values()) == [-1.0] * 3
    assert nobody.metrics == {}


def test_majority_counts_equal_answers_of_different_spelling_together(hold):
    debate = hold(SILENT, answers=said("1/2", "0.5", "2"), meta={"kind": "number"})
    (score,) = Majority()([debate])
    assert list(values(score).values()) == [1.0, 1.0, 0.0]


def test_majority_leaves_out_a_question_of_unknown_kind(hold, caplog):
    batch = [hold(SILENT, id="x", meta={"kind": "smell"}), hold(SILENT, answers=said(*"aab"))]
    with caplog.at_level(logging.WARNING):
        unknown, known = Majority()(batch)
    assert set(values(unknown).values()) == {None}
    assert list(values(known).values()) == [1.0, 1.0, 0.0]
    assert "'x' is left out" in caplog.text


def test_majority_is_a_part_of_a_mixture(hold):
    parts = {
        "peers": {"reward": {"type": "v2", "consensus": "none"}, "weight": 1.0},
        "most": {"reward": {"type": "majority", "values": "plus_minus"}, "weight": 0.5},
    }
    mixed = Mixed.model_validate({"components": parts, "mix": "rewards"})
    (score,) = mixed([hold(SILENT, ["A1>A2", "A2>A0", "A0>A1"], answers=said(*"aab"))])
    # Votes are a cycle, worth 0 each: ½ for the two with the majority, −½ for the third.
    assert [values(score)[agent, 0] for agent in range(3)] == [0.5, 0.5, -0.5]


def test_verified_majority_counts_where_votes_decide_for_it_too(hold) -> None:
    answers = {(agent, r): "aab"[agent] for agent in range(3) for r in range(2)}
    for_b = ["A1<A2", "A0<A2", "A0=A1"]
    for_a = ["A1>A2", "A0>A2", "A0=A1"]
    batch = [
        on(name, hold(SILENT, votes, id=name, answers=answers))
        for name, votes in (("b", for_b), ("a", for_a))
    ]
    left_out, kept = (values(s) for s in Majority(scope="debate", verified=True)(batch))
    assert set(left_out.values()) == {None}
    assert list(kept.values()) == [1.0, 1.0, 0.0] * 2
    # Together on one question the debates have one majority; each is verified by its own votes.
    joint = [on("q", debate) for debate in batch]
    left_out, kept = (values(s) for s in Majority(verified=True)(joint))
    assert set(left_out.values()) == {None} and list(kept.values()) == [1.0, 1.0, 0.0] * 2
    # A failed turn is one all the same.
    (score,) = Majority(verified=True)([hold(SILENT, [*for_b[:2], None], answers=answers)])
    assert values(score)[2, 1] == -1.0
