"""Votes at the edges: many agents, other contracts and schedules, aborts, repeats, penalties."""

import pytest

from debate_protocol.transcripts.files import from_json
from debate_protocol.types import Protocol
from debate_rewards import V2, RewardContext, WinMinusLoss, WinRate
from debate_rewards.reward import read_debate
from debate_rewards.votes import all_votes, ballots

SEVEN = [""] * 7


def values(score, stream):
    return {
        (c.agent, c.round): c.value for c in score.credits if c.stream == stream and c.span is None
    }


def test_v2_seven_agents_have_five_judges_a_pair(hold):
    # Pair (0,1): 0>1 by 2, 3, 4; 1>0 by 5; = by 6.
    # Agent 0: for 3 + ½ of 5 -> 2·3.5/5 - 1 = 0.4; agent 1 the opposite.
    (score,) = V2()(
        [hold(SEVEN, ["", "", "A0>A1", "A0>A1", "A0>A1", "A1>A0", "A0=A1"], n=7, max_rounds=2)]
    )
    generator, judge = values(score, "generator"), values(score, "judge")
    assert generator[0, 0] == pytest.approx(0.4)
    assert generator[1, 0] == pytest.approx(-0.4)
    # Leave-one-out: of 2: others lead 2 to 1 -> +1; of 5: 3 to 0 against -> -1; 6 said =.
    assert [judge[a, 1] for a in range(2, 7)] == [1.0, 1.0, 1.0, -1.0, None]
    assert score.metrics["v2/judges_per_pair"] == 5
    assert score.metrics["v2/comparison_pairs_tie"] == 0
    assert score.metrics["v2/self_consensus_fraction"] == 0
    # 7 agents owe 15 pairs each; 0 and 1 made none, the others one each.
    assert score.metrics["v2/comparisons_made"] == pytest.approx(5 / 105)
    assert judge[0, 1] == -0.5


def test_v2_leave_one_out_takes_out_all_lines_of_a_judge_when_repeats_count(hold):
    # Pair (0,1), literally: 2 says 0>1 three times, 3 says 1>0, 4 says 1>0.
    debate = hold([""] * 5, ["", "", "A0>A1; A0>A1; A1<A0", "A1>A0", "A1>A0"], n=5)
    (score,) = V2(duplicates="count")([debate])
    judge = values(score, "judge")
    # 2: the others are 0 to 2 -> -1 on each line. 3: 3 to 1 for 0 -> -1. So 4.
    assert [judge[a, 1] for a in (2, 3, 4)] == [-1.0, -1.0, -1.0]
    # Inclusive: 3 to 2 for agent 0.
    (score,) = V2(duplicates="count", consensus="inclusive")([debate])
    assert [values(score, "judge")[a, 1] for a in (2, 3, 4)] == [1.0, -1.0, -1.0]
    # Agent 0: 3 for, 2 against -> 2·3/5 - 1.
    assert values(score, "generator")[0, 0] == pytest.approx(0.2)


def test_v2_turn_that_only_contradicts_itself_has_made_no_comparison(hold):
    (score,) = V2()([hold([""] * 3, ["A1>A2; A2>A1", "A0=A2", "A0>A1"])])
    assert values(score, "judge")[0, 1] == -0.5
    assert score.metrics["v2/contradictory_dropped"] == 1
    assert score.metrics["v2/missing_comparisons"] == 1


def test_v2_penalties_stand_beside_unvoted_turns(hold):
    # Five agents: 0 fails in round 0, 1 owes and makes nothing in round 1, nobody votes on 2.
    debate = hold([None, "", "", "", ""], ["A1>A3", "", "A1=A3", "A1>A4", "A1>A3"], n=5)
    (score,) = V2()([debate])
    generator = {(c.agent, c.round): c for c in score.credits if c.stream == "generator"}
    # 1: for 3 + ½ of 4 -> ¾; 3: ½ of 3 -> -2/3; 4: -1.
    assert [generator[a, 0].value for a in range(5)] == pytest.approx(
        [-1.0, 0.75, None, -2 / 3, -1.0]
    )
    assert [generator[a, 0].penalty for a in range(5)] == [True, False, False, False, False]
    assert generator[2, 0].expected  # so that it joins the baseline of a group with a penalty
    judge = {(c.agent, c.round): c for c in score.credits if c.stream == "judge"}
    assert (0, 0) not in judge
    # 0 and 4 judge (1,3) with each other, 2's = says nothing; 3 is alone on (1,4).
    assert [judge[a, 1].value for a in range(5)] == [1.0, -0.5, None, None, 1.0]
    assert [judge[a, 1].penalty for a in range(5)] == [False, True, False, False, False]


