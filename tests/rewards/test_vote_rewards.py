"""Win rate, win minus loss and Bradley-Terry strengths as rewards, by hand and for any debate."""

import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from tests.rewards.debates import (
    SILENT,
    SILENT_FIVE,
    debate_of,
    judged_debate,
    numbers,
    round_values,
    score_of,
    turn_values,
)
from tests.rewards.second_reading import (
    DrawnDebate,
    DrawnVote,
    Key,
    Side,
    drawn_debates,
    num_failed,
    share_won,
    win_rates,
)

from debate_rewards import V2, BradleyTerry, WinMinusLoss, WinRate, get_reward
from debate_rewards.strengths import log_strengths

CONTRADICTION = "A1>A2; A2>A1; A1=A2 | |"


def test_win_rate_counts_wins_over_votes_of_all_rounds() -> None:
    # 1>2 by 0, 0=2 by 1, 1>0 by 2, then 1>2 by 0. Won of votes: ½ of 2, 3 of 3, ½ of 3.
    debate = debate_of(SILENT, "A1>A2 | A0=A2 | A1>A0", "A1>A2 | |")
    score = score_of(WinRate(), debate)
    rates = [0.25, 1.0, 1 / 6]
    assert score.agents == pytest.approx(tuple(rates))
    assert [credit.value for credit in score.credits] == pytest.approx(rates * 3)
    assert {credit.stream for credit in score.credits} == {"return"}
    metrics = {
        "pairwise_total_votes": 4,
        "pairwise_any_votes": 1,
        "pairwise_malformed": 0,
        "pairwise_contradictory": 0,
        "pairwise_failed_dropped": 0,
        "pairwise_reward": (0.25 + 1 + 1 / 6) / 3,
        "pairwise_reward_is_win_rate": 1,
        "pairwise_reward_is_win_minus_loss": 0,
    }
    assert score.metrics == pytest.approx(metrics)
    # Signed: (0 − 1)/2, 3/3, (−1 + 0 − 1)/3.
    signed = score_of(WinMinusLoss(), debate)
    assert signed.agents == pytest.approx((-0.5, 1.0, -2 / 3))
    assert signed.metrics["pairwise_reward_is_win_minus_loss"] == 1


@pytest.mark.parametrize(
    ("debate", "options", "rates", "signed"),
    [
        pytest.param(judged_debate(SILENT), {}, (0, 0, 0), (0, 0, 0), id="no votes"),
        pytest.param(
            judged_debate("A1=A2 | A0=A2 | A0=A1"), {}, (0.5, 0.5, 0.5), (0, 0, 0), id="all tie"
        ),
        # Agent 0 speaks first and already compares 1 and 2, whom it has not been shown.
        pytest.param(
            debate_of("A1>A2 | |", schedule="sequential", max_rounds=1),
            {},
            (0, 1, 0),
            (0, 1, -1),
            id="not shown yet",
        ),
        # Agent 2: one loss and one win; literally two losses and one win.
        pytest.param(
            judged_debate("A1>A2; A1>A2 | A2>A0 |"), {}, (0, 1, 0.5), (-1, 1, 0), id="said twice"
        ),
        pytest.param(judged_debate(CONTRADICTION), {}, (0, 0, 0), (0, 0, 0), id="contradiction"),
        pytest.param(
            judged_debate(CONTRADICTION),
            {"duplicates": "count"},
            (0, 0.5, 0.5),
            (0, 0, 0),
            id="contradiction, counted",
        ),
        # Agent 1 fails and ends the debate: 0 of 2 and −1. Agent 2 has no second turn.
        pytest.param(
            debate_of("| | A0>A1", "A2>A1 | fail | absent", schedule="sequential", max_rounds=2),
            {},
            (1, -1, 1),
            (1, -2, 1),
            id="aborted",
        ),
        # 1 − 1 for agent 1; agent 2 lost a vote and never spoke.
        pytest.param(
            debate_of("A1>A2 | fail | absent", schedule="sequential", max_rounds=1),
            {},
            (0, 0, 0),
            (0, 0, -1),
            id="never spoke",
        ),
        pytest.param(debate_of("|", "A0>A1 | A0>A1"), {}, (0, 0), (0, 0), id="two agents"),
        # Agent 0 wins against 1 and 2 and loses to 3; agent 4 is never named.
        pytest.param(
            judged_debate("| A0>A2 | A0>A1 | | A3>A0"),
            {},
            (2 / 3, 0, 0, 1, 0),
            (1 / 3, -1, -1, 1, 0),
            id="five agents",
        ),
        # Pair (0, 1) by 2 to 6: three for 0, one for 1, one tie.
        pytest.param(
            judged_debate("| | A0>A1 | A0>A1 | A0>A1 | A1>A0 | A0=A1"),
            {},
            (0.7, 0.3, 0, 0, 0, 0, 0),
            (0.4, -0.4, 0, 0, 0, 0, 0),
            id="seven agents",
        ),
    ],
)
def test_returns_are_the_share_of_votes_won(
    debate: Any, options: dict[str, Any], rates: tuple[float, ...], signed: tuple[float, ...]
) -> None:
    assert score_of(WinRate(**options), debate).agents == pytest.approx(rates)
    assert score_of(WinMinusLoss(**options), debate).agents == pytest.approx(signed)


