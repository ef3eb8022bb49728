"""How much code a reader meets who follows one training step.

`pytest -s tests/system/test_step_files.py` prints it.
"""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from debate_rollout.engines import TransformersEngine
from debate_train.models.loaded_model import with_adapter
from debate_train.playing.rollouts import Rollouts
from debate_train.recipe import Recipe
from debate_train.running.run_context import Saving
from system.test_house_counts import code_lines, over
from train.contexts import context, trained

PACKAGES = str(Path(__file__).resolve().parents[2] / "packages")
RECIPE = {
    "name": "step",
    "steps": 2,
    "model": {"type": "scratch", "hidden_size": 16, "layers": 1, "heads": 1, "kv_heads": 1},
    "data": {"type": "signs_puzzle", "batch_size": 2},
    "debate": {"num_agents": 5, "max_rounds": 2, "style": "compact", "personas": "none"},
    "rollout": {"max_tokens": 8},
    "reward": {"type": "v2"},
    "loss": {"type": "ppo_clip"},
    "recording": {"debates": 0},
}


class Walk:
    """Notes which of our files and functions run while it is on, and how often the file changes."""

    def __init__(self) -> None:
        self.functions: set[tuple[str, str]] = set()
        self.changes = 0
        self._last = ""

    @property
    def files(self) -> list[str]:
        return sorted({file for file, _ in self.functions})

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        file, name = frame.f_code.co_filename, frame.f_code.co_qualname
        if event == "call" and file.startswith(PACKAGES) and not name.endswith(">"):
            self.functions.add((file, name))
            self.changes += file != self._last
            self._last = file

    def __str__(self) -> str:
        lines = sum(code_lines(Path(file).read_text()) for file in self.files)
        return (
            f"{len(self.files)} files of {lines:,} code lines, {len(self.functions)} functions; "
            f"the file changes {self.changes:,} times"
        )


def test_a_training_step_enters_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe.model_validate(RECIPE)
    loaded = with_adapter(recipe.model.load(0), 0)
    engine = TransformersEngine().open(loaded.model, loaded.tokenizer)
    run = context(recipe, tmp_path / "run", engine, recipe.data.open(), loaded.tokenizer)
    trainer = recipe.trainer.open(loaded, recipe.loss, recipe.steps)
    engine.load(trainer.weights(version=0))
    step, log, take, written = Walk(), Walk(), Rollouts.take, Saving.log

    def taken(rollouts: Rollouts, number: int) -> Any:
        if number == 1:  # The first step fills caches.
            sys.setprofile(step)
        return take(rollouts, number)

    def logged(saving: Saving) -> None:
        sys.setprofile(log if sys.getprofile() is step else None)
        written(saving)
        sys.setprofile(None)

    monkeypatch.setattr(Rollouts, "take", taken)
    monkeypatch.setattr(Saving, "log", logged)
    trained(run, trainer)
    print(f"a training step, from its questions to new weights in the engine: {step}")
    print(f"logging it: {log}")
    ours = {"/".join(Path(file).parts[-2:]) for file in step.files}
    entered = {
        "forms/rounds.py",
        "debate_rewards/vote_rewards.py",
        "engines/transformers_sampler.py",
    }
    assert entered | {"trainers/torch_session.py"} <= ours
    assert not over("files that a training step enters", len(step.files), ours)
    assert not over("changes of file in a training step", step.changes)
