"""What --check warns of in a recipe's topology and own contract."""

from typing import Any

import pytest

from debate_train.recipe import Recipe
from debate_train.recipe.check import check


def recipe(**changes: Any) -> Recipe:
    data: dict[str, Any] = {
        "name": "t",
        "steps": 10,
        "model": {"type": "scratch", "context_window": 4096},
        "data": {"type": "signs_puzzle", "batch_size": 8},
        "rollout": {"max_tokens": 16},
        "advantage": {"baseline": "question_round"},
    }
    return Recipe.model_validate(data | changes)


@pytest.mark.parametrize(
    ("topology", "most"),
    [
        ({"topology": "ring"}, 1),  # of five: a pair two steps apart has the one between them
        ({"topology": "central"}, 1),  # the center judges the others, nobody judges the center
        ({"topology": "sparse", "degree": 4}, None),  # as all: three judges a pair
    ],
)
def test_check_warns_of_topologies_with_few_judges(
    topology: dict[str, Any], most: int | None
) -> None:
    debate = {"num_agents": 5, "max_rounds": 2, "style": "compact", **topology}
    warnings = check(recipe(debate=debate)).warnings
    assert len(warnings) == (most is not None)
    assert all(f"at most {most} agents see both of a pair" in text for text in warnings)


def test_check_warns_of_a_section_that_no_stream_covers() -> None:
    contract = {"name": "poem", "sections": ["poem", "comparison"]}
    debate = {"num_agents": 5, "max_rounds": 2, "contract": contract}
    assert check(recipe(debate=debate)).warnings == []
    streams = {"generator": {"sections": ["comparison"]}, "judge": {}}
    advantage = {"baseline": "question_round", "streams": streams}
    (warning,) = check(recipe(debate=debate, advantage=advantage)).warnings
    assert "no stream covers section poem of the contract" in warning


@pytest.mark.parametrize(
    ("stop", "warning"),
    [
        ("</comparsion>", "found '</comparsion>', which closes no section of the contract"),
        ("</comparsion>", "did you mean '</comparison>'?"),
        ("</think>", "expected one of </solution>, </comparison>"),
        ("</comparison>", None),
        ("END", None),  # not a tag: a text that replies may well hold
        (None, None),
    ],
)
def test_check_names_a_stop_string_that_no_section_has(
    stop: str | None, warning: str | None
) -> None:
    contract = {"name": "own", "sections": ["solution", "comparison"], "stop": stop}
    debate = {"num_agents": 5, "max_rounds": 2, "contract": contract}
    stops = [text for text in check(recipe(debate=debate)).warnings if "contract.stop" in text]
    assert len(stops) == (warning is not None)
    assert warning is None or warning in stops[0]
