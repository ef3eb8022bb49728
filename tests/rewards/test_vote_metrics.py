"""Figures of judges, changed minds and correlated agents, worked by hand and by brute force."""

import random
from collections.abc import Sequence
from itertools import combinations
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.counted_calls import num_calls
from tests.rewards.debates import SILENT, debate_of, judged_debate

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Transcript, TurnKey
from debate_rewards import V2, Credit, Majority, Score, debate_metrics, get_reward
from debate_rewards.estimates import Sums, value_of
from debate_rewards.vote_metrics import (
    add_change,
    intraclass_moments,
    majority_of_subsets,
    pass_at,
    right_in_most,
)

# ---- changed minds --------------------------------------------------------------------------


def change_figures(*rounds: str) -> dict[str, float]:
    """Measure turns by round and agent: `1` is right, `0` wrong, `.` no turn."""
    is_right = {}
    for round_number, marks in enumerate(rounds):
        for agent, mark in enumerate(marks):
            if mark != ".":
                is_right[TurnKey(agent, round_number)] = mark == "1"
    sums = Sums()
    add_change(sums, is_right)
    return sums.values()


def test_flips_and_drift_compare_each_agent_with_its_round_before() -> None:
    # Round 1: agent 0 stays right, 1 gets right, 2 loses it, 3 stays wrong. Round 2: 0 loses it.
    assert change_figures("1010", "1100", "0100") == {
        "flips/right_to_wrong/round_1": 1 / 4,
        "flips/wrong_to_right/round_1": 1 / 4,
        "drift/round_1": 0,
        "flips/right_to_wrong/round_2": 1 / 4,
        "flips/wrong_to_right/round_2": 0,
        "drift/round_2": -1 / 4,
        # Over both rounds: 2 of 8 pairs of turns lose a right answer, 1 of 8 gains it.
        "flips/right_to_wrong": 2 / 8,
        "flips/wrong_to_right": 1 / 8,
    }
    assert change_figures("101") == {}


# ---- correlated agents ----------------------------------------------------------------------


def rho(*debates: str) -> float | None:
    values = [[float(mark) for mark in marks] for marks in debates]
    moments = intraclass_moments(values)
    return None if moments is None else value_of(moments)


@pytest.mark.parametrize(
    ("debates", "expected"),
    [
        # Within: 11 -> 1, 10 -> 0, mean 1/2. Across: 1·1, 1·0, 1·1, 1·0, so 1/2. Squares 3/4.
        (("11", "10"), 0),
        # All of a debate alike: within 1/2, across 0, squares 1/2.
        (("11", "00"), 1),
        # Always one of two: within 0, across 1/4, squares 1/2: −1, the least for two agents.
        (("10", "01"), -1),
        (("11", "11"), None),  # Nothing varies.
        (("110",), None),
        (("1", "0"), None),
        ((), None),
        (("", "11"), None),
    ],
)
def test_rho_by_hand(debates: tuple[str, ...], expected: float | None) -> None:
    assert rho(*debates) == expected


def test_rho_is_the_anova_estimate_for_debates_of_equal_size() -> None:
    debates = ["110", "111", "000", "100", "101"]
    values = [[float(mark) for mark in marks] for marks in debates]
    means = [fmean(group) for group in values]
    grand_mean = fmean(means)
    between = 3 * sum((mean - grand_mean) ** 2 for mean in means) / (5 - 1)
    within = 0.0
    for group, mean in zip(values, means, strict=True):
        within += sum((value - mean) ** 2 for value in group) / (5 * (3 - 1))
    # Shrout and Fleiss, ICC(1): (MSB − MSW) / (MSB + (k − 1) MSW).
    assert rho(*debates) == pytest.approx((between - within) / (between + 2 * within))


def test_moments_are_those_of_all_pairs() -> None:
    groups = [[1.0, 0.0, 1.0], [0.5, 0.25], [1.0]]
    within = []
    across = []
    for index, group in enumerate(groups):
        within += [first * second for first, second in combinations(group, 2)]
        for other in groups[index + 1 :]:
            for value in group:
                across += [value * other_value for other_value in other]
    values = [*groups[0], *groups[1], *groups[2]]
    mean_square = fmean(value * value for value in values)
    expected = (fmean(within) - fmean(across), mean_square - fmean(across))
    assert intraclass_moments(groups) == pytest.approx(expected)


def test_rho_finds_the_correlation_that_was_put_in_and_no_effect_of_the_question() -> None:
    # Agents copy the debate's draw with chance .6, else draw for themselves: correlation .36
    # within a debate. Questions differ in difficulty, which is no correlation within a question.
    rng = random.Random(5)
    total = Sums()
    for _ in range(2000):
        chance = rng.choice([0.1, 0.5, 0.9])
        debates = []
        for _ in range(3):
            shared = rng.random() < chance
            answers = []
            for _ in range(4):
                answers.append(float(shared if rng.random() < 0.6 else rng.random() < chance))
            debates.append(answers)
        total.join("rho", intraclass_moments(debates) or (0.0, 0.0))
    assert total.values()["rho"] == pytest.approx(0.36, abs=0.03)


