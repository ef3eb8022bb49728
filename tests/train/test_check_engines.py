"""Which engines and drivers a recipe may name."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from debate_rollout.drivers import Auto, FreeRunning, LockStep
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.conflicts import sampling_problems
from debate_train.recipe.doubts import adapter_warnings
from debate_train.recipe.refusals import Launch, run_errors


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


def test_run_errors_name_what_knows_of_one_process_only() -> None:
    shared = recipe(engine={"type": "vllm"})
    engine, trainer = run_errors(shared, Launch(num_processes=2))
    assert "trainer.type: found torch in 2 processes; expected deepspeed" in trainer
    assert "rollout.engine.type: found vllm in 2 processes" in engine
    assert list(run_errors(shared, Launch())) == []
    own = recipe(engine={"type": "vllm_server"})
    assert len(list(run_errors(own, Launch(num_processes=2)))) == 1


def test_driver_is_chosen_by_type_and_auto_when_none_is_given() -> None:
    assert recipe().rollout.driver == Auto()
    assert recipe(driver={"in_flight": 8}).rollout.driver == Auto(in_flight=8)
    free = {"type": "free_running", "timeout_s": 60}
    assert recipe(driver=free).rollout.driver == FreeRunning(timeout_s=60.0)
    assert recipe(driver={"type": "lock_step"}).rollout.driver == LockStep()
    with pytest.raises(ValidationError, match="in_flight"):
        recipe(driver={"type": "lock_step", "in_flight": 8})


@pytest.mark.parametrize(("temperature", "is_refused"), [(0.005, True), (0.01, False)])
def test_temperature_that_vllm_would_raise_is_refused(temperature: float, is_refused: bool) -> None:
    debate = {"num_agents": 5, "personas": "none", "temperature": temperature}
    engines = {"vllm": is_refused, "transformers": False}
    for engine, expected in engines.items():
        checked = Recipe.model_validate(
            recipe().model_dump(exclude_unset=True)
            | {"debate": debate, "rollout": {"engine": {"type": engine}}}
        )
        problems = list(sampling_problems(checked))
        assert any("raises to 0.01" in problem for problem in problems) is expected


@pytest.mark.parametrize(("dtype", "is_warned"), [("bfloat16", True), ("float32", False)])
def test_adapter_that_rounding_would_undo_is_named(
    dtype: str, is_warned: bool, tmp_path: Path
) -> None:
    # Of weights near 0.05 bfloat16 tells apart steps of 2^-13 = 1.2e-4; a step of training adds
    # about the learning rate, 1e-5.
    (tmp_path / "adapter_config.json").write_text("{}")
    settings = recipe().model_dump(exclude_unset=True)
    model = {"type": "pretrained", "name": str(tmp_path), "dtype": dtype}
    warnings = adapter_warnings(Recipe.model_validate(settings | {"model": model}))
    assert ["model.dtype" in warning for warning in warnings] == [True] * is_warned
