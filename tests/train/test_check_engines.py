"""Which engines and drivers a recipe may name."""

from typing import Any

import pytest
from pydantic import ValidationError

from debate_rollout.drivers import Auto, FreeRunning, LockStep
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.check_parts import process_errors


def recipe(**rollout: Any) -> Recipe:
    return Recipe.model_validate(
        {
            "name": "t",
            "steps": 1,
            "model": {"type": "scratch"},
            "data": {"type": "signs_puzzle"},
            "debate": {"num_agents": 5, "max_rounds": 1, "style": "compact", "personas": "none"},
            "rollout": {"max_tokens": 16, **rollout},
            "advantage": {"baseline": "question_round"},
        }
    )


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ({"type": "scripted", "replies": ["x"]}, "found scripted, whose replies have no log-prob"),
        ({"type": "transformers", "copy_model": False}, "copy_model: found false"),
    ],
)
def test_check_refuses_an_engine_that_training_cannot_use(
    engine: dict[str, Any], message: str
) -> None:
    (error,) = check(recipe(engine=engine)).errors
    assert message in error


def test_process_errors_name_what_knows_of_one_process_only() -> None:
    shared = recipe(engine={"type": "vllm"})
    trainer, engine = process_errors(shared, 2)
    assert "trainer.type: found torch in 2 processes; expected deepspeed" in trainer
    assert "rollout.engine.type: found vllm in 2 processes" in engine
    assert process_errors(shared, 1) == []
    own = recipe(engine={"type": "vllm_server"})
    assert len(process_errors(own, 2)) == 1


def test_driver_is_chosen_by_type_and_auto_when_none_is_given() -> None:
    assert recipe().rollout.driver == Auto()
    assert recipe(driver={"in_flight": 8}).rollout.driver == Auto(in_flight=8)
    free = {"type": "free_running", "timeout_s": 60}
    assert recipe(driver=free).rollout.driver == FreeRunning(timeout_s=60.0)
    assert recipe(driver={"type": "lock_step"}).rollout.driver == LockStep()
    with pytest.raises(ValidationError, match="in_flight"):
        recipe(driver={"type": "lock_step", "in_flight": 8})
