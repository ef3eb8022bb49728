"""Flips, drift, ρ and intervals of debates, against numbers worked by hand."""

import random
from dataclasses import replace

import pytest

from debate_protocol.types import TurnKey
from debate_rewards.estimates import Sums, bootstrap_estimates, value_of
from debate_rewards.metrics import debate_metrics, debate_statistics, question_values
from debate_rewards.vote_metrics import add_change, intraclass_moments

SILENT = ["", "", ""]


def rights(*rounds):
    """Turns by agent and round; `1` is right, `0` wrong, anything else no turn."""
    return {
        TurnKey(agent, number): mark == "1"
        for number, marks in enumerate(rounds)
        for agent, mark in enumerate(marks)
        if mark in "01"
    }


def on(question, debate):
    """The debate as one on a question of this id."""
    return replace(debate, question=replace(debate.question, id=question))


def changes(*rounds):
    sums = Sums()
    add_change(sums, rights(*rounds))
    return sums.values()


def test_flips_and_drift_by_hand():
    # Round 1: agent 0 keeps right, 1 gets right, 2 loses it, 3 stays wrong. Round 2: 0 loses it.
    found = changes("1010", "1100", "0100")
    assert found["flips/right_to_wrong/round_1"] == 1 / 4
    assert found["flips/wrong_to_right/round_1"] == 1 / 4
    assert found["drift/round_1"] == 0
    assert found["flips/right_to_wrong/round_2"] == 1 / 4
    assert found["flips/wrong_to_right/round_2"] == 0
    assert found["drift/round_2"] == -1 / 4
    # Over both rounds: 2 of 8 pairs of turns lose a right answer, 1 of 8 gains one.
    assert (found["flips/right_to_wrong"], found["flips/wrong_to_right"]) == (2 / 8, 1 / 8)


def test_flips_leave_out_agents_without_a_turn_before_or_after():
    # Agent 1 is silent in round 1, agent 2 in round 0: only agent 0 has a pair. Drift compares the
    # accuracies of all who spoke: 1/2 and 2/2.
    found = changes("01.", "1.1")
    assert found["flips/wrong_to_right"] == 1
    assert found["flips/right_to_wrong"] == 0
    assert found["drift/round_1"] == 1 / 2


def test_one_round_has_neither_flips_nor_drift():
    assert changes("101") == {}


def test_drift_is_the_difference_of_the_accuracies(hold):
    answers = {(0, 0): "r", (1, 0): "w", (2, 0): "w", (0, 1): "r", (1, 1): "r", (2, 1): "w"}
    debates = [hold(SILENT, SILENT, answers=answers, answer="r")]
    # A failed turn counts as wrong: 2/3 right, then 0/3.
    answers = {(0, 0): "r", (1, 0): "r", (2, 0): "w"}
    debates.append(hold(SILENT, [None, None, None], answers=answers, answer="r", id="e"))
    metrics = debate_metrics(debates)
    assert metrics["accuracy/round_0"] == pytest.approx(3 / 6)
    assert metrics["accuracy/round_1"] == pytest.approx(2 / 6)
    assert metrics["drift/round_1"] == pytest.approx(2 / 6 - 3 / 6)
    assert metrics["flips/wrong_to_right"] == pytest.approx(1 / 6)
    assert metrics["flips/right_to_wrong"] == pytest.approx(2 / 6)


def rho(*debates):
    moments = intraclass_moments([[float(mark == "1") for mark in debate] for debate in debates])
    return None if moments is None else value_of(moments)


def test_rho_by_hand():
    # Pairs in one debate: 11 -> 1, 10 -> 0: mean 1/2. Pairs across: 1·1, 1·0, 1·1, 1·0: 1/2.
    # Mean of squares 3/4. rho = (1/2 - 1/2) / (3/4 - 1/2) = 0.
    assert rho("11", "10") == 0
    # All of a debate alike: within (1 + 0)/2 = 1/2, across 0, squares 1/2: rho = 1.
    assert rho("11", "00") == 1
    # Always one of two: within 0, across mean(1, 0, 0, 1) = 1/2... (10 and 01): 1·0, 1·1, 0·0, 0·1
    # -> 1/4; squares 1/2: rho = (0 - 1/4) / (1/2 - 1/4) = -1, the least for two agents.
    assert rho("10", "01") == -1


def test_rho_is_the_anova_estimate_for_debates_of_equal_size():
    debates = ["110", "111", "000", "100", "101"]
    values = [[float(mark) for mark in debate] for debate in debates]
    count, size = len(values), 3
    grand = sum(map(sum, values)) / (count * size)
    means = [sum(group) / size for group in values]
    between = size * sum((mean - grand) ** 2 for mean in means) / (count - 1)
    within = sum((v - m) ** 2 for g, m in zip(values, means, strict=True) for v in g)
    within /= count * (size - 1)
    # Shrout and Fleiss, ICC(1): (MSB - MSW) / (MSB + (k - 1) MSW).
    expected = (between - within) / (between + (size - 1) * within)
    assert rho(*debates) == pytest.approx(expected)


def test_rho_finds_the_correlation_that_was_put_in_and_no_effect_of_the_question():
    # Agents copy the debate's draw with chance .6, else draw their own: correlation .36 within a
    # debate. Questions differ in difficulty, which is no correlation within a question.
    rng = random.Random(5)
    total = Sums()
    for _ in range(2000):
        chance = rng.choice([0.1, 0.5, 0.9])
        debates = []
        for _ in range(3):
            shared = rng.random() < chance
            debates.append(
                [float(shared if rng.random() < 0.6 else rng.random() < chance) for _ in range(4)]
            )
        total.join("rho", intraclass_moments(debates))
    assert total.values()["rho"] == pytest.approx(0.36, abs=0.03)


