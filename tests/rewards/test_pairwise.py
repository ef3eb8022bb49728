import pytest

from debate_rewards.rewards import WinMinusLoss, WinRate

SILENT = ["", "", ""]


def test_win_rate_counts_wins_over_votes_of_all_rounds(hold):
    # 1>2 (by 0), 0=2 (by 1), 1>0 (by 2), then 1>2 (by 0).
    # W/V: agent 0 ½/2, agent 1 3/3, agent 2 ½/3.
    debate = hold(SILENT, ["A1>A2", "A0=A2", "A1>A0"], ["A1>A2", "", ""])
    (score,) = WinRate()([debate])
    assert score.agents == pytest.approx((0.25, 1.0, 1 / 6))
    assert [c.value for c in score.credits] == pytest.approx([0.25, 1.0, 1 / 6] * 3)
    assert {c.stream for c in score.credits} == {"return"}
    assert score.metrics["pairwise_total_votes"] == 4
    assert score.metrics["pairwise_any_votes"] == 1
    assert score.metrics["pairwise_reward"] == pytest.approx((0.25 + 1 + 1 / 6) / 3)
    assert score.metrics["pairwise_reward_is_win_rate"] == 1
    assert score.metrics["pairwise_reward_is_win_minus_loss"] == 0


def test_win_minus_loss_is_the_mean_signed_result(hold):
    # S/M: agent 0 (0 - 1)/2, agent 1 +3/3, agent 2 (-1 + 0 - 1)/3.
    debate = hold(SILENT, ["A1>A2", "A0=A2", "A1>A0"], ["A1>A2", "", ""])
    (score,) = WinMinusLoss()([debate])
    assert score.agents == pytest.approx((-0.5, 1.0, -2 / 3))
    assert score.metrics["pairwise_reward_is_win_minus_loss"] == 1


@pytest.mark.parametrize("reward", [WinRate(), WinMinusLoss()])
def test_pairwise_is_zero_when_nobody_votes(hold, reward):
    (score,) = reward([hold(SILENT, SILENT)])
    assert score.agents == (0.0, 0.0, 0.0)
    assert score.metrics["pairwise_any_votes"] == 0


def test_pairwise_when_all_tie(hold):
    debate = hold(SILENT, ["A1=A2", "A0=A2", "A0=A1"])
    assert WinRate()([debate])[0].agents == (0.5, 0.5, 0.5)
    assert WinMinusLoss()([debate])[0].agents == (0.0, 0.0, 0.0)
    assert WinRate(ties="ignore")([debate])[0].agents == (0.0, 0.0, 0.0)


def test_pairwise_counts_agents_that_were_not_shown_yet(hold):
    # Agent 0 speaks first in a sequential debate and already compares 1 and 2.
    debate = hold(["A1>A2", "", ""], schedule="sequential", max_rounds=1)
    assert WinRate()([debate])[0].agents == (0.0, 1.0, 0.0)


def test_pairwise_drops_self_and_counts_out_of_range(hold):
    (score,) = WinRate()([hold(SILENT, ["A0>A1; A1>A9; A2>A2; A1>A2", "", ""])])
    assert score.agents == (0.0, 1.0, 0.0)
    assert score.metrics["pairwise_malformed"] == 2
    assert score.metrics["pairwise_total_votes"] == 1


def test_pairwise_repeated_lines_count_once_unless_literal(hold):
    debate = hold(SILENT, ["A1>A2; A1>A2", "A2>A0", ""])
    # Agent 2: one loss and one win; literally two losses and one win.
    assert WinRate()([debate])[0].agents[2] == 0.5
    assert WinRate(duplicates="count")([debate])[0].agents[2] == pytest.approx(1 / 3)


def test_pairwise_failed_turn_costs_one_in_its_agents_return(hold):
    # Sequential with abort: round 0: 2 says 0>1; round 1: agent 0 fails.
    debate = hold(["", "", "A0>A1"], {0: None}, schedule="sequential", max_rounds=2)
    (score,) = WinRate()([debate])
    assert score.agents == (0.0, 0.0, 0.0)  # 1 - 1, 0 (one lost vote), 0 (no vote)
    (signed,) = WinMinusLoss()([debate])
    assert signed.agents == (0.0, -1.0, 0.0)
    assert [(c.agent, c.round, c.penalty) for c in score.credits if c.agent == 0] == [
        (0, 0, False),
        (0, 1, True),
    ]


def test_pairwise_lines_about_a_failed_turn_are_dropped_and_counted(hold):
    debate = hold([None, "", ""], ["A1>A2", "A0>A2", "A0>A1"])
    (score,) = WinRate()([debate])
    assert score.agents == (-1.0, 1.0, 0.0)
    assert score.metrics["pairwise_failed_dropped"] == 2


def test_pairwise_two_agents_can_only_be_silent(hold):
    (score,) = WinRate()([hold(["", ""], ["A0>A1", "A0>A1"], n=2)])
    assert score.agents == (0.0, 0.0)


def test_pairwise_five_agents(hold):
    # Agent 0 wins against 1 and 2, loses to 3; agent 4 is never named.
    debate = hold([""] * 5, ["", "A0>A2", "A0>A1", "", "A3>A0"], n=5)
    assert WinMinusLoss()([debate])[0].agents == pytest.approx((1 / 3, -1.0, -1.0, 1.0, 0.0))
