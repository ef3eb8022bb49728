"""A recipe in miniature, and how tests write its files."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

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
