"""About which share of the gradient each stream takes, before a model has played."""

from typing import Any

import pytest

from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from debate_train.recipe.files import find_recipe, load_recipe
from debate_train.recipe.scripted_debates import scripted_step, small_recipe
from debate_train.recipe.stream_shares import ValuedStream, credit_mass


def v2_recipe(**changes: Any) -> Recipe:
    data: dict[str, Any] = {
        "name": "t",
        "steps": 10,
        "model": {"type": "scratch", "context_window": 4096},
        "data": {"type": "signs_puzzle", "batch_size": 8, "largest_digit": 4},
        "debate": {"num_agents": 5, "max_rounds": 2, "style": "compact", "personas": "none"},
        "rollout": {"max_tokens": 64},
        "reward": {"type": "v2"},
        "advantage": {
            "baseline": "question_round",
            "streams": {"generator": {"weight": 1}, "judge": {"weight": 2}},
        },
    }
    return Recipe.model_validate(data | changes)


def streams(generator: dict[str, float], judge: dict[str, float]) -> dict[str, Any]:
    return {"baseline": "question_round", "streams": {"generator": generator, "judge": judge}}


def test_estimate_of_the_quickstart_is_what_its_runs_measure() -> None:
    # optim/gradient_share/judge of a whole run: .932 in its first step, .947 in its 141st.
    recipe = load_recipe(find_recipe("quickstart"), model=Recipe).recipe
    report = check(recipe)
    line = next(line for line in report.lines if "shares of the gradient" in line)
    assert line == (
        "  streams' shares of the gradient in demonstrated debates: generator 0.06, judge 0.94"
    )
    # The recipe turns the detector off, so that it says this is on purpose.
    assert not any("takes" in warning for warning in report.warnings)


def test_mass_of_a_stream_is_proportional_to_its_weight() -> None:
    masses = []
    for weight in (1.0, 3.0):
        recipe = v2_recipe(advantage=streams({"weight": 1}, {"weight": weight}))
        small = small_recipe(recipe)
        assert small is not None
        masses.append(credit_mass(small, scripted_step(small, 0, answers=True)))
    light, heavy = masses
    judge, generator = ValuedStream("judge", ""), ValuedStream("generator", "")
    assert heavy[judge] == pytest.approx(3 * light[judge]) and light[judge] > 0
    assert heavy[generator] == pytest.approx(light[generator]) and light[generator] > 0


@pytest.mark.parametrize(
    ("advantage", "names_judge"),
    [
        (streams({"weight": 1}, {"weight": 6}), True),
        (streams({"weight": 1}, {"weight": 0}), False),
        (streams({"weight": 1}, {"weight": 6, "share": 0.5}), False),
    ],
    ids=["weights", "one stream alone", "shares set"],
)
def test_check_names_the_stream_with_most_of_the_gradient(
    advantage: dict[str, Any], names_judge: bool
) -> None:
    report = check(v2_recipe(advantage=advantage))
    warnings = [text for text in report.warnings if text.startswith("advantage.streams: in ")]
    assert len(warnings) == names_judge
    if names_judge:
        assert "stream judge takes 0.9" in warnings[0]
        assert warnings[0].endswith("at most 0.8, by advantage.streams.judge.share or weight")
