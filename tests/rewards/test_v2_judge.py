import pytest

from debate_protocol.types import Protocol, Transcript
from debate_rewards import RewardContext
from debate_rewards.rewards import V2
from debate_rewards.vote_rewards import WinRate

FIVE = [""] * 5


def few_judges(agents: int, weight: float, **settings) -> str | None:
    notes = V2(**settings).notes(RewardContext(Protocol(agents), judge_weight=weight))
    return next((note.text for note in notes if note.kind == "few_judges"), None)


def judge(transcript: Transcript, **options) -> dict[tuple[int, int], float | None]:
    (score,) = V2(**options)([transcript])
    return {
        (c.agent, c.round): c.value for c in score.credits if c.stream == "judge" and c.span is None
    }


def test_v2_judge_inclusive_at_three_agents_agrees_with_itself(hold):
    debate = hold([""] * 3, ["A1>A2", "A2>A0", "A0=A1"])
    values = judge(debate, consensus="inclusive")
    # Each pair has one judge, whose vote is the consensus; a tie has no strict consensus.
    assert [values[a, 1] for a in range(3)] == [1.0, 1.0, None]
    (score,) = V2()([debate])
    assert score.metrics["v2/judges_per_pair"] == 1.0
    assert score.metrics["v2/self_consensus_fraction"] == 1.0
    assert score.metrics["v2/comparison_pairs_tie"] == 1.0


def test_v2_judge_leave_one_out_has_no_value_when_nobody_is_left(hold):
    debate = hold([""] * 3, ["A1>A2", "A2>A0", "A0=A1"])
    (score,) = V2()([debate])
    credits = [c for c in score.credits if c.stream == "judge" and c.round == 1]
    assert [c.value for c in credits] == [None] * 3
    assert all(c.expected and not c.penalty for c in credits)
    assert "reward/judge/mean" not in score.metrics


def test_v2_judge_expects_nothing_of_the_first_round(hold):
    (score,) = V2()([hold([""] * 3, ["A1>A2", "A2>A0", "A0=A1"])])
    first = [c for c in score.credits if c.stream == "judge" and c.round == 0]
    assert [(c.value, c.expected) for c in first] == [(None, False)] * 3


def test_v2_judge_consensus_of_three_judges_on_a_pair(hold):
    # Pair (0,1) is judged by 2, 3 and 4: two say 0>1, one says 1>0.
    debate = hold(FIVE, ["", "", "A0>A1", "A0>A1", "A1>A0"], n=5)
    assert [judge(debate, consensus="inclusive")[a, 1] for a in (2, 3, 4)] == [1.0, 1.0, -1.0]
    # Leave-one-out: 2 sees one each way (level, no value), 4 sees two against it.
    assert [judge(debate)[a, 1] for a in (2, 3, 4)] == [None, None, -1.0]


def test_v2_judge_mean_over_valued_lines_only(hold):
    # Agent 4: 0>1 with 2's and 3's votes (+1); 0>2 against 1's and 3's (-1); 0>3 alone (None).
    # Mean of +1 and -1 is 0; a tie of agent 3 about (1, 2) is never valued.
    debate = hold(FIVE, ["", "A2>A0", "A0>A1", "A0>A1; A2>A0; A1=A2", "A0>A1; A0>A2; A0>A3"], n=5)
    values = judge(debate)
    assert values[4, 1] == 0.0
    # Agent 3: 0>1 with 2 and 4 (+1); 2>0 beside 1's 2>0 and 4's 0>2 (level: None).
    assert values[3, 1] == 1.0


def test_v2_judge_ties_of_others_do_not_outvote_a_strict_vote(hold):
    # Of 2, 3, 4 on (0,1): one 0>1 and two ties. More say > than <, so the consensus is strict.
    debate = hold(FIVE, ["", "", "A0>A1", "A0=A1", "A0=A1"], n=5)
    assert judge(debate, consensus="inclusive")[2, 1] == 1.0
    assert judge(debate, consensus="inclusive")[3, 1] is None
    assert judge(debate)[2, 1] is None


