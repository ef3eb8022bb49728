"""`--plan`: the arithmetic of memory and traffic, against numbers by hand and a real pass."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

from debate_train.batches.rows import Batch
from debate_train.checkpointing.policy_files import save_policy
from debate_train.commands.cli import main
from debate_train.losses import PpoClip
from debate_train.models import PretrainedModel, ScratchModel
from debate_train.models.loaded_model import Lora
from debate_train.models.policy import with_adapter
from debate_train.planning.advice import advice
from debate_train.planning.memory import Kept, Layout, memory, moved
from debate_train.planning.model_shape import Shape, shape_of
from debate_train.trainers import DeepSpeedTrainer, TorchTrainer
from debate_train.trainers.trainer import Buckets

# 1000 weights of 2 bytes in 1 layer. It keeps of a token two norms of 4·10 + 2·10 bytes and their
# outputs, 2·2·10; rotated queries and keys, values and the output, 2·2·12; the MLP's 4·2·20: 368.
SMALL = Shape(1000, 1000, 2, layers=1, hidden=10, queries=8, keys=4, ffn=20)
QWEN3_8B = {
    "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 12288, "vocab_size": 151936, "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
}  # fmt: skip
RECIPES = Path(__file__).resolve().parents[2] / "recipes"
LARGE = sorted(path.stem for path in RECIPES.glob("selfplay_*.yaml"))
SERVED = "rollout.engine={type: vllm_server, max_lora_rank: 32}"


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    """Argument that names a folder with nothing but the configuration of Qwen3-8B."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    return f"model.name={tmp_path}"


def test_shape_counts_bytes_a_token_when_asked() -> None:
    # The last norm and its output 80, hidden states of actions 20; a layer at work 2·2·(20 + 10).
    ends = 100 + 120
    assert SMALL.activation_bytes() == 368 + ends
    two = dataclasses.replace(SMALL, layers=2)
    assert two.activation_bytes(recompute=True) == 2 * 2 * 10 + 368 + ends
    # Frozen weights keep no inputs: 3 norms of 10 less; 6 features of adapters are kept.
    lora = dataclasses.replace(SMALL, adapter=6)
    assert lora.activation_bytes() == 368 + ends - 3 * 20 + 2 * 6
    # In float32 copies of 5 inputs of 10, 8 and 20, without those in half precision of 10, 10, 20.
    wide = dataclasses.replace(lora, wide_adapters=True)
    assert wide.activation_bytes() == lora.activation_bytes() + 2 * 6 + 4 * 78 - 2 * 40
    assert SMALL.cache_bytes_per_token == 2 * 1 * 4 * 2  # keys and values of 4 features


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer", "reference"),
    [
        (0, 2000, 2000, 8000, 2000),  # moments 8 a weight
        (1, 2000, 2000, 3000, 2000),  # (4 + 8) · 1000 / 4
        (2, 2000, 500, 3000, 2000),
        (3, 500, 500, 3000, 500),
    ],
)
def test_memory_is_that_of_zero_when_on_four_ranks(
    stage: int, weights: int, gradients: int, optimizer: int, reference: int
) -> None:
    found = memory(SMALL, stage, 4, 0, reference=True)
    assert (found.weights, found.gradients, found.optimizer, found.reference) == (
        weights,
        gradients,
        optimizer,
        reference,
    )


@pytest.mark.parametrize(
    ("stage", "ranks", "activations", "buckets", "expected"),
    [
        (0, 4, 0, Buckets(), 0),
        (2, 4, 9000, Buckets(), 2000),  # All 1000 gradients of 2 bytes, of all ranks.
        (2, 4, 9000, Buckets(reduce=300), 600),
        (1, 4, 9000, Buckets(reduce=300, twice=True), 1200),
        # An update when no activations are left: 250 gradients copied, and in float32, 6 bytes.
        (2, 4, 0, Buckets(reduce=300), 1500),
        (1, 1, 5000, Buckets(reduce=300), 1000),  # 6000 of an update less the activations.
        (3, 1, 9000, Buckets(reduce=300), 600),  # Nothing to gather on one rank.
        (3, 4, 9000, Buckets(reduce=300), 600 + 2000),  # All weights are gathered
        (3, 4, 9000, Buckets(reduce=300, reuse=400, prefetch=50), 600 + 2 * 250),
        (3, 4, 0, Buckets(reduce=300, reuse=40, prefetch=0), 600 + 1500),
    ],
)
def test_memory_counts_what_deepspeed_allocates_beside(
    stage: int, ranks: int, activations: int, buckets: Buckets, expected: int
) -> None:
    found = memory(SMALL, stage, ranks, activations, False, Kept(buckets=buckets))
    assert found.buffers == expected
    kept = found.weights + found.gradients + found.optimizer
    assert found.total == kept + activations + expected


