"""Judges paid for naming the majority's answer."""

import pytest

from debate_rewards import MajorityJudge, Mixed, RewardContext, TruthJudge

SILENT = [""] * 5


def said(answers: str) -> dict[tuple[int, int], str]:
    return {(agent, round_): one for agent, one in enumerate(answers) for round_ in range(2)}


def turns(score) -> dict[int, float | None]:
    """The value of each agent's second turn."""
    whole = [c for c in score.credits if c.span is None and c.round == 1]
    return {c.agent: c.value for c in whole if c.stream == "judge"}


# Three of five say a. Lines: a over another, another over a, a tie, two that both say a.
LINES = ["A1>A3", "A0<A4; A2>A3", "A0=A3; A1>A4", "A0>A1; A2=A0", "A1=A2; A3<A0"]


def test_votes_for_the_majoritys_answer_are_right_and_against_it_wrong(hold) -> None:
    debate = hold(SILENT, LINES, n=5, answers=said("aaabc"))
    (score,) = MajorityJudge(verified=False)([debate])
    # Agent 1: −1 for agent 4 over agent 0, +1. Agent 2: 0 for the tie, +1.
    assert turns(score) == {0: 1.0, 1: 0.0, 2: 0.5, 3: None, 4: 1.0}
    assert score.agents == (1.0, 0.0, 0.5, None, 1.0)
    assert score.metrics == {
        "majority_judge/votes": 9.0,
        "majority_judge/votes_with_value": 6.0,
        "reward/judge/mean": 2.5 / 4,
    }
    # A wrong majority teaches what the truth would call wrong.
    (truth,) = TruthJudge()([hold(SILENT, LINES, n=5, answers=said("aaabc"), answer="b")])
    assert turns(truth)[0] == -1.0


def test_it_is_the_truth_where_the_majority_is_right(hold) -> None:
    debate = hold(SILENT, LINES, n=5, answers=said("aaabc"), answer="a")
    settings = {"judge_credit": "segment", "format_penalty": -0.25}
    (own,) = MajorityJudge(verified=False, **settings)([debate])
    (truth,) = TruthJudge(**settings)([debate])
    assert own.credits == truth.credits and own.agents == truth.agents


@pytest.mark.parametrize("answers", ["aabbc", "abcde"])
def test_without_a_majority_nothing_has_a_value(hold, answers) -> None:
    (score,) = MajorityJudge(verified=False)([hold(SILENT, LINES, n=5, answers=said(answers))])
    assert set(turns(score).values()) == {None}
    assert score.metrics["majority_judge/votes_with_value"] == 0.0


def test_by_default_votes_must_decide_for_it_too(hold) -> None:
    against = ["A1<A3", "A0<A3", "A0<A3", "A0=A1", "A2<A3"]
    kept, left_out = MajorityJudge()(
        [hold(SILENT, lines, n=5, id=id, answers=said("aaabc")) for id, lines in
         (("for", LINES), ("against", against))]
    )  # fmt: skip
    assert turns(kept)[0] == 1.0
    assert set(turns(left_out).values()) == {None}
    (all_kept,) = MajorityJudge(verified=False)([hold(SILENT, against, n=5, answers=said("aaabc"))])
    assert turns(all_kept)[0] == -1.0


def test_votes_about_a_round_are_held_against_the_majority_of_that_round(hold) -> None:
    # Judges of round 1 saw round 0, where b was most frequent; in round 1 it is a.
    answers = {(agent, 0): "bbbaa"[agent] for agent in range(5)}
    answers |= {(agent, 1): "a" for agent in range(5)}
    debate = hold(SILENT, ["A1>A3", "", "", "", ""], n=5, answers=answers)
    (score,) = MajorityJudge(verified=False)([debate])
    assert turns(score)[0] == 1.0


def test_missing_comparisons_cost_and_failures_earn_nothing(hold) -> None:
    debate = hold(SILENT, ["", None, *LINES[2:]], n=5, answers=said("aaabc"))
    (score,) = MajorityJudge(verified=False)([debate])
    found = turns(score)
    assert found[0] == -0.5 and 1 not in found


def test_it_stands_beside_the_majority(hold) -> None:
    parts = {
        "solver": {"reward": {"type": "majority", "scope": "debate"}, "weight": 1.0},
        "judge": {"reward": {"type": "majority_judge", "verified": False}, "weight": 0.5},
    }
    mixed = Mixed.model_validate({"components": parts})
    assert mixed.streams == ("generator", "judge")
    (score,) = mixed([hold(SILENT, LINES, n=5, answers=said("aaabc"))])
    assert turns(score) == {0: 1.0, 1: 0.0, 2: 0.5, 3: None, 4: 1.0}
    solvers = [c.value for c in score.credits if c.stream == "generator" and c.round == 0]
    assert solvers == [1.0, 1.0, 1.0, 0.0, 0.0]


def test_two_agents_have_no_majority_to_name(hold) -> None:
    two, five = (RewardContext(hold([""] * n, n=n).protocol) for n in (2, 5))
    (note,) = MajorityJudge().notes(two)
    assert (note.kind, note.stream) == ("no_signal", "judge")
    assert "nobody is outvoted" in note.text
    assert not list(MajorityJudge().notes(five))
