"""DeepSpeed in two processes trains as the torch trainer does in one, and compiles nothing."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from arithmetic import FACTOR
from debate_train.checkpoints.policy_files import save_policy
from debate_train.errors import RecipeError
from debate_train.losses import PpoClip
from debate_train.models import PretrainedModel, ScratchModel
from debate_train.models.loaded_model import Lora, with_adapter
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


PROGRAM = """
import gc, torch
from deepspeed_processes import SETTINGS, batch
from debate_train.losses import Kl, PpoClip
from debate_train.models import ScratchModel
from debate_train.trainers import DeepSpeedTrainer

def others(known):
    gc.collect()
    found = [t for t in gc.get_objects() if type(t) in (torch.Tensor, torch.nn.Parameter)]
    places = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in found}
    return sum(size for place, size in places.items() if place not in known)

loaded = ScratchModel().load(0)
hooks = [dict(m._forward_hooks) | dict(m._forward_pre_hooks) for m in loaded.model.modules()]
size = sum(4 * p.numel() for p in loaded.model.parameters())
for stage in (0, 1, 2, 3):
    session = DeepSpeedTrainer(**SETTINGS, zero_stage=stage).open(loaded, PpoClip(), 4)
    session.step(batch(0))
    open_now = others({p.untyped_storage().data_ptr() for p in loaded.model.parameters()})
    session.close()
    del session
    left = others({p.untyped_storage().data_ptr() for p in loaded.model.parameters()})
    now = [dict(m._forward_hooks) | dict(m._forward_pre_hooks) for m in loaded.model.modules()]
    print(stage, open_now >= 2 * size, left < size / 2, now == hooks, flush=True)
"""


def test_closed_trainers_leave_neither_moments_nor_hooks(repository: Path) -> None:
    tests = repository / "tests"
    program = f"import sys; sys.path[:0] = [{str(tests)!r}, {str(tests / 'train')!r}]\n{PROGRAM}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if line[:1].isdigit()]
    # Open, a trainer has two moments of each parameter; closed, nothing of the model's size.
    assert lines == [f"{stage} True True True" for stage in (0, 1, 2, 3)]


START = Path(__file__).with_name("sharded_start.py")
TRAINING = Path(__file__).with_name("deepspeed_processes.py")


def test_ranks_that_follow_hold_only_shards_when_a_model_is_shared_out(tmp_path, processes):
    large = ScratchModel(
        hidden_size=1024, layers=8, heads=8, kv_heads=8, head_dim=128, ffn_size=1024
    )
    save_policy(tmp_path, large.load(0))
    leader, follower = (json.loads(output) for output in processes(2, [START, tmp_path]))
    size = leader["size"]
    assert follower["size"] == size > 2e8
    assert follower["load"] < 0.05 * size
    assert 0.45 * size < follower["shard"] < 0.65 * size  # its half, and a parameter at a time
    assert leader["load"] + leader["shard"] < 1.65 * size  # all of it, and a half


def test_mixture_of_experts_trains_in_shards_as_in_one_process(tmp_path, processes):
    tokenizer = ScratchModel().load_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    # Its router writes into tensors in place.
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=16,
        moe_intermediate_size=8,
        num_experts=4,
        num_experts_per_tok=2,
        tie_word_embeddings=False,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    leader, _ = processes(2, [TRAINING, tmp_path, "stage 3"])
    cases = json.loads(leader.splitlines()[-1])
    assert [bool(case["lora"]) for case in cases] == [False, True, True]
    for case in cases:
        assert max(case["rounding"].values()) <= FACTOR, case
        assert case["moved"] > 1e-3, case


@pytest.mark.parametrize("lora", [None, Lora(rank=2, alpha=4)], ids=["full", "lora"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_model_without_values_is_the_same_but_for_memory(tmp_path, lora, dtype):
    save_policy(tmp_path, ScratchModel().load(0))
    source = PretrainedModel(name=str(tmp_path), dtype=dtype, lora=lora)
    whole = with_adapter(source.load(3), 3).model
    empty = with_adapter(source.load(3, with_values=False), 3).model
    parameters = dict(empty.named_parameters())
    assert list(parameters) == [name for name, _ in whole.named_parameters()]
    for name, parameter in whole.named_parameters():
        assert parameters[name].shape == parameter.shape
        assert parameters[name].requires_grad == parameter.requires_grad
        assert parameters[name].device == torch.device("meta")
    assert set(dict(whole.named_buffers())) == set(dict(empty.named_buffers()))


RESUMING = Path(__file__).with_name("deepspeed_resume.py")
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
        leader, *_ = processes(size, [RESUMING, model, *jobs])
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


ASYNCHRONOUS = Path(__file__).with_name("asynchronous_cpu.py")
CASES = ("stage 2, offloaded", "resumed, stage 3")


def test_deepspeed_matches_one_torch_process_when_its_device_has_streams(
    tmp_path: Path, processes: Callable[..., list[str]]
) -> None:
    small = ScratchModel(hidden_size=16, layers=2, heads=2, kv_heads=1, head_dim=8, ffn_size=16)
    save_policy(tmp_path, small.load(0))
    leader, follower = processes(2, [ASYNCHRONOUS, tmp_path, *CASES])
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
