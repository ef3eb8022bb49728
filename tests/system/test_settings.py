"""All settings that a file can hold are of one kind: frozen, of known names, finite."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, ValidationError

from debate_protocol.plugins import Config
from debate_train.recipe import Recipe
from debate_train.recipe.schema import annotation_of, schema_of

PACKAGES = Path(__file__).parents[2] / "packages"
MAY_BE_INFINITE = {("TorchTrainer", "max_grad_norm"), ("DeepSpeedTrainer", "max_grad_norm")}


def below(model: type[BaseModel], found: set[type[BaseModel]]) -> set[type[BaseModel]]:
    if model not in found:
        found.add(model)
        for field in model.model_fields.values():
            place = schema_of(annotation_of(field))
            for one in (*place.models, *(place.values.models if place.values else ())):
                below(one, found)
    return found


def numbers(annotation: Any) -> bool:
    return annotation is float or any(numbers(part) for part in get_args(annotation))


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_no_number_of_a_recipe_may_be_infinite_or_nan(value: float) -> None:
    models = below(Recipe, set())
    assert len(models) > 40
    taken, looked_at = set(), 0
    for model in models:
        for name, field in model.model_fields.items():
            if not numbers(field.annotation) or schema_of(annotation_of(field)).models:
                continue
            looked_at += 1
            try:
                model.__pydantic_validator__.validate_assignment(
                    model.model_construct(), name, value
                )
            except ValidationError as error:
                kinds = {one["type"] for one in error.errors()}
                assert "frozen_instance" not in kinds
                continue
            taken.add((model.__name__, name))
    assert looked_at > 30
    assert taken == (MAY_BE_INFINITE if value > 0 else set())


def settings() -> Iterator[tuple[str, str]]:
    for file in sorted(PACKAGES.rglob("src/**/*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                for name in node.bases:
                    if isinstance(name, ast.Name) and name.id == "BaseModel":
                        yield file.name, node.name


def test_every_model_of_settings_has_one_base() -> None:
    assert list(settings()) == [("plugins.py", "Config")]
    strict = {"extra": "forbid", "frozen": True, "allow_inf_nan": False}
    assert Config.model_config == strict | {"ser_json_inf_nan": "constants"}
    assert issubclass(Recipe, Config)
