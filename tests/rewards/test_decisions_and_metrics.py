from dataclasses import replace

import pytest

from debate_protocol.types import AgentRole
from debate_rewards.answer_rewards import Verifiable
from debate_rewards.decisions import central, majority, peer_vote
from debate_rewards.estimates import bootstrap_interval
from debate_rewards.metrics import debate_metrics, question_values

SILENT = ["", "", ""]


def said(*answers, rounds=2):
    return {(agent, r): text for r in range(rounds) for agent, text in enumerate(answers)}


def test_majority_takes_the_largest_class_of_the_last_round(hold):
    answers = {**said("a", "b", "b"), (1, 1): "c", (0, 1): "C."}
    debate = hold(SILENT, SILENT, answers=answers)
    # Last round: "C.", "c", "b": two in one class, told by its first member.
    assert majority(debate, 0) == "C."


def test_majority_draws_among_equals_repeatably_and_fairly(hold):
    drawn = [majority(hold(SILENT, answers=said("a", "b", "c"), id=f"d{i}"), 7) for i in range(300)]
    again = [majority(hold(SILENT, answers=said("a", "b", "c"), id=f"d{i}"), 7) for i in range(300)]
    assert drawn == again
    # 100 each expected; standard deviation sqrt(300 * 1/3 * 2/3) = 8.2.
    assert all(abs(drawn.count(x) - 100) < 33 for x in "abc")


def test_majority_ignores_failed_turns_and_is_none_without_answers(hold):
    assert majority(hold([None, None, ""], answers=said("a", "b", "c")), 0) == "c"
    assert majority(hold([None, None, None]), 0) is None
    assert peer_vote(hold([None, None, None]), 0) is None


def test_peer_vote_takes_the_judged_answer_of_the_agent_voted_up_most(hold):
    # Net: 1 is +2, 0 is -1, 2 is -1. Agent 1 then changes its mind; the judged answer counts.
    answers = {**said("a", "b", "c"), (1, 1): "changed"}
    debate = hold(SILENT, ["A1>A2", "A0=A2", "A1>A0"], answers=answers)
    assert peer_vote(debate, 0) == "b"


def test_peer_vote_uses_the_last_round_with_votes(hold):
    answers = {(a, r): f"{a}{r}" for a in range(3) for r in range(3)}
    debate = hold(SILENT, ["A1>A2", "A0=A2", "A1>A0"], ["A2>A1", "A2>A0", ""], answers=answers)
    assert peer_vote(debate, 0) == "21"


def test_peer_vote_goes_by_votes_for_minus_against(hold):
    # Agent 0 has two votes for and two against; 3 and 4 have one for each.
    votes = ["", "A0>A2; A3>A0", "A0>A1; A4>A0", "", ""]
    debate = hold([""] * 5, votes, n=5, answers=said("b", "c", "d", "a", "a"))
    assert peer_vote(debate, 0) == "a"


def test_peer_vote_without_votes_draws_from_the_last_round(hold):
    debate = hold(SILENT, [None, "", None], answers=said("a", "b", "c"))
    assert peer_vote(debate, 0) == "b"


def test_central_is_the_last_answer_of_the_center(hold):
    answers = {(agent, r): f"{agent}{r}" for agent in range(3) for r in range(2)}
    assert central(hold(SILENT, SILENT, answers=answers, topology="central")) == "01"
    rules = {"topology": "central", "center": 2}
    assert central(hold(SILENT, SILENT, answers=answers, **rules)) == "21"
    # It did not speak in the last round; it failed there; it never spoke.
    assert central(hold(SILENT, {0: "", 1: ""}, answers=answers, **rules)) == "20"
    assert central(hold(SILENT, {2: None}, answers=answers, **rules)) is None
    assert central(hold({0: ""}, answers=answers, **rules)) is None


def test_central_refuses_other_topologies(hold):
    with pytest.raises(ValueError, match="found topology 'all', expected 'central'"):
        central(hold(SILENT))