def test_buckets_are_those_that_deepspeed_is_configured_with() -> None:
    zero = DeepSpeedZeroConfig(stage=2)
    assert Buckets().reduced_together(10**10) == zero.reduce_bucket_size
    assert Buckets().prefetch == zero.prefetch_bucket_size
    assert Buckets().reuse == zero.max_reuse_distance
    assert Buckets().twice == zero.overlap_comm
    given = {"reduce_bucket_size": 2e8, "overlap_comm": True, "stage3_max_reuse_distance": 7}
    found = DeepSpeedTrainer(deepspeed_args={"zero_optimization": given}).sharding().buckets
    assert found == Buckets(reduce=200_000_000, twice=True, reuse=7)
    scattered = {"zero_optimization": {"contiguous_gradients": False}}
    assert DeepSpeedTrainer(deepspeed_args=scattered).sharding().buckets == Buckets(reduce=0)


@pytest.mark.parametrize("ranks", [1, 4])
def test_memory_is_that_of_deepspeeds_estimators_where_they_count_the_same(ranks: int) -> None:
    # All parameters in bfloat16 with AdamW, nothing offloaded, no activations and no buckets. They
    # leave out the copy of a rank's gradients, 2 bytes each, that an update makes on its way to
    # float32, and at stage 3 the rank's bfloat16 weights: 18 bytes, which are 16 and those 2.
    count, kept = SMALL.parameters, Kept(buckets=Buckets(reduce=0, reuse=0, prefetch=0))
    second, third = (memory(SMALL, stage, ranks, 0, False, kept).total for stage in (2, 3))
    copy = 2 * count / ranks
    sizes = {"num_gpus_per_node": ranks, "cpu_offload": False}
    assert second - copy == estimate_zero2_model_states_mem_needs(count, **sizes)[1]
    weights = 2 * count / ranks
    assert third - copy - weights == estimate_zero3_model_states_mem_needs(count, 0, **sizes)[1]


@pytest.mark.parametrize(("sums", "gradients"), [(None, (2, 2, 2, 2)), (4, (2, 6, 4, 4))])
def test_gradients_are_counted_in_the_type_that_packs_are_added_up_in(
    sums: int | None, gradients: tuple[int, ...]
) -> None:
    # Of bfloat16 weights; stage 1 has both the sums and the gradients of a pack.
    found = [memory(SMALL, stage, 1, 0, False, Kept(sums=sums)).gradients for stage in range(4)]
    assert found == [1000 * each for each in gradients]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, Lora(rank=2)])
def test_plan_counts_weights_and_gradients_as_the_torch_trainer_has_them(
    tmp_path: Path,
    random_batch: Callable[..., Batch],
    lora: Lora | None,
    dtype: Any,
) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "layers": 2, "heads": 2, "kv_heads": 1}
    save_policy(tmp_path, ScratchModel(**sizes, head_dim=8, ffn_size=24).load(0))
    model = PretrainedModel(name=str(tmp_path), dtype=dtype, lora=lora)
    loaded = with_adapter(model.load(0), 0)
    held: list[int] = []

    def measure(*_: object) -> None:
        every = list(loaded.model.parameters())
        held.append(sum(p.nbytes for p in every))
        held.append(sum(p.grad.nbytes for p in every if p.grad is not None))

    trainer = TorchTrainer().open(loaded, PpoClip(), 1)
    trainer._optimizer.register_step_pre_hook(measure)
    trainer.step(random_batch())
    planned = memory(shape_of(model, wide_adapters=True), 0, 1, 0, reference=False)
    assert held == [planned.weights, planned.gradients]


