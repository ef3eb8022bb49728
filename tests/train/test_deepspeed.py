"""DeepSpeed in one process trains as the torch trainer does, and compiles nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from debate_train.errors import RecipeError
from debate_train.trainers import DeepSpeedTrainer

SCRIPT = Path(__file__).with_name("deepspeed_one_process.py")


def test_deepspeed_matches_torch_at_every_stage_and_when_resumed(tmp_path: Path) -> None:
    extensions = tmp_path / "extensions"
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    environment |= {
        "TORCH_EXTENSIONS_DIR": str(extensions),
        "DS_ACCELERATOR": "cpu",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, SCRIPT], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    cases: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    kinds = {(case["lora"], case["stage"], case["resumed"]) for case in cases}
    assert len(kinds) == len(cases) == 2 * 3 * 2
    for case in cases:
        assert case["loss_gap"] < 1e-5, case
        assert case["weight_gap"] < 1e-5, case
        assert case["moved"] > 1e-3, case
    assert not extensions.exists() or not any(extensions.iterdir())


def test_deepspeed_refuses_several_processes(tiny: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    from debate_train.losses import PpoClip

    with pytest.raises(RecipeError, match="expected one process"):
        DeepSpeedTrainer().open(tiny(), PpoClip(), 1)
