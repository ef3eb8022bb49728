"""Ballots: which lines are votes, and on which turns."""

from typing import Any

import pytest
from tests.rewards.debates import debate_of, judged_debate, numbers, score_of, turn_text

from debate_protocol.transcripts.files import from_json
from debate_rewards import V2, BradleyTerry, WinMinusLoss, WinRate
from debate_rewards.reward import read_debate
from debate_rewards.votes import Share, all_votes, ballots


def test_a_share_is_balanced_between_all_for_and_all_against() -> None:
    assert [Share(up, 4 - up).balance for up in range(5)] == numbers("-1 -0.5 0 0.5 1")


@pytest.mark.parametrize(("shown", "winner"), [([2, 0], 2), ([0, 2], 0)])
def test_a_pair_is_numbered_in_the_order_in_which_its_turns_were_shown(
    shown: list[int], winner: int
) -> None:
    turns: list[dict[str, Any]] = []
    for agent in range(3):
        turns.append({"agent": agent, "round": 0, "text": turn_text("1")})
    pair = [[agent, 0] for agent in shown]
    turns.append({"agent": 3, "round": 1, "text": turn_text("1", "A0>A1"), "shown": pair})
    rules = {"num_agents": 4, "max_rounds": 2, "topology": "pair", "first_turns": 3}
    data = {"question": {"text": "?", "answer": "1"}, "protocol": rules, "turns": turns}
    (vote,) = all_votes(ballots(read_debate(from_json(data))))
    preferred = vote.left if vote.verdict == ">" else vote.right
    assert (preferred.agent, vote.verdict) == (winner, ">")


def test_ballots_list_the_lines_that_do_not_count_by_their_reason() -> None:
    rounds = ("| | fail |", "A1>A2; A1>A3; A1>A0; A3>A1; A0 | | |")
    read = read_debate(debate_of(*rounds))
    judge_key = list(read.judges)[4]
    ballot = ballots(read)[judge_key]
    text = read.judges[judge_key].turn.text
    assert ballot.votes == ()
    assert (ballot.num_contradictory, ballot.num_unseen, ballot.num_expected) == (1, 0, 1)
    assert [text[slice(*span)] for span in ballot.failed_turn_spans] == ["Agent 1>Agent 2"]
    rejected = [text[slice(*span)].strip() for span in ballot.rejected_spans]
    assert rejected == ["Agent 1>Agent 3", "Agent 1>Agent 0", "Agent 3>Agent 1", "Agent 0"]
    # A line about a failed turn excuses a judge who makes no other comparison.
    assert not ballot.lacks_comparisons


@pytest.mark.parametrize("schedule", ["parallel", "sequential"])
def test_five_sections_are_voted_on_under_both_schedules(schedule: str) -> None:
    consensus = "<consensus>NO</consensus><consensus_reason>r</consensus_reason>"
    lines = {(2, 0): "A0>A1", (0, 1): "A2>A1"}
    turns = []
    for round_number in range(2):
        for agent in range(3):
            text = turn_text("s", lines.get((agent, round_number), "")) + consensus
            turns.append({"agent": agent, "round": round_number, "text": text})
    protocol = {"num_agents": 3, "schedule": schedule, "contract": "five_section"}
    debate = from_json({"question": {"text": "?"}, "protocol": protocol, "turns": turns})
    read = read_debate(debate)
    # Sequential: 2 was shown 0 and 1 in round 0. Parallel: nobody, and its line is unseen.
    num_unseen = sum(ballot.num_unseen for ballot in ballots(read).values())
    assert num_unseen == (schedule == "parallel")
    assert len(all_votes(ballots(read))) == 2 - num_unseen
    # Win rate counts both lines under either schedule: 0 won its vote, 1 lost two, 2 won one.
    assert score_of(WinRate(), debate).agents == (1.0, 0.0, 1.0)


@pytest.mark.parametrize("reward", [V2(), BradleyTerry(), WinRate(), WinMinusLoss()])
def test_a_debate_in_which_nobody_spoke_is_scored(reward: Any) -> None:
    debate = from_json({"question": {"text": "?"}, "protocol": {"num_agents": 3}, "turns": []})
    score = score_of(reward, debate)
    assert score.credits == ()
    assert len(score.agents) == 3


def test_ballots_are_read_once_for_all_rewards() -> None:
    read = read_debate(judged_debate("A1>A2 | |"))
    assert ballots(read) is ballots(read)
    assert ballots(read) is not ballots(read, "count")