@pytest.mark.parametrize(
    ("stage", "gradients", "gathers"),
    [
        (0, 3000, 0),  # all-reduce: 2 · 2000 · 3/4
        (1, 1500, 1500),  # reduce-scatter once, then gather the updated weights
        (2, 7500, 1500),  # reduced after each of 5 packs
        (3, 7500, 22500),  # 5 packs · (forward, backward, reference) · 2000 · 3/4
    ],
)
def test_moved_is_that_of_zero_when_on_four_ranks(stage: int, gradients: int, gathers: int) -> None:
    found = moved(SMALL, stage, 4, 5, reference=True)
    assert (found.gradients, found.gathers, found.to_engine) == (gradients, gathers, 2000)


def test_shape_of_a_model_counts_its_parameters_when_not_loaded(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"hidden_size": 16, "layers": 2, "heads": 2, "kv_heads": 1}
    scratch = ScratchModel(**sizes, head_dim=8, ffn_size=24)
    loaded = scratch.load(0)
    save_policy(tmp_path, loaded)
    count = sum(p.numel() for p in loaded.model.parameters())
    found = shape_of(PretrainedModel(name=str(tmp_path), dtype="bfloat16", lora=Lora(rank=2)))
    # A layer: q 16+16, k and v 16+8, o 16+16, gate and up 16+24, down 24+16: 232 in all.
    assert found.trained == 2 * 2 * 232
    assert found.parameters == count + found.trained
    names = Lora(rank=2, adapters=("one", "other"))
    both = shape_of(PretrainedModel(name=str(tmp_path), dtype="bfloat16", lora=names))
    assert (both.trained, both.adapter) == (2 * found.trained, found.adapter)
    assert (found.weight_bytes, found.queries, found.keys, found.ffn) == (2, 16, 8, 24)
    assert shape_of(scratch).parameters == count


def test_plan_prints_each_stage_when_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quickstart", "--plan", "--gpus", "4", "--gpu-memory", "24"]) == 0
    printed = capsys.readouterr().out
    assert "phase self_play: 4 trainer ranks" in printed
    assert printed.count("  3  ") == 3


@pytest.mark.parametrize("recipe", LARGE)
def test_plan_fits_the_hardware_that_a_recipe_names_when_made_for_it(
    recipe: str, qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([recipe, qwen, "--plan", "--gpus", "1", "--gpu-memory", "80"]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("  2*")]
    assert rows and all(" fits |" in line for line in rows)
    assert "it keeps about 131,8" in printed  # (36 - 16.56) GB / 147,456 bytes
    assert "refused: bfloat16" in printed and "  0  " in printed  # stage 0 has no masters


def test_plan_says_what_a_run_in_several_processes_needs_when_it_would_be_refused(
    qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["selfplay_v2", qwen, "--plan", "--gpus", "8"]) == 0
    printed = capsys.readouterr().out
    assert "refused: rollout.engine.process: found shared in 8 processes" in printed
    assert "expected own, or type: vllm_server" in printed
    assert main(["selfplay_v2", qwen, "--plan", "rollout.engine.process=own"]) == 0
    printed = capsys.readouterr().out
    # Stage 1 sends each gradient and each weight once, 2 and 3 the gradients of every pack.
    assert "as it is" not in printed and "of the stages that fit, 1 sends least" in printed


def test_plan_says_what_would_make_it_fit_when_nothing_does(
    qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["selfplay_v2", qwen, "--plan", "trainer.gradient_checkpointing=false"]) == 0
    # Rows alone in their packs keep 154 GB: neither GPUs, adapters nor smaller packs help.
    assert "it would with trainer.gradient_checkpointing=true\n" in capsys.readouterr().out
    # All parameters: 16 bytes each of 8.19 B are 131 GB; 8 ranks share them out at stage 3.
    every = ["model.lora=null", "rollout.engine.max_lora_rank=null", "--gpus", "1"]
    assert main(["selfplay_v2", qwen, "--plan", *every]) == 0
    lora = "model.lora.rank=32 rollout.engine.max_lora_rank=32"
    assert f"it would with {lora}, or --gpus 8\n" in capsys.readouterr().out


def test_plan_places_an_engine_where_a_run_starts_it_when_it_is_split(
    qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    two = "vllm_args: {tensor_parallel_size: 2}"
    beside = f"rollout.engine={{type: vllm, process: own, {two}}}"
    assert main(["selfplay_v2", qwen, "--plan", "--gpus", "4", beside]) == 0
    printed = capsys.readouterr().out
    assert "4 trainer ranks, 0 GPUs for engines alone" in printed
    assert "engine: on 2 GPUs, with 36.0 of 80 GB each" in printed
    assert main(["selfplay_v2", qwen, "--plan", "--gpus", "1", beside]) == 2
    assert "--gpus: found 1, of which the engine takes 2" in capsys.readouterr().err
    served = f"rollout.engine={{type: vllm_server, max_lora_rank: 32, {two}}}"
    assert main(["selfplay_v2", qwen, "--plan", "--gpus", "4", served]) == 0
    printed = capsys.readouterr().out
    assert "2 trainer ranks, 2 GPUs for engines alone" in printed
    assert "rollout.engine.devices: found none; expected its own, such as '2,3'" in printed
    assert main(["selfplay_v2", qwen, "--plan", "--gpus", "2", served]) == 2
    assert "takes 2, 2 of them alone; expected at least 3" in capsys.readouterr().err


# At stage 3 of 2 ranks: weights 1000, gradients 1000, masters and moments 6000; half on 4 ranks.
@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (12000 + 588 * 1100, "it would with trainer.tokens_per_micro_batch=1024"),
        (8000 + 588 * 100, "it would with trainer.tokens_per_micro_batch=100"),
        (4000 + 588 * 100, "or trainer.tokens_per_micro_batch=100 with --gpus 7"),
        (588 * 90, "a rank needs 0.0 GB or more, and no setting of the trainer brings"),
    ],
)
def test_advice_names_the_fewest_changes_that_help(free: int, expected: str) -> None:
    kept = Kept(buckets=Buckets(reduce=0, reuse=0, prefetch=0))
    layout = Layout(SMALL, ranks=2, rows=40, longest=100, budget=2000, kept=kept)
    assert expected in advice(layout, free, None, alone=3)


