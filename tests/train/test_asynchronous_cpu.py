"""What DeepSpeed does on devices with streams alone, on a CPU that it takes for one."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from arithmetic import FACTOR
from debate_train.checkpoints.policy_files import save_policy
from debate_train.models import ScratchModel

pytestmark = pytest.mark.slow

SCRIPT = Path(__file__).with_name("asynchronous_cpu.py")
CASES = ("stage 2, offloaded", "resumed, stage 3")


def test_deepspeed_matches_one_torch_process_when_its_device_has_streams(
    tmp_path: Path, processes: Callable[..., list[str]]
) -> None:
    small = ScratchModel(hidden_size=16, layers=2, heads=2, kv_heads=1, head_dim=8, ffn_size=16)
    save_policy(tmp_path, small.load(0))
    leader, follower = processes(2, [SCRIPT, tmp_path, *CASES])
    *_, results, last = leader.splitlines()
    # On a CPU as it is DeepSpeed makes no stream and no event: the branches were really taken.
    for used in (json.loads(last), json.loads(follower)):
        assert used.get("waits", 0) > 0
        assert used.get("events", 0) > 0
    found: list[dict[str, Any]] = json.loads(results)
    assert {(case["case"], bool(case["lora"])) for case in found} == {
        (name, lora) for name in CASES for lora in (False, True)
    }
    for case in found:
        assert case["metrics"] == [], case
        assert max(case["rounding"].values()) <= FACTOR, case
        assert case["moved"] > 1e-3, case
        assert case["skipped"] == [0.0] * 5, case
