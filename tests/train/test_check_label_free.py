"""What --check says of rewards that need no answers."""

from pathlib import Path
from typing import Any

import pytest

from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.signal_check import SignalCheck

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
    lessons = SignalCheck.of(phase)
    assert lessons is not None and lessons.taught == set(lessons.trained)


def test_check_warns_of_a_majority_of_two() -> None:
    (warning,) = check(recipe({"type": "majority", "scope": "debate"}, agents=2)).warnings
    assert warning.startswith("nothing is learned: in a debate of 2 nobody")


@pytest.mark.parametrize("consensus", ["correlated_agreement", "determinant_mutual_information"])
def test_check_plays_as_many_questions_as_judges_need(consensus: str) -> None:
    phase = recipe({"type": "v2_peer_scores", "consensus": consensus})
    lessons = SignalCheck.of(phase)
    assert lessons is not None and lessons.taught == set(lessons.trained)
    assert ("judge", "") in lessons.trained
    too_few = recipe(
        {"type": "v2_peer_scores", "consensus": consensus},
        data={"type": "signs_puzzle", "batch_size": 2},
    )
    (warning,) = check(too_few).warnings
    assert f"{consensus} compares verdicts with those on other questions" in warning
    assert "a step has 2 questions" in warning


def test_check_refuses_votes_from_the_truth_without_answers(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join(f'{{"question": "{i} ?"}}' for i in range(40)))
    data = {"type": "questions", "path": str(path), "batch_size": 8}
    reward = {"type": "v2_control", "consensus": "none", "votes_from": {"tpr": 0.9, "fpr": 0.2}}
    (error,) = check(recipe(reward, data=data)).errors
    assert error.startswith("reward.type: v2_control compares with the questions' own answers")
    assert check(recipe({"type": "v2", "consensus": "none"}, data=data)).errors == []