def test_lines_without_a_vote_are_counted_by_their_fault() -> None:
    debate = judged_debate("A0>A1; A1>A9; A2>A2; A1>A2 | |")
    score = score_of(WinRate(), debate)
    assert score.agents == (0.0, 1.0, 0.0)
    assert score.metrics["pairwise_malformed"] == 2
    assert score.metrics["pairwise_total_votes"] == 1
    contradiction = score_of(WinRate(), judged_debate(CONTRADICTION)).metrics
    assert contradiction["pairwise_contradictory"] == 1
    assert contradiction["pairwise_any_votes"] == 0
    failed = score_of(WinRate(), debate_of("fail | |", "A1>A2 | A0>A2 | A0>A1"))
    assert failed.metrics["pairwise_failed_dropped"] == 2
    assert [credit.penalty for credit in failed.credits] == [True] + [False] * 5


@settings(max_examples=50, deadline=None, derandomize=True)
@given(drawn_debates())
def test_win_rate_is_its_formula_for_any_debate(debate: DrawnDebate) -> None:
    transcript = debate.transcript()
    options: Any = product(("half", "ignore"), ("one", "count"))
    for ties, duplicates in options:
        rates = win_rates(debate, ties, duplicates)
        expected = []
        signed = []
        for agent, rate in enumerate(rates):
            expected.append((rate or 0.0) - num_failed(debate, agent))
            signed.append((0.0 if rate is None else 2 * rate - 1) - num_failed(debate, agent))
        settings_of_reward = {"ties": ties, "duplicates": duplicates}
        score = score_of(WinRate(**settings_of_reward), transcript)
        assert list(score.agents) == pytest.approx(expected)
        score = score_of(WinMinusLoss(**settings_of_reward), transcript)
        assert list(score.agents) == pytest.approx(signed)


# ---- strengths ------------------------------------------------------------------------------


def strengths(debate: Any, round: int = 0, **options: Any) -> Any:
    return round_values(score_of(BradleyTerry(**options), debate), round)


@pytest.mark.parametrize(
    ("debate", "options", "expected"),
    [
        # Winner w, loser 1/w: 1 + p = w²/(w² + 1) + 2p·w/(w + 1) at the optimum. p = .2, w = 3:
        # 1.2 = .9 + .4·.75, and the value is (3 − 1)/(3 + 1).
        pytest.param(
            judged_debate("| | A0>A1"), {"prior": 0.2}, numbers("0.5 -0.5 none"), id="one vote"
        ),
        # Five judges: 5 + 1 = 5·9/10 + 2·3/4 at w = 3 and p = 1, the default.
        pytest.param(
            judged_debate("| | A0>A1 | A0>A1 | A0>A1 | A0>A1 | A0>A1"),
            {},
            numbers("0.5 -0.5 none none none none none"),
            id="five votes",
        ),
        pytest.param(judged_debate("A1=A2 | A0=A2 | A0=A1"), {}, [0, 0, 0], id="all tie"),
        pytest.param(
            judged_debate("A1=A2 | A0=A2 | A0=A1"),
            {"ties": "ignore"},
            numbers("none none none"),
            id="all ties ignored",
        ),
        pytest.param(
            judged_debate("| | A0>A1; A1<A0"),
            {"prior": 0.2},
            numbers("0.5 -0.5 none"),
            id="said twice",
        ),
        # Twice the votes and twice the prior.
        pytest.param(
            judged_debate("| | A0>A1; A1<A0"),
            {"prior": 0.4, "duplicates": "count"},
            numbers("0.5 -0.5 none"),
            id="said twice, counted",
        ),
    ],
)
def test_strengths_are_those_of_the_closed_form(
    debate: Any, options: dict[str, Any], expected: Any
) -> None:
    assert strengths(debate, **options) == expected


