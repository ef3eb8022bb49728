import pytest

from debate_protocol.types import Transcript
from debate_rewards import RewardContext
from debate_rewards.rewards import V2

SILENT = ["", "", ""]


def generator(transcript: Transcript, **options) -> dict[tuple[int, int], float | None]:
    (score,) = V2(**options)([transcript])
    return {(c.agent, c.round): c.value for c in score.credits if c.stream == "generator"}


def test_v2_books_votes_on_the_turns_that_the_judge_was_shown(hold):
    # Round 1 judges round 0. Agent 1: 1>2 by 0, 1>0 by 2: 2 for, 0 against -> 2*2/2-1 = 1.
    # Agent 0: ½ for, ½ against (0=2 by 1), 1 against (by 2): ½ of 2 -> 2*0.25-1 = -0.5.
    # Agent 2: 1 against (by 0), ½ and ½ (by 1): the same, -0.5.
    values = generator(hold(SILENT, ["A1>A2", "A0=A2", "A1>A0"]))
    assert values == {
        (0, 0): -0.5,
        (1, 0): 1.0,
        (2, 0): -0.5,
        (0, 1): None,
        (1, 1): None,
        (2, 1): None,
    }


@pytest.mark.parametrize(("unvoted", "value"), [("mask", None), ("zero", 0.0), ("literal", -1.0)])
def test_v2_unvoted_turn_gets_the_chosen_value_when_nobody_votes(hold, unvoted, value):
    (score,) = V2(unvoted=unvoted, format_penalty=None)([hold(SILENT, SILENT)])
    own = [c for c in score.credits if c.stream == "generator"]
    assert [c.value for c in own] == [value] * 6
    assert all(c.expected and not c.penalty for c in own)
    assert score.agents == (value,) * 3


def test_v2_ties_are_half_a_vote_each_when_all_tie(hold):
    debate = hold(SILENT, ["A1=A2", "A0=A2", "A0=A1"])
    # Two ties each: 1 for, 1 against -> 0.
    assert [generator(debate)[a, 0] for a in range(3)] == [0.0, 0.0, 0.0]
    assert [generator(debate, ties="ignore")[a, 0] for a in range(3)] == [None, None, None]


def test_v2_ties_ignored_leave_only_strict_votes(hold):
    # Agent 2: one loss (to 1), a tie that is ignored -> -1; agent 0: one loss -> -1.
    values = generator(hold(SILENT, ["A1>A2", "A0=A2", "A1>A0"]), ties="ignore")
    assert [values[a, 0] for a in range(3)] == [-1.0, 1.0, -1.0]


def test_v2_duplicate_lines_count_once_by_default(hold):
    # Agent 0 says 1>2 twice, agent 1 says 2>0. one: agent 2 has 1 for, 1 against -> 0.
    # count: 1 for, 2 against -> 2/3 - 1 = -1/3.
    debate = hold(SILENT, ["A1>A2; A2 < A1", "A2>A0", ""])
    assert generator(debate)[2, 0] == 0.0
    assert generator(debate, duplicates="count")[2, 0] == pytest.approx(-1 / 3)


def test_v2_contradictory_pair_is_dropped_and_counted(hold):
    debate = hold(SILENT, ["A1>A2; A2>A1", "A0>A2", "A0>A1; A1=A0"])
    (score,) = V2()([debate])
    values = {(c.agent, c.round): c.value for c in score.credits if c.stream == "generator"}
    # Only 0>2 by agent 1 is left.
    assert [values[a, 0] for a in range(3)] == [1.0, None, -1.0]
    assert score.metrics["v2/contradictory_dropped"] == 2
    assert score.metrics["v2/total_votes"] == 1
    # count keeps all five lines: agent 1 has 1 for 1 against, and 0>1 and the tie against 0:
    # for 1 + ½, against 1 + 1 + ½ -> 2*1.5/4 - 1 = -0.25.
    assert generator(debate, duplicates="count")[1, 0] == -0.25


def test_v2_self_out_of_range_and_unseen_comparisons_give_nothing(hold):
    # Round 0 of a parallel debate is shown nobody: its line about 1 and 2 is unseen.
    debate = hold(["A1>A2", "", ""], ["A0>A1; A1>A7; A1>A1; nonsense", "A2>A0", ""])
    (score,) = V2()([debate])
    assert score.metrics["v2/unseen_dropped"] == 1
    assert score.metrics["v2/self_comparisons_dropped"] == 1
    assert score.metrics["v2/comparison_lines_malformed"] == 2
    assert score.metrics["v2/comparison_lines_invalid"] == 1
    assert score.metrics["v2/comparison_lines_total"] == 6
    assert score.metrics["v2/total_votes"] == 1
    assert score.metrics["v2/votes_per_step"] == pytest.approx(1 / 6)
    assert score.agents == (-1.0, None, 1.0)