def test_v2_format_penalty_where_comparisons_were_owed(hold):
    (score,) = V2()([hold([""] * 3, ["A1>A2", "", "gibberish"])])
    second = [c for c in score.credits if c.stream == "judge" and c.round == 1]
    assert [(c.value, c.penalty, c.expected) for c in second] == [
        (None, False, True),
        (-0.5, True, True),
        (-0.5, True, True),
    ]
    assert score.metrics["v2/missing_comparisons"] == 2
    assert score.metrics["v2/comparisons_made"] == pytest.approx(1 / 3)
    assert score.metrics["reward/judge/mean"] == -0.5


def test_v2_format_penalty_beside_unvoted_turns_marks_who_joins_the_baseline(hold):
    # Penalised: agent 1. The others voted alone on their pair: None, but expected.
    (score,) = V2()([hold([""] * 3, ["A1>A2", "", "A0>A1"])])
    second = {c.agent: c for c in score.credits if c.stream == "judge" and c.round == 1}
    assert second[1].penalty
    assert all(second[a].value is None and second[a].expected for a in (0, 2))
    unvoted = [c for c in score.credits if c.stream == "generator" and c.round == 1]
    assert all(c.value is None and c.expected for c in unvoted)


def test_v2_format_penalty_for_lines_about_unseen_or_own_turns_only(hold):
    debate = hold([""] * 3, ["A0>A1", "A1>A1", "A2=A0"])
    assert [judge(debate)[a, 1] for a in range(3)] == [-0.5] * 3


def test_v2_format_penalty_spares_lines_that_were_dropped_for_a_failed_turn(hold):
    # Agent 0 is shown valid turns of both others in round 0, but 1's latest turn failed.
    debate = hold([""] * 3, ["A1>A2", None, "A0>A1"], ["A1>A2", "A0>A2", "A0>A1"], max_rounds=3)
    values = judge(debate)
    assert values[0, 2] is None
    assert values[2, 2] is None
    (score,) = V2()([debate])
    assert score.metrics["v2/failed_dropped"] == 2


def test_v2_format_penalty_can_be_turned_off(hold):
    assert judge(hold([""] * 3, [""] * 3), format_penalty=None)[0, 1] is None


def test_v2_line_credit_gives_each_line_its_own_value(hold):
    debate = hold(FIVE, ["", "", "A0>A1", "A0>A1", "A1>A0; A2=A3"], n=5)
    (score,) = V2(judge_credit="line", consensus="inclusive")([debate])
    text = debate.turns[9].text
    placed = {
        text[slice(*c.span)]: c.value
        for c in score.credits
        if c.agent == 4 and c.round == 1 and c.span
    }
    end = "\n</comparison>"  # It leaves out four pairs.
    assert placed == {"Agent 1>Agent 0": -1.0, "Agent 2=Agent 3": None, end: -0.5}
    assert judge(debate, consensus="inclusive")[4, 1] == -1.0


def test_v2_segment_credit_gives_parts_of_the_evaluation_the_mean_of_lines_naming_the_agent(hold):
    about = "All try. Agent 0 is neat, so agent 0 wins. Agent 1 slips. Agent 3 too."
    # Agent 4: 1>0 against 2's and 3's 0>1 (-1), 2>0 with 1's 2>0 (+1), 3=1 (None).
    # Part about 0: mean(-1, 1) = 0. Part about 1: -1. Part about 3: only a tie, None.
    debate = hold(
        FIVE, ["", "A2>A0", "A0>A1", "A0>A1", "A1>A0; A2>A0; A1=A3"], n=5, evaluation=about
    )
    (score,) = V2(judge_credit="segment")([debate])
    text = debate.turns[9].text
    placed = {
        text[slice(*c.span)].strip(): c.value
        for c in score.credits
        if c.agent == 4 and c.round == 1 and c.span
    }
    assert placed == {
        "Agent 0 is neat, so agent 0 wins.": 0.0,
        "Agent 1 slips.": -1.0,
        "Agent 3 too.": None,
        "Agent 1>Agent 0": -1.0,
        "Agent 2>Agent 0": 1.0,
        "Agent 1=Agent 3": None,
        "</comparison>": -0.5,
    }