def test_metrics_of_one_debate_by_hand(hold):
    answers = {**said("right", "wrong", "right"), (2, 1): "other"}
    debate = hold(SILENT, ["A1>A2", "A0=A2", None], answers=answers, answer="right", id="x")
    metrics = debate_metrics([debate])
    # Round 0: two of three right. Round 1: agent 0 right, agent 1 wrong, agent 2 failed.
    assert metrics["accuracy/round_0"] == pytest.approx(2 / 3)
    assert metrics["accuracy/round_1"] == metrics["correct"] == pytest.approx(1 / 3)
    assert metrics["avg@k"] == pytest.approx(1 / 3)
    assert metrics["pass@k"] == 1
    assert metrics["cons@k"] == 0
    assert metrics["maj@k"] == 0.5  # one right, one wrong: a level plurality
    assert metrics["format"] == pytest.approx(2 / 3)
    assert metrics["format_all"] == pytest.approx(5 / 6)
    assert metrics["diversity/round_0"] == pytest.approx(2 / 3)
    assert metrics["diversity/round_1"] == 1
    # Votes: 1>2 is wrong against right and errs; 0=2 is right against right.
    assert metrics["judge/accuracy"] == 0
    assert metrics["judge/strict_accuracy"] == 0
    assert metrics["judge/equal_share"] == 0.5
    assert metrics["comparisons_made"] == 1  # the failed judge owed nothing
    assert metrics["decision/peer_vote"] == 0
    # Vote values: 1: +1 (wrong), 2: 1 against, ½ for, ½ against -> -.5 (right), 0: 0 (right).
    # x = 1, -.5, 0 with mean 1/6; y = 0, 1, 1 with mean 2/3:
    # sum xy = -5/6*2/3... = (5/6)(-2/3) + (-2/3)(1/3) + (-1/6)(1/3) = -5/6.
    # spreads 7/6 and 2/3: -5/6 / sqrt(7/9).
    assert metrics["winner_truth_correlation"] == pytest.approx(-(5 / 6) / (7 / 9) ** 0.5)
    # Places 1, -1, 0 for agents 1, 2, 0; of the truth -1, and .5 for each of the two right ones.
    assert metrics["rank_truth_correlation"] == pytest.approx(-1.5 / (2 * 1.5) ** 0.5)
    assert (metrics["turns"], metrics["rounds"], metrics["failed_turns"]) == (6, 2, 1)


def test_metrics_count_why_answers_could_not_be_read(hold):
    def debate(*numbers):
        debate = hold([""] * 3, answers=said(*numbers), answer="5")
        meta = {**debate.question.meta, "kind": "number"}
        return replace(debate, question=replace(debate.question, meta=meta))

    metrics = debate_metrics([debate("5", "5 or 6", "none"), debate("5", "7 or 8", "5")])
    assert metrics["unread"] == pytest.approx(3 / 6)
    assert metrics["unread/several_numbers"] == pytest.approx(2 / 6)
    # Only one of the debates has this reason; the other has three answers more.
    assert metrics["unread/no_number"] == pytest.approx(1 / 6)


def test_metrics_judge_counts_a_tie_between_right_and_wrong_half(hold):
    answers = said("right", "wrong", "right")
    debate = hold(SILENT, ["A2>A1", "", "A0=A1"], answers=answers, answer="right")
    metrics = debate_metrics([debate])
    assert metrics["judge/accuracy"] == 0.75
    assert metrics["judge/strict_accuracy"] == 0.5


def test_metrics_cons_needs_more_than_half(hold):
    answers = said("r", "r", "w", "w")
    metrics = debate_metrics([hold([""] * 4, n=4, answers=answers, answer="r")])
    assert metrics["cons@k"] == 0
    assert metrics["maj@k"] == 0.5
    answers = said("r", "r", "r", "w")
    assert debate_metrics([hold([""] * 4, n=4, answers=answers, answer="r")])["cons@k"] == 1


def test_metrics_count_missing_turns_of_the_last_round_as_wrong(hold):
    debate = hold(SILENT, {0: None}, answers=said("r", "r", "r"), answer="r")
    metrics = debate_metrics([debate])
    assert metrics["avg@k"] == 0
    assert metrics["maj@k"] == 0
    assert metrics["accuracy/round_1"] == 0


def test_metrics_leave_out_questions_without_answers(hold):
    metrics = debate_metrics([hold(SILENT), hold(SILENT, answer="s0", id="e")])
    assert metrics["unverifiable"] == 0.5
    assert metrics["avg@k"] == pytest.approx(1 / 3)
    assert "avg@k" not in debate_metrics([hold(SILENT)])


def test_question_values_average_within_a_question(hold):
    # Two debates on question "d" by id, one on "e".
    debates = [
        hold(SILENT, answers=said("r", "w", "w"), answer="r"),
        hold(SILENT, answers=said("r", "r", "r"), answer="r"),
        hold(SILENT, answers=said("w", "w", "w"), answer="r", id="e"),
    ]
    values = question_values(debates)
    assert values["avg@k"] == {"d": pytest.approx(2 / 3), "e": 0}