@pytest.mark.parametrize("debates", [["110"], ["1", "0"], [], ["", "11"]])
def test_rho_needs_two_debates_and_two_agents(debates):
    assert rho(*debates) is None


def test_rho_is_undefined_when_nothing_varies():
    assert rho("11", "11") is None


def test_metrics_have_rho_only_for_questions_with_several_debates(hold):
    def debate(answers, question, id):
        told = {(agent, 0): "r" if mark == "1" else "w" for agent, mark in enumerate(answers)}
        return on(question, hold(SILENT, answers=told, answer="r", id=id))

    one = [debate("111", "p", "a"), debate("110", "q", "b")]
    assert "rho/round_0" not in debate_metrics(one)
    # p: 111, 000: within 1/2, across 0, squares 1/2. q: only one debate.
    two = [*one, debate("000", "p", "c")]
    assert debate_metrics(two)["rho/round_0"] == 1
    assert "rho/round_0" not in question_values(two)


def test_estimates_are_the_metrics_with_intervals(hold):
    debates = [
        on(f"q{i % 5}", hold(SILENT, answers={(0, 0): "r"}, answer="r", id=f"d{i}"))
        for i in range(10)
    ]
    found = debate_statistics(debates, seed=3)
    assert {name: e.value for name, e in found.items()} == debate_metrics(debates, seed=3)
    assert found["avg@k"].questions == 5
    assert found == debate_statistics(debates, seed=3)
    for estimate in found.values():
        assert estimate.low <= estimate.value <= estimate.high


def test_estimates_resample_questions_with_all_their_debates():
    # Two debates on each of 50 questions, both right or both wrong. Per question the interval is
    # that of 50 draws, .5 ± 1.96 · sqrt(.25 / 50) = ± .139; of 100 debates it would be ± .098.
    rows = [{"avg": (2.0 * (number % 2), 2.0)} for number in range(50)]
    found = bootstrap_estimates(rows)["avg"]
    assert found.value == 0.5
    assert found.high - found.low == pytest.approx(2 * 0.139, abs=0.03)


def test_estimates_weigh_questions_by_what_was_observed():
    # 1 of 1 and 0 of 3: the ratio of sums is 1/4, not the mean of the questions' ratios.
    rows = [{"x": (1.0, 1.0)}, {"x": (0.0, 3.0)}, {"y": (1.0, 1.0)}]
    found = bootstrap_estimates(rows)
    assert found["x"].value == 1 / 4
    assert (found["x"].questions, found["y"].questions) == (2, 1)
    assert (found["x"].low, found["x"].high) == (0, 1)


def test_correlation_has_an_interval_over_questions():
    rng = random.Random(1)
    rows = []
    for _ in range(60):
        sums = Sums()
        x = rng.gauss(0, 1)
        sums.add_points("r", [(x, x + rng.gauss(0, 1)) for _ in range(2)])
        rows.append(sums.moments)
    found = bootstrap_estimates(rows)["r"]
    assert found.value == pytest.approx(2**-0.5, abs=0.15)
    assert 0.05 < found.high - found.low < 0.5


def test_value_of_points_is_pearsons_correlation():
    sums = Sums()
    # x = 1, 2, 4 and y = 2, 1, 3: means 7/3 and 2; sum xy = 2 + 2 + 12 - 3 · 14/3 = 2;
    # spreads 21 - 49/3 = 14/3 and 14 - 12 = 2: 2 / sqrt(28/3).
    sums.add_points("r", [(1, 2), (2, 1), (4, 3)])
    assert sums.values()["r"] == pytest.approx(2 / (28 / 3) ** 0.5)
    assert value_of((3.0, 3.0, 6.0, 3.0, 14.0, 6.0)) is None  # x has no spread


@pytest.mark.parametrize("level", [0, 1, -1, 2, float("nan")])
def test_estimates_refuse_impossible_levels(level):
    with pytest.raises(ValueError, match="between 0 and 1"):
        bootstrap_estimates([], level=level)


def test_unread_answers_are_wrong_and_visible(hold):
    # Last round: agent 0 right, 1 failed, 2 gives no number. maj@k: one class, right.
    answers = {(0, 0): "5", (2, 0): "no idea"}
    debate = hold(["", None, ""], answers=answers, answer="5", meta={"kind": "number"})
    metrics = debate_metrics([debate])
    assert metrics["unread"] == pytest.approx(2 / 3)
    assert metrics["unread/timeout"] == 0
    assert metrics["avg@k"] == pytest.approx(1 / 3)
    assert metrics["maj@k"] == 1


def test_majority_of_the_metrics_goes_by_equivalence(hold):
    # Three ways to write one half against two of one third.
    told = [r"\boxed{\frac12}", r"\boxed{0.5}", r"\boxed{2/4}", r"\boxed{1/3}", r"\boxed{\frac13}"]
    answers = {(agent, 0): text for agent, text in enumerate(told)}
    debate = hold([""] * 5, n=5, answers=answers, answer="0.50", meta={"kind": "math"})
    metrics = debate_metrics([debate])
    assert metrics["maj@k"] == metrics["decision/majority"] == metrics["cons@k"] == 1
    assert metrics["diversity/round_0"] == pytest.approx(2 / 5)


def test_central_decides_by_its_center(hold):
    answers = {(0, 0): "w", (1, 0): "w", (2, 0): "r"}
    debate = hold(SILENT, answers=answers, answer="r", topology="central", center=2)
    metrics = debate_metrics([debate])
    assert metrics["decision/central"] == 1
    assert metrics["decision/majority"] == 0
    assert "decision/central" not in debate_metrics([hold(SILENT, answers=answers, answer="r")])