def test_a_win_against_the_strong_counts_for_more() -> None:
    # 1 beats 2 in the eyes of 0, 3 and 4. Agent 3 beats 1 once, agent 4 beats 2 once.
    debate = debate_of(SILENT_FIVE, "A1>A2; A3>A1; A4>A2 | | | A1>A2 | A1>A2")
    assert round_values(score_of(V2(), debate), 0)[3:] == numbers("1 1")
    values = turn_values(score_of(BradleyTerry(), debate))
    assert values[3, 0] > values[4, 0] > 0


def test_turns_without_votes_have_no_strength_and_failed_ones_cost() -> None:
    silent = score_of(BradleyTerry(), judged_debate(SILENT))
    assert {credit.value for credit in silent.credits} == {None}
    assert silent.agents == (None, None, None)
    assert silent.metrics == {"bradley_terry/votes": 0.0, "bradley_terry/unvoted_turns": 6.0}
    # Lines about the failed turn are dropped: only 1>2 counts.
    failed = score_of(BradleyTerry(), debate_of("fail | |", "A1>A2 | A0>A2 | A0>A1"))
    assert [credit.penalty for credit in failed.credits] == [True] + [False] * 5
    assert failed.agents[1] > 0
    assert failed.agents == pytest.approx((-1.0, failed.agents[1], -failed.agents[1]))


def test_agents_pool_the_votes_of_all_rounds() -> None:
    # Agent 2 says 0>1 in rounds 1 and 2: with p = .4 that is one vote at p = .2 twice over.
    debate = debate_of(SILENT, "| | A0>A1", "| fail | A0>A1")
    for round_number in range(3):
        values = strengths(debate, round_number, unit="agent", prior=0.4)
        assert values == numbers("0.5 -1 none" if round_number == 2 else "0.5 -0.5 none")
    assert strengths(debate, 1, prior=0.2) == numbers("0.5 -0.5 none")
    assert strengths(debate, 2, prior=0.2) == numbers("none -1 none")


# In the end agent 2 gives an answer that nobody judged.
NO_VOTES = "| | |"
SOLUTIONS = [["x", "x", "y", "z"], ["x", "y", "new", "x"]]
DEBATE = debate_of(NO_VOTES, "A1>A2 | A0=A3 | A0>A1 | A2>A1", solutions=SOLUTIONS)


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
    debate = debate_of(NO_VOTES, lines, solutions=["xxyx", "xxyx"])
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
    modest = score_of(reward, debate_of(NO_VOTES, lines + "|", solutions=solutions))
    praise = f"{lines} | A0>A2; A1>A2"
    praising = score_of(reward, debate_of(NO_VOTES, praise, solutions=solutions))
    assert modest.agents[3] == praising.agents[3]
    assert modest.agents[0] < praising.agents[0]


def test_answers_are_pooled_as_values_and_unread_ones_stay_alone() -> None:
    # 1/2 and 0.5 are one answer; agents 1 and 3 give texts that are no number.
    debate = debate_of(
        NO_VOTES,
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


def check_pooled_rewards(debate: DrawnDebate) -> None:
    """Compare each pooled reward of a debate with its definition."""
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


@settings(max_examples=50, deadline=None, derandomize=True)
@given(drawn_debates())
def test_pooled_rewards_are_their_definition_for_any_debate(debate: DrawnDebate) -> None:
    check_pooled_rewards(debate)


@pytest.mark.slow
@settings(max_examples=2000, deadline=None, derandomize=True)
@given(drawn_debates())
def test_pooled_rewards_are_their_definition_for_two_thousand_debates(debate: DrawnDebate) -> None:
    check_pooled_rewards(debate)
