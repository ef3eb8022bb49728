"""Checkpoints of DeepSpeed resume exactly, and with other numbers of processes and stages."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arithmetic import FACTOR
from debate_train.checkpoints.policy_files import save_policy
from debate_train.models import ScratchModel

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("deepspeed_resume.py")
NAMES = ("fp32-1", "fp32-2", "fp32-3")


def test_deepspeed_goes_on_when_resumed_in_more_or_fewer_processes(
    tmp_path: Path, processes: Callable[..., list[str]]
) -> None:
    # 9 and 81 numbers do not divide by two processes: shards are padded.
    odd = ScratchModel(hidden_size=9, layers=1, heads=3, kv_heads=1, head_dim=6, ffn_size=9)
    model, two, one = (str(tmp_path / name) for name in ("model", "two", "one"))
    save_policy(tmp_path / "model", odd.load(0))
    fewer = [("fp32-1", 2), ("fp32-2", 1), ("fp32-3", 3)]
    more = [("fp32-1", 1), ("fp32-2", 3), ("fp32-3", 2)]

    def launched(size: int, *jobs: str) -> list[dict[str, Any]]:
        leader, *_ = processes(size, [SCRIPT, model, *jobs])
        found: list[dict[str, Any]] = json.loads(leader.splitlines()[-1])
        return found

    launched(2, *(f"save:{name}:{two}" for name in NAMES))
    alone = launched(
        1,
        *(f"resume:{name}:{two}:{stage}" for name, stage in fewer),
        *(f"save:{name}:{one}" for name in NAMES),
        *(f"exact:bf16-{stage}" for stage in (2, 3)),
    )
    both = launched(
        2,
        *(f"resume:{name}:{one}:{stage}" for name, stage in more),
        *(f"exact:{name}" for name in ("fp32-2", "lora-bf16-3")),
    )

    resumed = [case for case in (*alone, *both) if case["job"].startswith("resume")]
    assert len(resumed) == 6
    for case in resumed:
        assert max(case["rounding"].values()) <= FACTOR, case
        assert case["rates"] == pytest.approx([0.0] * 3, abs=1e-12), case
        assert case["moved"] > 1e-3, case
    exact = [case for case in (*alone, *both) if case["job"].startswith("exact")]
    assert len(exact) == 4
    for case in exact:
        assert case["same"], case
        assert case["weights"] == 0.0, case