def test_v2_without_judge_stream_keeps_the_votes_for_the_generator(hold):
    debate = hold([""] * 3, ["A1>A2", "", "A0>A1"])
    (score,) = V2(consensus="none")([debate])
    assert {c.stream for c in score.credits} == {"generator"}
    assert values(score, "generator") == values(V2()([debate])[0], "generator")
    assert "reward/judge/mean" not in score.metrics
    assert score.metrics["v2/missing_comparisons"] == 1
    assert V2(consensus="none").streams == ("generator",)
    notes = V2(consensus="none").notes(RewardContext(Protocol(3)))
    assert all(note.kind != "few_judges" for note in notes)


def test_v2_history_of_one_round_judges_that_round_only(hold):
    # Agent 1 fails in round 1. With all rounds its older turn still makes a pair owed and the
    # line about its failed turn excuses; with one round only agent 0's or 2's turn is shown.
    rounds = ([""] * 3, ["A1>A2", None, "A0>A1"], ["A1>A2", "A0>A2", ""])
    (everything,) = V2()([hold(*rounds, max_rounds=3)])
    (last,) = V2()([hold(*rounds, max_rounds=3, history_rounds=1)])
    assert values(everything, "judge")[2, 2] == -0.5
    assert values(last, "judge")[2, 2] is None
    assert last.metrics["v2/failed_dropped"] == everything.metrics["v2/failed_dropped"] == 1


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_five_sections_are_voted_on_under_both_schedules(schedule):
    def text(vote: str) -> str:
        return (
            f"<solution>s</solution><evaluation>e</evaluation><comparison>{vote}</comparison>"
            "<consensus>NO</consensus><consensus_reason>r</consensus_reason>"
        )

    votes = {(2, 0): "Agent 0 > Agent 1", (0, 1): "Agent 2 > Agent 1"}
    turns = [
        {"agent": a, "round": r, "text": text(votes.get((a, r), "N/A"))}
        for r in range(2)
        for a in range(3)
    ]
    protocol = {"num_agents": 3, "schedule": schedule, "contract": "five_section"}
    debate = from_json({"question": {"text": "?"}, "protocol": protocol, "turns": turns})
    (score,) = V2(format_penalty=None)([debate])
    own = values(score, "generator")
    # Sequential: 2 saw 0 and 1 in round 0. Parallel: it saw nobody, and its line is unseen.
    assert score.metrics["v2/unseen_dropped"] == (schedule == "parallel")
    assert own[0, 0] == (1.0 if schedule == "sequential" else None)
    assert own[1, 0] == -1.0
    assert own[2, 0] == 1.0
    # Win rate counts both lines under either schedule: 0 won its vote, 1 lost two, 2 won one.
    assert WinRate()([debate])[0].agents == (1.0, 0.0, 1.0)


def test_pairwise_missing_turn_after_an_abort_leaves_its_agents_return(hold):
    # Agent 1 fails in round 1 and ends the debate: agent 2 has no second turn.
    debate = hold(["", "", "A0>A1"], {0: "A2>A1", 1: None}, schedule="sequential", max_rounds=2)
    (score,) = WinRate()([debate])
    # 0: 1 of 1. 1: 0 of 2, minus 1 for the failure. 2: 1 of 1.
    assert score.agents == (1.0, -1.0, 1.0)
    assert [(c.agent, c.round) for c in score.credits] == [(0, 0), (1, 0), (2, 0), (0, 1), (1, 1)]
    assert WinMinusLoss()([debate])[0].agents == (1.0, -2.0, 1.0)


