import math
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debate_rewards import V2, BradleyTerry, get_reward
from debate_rewards.strengths import log_strengths

SILENT = ["", "", ""]


def strength(transcript, **options):
    (score,) = BradleyTerry(**options)([transcript])
    return {(c.agent, c.round): c.value for c in score.credits}


def test_bradley_terry_one_vote_in_closed_form(hold):
    # Winner w, loser 1/w. At the optimum 1 + p = w²/(w² + 1) + 2p·w/(w + 1).
    # p = 0.2, w = 3: 1.2 = 0.9 + 0.4·0.75. Value (3 - 1)/(3 + 1).
    values = strength(hold(SILENT, ["", "", "A0>A1"]), prior=0.2)
    assert values[0, 0] == pytest.approx(0.5)
    assert values[1, 0] == pytest.approx(-0.5)
    assert values[2, 0] is None
    assert [values[a, 1] for a in range(3)] == [None] * 3


def test_bradley_terry_five_votes_in_closed_form(hold):
    # N = 7, five judges: 5 + 1 = 5·9/10 + 2·3/4 at w = 3, p = 1, the default prior.
    debate = hold([""] * 7, ["", "", *["A0>A1"] * 5], n=7)
    assert strength(debate)[0, 0] == pytest.approx(0.5)
    assert strength(debate)[1, 0] == pytest.approx(-0.5)


def test_bradley_terry_odds_are_those_of_the_votes_when_the_prior_vanishes():
    # Three wins and one loss: odds 3 to 1.
    logs = log_strengths({("a", "b"): 3.0, ("b", "a"): 1.0}, prior=1e-9)
    assert logs["a"] - logs["b"] == pytest.approx(math.log(3), abs=1e-5)


def test_bradley_terry_counts_a_win_against_the_strong_for_more(hold):
    # 1 beats 2 in the eyes of 0, 3 and 4. Agent 3 beats 1 once, agent 4 beats 2 once.
    debate = hold([""] * 5, ["A1>A2; A3>A1; A4>A2", "", "", "A1>A2", "A1>A2"], n=5, max_rounds=2)
    (score,) = V2()([debate])
    plain = {(c.agent, c.round): c.value for c in score.credits if c.stream == "generator"}
    assert plain[3, 0] == plain[4, 0] == 1.0
    values = strength(debate)
    assert values[3, 0] > values[4, 0] > 0


def test_bradley_terry_is_zero_when_all_tie(hold):
    debate = hold(SILENT, ["A1=A2", "A0=A2", "A0=A1"])
    assert [strength(debate)[a, 0] for a in range(3)] == [0.0, 0.0, 0.0]
    assert [strength(debate, ties="ignore")[a, 0] for a in range(3)] == [None] * 3


def test_bradley_terry_has_no_signal_when_nobody_votes(hold):
    (score,) = BradleyTerry()([hold(SILENT, SILENT)])
    assert {c.value for c in score.credits} == {None}
    assert score.agents == (None, None, None)
    assert score.metrics == {"bradley_terry/votes": 0.0, "bradley_terry/unvoted_turns": 6.0}


def test_bradley_terry_failed_turn_carries_minus_one(hold):
    (score,) = BradleyTerry()([hold([None, "", ""], ["A1>A2", "A0>A2", "A0>A1"])])
    # Lines about the failed turn are dropped: only 1>2 counts.
    failed = [c for c in score.credits if (c.agent, c.round) == (0, 0)]
    assert [(c.value, c.penalty) for c in failed] == [(-1.0, True)]
    assert score.agents[1] > 0
    assert score.agents == pytest.approx((-1.0, score.agents[1], -score.agents[1]))


def test_bradley_terry_agents_pool_the_votes_of_all_rounds(hold):
    # Agent 2 says 0>1 in rounds 1 and 2; with p = 0.4 that is the one vote above twice over.
    debate = hold(SILENT, ["", "", "A0>A1"], ["", None, "A0>A1"])
    by_agent = strength(debate, unit="agent", prior=0.4)
    assert [by_agent[0, r] for r in range(3)] == pytest.approx([0.5] * 3)
    assert [by_agent[1, r] for r in range(3)] == pytest.approx([-0.5, -0.5, -1.0])
    assert [by_agent[2, r] for r in range(3)] == [None] * 3
    by_turn = strength(debate, prior=0.2)
    assert [by_turn[0, r] for r in range(3)] == [pytest.approx(0.5), pytest.approx(0.5), None]


def test_bradley_terry_repeated_lines_count_once_unless_literal(hold):
    debate = hold(SILENT, ["", "", "A0>A1; A1<A0"])
    assert strength(debate, prior=0.2)[0, 0] == pytest.approx(0.5)
    assert strength(debate, prior=0.4, duplicates="count")[0, 0] == pytest.approx(0.5)


def test_bradley_terry_sequential_books_votes_on_the_latest_shown_turn(hold):
    debate = hold(["", "", "A0>A1"], ["A1>A2", "", ""], schedule="sequential", max_rounds=2)
    values = strength(debate)
    # 0 beats 1, 1 beats 2: 1 stands in the middle by symmetry.
    assert values[1, 0] == pytest.approx(0.0, abs=1e-9)
    assert values[0, 0] == pytest.approx(-values[2, 0])


Wins = dict[tuple[int, int], float]


def log_posterior(logs: dict[int, float], wins: Wins, prior: float) -> float:
    def log_chance(a: float, b: float) -> float:
        return -math.log1p(math.exp(b - a))

    total = sum(won * log_chance(logs[a], logs[b]) for (a, b), won in wins.items())
    return total + sum(prior * (log_chance(x, 0) + log_chance(0, x)) for x in logs.values())


def brute_force(wins: Wins, prior: float) -> dict[int, float]:
    """Climb one strength at a time by halving steps; the posterior is concave."""
    logs = {a: 0.0 for a, _ in wins}
    step = 2.0
    best = log_posterior(logs, wins, prior)
    while step > 1e-7:
        moved = False
        for item in logs:
            for move in (step, -step):
                tried = logs | {item: logs[item] + move}
                found = log_posterior(tried, wins, prior)
                if found > best:
                    logs, best, moved = tried, found, True
        if not moved:
            step /= 2
    return logs


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=6, max_size=6),
    st.sampled_from([0.1, 0.5, 1.0]),
)
def test_bradley_terry_finds_the_optimum(results, prior):
    wins: Wins = {}
    for (a, b), (up, down) in zip(combinations(range(4), 2), results, strict=True):
        wins[a, b], wins[b, a] = up, down
    assert log_strengths(wins, prior) == pytest.approx(brute_force(wins, prior), abs=1e-3)


def test_bradley_terry_stays_finite_with_a_weak_prior_and_many_votes():
    wins = {(a, b): 1000.0 * (a < b) for a in range(7) for b in range(7) if a != b}
    logs = log_strengths(wins, prior=1e-3)
    assert all(math.isfinite(value) for value in logs.values())
    assert sorted(logs, key=lambda item: -logs[item]) == list(range(7))
    assert logs[0] == pytest.approx(-logs[6])


@pytest.mark.parametrize("prior", [0, -1, float("inf"), float("nan")])
def test_bradley_terry_refuses_a_prior_that_does_not_bound(prior):
    with pytest.raises(ValueError):
        get_reward("bradley_terry", prior=prior)
