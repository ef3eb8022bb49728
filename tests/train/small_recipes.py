"""Small recipes, a recipe in miniature, and files that tests write."""

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from debate_train.recipe import Recipe
from debate_train.recipe.files import load_recipe
from debate_train.recipe.reading import parse

FILE = """\
name: t
steps: 3
model: {type: scratch}
data: {type: signs_puzzle, batch_size: 2}
debate: {num_agents: 5, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 16}
advantage: {baseline: question_round}
"""
"""A file that `debate-train` takes."""


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Plain(Strict):
    type: Literal["plain"] = "plain"
    learning_rate: float = Field(1e-3, gt=0)
    warmup_steps: int = 0


class Zero(Strict):
    type: Literal["zero"] = "zero"
    learning_rate: float = Field(1e-3, gt=0)
    zero_stage: Literal[0, 1, 2, 3] = 2
    offload: bool = False


class Tracking(Strict):
    key: str | None = None
    tags: list[str] = []
    mode: Literal["on", "off"] = "on"


class Small(Strict):
    """A recipe in miniature."""

    name: str
    steps: int = Field(10, ge=1)
    trainer: Annotated[Plain | Zero, Field(discriminator="type")] = Plain()
    tracking: Tracking = Tracking()
    weights: dict[str, Plain] = Field(default_factory=dict)
    phases: dict[str, dict[str, Any]] = Field(default_factory=dict)


def write(folder: Path, text: str, name: str = "r.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def recipe_of(text: str, changes: str = "", **sections: Any) -> Recipe:
    """Read a recipe's text with changes as one types them: `debate.num_agents=3 steps=2`.

    Args:
        text: YAML.
        changes: `key=value` arguments, quoted as in a shell.
        sections: Values that replace a whole section of the text.
    """
    data = parse(text, "recipe").data | sections
    return load_recipe(data, shlex.split(changes), model=Recipe).recipe


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """Write a data file of one row a line."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