def test_pairwise_agent_that_never_spoke_still_has_a_return(hold):
    debate = hold({0: "A1>A2", 1: None}, schedule="sequential", max_rounds=1)
    (score,) = WinRate()([debate])
    assert score.agents == (0.0, 0.0, 0.0)  # 1 - 1 for agent 1; agent 2 lost a vote unseen
    assert {c.agent for c in score.credits} == {0, 1}


def test_pairwise_contradictory_lines_count_literally_only(hold):
    debate = hold([""] * 3, ["A1>A2; A2>A1; A1=A2", "", ""])
    (score,) = WinRate()([debate])
    assert score.agents == (0.0, 0.0, 0.0)
    assert score.metrics["pairwise_contradictory"] == 1
    assert score.metrics["pairwise_any_votes"] == 0
    # Literally: 1½ of 3 for each.
    assert WinRate(duplicates="count")([debate])[0].agents == (0.0, 0.5, 0.5)
    assert WinMinusLoss(duplicates="count")([debate])[0].agents == (0.0, 0.0, 0.0)


def test_pairwise_seven_agents_sequential(hold):
    # Pair (0,1) by 2 to 6: three for 0, one for 1, one tie.
    lines = ["", "", "A0>A1", "A0>A1", "A0>A1", "A1>A0", "A0=A1"]
    debate = hold(lines, n=7, schedule="sequential", max_rounds=1)
    # W/V = 3½/5 and 1½/5; S/M = (3 - 1)/5 and its opposite.
    assert WinRate()([debate])[0].agents == pytest.approx((0.7, 0.3, 0, 0, 0, 0, 0))
    assert WinMinusLoss()([debate])[0].agents == pytest.approx((0.4, -0.4, 0, 0, 0, 0, 0))


@pytest.mark.parametrize("reward", [V2(), WinRate(), WinMinusLoss()])
def test_rewards_take_a_debate_in_which_nobody_spoke(reward):
    debate = from_json({"question": {"text": "?"}, "protocol": {"num_agents": 3}, "turns": []})
    (score,) = reward([debate])
    assert score.credits == ()
    assert len(score.agents) == 3


def test_rewards_survive_hostile_text(hold):
    text = "<comparison>" + "Agent 0 > Agent 1\n" * 2000 + "\ud800 Agent 1 > Agent " + "9" * 5000
    turns = [{"agent": a, "round": r, "text": text} for r in range(2) for a in range(3)]
    turns[0]["text"] = "<solution>\ud800</solution>"
    turns[1]["text"] = "<solution>\x00</solution><evaluation>Agent 1 agent \ud800</evaluation>"
    protocol = {"num_agents": 3}
    debate = from_json({"question": {"text": "?"}, "protocol": protocol, "turns": turns})
    for reward in (V2(judge_credit="segment"), WinRate(duplicates="count")):
        assert len(reward([debate])[0].agents) == 3


@pytest.mark.parametrize(("shown", "winner"), [([2, 0], 2), ([0, 2], 0)])
def test_votes_on_a_pair_number_its_turns_in_the_order_in_which_they_were_shown(shown, winner):
    said = "<solution>1</solution>\n<evaluation>N/A</evaluation>\n<comparison>N/A</comparison>"
    judged = said.replace("<comparison>N/A", "<comparison>Agent 0 > Agent 1")
    turns = [{"agent": agent, "round": 0, "text": said} for agent in range(3)]
    pair = [[agent, 0] for agent in shown]
    turns.append({"agent": 3, "round": 1, "text": judged, "shown": pair})
    rules = {"num_agents": 4, "max_rounds": 2, "topology": "pair", "history_rounds": 1}
    debate = read_debate(
        from_json(
            {
                "schema": "debate-transcript/1",
                "question": {"text": "?", "answer": "1"},
                "protocol": {**rules, "contract": "three_section", "first_turns": 3},
                "turns": turns,
            }
        )
    )
    (vote,) = all_votes(ballots(debate))
    assert ((vote.left if vote.verdict == ">" else vote.right).agent, vote.verdict) == (winner, ">")
