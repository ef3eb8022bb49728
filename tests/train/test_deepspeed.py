"""DeepSpeed in two processes trains as the torch trainer does in one, and compiles nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from arithmetic import FACTOR
from debate_train.checkpoints.policy_files import save_policy
from debate_train.errors import RecipeError
from debate_train.losses import PpoClip
from debate_train.models import PretrainedModel, ScratchModel
from debate_train.recipe.model_shape import shape_of
from debate_train.recipe.plan import memory
from debate_train.trainers import DeepSpeedTrainer

pytestmark = pytest.mark.slow

Processes = Callable[..., list[str]]
SCRIPT = Path(__file__).with_name("deepspeed_processes.py")


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    small = ScratchModel(hidden_size=16, layers=2, heads=2, kv_heads=1, head_dim=8, ffn_size=16)
    save_policy(folder, small.load(0))
    return folder


@pytest.mark.timeout(1800)  # Some forty runs: ten minutes where others use the cores, too.
def test_deepspeed_matches_one_torch_process_when_in_two(
    model_folder: Path, tmp_path: Path, processes: Processes
) -> None:
    extensions = tmp_path / "extensions"
    arguments = [SCRIPT, model_folder]
    leader, follower = processes(2, arguments, TORCH_EXTENSIONS_DIR=str(extensions))
    assert follower == ""
    found: list[dict[str, Any]] = json.loads(leader.splitlines()[-1])
    cases = [case for case in found if "lora" in case]
    assert len({(case["case"], case["lora"]) for case in cases}) == len(cases) > 20
    for case in cases:
        assert case["metrics"] == [], case
        assert max(case["rounding"].values()) <= FACTOR, case
        assert case["moved"] > 1e-3, case
        assert case["moved by nothing"] == 0.0, case
        # Each row on the rank that it was dealt to, by weights that are as far apart as above.
        assert len(case["scores"]) == 7, case
        assert max(case["scores"]) < 1e-4, case
        # Of several updates the poisoned row is in one minibatch of each of two passes.
        poisoned = ("poisoned" in case["case"]) * (2.0 if "several" in case["case"] else 1.0)
        assert case["skipped"] == [0.0, 0.0, 0.0, poisoned, 0.0], case
    assert not extensions.exists() or not any(extensions.iterdir())

    rounded = [case for case in found if case not in cases]
    assert len(rounded) == 4
    # bfloat16 rounds by 2**-9 of a number; losses are means of products of about 1.
    for case in rounded:  # Masters go on exactly at another stage.
        assert case["loss"] < 2**-8, case
        assert case["beside stage 2"] < 1e-6, case

    # What --plan says of each rank; shards are padded, so a little more is held.
    shape = shape_of(PretrainedModel(name=str(model_folder), dtype="float32"))
    for stage in range(4):
        (held,) = [c["bytes"] for c in cases if c["case"] == f"stage {stage}" and not c["lora"]]
        planned = memory(shape, stage, 2, 10**9, reference=True)
        assert planned.weights <= held["weights"] <= 1.01 * planned.weights
        assert planned.optimizer <= held["optimizer"] <= 1.01 * planned.optimizer
        assert held["buckets"] == planned.buffers == (4 * shape.trained if stage else 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"zero_stage": 0, "bf16": True}, "bf16: found true with zero_stage 0"),
        ({"zero_stage": 0, "offload_optimizer": True}, "expected zero_stage 1 or above"),
        ({"zero_stage": 2, "offload_params": True}, "expected zero_stage 3 or above"),
        ({"deepspeed_args": {"zero_optimization": {"stage": 1}}}, "found zero_optimization.stage"),
        ({"deepspeed_args": {"optimizer": {}}}, "found optimizer, which follow"),
    ],
)
def test_deepspeed_trainer_refuses_settings_when_they_contradict(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        DeepSpeedTrainer.model_validate(settings)


def test_deepspeed_config_keeps_further_settings_when_given() -> None:
    bucket = {"zero_optimization": {"reduce_bucket_size": 1000}, "wall_clock_breakdown": True}
    config = DeepSpeedTrainer(zero_stage=3, offload_params=True, deepspeed_args=bucket)
    found = config.deepspeed_config()
    assert found["wall_clock_breakdown"] is True
    assert found["zero_optimization"] == {
        "stage": 3,
        "offload_param": {"device": "cpu"},
        "reduce_bucket_size": 1000,
    }


def test_deepspeed_refuses_a_rounded_model_when_bf16_is_not_set(tiny: Any) -> None:
    loaded = tiny()
    loaded.model.bfloat16()
    with pytest.raises(RecipeError, match=r"trainer\.bf16: found false with a model in bfloat16"):
        DeepSpeedTrainer().open(loaded, PpoClip(), 1)