def test_bootstrap_interval_covers_the_mean_and_repeats():
    values = [0.0] * 50 + [1.0] * 50
    mean, low, high = bootstrap_interval(values)
    # Standard error sqrt(.25/100) = .05: the interval is about .5 ± .098.
    assert mean == 0.5
    assert low == pytest.approx(0.402, abs=0.02)
    assert high == pytest.approx(0.598, abs=0.02)
    assert bootstrap_interval(values) == (mean, low, high)
    narrow = bootstrap_interval(values, level=0.5)
    assert low < narrow[1] < narrow[2] < high


def test_bootstrap_interval_of_equal_values_has_no_width():
    assert bootstrap_interval([0.25] * 8) == (0.25, 0.25, 0.25)


@pytest.mark.parametrize(("values", "level"), [([], 0.95), ([1.0], 1.0)])
def test_bootstrap_interval_refuses_nothing_and_impossible_levels(values, level):
    with pytest.raises(ValueError, match="expected"):
        bootstrap_interval(values, level=level)


def test_debate_of_an_unknown_kind_is_counted_and_the_others_are_measured(hold, caplog):
    good = hold(SILENT, answers=said("a", "b", "a", rounds=1), answer="a", id="good")
    bad = hold(SILENT, answers=said("a", "b", "a", rounds=1), answer="a", id="bad")
    bad = replace(bad, question=replace(bad.question, id="q2", meta={"kind": "word problem"}))
    alone = debate_metrics([good])
    both = debate_metrics([good, bad])
    assert both.pop("unmeasured") == 0.5
    assert "debate 'bad' is not measured: ValueError: " in caplog.text
    assert both == alone
    assert "unmeasured" not in alone
    assert question_values([good, bad])["unmeasured"] == {good.question.id: 0.0, "q2": 1.0}
    scores = Verifiable()([good, bad])
    assert scores[0].agents == (1.0, -1.0, 1.0)
    assert scores[1].agents == (None, None, None)


def test_accuracy_of_a_policy_is_that_of_the_last_round_in_which_it_owes_an_answer(hold):
    # Agent 2 of a frozen policy answers in round 0 alone: right, but what it says later is no
    # answer of its own. Agents 0 and 1: one of two is right at the end.
    debate = hold(
        SILENT, SILENT, answers={**said("6", "6", "6"), (0, 1): "7", (2, 1): "7"}, answer="6"
    )
    roles = (AgentRole("solver", 2), AgentRole("first", rounds=(0,), policy="frozen"))
    debate = replace(debate, protocol=replace(debate.protocol, roles=roles))
    found = debate_metrics([debate])
    assert (found["trained/correct"], found["role/first/correct"]) == (0.5, 1.0)
    adapted = tuple(replace(r, policy="trained", adapter=r.name) for r in roles)
    both = debate_metrics([replace(debate, protocol=replace(debate.protocol, roles=adapted))])
    assert (both["role/solver/correct"], both["role/first/correct"]) == (0.5, 1.0)
    alone = replace(debate.protocol, roles=tuple(replace(r, policy="trained") for r in roles))
    plain = debate_metrics([replace(debate, protocol=alone)])
    assert plain == {k: v for k, v in found.items() if not k.startswith(("trained/", "role/"))}


def test_pairs_that_a_judge_left_out_count_half(hold):
    # First answers: agent 1 is right, 0, 2 and 3 are wrong. In round 1 judge 0 names 1 over 2 and
    # leaves out (1, 3): 1 and 1/2. Judge 1 was shown wrong ones alone. Judge 2 says 0 over 1 and
    # 1 = 3: 0 and 1/2. Judge 3 failed: 1/2 for (0, 1) and 1/2 for (1, 2).
    answers = {**said("a", "g", "b", "c"), (3, 1): ""}
    lines = ["A1>A2; A2=A3", "A0>A2", "A0>A1; A1=A3", None]
    found = debate_metrics([hold([""] * 4, lines, n=4, answers=answers, answer="g")], 0)
    assert found["judge/owed_accuracy"] == pytest.approx((1 + 0.5 + 0 + 0.5 + 0.5 + 0.5) / 6)
    assert found["judge/accuracy"] == pytest.approx((1 + 0 + 0.5) / 3)