def test_plan_says_over_how_many_gpus_an_engine_must_be_split_when_it_fits_none(
    qwen: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Llama-3-70B: 141.9 GB with its adapter; 4 GPUs with 36 GB each hold 144, too few for a row.
    config = QWEN3_8B | {
        "model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80,
        "num_attention_heads": 64, "intermediate_size": 28672, "vocab_size": 128256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["selfplay_v2", qwen, "--plan", SERVED]) == 0
    printed = capsys.readouterr().out
    assert "does not fit on one GPU, with 36.0 of 80 GB" in printed
    assert "its weights take 141.9 GB" in printed
    assert "vllm_args.tensor_parallel_size=8" in printed


def test_plan_counts_the_experts_that_a_token_passes_when_it_is_routed(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_moe", "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 10,
        "intermediate_size": 40, "moe_intermediate_size": 24, "num_experts": 4,
        "num_experts_per_tok": 2, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = shape_of(PretrainedModel(name=str(tmp_path)))
    # Experts 4 · 3 · 16 · 24, router 4 · 16, attention 16 · (16 + 8 + 8 + 16) and norms of heads
    # 2 · 8, norms 3 · 16, embedding 10 · 16.
    assert found.parameters == 4608 + 64 + 768 + 16 + 48 + 160
    assert (found.experts, found.ffn) == (2, 2 * 24)
    # Two norms with outputs 2 · (6 h + 2 h), those of heads 6 (q + k), 4 (q + k), 8 f, and of two
    # experts 8 h; 10 h at the end, 4 (f + h) at work.
    assert found.activation_bytes() == 256 + 144 + 96 + 384 + 128 + 160 + 256


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{", "cannot be read as JSON (Expecting property name"),
        ("[]", "holds a list; expected a model configuration"),
        ('{"model_type": "no_such_model"}', "no_such_model"),
        (json.dumps(QWEN3_8B | {"hidden_size": "wide"}), "hidden_size"),
        (json.dumps(QWEN3_8B | {"num_attention_heads": 0}), "ZeroDivisionError"),
        (None, "holds no config.json"),
    ],
)
def test_plan_says_what_is_wrong_with_a_configuration_when_it_cannot_be_read(
    written: str | None, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if written is not None:
        (tmp_path / "config.json").write_text(written)
    assert main(["selfplay_v2", f"model.name={tmp_path}", "--plan"]) == 2
    error = capsys.readouterr().err
    assert message in error and "tokenizer" not in error and "Traceback" not in error
