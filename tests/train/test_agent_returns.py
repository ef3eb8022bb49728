"""Baselines of returns: over all agents of a debate, those that never spoke included."""

import pytest

from debate_protocol.types import Protocol, Question, Transcript, Turn, TurnKey
from debate_rewards.rewards import V2, Mixed, WinMinusLoss, WinRate
from debate_train.advantages import Grouped


def said(*texts: str, agents: int = 3) -> Transcript:
    """A sequential debate that ended with the last of these turns, one an agent."""
    turns = tuple(
        Turn(agent, 0, text, shown=tuple(TurnKey(other, 0) for other in range(agent)))
        for agent, text in enumerate(texts)
    )
    rules = Protocol(num_agents=agents, schedule="sequential")
    return Transcript("d", Question("q", "?", "7"), rules, turns)


PARTS = {
    "peers": {"reward": {"type": "win_rate"}, "weight": 0.5},
    "margin": {"reward": {"type": "win_minus_loss"}, "weight": 0.25},
    "truth": {"reward": {"type": "verifiable"}, "weight": 1.0},
}

VALID = "<solution>7</solution><evaluation>N/A</evaluation><comparison>{}</comparison>"


@pytest.mark.parametrize("reward", [WinRate(), WinMinusLoss()])
@pytest.mark.parametrize(
    ("debate", "expected"),
    [
        # Returns -1, 0, 0: A = R - mean over all three, of whom two never spoke.
        (said("?"), [-2 / 3]),
        # Returns 0, -1, 0.
        (said(VALID, "?"), [1 / 3, -2 / 3]),
        # Returns 0, 0, 0, -1, 0.
        (said(VALID, VALID, VALID, "?", agents=5), [1 / 5, 1 / 5, 1 / 5, -4 / 5]),
    ],
)
def test_agents_that_never_spoke_count_in_the_mean_of_returns(
    reward: WinRate | WinMinusLoss, debate: Transcript, expected: list[float]
) -> None:
    (found,) = Grouped()([debate], reward([debate]))
    assert [own[0].value for _, own in sorted(found.items())] == pytest.approx(expected)
    assert {key.agent for key in found} == set(range(len(expected)))


def test_votes_about_an_agent_that_never_spoke_are_its_return() -> None:
    # Agent 2 votes for agent 4, who never speaks: returns 0, 0, 0, -1, 1, mean 0.
    debate = said(VALID, VALID, VALID.format("Agent 4 > Agent 0"), "?", agents=5)
    (found,) = Grouped()([debate], WinRate()([debate]))
    assert [own[0].value for _, own in sorted(found.items())] == pytest.approx([0, 0, 0, -1])


def test_components_of_a_mixed_reward_count_agents_that_never_spoke_each() -> None:
    reward = Mixed.model_validate({"components": PARTS})
    debate = said("?")
    (found,) = Grouped()([debate], reward([debate]))
    values = {a.component: a.value for a in found[TurnKey(0, 0)]}
    # Per turn the failure is alone in its debate, per agent it stands against two zeros.
    assert values == pytest.approx({"peers": -1 / 3, "margin": -1 / 6, "truth": 0.0})


def test_votes_about_an_agent_that_never_spoke_count_in_each_component_of_a_mixed_reward() -> None:
    reward = Mixed.model_validate({"components": PARTS})
    debate = said(VALID, VALID, VALID.format("Agent 4 > Agent 0"), "?", agents=5)
    (found,) = Grouped()([debate], reward([debate]))
    peers, margin = (
        [a.value for _, own in sorted(found.items()) for a in own if a.component == name]
        for name in ("peers", "margin")
    )
    # W/V of the five is 0, 0, 0, 0, 1, with the step reward 0, 0, 0, -1, 1: mean 0, weight 0.5.
    assert peers == pytest.approx([0, 0, 0, -0.5])
    # S/M is -1, 0, 0, 0, 1, with the step reward -1, 0, 0, -1, 1: mean -0.2, weight 0.25.
    assert margin == pytest.approx([-0.2, 0.05, 0.05, -0.2])


def test_votes_about_an_agent_that_never_spoke_count_when_raw_rewards_are_added() -> None:
    reward = Mixed.model_validate({"components": PARTS, "mix": "rewards"})
    debate = said(VALID, VALID, VALID.format("Agent 4 > Agent 0"), "?", agents=5)
    (score,) = reward([debate])
    # 0.5 W/V + 0.25 S/M and the step rewards: -0.25, 0, 0, -0.75, 0.75 (truth is per turn).
    assert score.returns_of() == pytest.approx((-0.25, 0, 0, -0.75, 0.75))
    (found,) = Grouped()([debate], [score])
    returns = [a.value for _, own in sorted(found.items()) for a in own if a.stream == "return"]
    mean = -0.25 / 5
    assert returns == pytest.approx([-0.25 - mean, -mean, -mean, -0.75 - mean])


def test_v2_knows_the_turns_that_were_held_alone() -> None:
    failed, whole = said("?"), said(VALID, VALID, VALID)
    (alone,) = Grouped()([failed], V2()([failed]))
    assert [a.value for a in alone[TurnKey(0, 0)]] == [0.0]
    # Of one question and round: -1 beside three turns that owed a value and have none as 0.
    both = Grouped(baseline="question_round")([failed, whole], V2()([failed, whole]))
    assert [a.value for a in both[0][TurnKey(0, 0)] if a.stream == "generator"] == [-0.75]