def test_v2_sequential_votes_go_to_the_latest_shown_turn(hold):
    debate = hold(["", "", "A0>A1"], ["A1>A2", "A0>A2", ""], schedule="sequential", max_rounds=2)
    # Agent 2, round 0: 0>1 about (0,0), (1,0). Agent 0, round 1: 1>2 about (1,0), (2,0).
    # Agent 1, round 1: 0>2 about (0,1), (2,0).
    assert generator(debate) == {
        (0, 0): 1.0,  # 1 for
        (1, 0): 0.0,  # 1 against, 1 for
        (2, 0): -1.0,  # 2 against
        (0, 1): 1.0,
        (1, 1): None,
        (2, 1): None,
    }


def test_v2_two_agents_never_owe_comparisons(hold):
    (score,) = V2()([hold(["", ""], ["", "A0>A1"], n=2)])
    assert score.metrics["v2/missing_comparisons"] == 0
    assert "v2/comparisons_made" not in score.metrics
    assert all(c.value is None for c in score.credits)
    assert not any(c.expected for c in score.credits if c.stream == "judge")


def test_v2_five_agents_share_the_votes_of_all_judges(hold):
    # All four others compare agent 0 with one other: 0 wins 3 and loses 1 -> 2*3/4-1 = 0.5.
    round_1 = ["", "A0>A2", "A0>A1", "A0>A1", "A3>A0"]
    values = generator(hold([""] * 5, round_1, n=5))
    assert values[0, 0] == 0.5
    assert values[1, 0] == -1.0
    assert values[3, 0] == 1.0
    assert values[4, 0] is None


def test_v2_failed_turn_carries_minus_one_and_nothing_else(hold):
    (score,) = V2()([hold([None, "", ""], ["A1>A2", "A0>A2", "A0>A1"], on_failure="continue")])
    own = [c for c in score.credits if (c.agent, c.round) == (0, 0)]
    assert [(c.stream, c.value, c.penalty) for c in own] == [("generator", -1.0, True)]
    # Lines about the failed turn are dropped: 0>2 and 0>1. Only 1>2 counts.
    assert score.metrics["v2/failed_dropped"] == 2
    assert score.agents == (-1.0, 1.0, -1.0)
    # Agents 1 and 2 were shown one valid turn only and owed nothing.
    assert score.metrics["v2/missing_comparisons"] == 0


def test_v2_failed_turn_casts_no_votes(hold):
    debate = hold(SILENT, ["A1>A2", "", ""])
    broken = debate.turns[3].text.replace("solution>", "solved>")
    turns = [{"agent": t.agent, "round": t.round, "text": t.text} for t in debate.turns]
    turns[3]["text"] = broken
    from debate_protocol.transcripts.files import from_json

    data = {"question": {"text": "?"}, "protocol": {"num_agents": 3}, "turns": turns}
    (score,) = V2()([from_json(data)])
    assert score.metrics["v2/total_votes"] == 0


def test_v2_aborted_debate_scores_what_was_said(hold):
    debate = hold(["", "", "A0>A1"], {0: "A1>A2", 1: None}, schedule="sequential", max_rounds=2)
    (score,) = V2()([debate])
    assert {(c.agent, c.round): c.value for c in score.credits if c.stream == "generator"} == {
        (0, 0): 1.0,
        (1, 0): 0.0,
        (2, 0): -1.0,
        (0, 1): None,
        (1, 1): -1.0,
    }
    # Agent 1: mean of 0 and -1.
    assert score.agents == (1.0, -0.5, -1.0)


def test_v2_agent_without_a_turn_has_no_return(hold):
    (score,) = V2()([hold({0: "", 1: None}, schedule="sequential", max_rounds=2)])
    assert score.agents == (None, -1.0, None)


def test_v2_without_comparison_section_expects_none(hold):
    data = hold(SILENT, SILENT, contract="boxed")
    (score,) = V2()([data])
    assert score.metrics["v2/missing_comparisons"] == 0


def test_votes_of_one_role_alone_value_turns(hold) -> None:
    # Agents 0, 1 and 2 debate and agent 3 judges: it prefers 1 to 0, the debaters 0 to 1.
    lines = ["A1=A2", "A0=A2", "A0>A1", "A0<A1"]
    roles = [{"name": "debater", "count": 3}, {"name": "judge", "count": 1}]
    debate = hold([""] * 4, lines, n=4, roles=roles)

    def valued(reward: V2) -> dict[int, float | None]:
        (score,) = reward([debate])
        found = [c for c in score.credits if c.stream == "generator" and c.round == 0]
        return {c.agent: c.value for c in found}

    assert valued(V2(votes_of="judge")) == {0: -1.0, 1: 1.0, 2: None, 3: None}
    # All: agent 0 wins one of three, with a tie against 2: (1 + 1/2 - 1 - 1/2) / 3 = 0.
    assert valued(V2()) == {0: 0.0, 1: 0.0, 2: 0.0, 3: None}
    context = RewardContext(debate.protocol)
    assert all(note.stream != "generator" for note in V2(votes_of="judge").notes(context))
    (note,) = [n for n in V2(votes_of="juge").notes(context) if n.stream == "generator"]
    assert note.kind == "no_signal" and "did you mean 'judge'" in note.text