# ---- judges ---------------------------------------------------------------------------------


def judging(*lines: str) -> dict[str, float]:
    debates = []
    for number, round_lines in enumerate(lines):
        debates.append(judged_debate(round_lines, id=str(number), gold="s0"))
    return debate_metrics(debates)


def test_rates_of_judges_on_a_right_and_a_wrong_turn() -> None:
    # Agent 0 is right. On (0, 1): >, =, <; on (0, 2): >, >; on (1, 2) nothing counts.
    metrics = judging("| A0>A2 | A0>A1 | A0=A1; A0>A2 | A0<A1; A1>A2")
    assert metrics["judge/tpr"] == metrics["judge/strict_accuracy"] == pytest.approx(3 / 5)
    assert metrics["judge/fpr"] == pytest.approx(1 / 5)
    # A tie counts half: (3 + ½) / 5.
    assert metrics["judge/accuracy"] == pytest.approx(3.5 / 5)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # Errors of 2, 3 and 4 on (0, 1): 0 0 1 and 1 1 1. Ordered pairs of judges: (0,0) 2,
        # (0,1) 2, (1,0) 2, (1,1) 6; mean 8/12. Covariance 6/12 − 4/9 = 1/18, variance 2/9.
        pytest.param(
            ("| | A0>A1 | A0>A1 | A0<A1", "| | A0<A1 | A0<A1 | A0<A1"), 1 / 4, id="some together"
        ),
        pytest.param(("| | A0>A1 | A0>A1 | ", "| | A0<A1 | A0<A1 | "), 1, id="always together"),
        pytest.param(("| | A0>A1 | A0<A1 | ",), -1, id="never together"),
        pytest.param(("| | A0>A1 | | ",), None, id="one judge a pair"),
        pytest.param(("| | A0>A1 | A0>A1 | ",), None, id="errors do not differ"),
    ],
)
def test_errors_of_judges_of_a_pair_are_correlated(
    lines: tuple[str, ...], expected: float | None
) -> None:
    correlation = judging(*lines).get("judge/error_correlation")
    assert correlation == (None if expected is None else pytest.approx(expected))


def test_pairs_that_a_judge_left_out_count_half() -> None:
    # First answers: agent 1 is right. Judge 0 names 1 over 2 and leaves out (1, 3): 1 and ½. Judge
    # 1 was shown wrong answers alone. Judge 2: 0 over 1 and 1 = 3: 0 and ½. Judge 3 failed: ½ each.
    debate = judged_debate(
        "A1>A2; A2=A3 | A0>A2 | A0>A1; A1=A3 | fail",
        solutions=[["a", "g", "b", "c"], ["a", "g", "b", ""]],
        gold="g",
    )
    metrics = debate_metrics([debate], 0)
    assert metrics["judge/owed_accuracy"] == pytest.approx((1 + 0.5 + 0 + 0.5 + 0.5 + 0.5) / 6)
    assert metrics["judge/accuracy"] == pytest.approx((1 + 0 + 0.5) / 3)


def test_critics_of_right_and_of_wrong_answers() -> None:
    # ok of a right answer, no of a right answer, no of a wrong answer with a better and with the
    # same one, and feedback to a turn without an answer.
    exchanges = [
        ("Answer: 4", "ok"),
        ("Answer: 4", "no\nAnswer: 5"),
        ("Answer: 5", "no\nAnswer: 6"),
        ("Answer: 5", "no\nAnswer: 5"),
        ("", "no\nAnswer: 4"),
    ]
    turns: list[dict[str, Any]] = []
    for number, (answer, feedback) in enumerate(exchanges):
        shown = [[1, number - 1]] if number else []
        turns.append({"agent": 0, "round": number, "text": f"so\n{answer}", "shown": shown})
        turns.append({"agent": 1, "round": number, "text": feedback, "shown": [[0, number]]})
    roles = [{"name": "actor"}, {"name": "critic", "answers": False}]
    protocol = {
        "num_agents": 2,
        "max_rounds": 5,
        "topology": "actor_critic",
        "roles": roles,
        "contract": "answer_line",
    }
    question = {"text": "?", "answer": "4", "meta": {"kind": "number"}}
    data = {"question": question, "protocol": protocol, "turns": turns}
    metrics = debate_metrics([from_json(data)])
    assert metrics["critic/ok_when_right"] == 1 / 2
    assert metrics["critic/no_when_wrong"] == 1 / 2
    in_prose = from_json(data | {"protocol": protocol | {"contract": "boxed"}})
    assert not [name for name in debate_metrics([in_prose]) if "critic/" in name]


# ---- rewards against the truth --------------------------------------------------------------


def reward_accuracy(reward: Any, *debates: Transcript) -> float | None:
    return debate_metrics(debates, scores=reward(debates)).get("reward/accuracy")


