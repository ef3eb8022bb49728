"""Rewards looked up by their type, and what holds for every one of them."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from debate_rewards import REWARDS, V2, Reward, RewardChoice, get_reward
from debate_rewards.reward import read_debate

NEEDED: dict[str, dict[str, Any]] = {
    "overlong": {"max_tokens": 10, "buffer": 4},
    "mixed": {"components": {"a": {"reward": {"type": "v2"}, "weight": 1.0}}},
    "labelled": {"share": 0.5, "rest": {"type": "v2"}},
}
EVERY = [get_reward(name, **NEEDED.get(name, {})) for name in REWARDS]


def test_get_reward_names_the_nearest_type_when_there_is_none() -> None:
    with pytest.raises(ValueError, match=r"found 'bradly_terry'.*did you mean 'bradley_terry'"):
        get_reward("bradly_terry")


def test_get_reward_refuses_a_setting_that_the_reward_does_not_have() -> None:
    with pytest.raises(ValidationError, match="unvotd"):
        get_reward("v2", unvotd="zero")


@pytest.mark.parametrize("name", REWARDS)
def test_reward_is_the_same_by_name_and_in_a_config(name: str) -> None:
    fields = NEEDED.get(name, {})
    read = TypeAdapter(RewardChoice).validate_python({"type": name, **fields})
    assert read == get_reward(name, **fields)


@pytest.mark.parametrize("reward", EVERY, ids=list(REWARDS))
def test_reward_takes_an_empty_batch(reward: Reward) -> None:
    assert reward([]) == []


@pytest.mark.parametrize("reward", EVERY, ids=list(REWARDS))
def test_reward_gives_values_in_its_streams_only(reward: Reward, hold) -> None:
    rounds = ["", "", "", "", None], ["A1>A2", "A0>A2", "A0>A1", "A0=A1", ""]
    debates = [
        hold(*rounds, rounds[1], n=5, id=str(i), answer="s0", evaluation="Agent 1 errs.")
        for i in range(2)
    ]
    for score in reward(debates):
        assert len(score.agents) == 5
        assert {credit.stream for credit in score.credits} <= set(reward.streams)  # type: ignore[attr-defined]


def test_v2_scores_debates_that_were_read_already(hold) -> None:
    debate = hold([""] * 3, ["A1>A2", "A0=A2", "A1>A0"])
    assert V2().score_read([read_debate(debate)]) == V2()([debate])