def test_v2_segment_credit_without_names_in_the_evaluation_credits_lines_only(hold):
    debate = hold(FIVE, ["", "", "A0>A1", "A0>A1", "A1>A0"], n=5, evaluation="All are fine.")
    (score,) = V2(judge_credit="segment")([debate])
    spans = [c for c in score.credits if c.agent == 4 and c.span]
    assert [c.value for c in spans] == [-1.0, -0.5]


def test_v2_peer_prediction_pays_agreement_beyond_the_other_questions(hold):
    # Pair (0,1). Question a: judges 2 and 3 say >, 4 says =. Question b: 2 says <, 3 and 4 say >.
    a = hold(FIVE, ["", "", "A0>A1", "A0>A1", "A0=A1"], n=5, id="a")
    b = hold(FIVE, ["", "", "A1>A0", "A0>A1", "A0>A1"], n=5, id="b")
    scores = V2(consensus="peer_prediction")([a, b])
    values = [
        {c.agent: c.value for c in s.credits if c.stream == "judge" and c.round == 1}
        for s in scores
    ]
    # In a: others of 2 are {>, =}: ½ with it, minus frequency of > in b, 2/3 -> -1/6.
    assert values[0][2] == pytest.approx(1 / 2 - 2 / 3)
    # 4 said = alone: 0 - 0 (no = in b).
    assert values[0][4] == 0.0
    # In b: 2 said < alone: 0 - 0 (no < in a). 3: others {<, >}: ½ - 2/3.
    assert values[1][2] == 0.0
    assert values[1][3] == pytest.approx(1 / 2 - 2 / 3)
    assert all(c.centred for s in scores for c in s.credits if c.stream == "judge")
    assert not any(c.centred for s in scores for c in s.credits if c.stream == "generator")


def test_v2_peer_prediction_pays_nothing_for_one_habit_everywhere(hold):
    lines = ["A1=A2", "A0=A2", "A0=A1", "A0=A1", "A0=A1"]
    batch = [hold(FIVE, lines, n=5, id=str(i)) for i in range(3)]
    for score in V2(consensus="peer_prediction")(batch):
        assert {c.value for c in score.credits if c.stream == "judge"} <= {None, 0.0}


def test_v2_peer_prediction_has_no_signal_for_a_single_question(hold):
    lines = ["", "", "A0>A1", "A0>A1", "A0>A1"]
    twice = [hold(FIVE, lines, n=5, id="a"), hold(FIVE, lines, n=5, id="a")]
    for score in V2(consensus="peer_prediction")(twice):
        valued = [c for c in score.credits if c.stream == "judge" and c.value is not None]
        assert all(c.penalty for c in valued)


def test_v2_warns_of_a_judge_stream_with_few_agents():
    assert "value +1" in (few_judges(3, 1.0, consensus="inclusive") or "")
    assert few_judges(3, 0.5) is not None
    assert few_judges(4, 0.5) is not None
    assert few_judges(5, 1.0) is None
    assert few_judges(3, 0.0) is None


def test_votes_count_of_a_judge_that_owes_no_answer(hold):
    roles = [{"name": "debater", "count": 2}, {"name": "judge", "answers": False}]
    debate = hold({0: "", 1: ""}, {2: "A0>A1"}, roles=roles)
    (score,) = V2()([debate])
    generator = {(c.agent, c.round): c.value for c in score.credits if c.stream == "generator"}
    assert generator == {(0, 0): 1.0, (1, 0): -1.0}  # the judge has no answer to be voted about
    assert score.metrics["v2/total_votes"] == 1.0
    # Without the others' votes on the pair there is no consensus to agree with.
    assert judge(debate) == {(0, 0): None, (1, 0): None, (2, 1): None}
    assert judge(debate, consensus="inclusive")[2, 1] == 1.0
    (returns,) = WinRate()([debate])
    assert {(c.agent, c.value) for c in returns.credits} == {(0, 1.0), (1, 0.0)}