def test_a_reward_is_accurate_where_the_winner_is_right() -> None:
    right = judged_debate("A1>A2 | A0>A2 | A0>A1", id="a", gold="s0")
    # Agents 0 and 1 share the first rank: each wins one vote and ties the other.
    level = judged_debate("A1>A2 | A0>A2 | A0=A1", id="b", gold="s0")
    wrong = judged_debate("A1>A2 | A0<A2 | A0<A1", id="c", gold="s0")
    debates = (right, level, wrong)
    assert [reward_accuracy(V2(), debate) for debate in debates] == [1.0, 0.5, 0.0]
    assert reward_accuracy(V2(), *debates) == 0.5
    # One of three first turns is right: a reward that says nothing puts it first in a third.
    chance = debate_metrics(debates, scores=V2()(debates))["reward/chance"]
    assert chance == pytest.approx(1 / 3)
    assert reward_accuracy(get_reward("verifiable"), *debates) == 1.0


@pytest.mark.parametrize(
    ("debate", "reward", "accuracy"),
    [
        pytest.param(judged_debate(SILENT, gold="s0"), V2(), None, id="no votes"),
        pytest.param(debate_of(SILENT, gold="s0"), Majority(), None, id="no majority"),
        pytest.param(debate_of(SILENT), Majority(), None, id="no gold answer"),
        # Round 1, where all are wrong, says nothing.
        pytest.param(
            debate_of(SILENT, SILENT, solutions=["rrx", "xxx"], gold="r"),
            Majority(),
            1.0,
            id="right",
        ),
        pytest.param(debate_of(SILENT, solutions=["rxx"], gold="r"), Majority(), 0.0, id="wrong"),
    ],
)
def test_accuracy_needs_a_winner_and_turns_that_differ(
    debate: Transcript, reward: Any, accuracy: float | None
) -> None:
    assert reward_accuracy(reward, debate) == accuracy


def test_accuracy_adds_up_the_components_of_a_mixture_without_penalties() -> None:
    debate = debate_of("| | fail", gold="s0")
    raised = Credit(0, 0, "generator", 1.0, component="a", weight=0.25)
    lowered = Credit(0, 0, "generator", -1.0, component="b", weight=0.5)
    others = (
        Credit(1, 0, "generator", 0.0, component="a", weight=0.25),
        Credit(1, 0, "judge", -9.0),
        Credit(1, 0, "generator", -9.0, span=(0, 1)),
        Credit(2, 0, "generator", 9.0, penalty=True),
    )
    # ¼ − ½ is below 0: agent 1, who is wrong, has the greatest value.
    both = debate_metrics([debate], scores=[Score((raised, lowered, *others))])
    assert both["reward/accuracy"] == 0.0
    first = debate_metrics([debate], scores=[Score((raised, *others))])
    assert first["reward/accuracy"] == 1.0


# ---- fewer samples --------------------------------------------------------------------------


def share_right_of_largest(classes: Sequence[int | None], right: frozenset[int]) -> float:
    sizes = {number: classes.count(number) for number in classes if number is not None}
    largest = [number for number, size in sizes.items() if size == max(sizes.values())]
    return fmean(number in right for number in largest) if largest else 0.0


def test_majorities_of_subsets_by_hand() -> None:
    # Two right, one wrong, one silent. One sample: 2/4 right. Two: of 6 pairs right-right 1,
    # right-wrong 2 (half each), right-silent 2, wrong-silent 1: (1 + 1 + 2) / 6. Three: of 4
    # triples right-right-wrong 1, right-right-silent 1, right-wrong-silent 2 (half): 3/4. Four: 1.
    shares = majority_of_subsets([0, 0, 1, None], frozenset((0,)), 4)
    assert shares == pytest.approx([0.5, 4 / 6, 0.75, 1.0])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from([None, 0, 0, 1, 1, 2, 3]), min_size=1, max_size=8),
    st.frozensets(st.integers(0, 3), max_size=2),
)
def test_majorities_of_subsets_are_means_over_all_subsets(
    classes: list[int | None], right: frozenset[int]
) -> None:
    shares = majority_of_subsets(classes, right, len(classes))
    for size, share in enumerate(shares, 1):
        subsets = combinations(classes, size)
        expected = fmean(share_right_of_largest(subset, right) for subset in subsets)
        assert share == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("num_right", range(7))
def test_pass_and_cons_are_means_over_all_subsets(num_right: int) -> None:
    hits = [True] * num_right + [False] * (6 - num_right)
    for size in range(1, 7):
        num_hits = [sum(subset) for subset in combinations(hits, size)]
        assert pass_at(num_right, 6, size) == pytest.approx(fmean(hit > 0 for hit in num_hits))
        most = fmean(2 * hit > size for hit in num_hits)
        assert right_in_most(num_right, 6, size) == pytest.approx(most)


def test_figures_of_many_rounds_take_linear_work() -> None:
    def calls_for(num_rounds: int) -> int:
        rounds = ["| absent" if number % 2 else "absent | " for number in range(num_rounds)]
        debate = debate_of(*rounds, gold="s1", history_rounds=1)
        return num_calls(lambda: debate_metrics([debate]))

    calls_for(8)  # What is computed once and cached.
    # 8 times the rounds take 8 times the calls if linear, 64 times if quadratic.
    assert calls_for(128) < 16 * calls_for(16)
