"""What --check says of rewards that need no answers."""

from typing import Any

import pytest

from debate_train.checks.check import check
from debate_train.checks.check_learning import lessons_of
from debate_train.recipe import Recipe

REPLIES = {
    "debate": {"type": "direct", "style": "compact", "personas": "none"},
    "rollout": {"max_tokens": 64, "debates_per_question": 4},
    "advantage": {"baseline": "prompt", "scale": "std"},
}


def recipe(reward: dict[str, Any], agents: int = 5, **changes: Any) -> Recipe:
    data: dict[str, Any] = {
        "name": "t",
        "steps": 10,
        "model": {"type": "scratch", "context_window": 4096},
        "data": {"type": "signs_puzzle", "batch_size": 8},
        "debate": {"style": "compact", "personas": "none", "num_agents": agents, "max_rounds": 2},
        "rollout": {"max_tokens": 64},
        "advantage": {"baseline": "question_round"},
        "reward": reward,
    }
    return Recipe.model_validate(data | changes)


@pytest.mark.parametrize(
    "phase",
    [
        recipe({"type": "majority"}, **REPLIES),
        recipe({"type": "majority", "scope": "debate"}, agents=3),
    ],
)
def test_check_is_content_with_rewards_without_answers(phase: Recipe) -> None:
    assert not any("teach" in text or "learned" in text for text in check(phase).warnings)
    lessons = lessons_of(phase)
    assert lessons is not None and lessons.taught == set(lessons.given)


def test_check_warns_of_a_majority_of_two() -> None:
    (warning,) = check(recipe({"type": "majority", "scope": "debate"}, agents=2)).warnings
    assert warning.startswith("only failed turns teach anything: in a debate of 2 nobody")
