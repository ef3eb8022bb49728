"""Run directories of strangers, and damaged ones: nothing outside is touched, nothing is silent."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from debate_train.checkpoints import Checkpoints, RunState, run_hash
from debate_train.checkpoints.run_directory import RunDirectory, written
from debate_train.commands.cli import main
from debate_train.errors import RunFailure

RECIPE = "steps: 3\nmodel:\n  name: tiny\n"
CHECKPOINTED = "name: a\nmodel: {layers: 2}\nphases: {warm: {}, play: {}}\n"


def test_run_is_the_same_when_its_recipe_means_the_same() -> None:
    """Comments, the order of keys and the place of the model say nothing of what was trained."""
    with_place = CHECKPOINTED.replace("{layers: 2}", "{name: ./runs/a, layers: 2}")
    elsewhere = "# moved\nphases: {warm: {}, play: {}}\nmodel: {layers: 2, name: /b}\nname: a\n"
    assert run_hash(with_place) == run_hash(elsewhere)
    assert run_hash(with_place) != run_hash(elsewhere.replace("layers: 2", "layers: 3"))


@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_files_of_libraries_have_the_mode_that_the_umask_gives(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        run = RunDirectory.create(tmp_path / "run", RECIPE)
        tokens = run.write_tokens(1, {"a": torch.ones(1)})

        def save(folder: Path) -> None:
            (folder / "adapter").mkdir()
            save_file({"a": torch.ones(1)}, folder / "adapter/model.safetensors")

        origin = run_hash(CHECKPOINTED)
        path = Checkpoints(run.checkpoints_path, origin, 1).write(RunState(step=1), save)
        run.close()
    finally:
        os.umask(before)
    files = [one for one in path.rglob("*") if one.is_file()]
    assert len(files) == 3
    assert {one.stat().st_mode & 0o777 for one in (tokens, *files)} == {0o666 & ~mask}


def test_file_that_cannot_be_written_ends_in_one_line(tmp_path: Path) -> None:
    told = r"cannot write .*tokens: No space left on device; make"
    with pytest.raises(RunFailure, match=told), written(tmp_path / "tokens"):
        raise OSError(28, "No space left on device")


SMALL = """\
name: small
steps: 2
model: {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8}
data: {type: signs_puzzle, batch_size: 1, num_digits: 3, largest_digit: 4}
debate: {type: simultaneous, num_agents: 2, max_rounds: 1, style: compact, personas: none}
rollout: {max_tokens: 4}
advantage: {baseline: none}
loss: {type: ppo_clip}
trainer: {type: torch, learning_rate: 1.0e-2}
evaluation: {questions: 0}
checkpoint: {every: 1, keep_last: 9}
tracking: {wandb: false}
"""


@pytest.fixture
def stopped(tmp_path: Path) -> Callable[..., int]:
    """A run within its second step, and what goes on with it."""
    (tmp_path / "small.yaml").write_text(SMALL)

    def run(*more: str) -> int:
        return main([str(tmp_path / "small.yaml"), "--output", str(tmp_path / "run"), *more])

    assert run() == 0
    (tmp_path / "run/checkpoints/step-000002/state.json").write_text("{}")
    return run


def contents(folder: Path) -> dict[Path, Any]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_refused_resume_changes_nothing(
    stopped: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert stopped("--resume") == 0
    (tmp_path / "run/checkpoints/step-000002").rename(tmp_path / "later")
    before = contents(tmp_path / "run")
    assert (
        stopped("--resume", "--changed", "loss.kl.weight=0.1") == 2
    )  # No such reference is in it.
    assert contents(tmp_path / "run") == before
    assert "found the reference phase_start" in capfd.readouterr().err


def test_missing_sample_or_metrics_are_told(
    stopped: Callable[..., int], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run/tokens/step-1.safetensors").unlink()
    assert stopped("--resume") == 2
    told = "step-000001: tokens/step-1.safetensors is not as it was written before it"
    assert told in capfd.readouterr().err
    (tmp_path / "run/metrics.jsonl").write_text("")
    assert stopped("--resume") == 2
    assert (
        "the first 1 rows of metrics.jsonl are not as they were written" in capfd.readouterr().err
    )


def test_environment_that_cannot_be_read_is_begun_again(
    stopped: Callable[..., int], tmp_path: Path
) -> None:
    (tmp_path / "run/environment.json").write_text("[]")
    assert stopped("--resume") == 0
    assert len(json.loads((tmp_path / "run/environment.json").read_text())["resumed"]) == 1
