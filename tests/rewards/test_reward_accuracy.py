"""How far rewards and judges agree with a truth that neither is given."""

import pytest

from debate_rewards import V2, Credit, Majority, Score, debate_metrics, get_reward

TRUE_S0 = {"answer": "s0"}
FIVE = [""] * 5


def test_rates_of_judges_on_a_right_and_a_wrong_turn(hold):
    # Agent 0 is right. On (0,1): >, =, <; on (0,2): >, >; on (1,2) nothing counts: both wrong.
    lines = ["", "A0>A2", "A0>A1", "A0=A1; A0>A2", "A0<A1; A1>A2"]
    found = debate_metrics([hold(FIVE, lines, n=5, **TRUE_S0)])
    assert found["judge/tpr"] == found["judge/strict_accuracy"] == pytest.approx(3 / 5)
    assert found["judge/fpr"] == pytest.approx(1 / 5)
    assert found["judge/tpr"] - found["judge/fpr"] == pytest.approx(2 * found["judge/accuracy"] - 1)


def test_error_correlation_of_judges_of_one_pair(hold):
    # Errors of 2, 3 and 4 on (0,1) in two debates: 0 0 1 and 1 1 1. Ordered pairs of judges:
    # (0,0) 2, (0,1) 2, (1,0) 2, (1,1) 6; mean 8/12. Covariance 6/12 − 4/9 = 1/18, variance 2/9.
    lines = [["", "", "A0>A1", "A0>A1", "A0<A1"], ["", "", "A0<A1", "A0<A1", "A0<A1"]]
    batch = [hold(FIVE, its, n=5, id=str(n), **TRUE_S0) for n, its in enumerate(lines)]
    assert debate_metrics(batch)["judge/error_correlation"] == pytest.approx(1 / 4)
    # Judges who always err together; and who are wrong where the other is right.
    same = ["", "", "A0>A1", "A0>A1", ""], ["", "", "A0<A1", "A0<A1", ""]
    batch = [hold(FIVE, its, n=5, id=str(n), **TRUE_S0) for n, its in enumerate(same)]
    assert debate_metrics(batch)["judge/error_correlation"] == pytest.approx(1)
    apart = [hold(FIVE, ["", "", "A0>A1", "A0<A1", ""], n=5, **TRUE_S0)]
    assert debate_metrics(apart)["judge/error_correlation"] == pytest.approx(-1)
    # Judge 2 errs by 0 and 1 on the same turns, judge 3 by 1: points (0,1) (1,1) (1,0) (1,1).
    twice = [hold(FIVE, {2: "A0>A1", 3: "A0<A1"}, {2: "A0<A1"}, n=5, **TRUE_S0)]
    assert debate_metrics(twice)["judge/error_correlation"] == pytest.approx(-1 / 3)
    # One judge a pair, or errors that do not differ: no correlation.
    for lines in (["", "", "A0>A1", "", ""], ["", "", "A0>A1", "A0>A1", ""]):
        found = debate_metrics([hold(FIVE, lines, n=5, **TRUE_S0)])
        assert "judge/error_correlation" not in found


def accuracy(reward, *debates):
    return debate_metrics(debates, scores=reward(debates)).get("reward/accuracy")


def test_reward_accuracy_is_whether_the_winner_of_the_votes_is_right(hold):
    right = hold([""] * 3, ["A1>A2", "A0>A2", "A0>A1"], id="a", **TRUE_S0)
    # Agents 0 and 1 share the first place: each wins one vote and ties the other.
    level = hold([""] * 3, ["A1>A2", "A0>A2", "A0=A1"], id="b", **TRUE_S0)
    wrong = hold([""] * 3, ["A1>A2", "A0<A2", "A0<A1"], id="c", **TRUE_S0)
    assert [accuracy(V2(), one) for one in (right, level, wrong)] == [1.0, 0.5, 0.0]
    assert accuracy(V2(), right, level, wrong) == 0.5
    assert accuracy(get_reward("verifiable"), right, level, wrong) == 1.0
    # Three different answers have no majority, and without votes nobody wins.
    assert accuracy(Majority(), right) is None
    assert accuracy(V2(), hold([""] * 3, **TRUE_S0)) is None
    assert "reward/accuracy" not in debate_metrics([right])


def test_reward_accuracy_leaves_out_rounds_of_turns_that_are_all_right_or_all_wrong(hold):
    answers = {(0, 0): "s0", (1, 0): "s0", (2, 0): "x"} | {(a, 1): "x" for a in range(3)}
    debate = hold([""] * 3, [""] * 3, answers=answers, **TRUE_S0)
    assert accuracy(Majority(), debate) == 1.0
    majority_wrong = hold([""] * 3, answers={(0, 0): "s0", (1, 0): "x", (2, 0): "x"}, **TRUE_S0)
    assert accuracy(Majority(), majority_wrong) == 0.0
    assert accuracy(Majority(), hold([""] * 3, answers={}, answer=None)) is None


def test_reward_accuracy_adds_up_the_parts_of_a_mixture_without_penalties(hold):
    debate = hold(["", "", None], **TRUE_S0)
    credits = (
        Credit(0, 0, "generator", 1.0, component="a", weight=0.25),
        Credit(0, 0, "generator", -1.0, component="b", weight=0.5),
        Credit(1, 0, "generator", 0.0, component="a", weight=0.25),
        Credit(1, 0, "judge", -9.0),
        Credit(1, 0, "generator", -9.0, span=(0, 1)),
        Credit(2, 0, "generator", 9.0, penalty=True),
    )
    # ¼ − ½ is below 0: agent 1, who is wrong, has the greatest value.
    assert debate_metrics([debate], scores=[Score(credits)])["reward/accuracy"] == 0.0
    assert (
        debate_metrics([debate], scores=[Score(credits[:1] + credits[2:])])["reward/accuracy"]
        == 1.0
    )


def test_scores_change_no_other_metric(hold):
    debates = [hold([""] * 3, ["A1>A2", "A0>A2", "A0>A1"], **TRUE_S0)]
    plain = debate_metrics(debates)
    assert debate_metrics(debates, scores=V2()(debates)) == plain | {"reward/accuracy": 1.0}
