"""Which checkpoint is the best: what a recipe may say of it, and when one beats another."""

from typing import Any

import pytest

from debate_train.checkpoints import Best, KeepBest
from debate_train.recipe import Recipe
from debate_train.recipe.check import check


def recipe(**changes: Any) -> Recipe:
    data: dict[str, Any] = {
        "name": "t",
        "steps": 10,
        "model": {"type": "scratch", "context_window": 4096},
        "data": {"type": "signs_puzzle", "batch_size": 8},
        "debate": {"num_agents": 5, "max_rounds": 2, "style": "compact", "personas": "none"},
        "rollout": {"max_tokens": 16},
    }
    return Recipe.model_validate(data | changes)


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({}, True),
        ({"evaluation": {"every": 2}}, False),
        ({"phases": {"a": {"evaluation": {"every": 2}}, "b": {}}}, False),
        ({"exit_criterion": {"metric": "eval/format", "at_least": 0.5}}, False),
    ],
)
def test_check_warns_when_nothing_measures_what_is_the_best(
    changes: dict[str, Any], warned: bool
) -> None:
    checkpoint = {"keep_best": {"metric": "eval/majority/accuracy"}}
    report = check(recipe(checkpoint=checkpoint, **changes))
    assert any(w.startswith("checkpoint.keep_best: ") for w in report.warnings) == warned


def test_recipe_refuses_a_best_of_what_is_not_measured() -> None:
    with pytest.raises(ValueError, match=r"'loss' is not measured; expected one of eval/direct"):
        recipe(checkpoint={"keep_best": {"metric": "loss"}})


@pytest.mark.parametrize(
    ("mode", "metric", "value", "better"),
    [
        ("max", "eval/format", 0.6, True),
        ("max", "eval/format", 0.5, False),  # equal: the first stays
        ("min", "eval/format", 0.4, True),
        ("min", "eval/format", 0.6, False),
        ("max", "eval/pass@k", 0.1, True),  # the recipe was changed: the old best says nothing
    ],
)
def test_best_is_beaten_by_what_is_better(
    mode: Any, metric: str, value: float, better: bool
) -> None:
    wanted = KeepBest(metric=metric, mode=mode)
    assert wanted.is_better(value, None)
    assert wanted.is_better(value, Best(3, "eval/format", 0.5)) == better
