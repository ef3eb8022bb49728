"""Votes pooled by answer: a debate by hand, and the definition written a second time."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from tests.rewards.debates import debate_of, numbers, round_values, score_of, turn_values
from tests.rewards.second_reading import (
    DrawnDebate,
    DrawnVote,
    Key,
    Side,
    drawn_debates,
    num_failed,
    share_won,
)

from debate_rewards import V2, BradleyTerry, WinRate, get_reward
from debate_rewards.strengths import log_strengths

# In the end agent 2 gives an answer that nobody judged.
SILENT = "| | |"
SOLUTIONS = [["x", "x", "y", "z"], ["x", "y", "new", "x"]]
DEBATE = debate_of(SILENT, "A1>A2 | A0=A3 | A0>A1 | A2>A1", solutions=SOLUTIONS)


def test_turns_share_the_votes_on_their_answer() -> None:
    # Votes for : against by judge and answer:
    #   judge 0: x 1:0, y 0:1            judge 1: x ½:½, z ½:½
    #   judge 2: x 1:1 (two turns of x)  judge 3: y 1:0, x 0:1
    # All on x 2½:2½, on y 1:1, on z ½:½. Each turn without its author's votes:
    #   (0, 0), (0, 1) x: 1½:2½ of 4 -> 2·1.5/4 − 1 = −.25
    #   (1, 0) x: 2:2 -> 0               (1, 1) y: 1:1 -> 0
    #   (2, 0) y: 1:1 -> 0               (2, 1) new: nobody voted on it
    #   (3, 0) z: ½:½ -> 0               (3, 1) x: 2½:1½ of 4 -> .25
    score = score_of(V2(pool="answer"), DEBATE)
    assert round_values(score, 0) == numbers("-0.25 0 0 0")
    assert round_values(score, 1) == numbers("-0.25 0 none 0.25")


def test_answers_have_strengths_without_the_votes_of_their_authors() -> None:
    # n wins of x over y and nothing else: x has w, y 1/w, n + p = n·w²/(w² + 1) + 2p·w/(w + 1).
    # Agents 0 and 1 (x) voted for x over y once each. Without the own vote n is 1: w = 3 at p = .2
    # (1.2 = .9 + .3), and the value is (3 − 1)/(3 + 1).
    # For agents 2 (y) and 3 (x), who cast no vote on y, n is 2: w = 3 at p = .4.
    lines = "A1>A2 | A0>A2 | A0=A3 | A1=A0"
    debate = debate_of(SILENT, lines, solutions=["xxyx", "xxyx"])
    for round_number in range(2):
        values = round_values(
            score_of(BradleyTerry(pool="answer", prior=0.2), debate), round_number
        )
        assert values[:2] == numbers("0.5 0.5")
        values = round_values(
            score_of(BradleyTerry(pool="answer", prior=0.4), debate), round_number
        )
        assert values[2:] == numbers("-0.5 0.5")


@pytest.mark.parametrize("name", ["v2", "bradley_terry", "win_rate"])
def test_nobody_gains_by_voting_for_the_answer_it_gives(name: str) -> None:
    # Agent 3 repeats the answer of agents 0 and 1, and praises it without measure.
    reward = get_reward(name, pool="answer")
    lines = "A1>A2 | A2>A0 | A0>A1"
    solutions = ["xxyx", "xxyx"]
    modest = score_of(reward, debate_of(SILENT, lines + "|", solutions=solutions))
    praise = f"{lines} | A0>A2; A1>A2"
    praising = score_of(reward, debate_of(SILENT, praise, solutions=solutions))
    assert modest.agents[3] == praising.agents[3]
    assert modest.agents[0] < praising.agents[0]


def test_answers_are_pooled_as_values_and_unread_ones_stay_alone() -> None:
    # 1/2 and 0.5 are one answer; agents 1 and 3 give texts that are no number.
    debate = debate_of(
        SILENT,
        "A1>A3 | | | A2>A1",
        solutions=[["1/2", "many", "0.5", "some"]],
        meta={"kind": "number"},
    )
    score = score_of(V2(pool="answer"), debate)
    assert round_values(score, 0) == numbers("1 0 1 -1")
    assert round_values(score, 1) == [None] * 4


# ---- the second reading ---------------------------------------------------------------------


def votes_of_others(debate: DrawnDebate, agent: int) -> list[DrawnVote]:
    return [vote for vote in debate.votes() if vote.judge[0] != agent]


def answer_sides(debate: DrawnDebate, key: Key, ties: str) -> list[Side]:
    """List the sides of votes that others cast on the answer of a turn."""
    sides = []
    for vote in votes_of_others(debate, key[0]):
        if vote.is_seen and not (vote.is_tie and ties == "ignore"):
            for side in vote.sides:
                if debate.turns[side.turn or key].answer == debate.turns[key].answer:
                    sides.append(side)
    return sides


def agent_sides(debate: DrawnDebate, agent: int, ties: str) -> list[Side]:
    """List the sides of votes that others cast on any answer of an agent, or on it unseen."""
    turns = [turn for key, turn in debate.turns.items() if key[0] == agent and not turn.failed]
    answers = {turn.answer for turn in turns}
    sides = []
    for vote in votes_of_others(debate, agent):
        if not (vote.is_tie and ties == "ignore"):
            for side in vote.sides:
                is_valued = side.agent == agent
                if side.turn is not None:
                    is_valued = debate.turns[side.turn].answer in answers
                if is_valued:
                    sides.append(side)
    return sides


def answer_strengths(debate: DrawnDebate, agent: int, prior: float) -> dict[str, float]:
    """Fit strengths of answers to the votes of other agents; 0 where compared with itself alone."""
    wins: dict[tuple[str, str], float] = {}
    judged_answers = set()
    for vote in votes_of_others(debate, agent):
        if vote.is_seen:
            answers = [debate.turns[side.turn or vote.judge].answer for side in vote.sides]
            judged_answers.update(answers)
            if answers[0] != answers[1]:
                for index, side in enumerate(vote.sides):
                    pair = (answers[index], answers[1 - index])
                    wins[pair] = wins.get(pair, 0.0) + side.points
    return dict.fromkeys(judged_answers, 0.0) | log_strengths(wins, prior)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(drawn_debates())
def test_pooled_rewards_are_their_definition_for_any_debate(debate: DrawnDebate) -> None:
    transcript = debate.transcript()
    options: Any = ("half", "ignore")
    for ties in options:
        values = turn_values(score_of(V2(pool="answer", ties=ties), transcript))
        expected: dict[Key, float | None] = {}
        for key, turn in debate.turns.items():
            share = share_won(answer_sides(debate, key, ties))
            expected[key] = None if share is None else 2 * share - 1
            if turn.failed:
                expected[key] = -1.0
        assert values == pytest.approx(expected)

        returns = score_of(WinRate(pool="answer", ties=ties), transcript).agents
        for agent in range(debate.num_agents):
            share = share_won(agent_sides(debate, agent, ties))
            assert returns[agent] == pytest.approx((share or 0.0) - num_failed(debate, agent))

    values = turn_values(score_of(BradleyTerry(pool="answer", prior=0.7), transcript))
    for key, turn in debate.turns.items():
        if not turn.failed:
            strength = answer_strengths(debate, key[0], 0.7).get(turn.answer)
            value = None if strength is None else pytest.approx(math.tanh(strength / 2), abs=1e-7)
            assert values[key] == value
