import logging

import pytest

from debate_rewards import Mixed, TruthJudge

FIVE = [""] * 5
TRUE_S0 = {"answer": "s0"}


def judge(transcript, **options):
    (score,) = TruthJudge(**options)([transcript])
    return {(c.agent, c.round): c.value for c in score.credits if c.span is None}


def test_truth_judge_values_votes_on_a_right_and_a_wrong_turn(hold):
    # Agent 0 is right, 1 and 2 are wrong. Three agents: one judge a pair is enough here.
    debate = hold([""] * 3, ["A1>A2", "A2>A0", "A0>A1"], **TRUE_S0)
    (score,) = TruthJudge()([debate])
    second = [c for c in score.credits if c.round == 1]
    assert [(c.stream, c.value, c.expected) for c in second] == [
        ("judge", None, True),  # both wrong: the truth does not say which is better
        ("judge", -1.0, True),
        ("judge", 1.0, True),
    ]
    assert [c.expected for c in score.credits if c.round == 0] == [False] * 3
    assert score.agents == (None, -1.0, 1.0)
    assert score.metrics == {
        "truth_judge/unverifiable_gold": 0.0,
        "truth_judge/votes": 3.0,
        "truth_judge/votes_with_value": 2.0,
        "reward/judge/mean": 0.0,
    }


def test_truth_judge_ties_are_worth_a_guess_and_lower_the_mean(hold):
    # Agent 4: 0>1 (+1), 0=2 (0), 1=2 (both wrong, None), 3>0 (-1): mean of 1, 0, -1.
    # Agent 3: 0=1 (0), 0>2 (+1): 1/2.
    lines = ["", "", "", "A0=A1; A0>A2", "A0>A1; A0=A2; A1=A2; A3>A0"]
    values = judge(hold(FIVE, lines, n=5, **TRUE_S0))
    assert values[4, 1] == 0.0
    assert values[3, 1] == 0.5


def test_truth_judge_has_no_value_when_all_turns_are_right(hold):
    answers = {(a, 0): "s0" for a in range(3)}
    debate = hold([""] * 3, ["A1>A2", "A2=A0", "A0>A1"], answers=answers, **TRUE_S0)
    assert [judge(debate)[a, 1] for a in range(3)] == [None] * 3


def test_truth_judge_reads_the_turn_that_was_judged(hold):
    # Agent 0 is right in round 0 and wrong in round 1; the vote of round 1 is about round 0.
    debate = hold([""] * 3, ["", "A0>A2", ""], answers={(0, 1): "no"}, **TRUE_S0)
    assert judge(debate)[1, 1] == 1.0


def test_truth_judge_sequential_reads_the_latest_shown_turn(hold):
    # Agent 1 speaks after agent 0 in round 1, where agent 0 has become wrong.
    rounds = (["", "", ""], ["", "A0>A2", ""])
    debate = hold(*rounds, answers={(0, 1): "no", (2, 0): "s0"}, schedule="sequential", **TRUE_S0)
    assert judge(debate)[1, 1] == -1.0


def test_truth_judge_penalises_owed_comparisons_and_spares_failed_turns(hold):
    debate = hold([""] * 3, ["", None, "A0>A1"], **TRUE_S0)
    values = judge(debate)
    assert values[0, 1] == -0.5
    assert (1, 1) not in values  # what a failure costs is the generator's affair
    assert values[2, 1] == 1.0
    assert judge(debate, format_penalty=None)[0, 1] is None


def test_truth_judge_drops_contradictions_and_repeats_like_v2(hold):
    # Contradiction on (0,1), then 0>2 twice: one vote. Literally: +1 -1 +1 +1 over 4.
    debate = hold(FIVE, ["", "", "", "", "A0>A1; A1>A0; A0>A2; A2<A0"], n=5, **TRUE_S0)
    assert judge(debate)[4, 1] == 1.0
    assert judge(debate, duplicates="count")[4, 1] == 0.5


def test_truth_judge_line_credit_gives_each_line_its_value(hold):
    debate = hold(FIVE, ["", "", "", "", "A1>A0; A1>A2; A0>A2"], n=5, **TRUE_S0)
    (score,) = TruthJudge(judge_credit="line")([debate])
    # The end of the section is worth the penalty, as three pairs are left out.
    assert [c.value for c in score.credits if c.span] == [-1.0, None, 1.0, -0.5]


@pytest.mark.parametrize("answer", [None, ""])
def test_truth_judge_leaves_out_and_names_a_question_without_usable_answer(hold, answer, caplog):
    with caplog.at_level(logging.WARNING):
        (score,) = TruthJudge()([hold([""] * 3, ["", None, ""], id="row-9", answer=answer)])
    assert {(c.value, c.expected, c.penalty) for c in score.credits} == {(None, False, False)}
    assert score.metrics == {"truth_judge/unverifiable_gold": 1.0}
    assert "row-9" in caplog.text


def test_truth_judge_is_the_judge_stream_beside_the_votes_of_v2(hold):
    config = {
        "components": {
            "peers": {"reward": {"type": "v2", "consensus": "none"}, "weight": 1.0},
            "judge": {"reward": {"type": "truth_judge"}, "weight": 0.5},
        }
    }
    mixed = Mixed.model_validate(config)
    assert mixed.streams == ("generator", "judge")
    (score,) = mixed([hold([""] * 3, ["A1>A2", "A2>A0", "A0>A1"], **TRUE_S0)])
    by_stream = {
        stream: [(c.component, c.value) for c in score.credits if c.stream == stream]
        for stream in ("generator", "judge")
    }
    # A cycle: each agent wins one vote and loses one.
    assert by_stream["generator"] == [("peers", 0.0)] * 3 + [("peers", None)] * 3
    assert by_stream["judge"] == [("judge", None)] * 4 + [("judge", -1.0), ("judge", 1.0)]
