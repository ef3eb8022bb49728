"""`--plan`: the arithmetic of memory, against numbers by hand and a real pass."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from debate_train.batches.row_types import Batch
from debate_train.checkpoints.policy_files import save_policy
from debate_train.commands.cli import main
from debate_train.losses import PpoClip
from debate_train.models import PretrainedModel, ScratchModel
from debate_train.models.loaded_model import Lora, with_adapter
from debate_train.recipe.model_shape import shape_of
from debate_train.recipe.plan import memory
from debate_train.trainers import TorchTrainer

QWEN3_8B = {
    "model_type": "qwen3", "hidden_size": 4096, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "intermediate_size": 12288, "vocab_size": 151936, "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
}  # fmt: skip
RECIPES = Path(__file__).resolve().parents[2] / "recipes"
TWO_MODELS = "papers/selfplay_stronger_judge"
"""Made for two GPUs; --plan loads the configuration of its judge from the hub, too."""
SEVERAL = ("selfplay_v2_8gpu", "papers/selfplay_v2_2x8gpu")
LARGE = sorted(
    {
        path.relative_to(RECIPES).with_suffix("").as_posix()
        for path in RECIPES.rglob("selfplay_*.yaml")
    }
    - {TWO_MODELS, *SEVERAL}
)
SERVED = "rollout.engine={type: vllm_server, devices: '7', max_lora_rank: 32}"


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    """Argument that names a folder with nothing but the configuration of Qwen3-8B."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    return f"model.name={tmp_path}"


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
    assert main(["from_nothing", "--plan", "--gpus", "4", "--gpu-memory", "24"]) == 0
    printed = capsys.readouterr().out
    assert "phase self_play: 4 trainer ranks" in printed
    assert printed.count("  3  ") == 3


def test_plan_counts_the_rows_that_a_rule_lets_be_and_those_of_an_update(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["sdrl_freq_puzzle", "--plan", "--gpus", "1", "--gpu-memory", "80"]) == 0
    # 32 questions x 8 and 16 x 8 rows in 3 updates of at most 128: 128 rows of 547 tokens are
    # 70,016 tokens, eight packs of 8,192 and a part of one.
    printed = capsys.readouterr().out
    assert "at most 384 rows of 547 tokens a step: an update has 9 packs" in printed


@pytest.mark.parametrize("recipe", LARGE)
def test_plan_fits_the_hardware_that_a_recipe_names_when_made_for_it(
    recipe: str, qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([recipe, qwen, "--plan", "--gpus", "1", "--gpu-memory", "80"]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("  2*")]
    assert rows and all(line.endswith(" fits") for line in rows)
    assert "it keeps about 131,8" in printed  # (36 - 16.56) GB / 147,456 bytes
    assert "refused: bfloat16" in printed and "  0  " in printed  # stage 0 has no masters


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        # (72 - 16.56) GB / 147,456 bytes; without adapters 16.38 GB.
        ("selfplay_v2_8gpu", ("4 trainer ranks, 4 GPUs for", "44.59 fits", "about 376,003")),
        (
            "papers/selfplay_v2_2x8gpu",
            ("8 trainer ranks, 8 GPUs for", "60.89 fits", "about 377,187"),
        ),
    ],
)
def test_plan_fits_several_gpus_of_which_half_serve(
    recipe: str,
    said: tuple[str, str, str],
    qwen: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if recipe.endswith("2x8gpu"):  # The job of --slurm names the servers.
        monkeypatch.setenv("DEBATE_VLLM_URLS", " ".join(f"http://n:{k}" for k in range(8)))
    gpus = str(2 * int(said[0][0]))
    assert main([recipe, qwen, "--plan", "--gpus", gpus, "--gpu-memory", "80"]) == 0
    printed = capsys.readouterr().out
    stage_2 = printed.partition("  2*")[2].partition("\n")[0]
    assert said[0] in printed and stage_2.endswith(said[1]) and said[2] in printed


def test_engine_that_sleeps_leaves_its_memory_to_the_trainer(
    qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for changes, free in (([], "44.0"), (["rollout.engine.sleep=true"], "80.0")):
        arguments = ["selfplay_v2", qwen, "rollout.engine.gpu_memory_utilization=0.45", *changes]
        assert main([*arguments, "--plan", "--gpus", "1", "--gpu-memory", "80"]) == 0
        assert f"{free} of 80 GB are free for training" in capsys.readouterr().out


def test_plan_counts_the_judge_that_a_recipe_brings(
    qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = f"rollout.policies.judge.{qwen}"
    assert main([TWO_MODELS, qwen, judge, "--plan", "--gpus", "2", "--gpu-memory", "80"]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("  2*")]
    assert len(rows) == 4 and all(line.endswith(" fits") for line in rows)  # One of each phase.
    assert "it takes 72.00 GB of its own GPUs" in printed


def test_plan_says_what_a_run_in_several_processes_needs_when_it_would_be_refused(
    qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["selfplay_v2", qwen, "--plan", "--gpus", "8"]) == 0
    printed = capsys.readouterr().out
    assert "refused: rollout.engine.type: found vllm in 8 processes" in printed
    assert "expected vllm_server" in printed
    assert main(["selfplay_v2", qwen, "--plan", "rollout.engine.type=vllm_server"]) == 0
    printed = capsys.readouterr().out
    assert "as it is" not in printed


def test_plan_says_that_nothing_fits(qwen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["selfplay_v2", qwen, "--plan", "trainer.gradient_checkpointing=false"]) == 0
    assert "no stage fits" in capsys.readouterr().out  # Rows alone in their packs keep 154 GB.


def test_plan_places_an_engine_where_a_run_starts_it_when_it_is_split(
    qwen: str, capsys: pytest.CaptureFixture[str]
) -> None:
    two = "vllm_args: {tensor_parallel_size: 2}"
    beside = f"rollout.engine={{type: vllm_server, max_lora_rank: 32, {two}}}"
    assert main(["selfplay_v2", qwen, "--plan", "--gpus", "4", beside]) == 0
    printed = capsys.readouterr().out
    assert "4 trainer ranks, 0 GPUs for engines alone" in printed
    assert "it takes 36.00 GB of rank 0's GPU" in printed
    assert main(["selfplay_v2", qwen, "--plan", "--gpus", "1", beside]) == 2
    assert "--gpus: found 1, of which the engine takes 2" in capsys.readouterr().err
    served = f"rollout.engine={{type: vllm_server, devices: '2,3', max_lora_rank: 32, {two}}}"
    assert main(["selfplay_v2", qwen, "--plan", "--gpus", "4", served]) == 0
    printed = capsys.readouterr().out
    assert "2 trainer ranks, 2 GPUs for engines alone" in printed
    assert main(["selfplay_v2", qwen, "--plan", "--gpus", "2", served]) == 2
    assert "takes 2, 2 of them alone; expected at least 3" in capsys.readouterr().err


def test_plan_says_that_an_engine_does_not_fit(
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
    assert "141.9 GB of weights; it takes 36.00 GB" in printed and "do not fit" in printed
    assert "larger rollout.engine.vllm_args.tensor_parallel_size" in printed


def test_plan_counts_the_experts_that_a_token_passes_when_it_is_routed(tmp_path: Path) -> None:
    config = {
        "model_type": "qwen3_moe", "hidden_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 8, "vocab_size": 10,
        "intermediate_size": 40, "moe_intermediate_size": 24, "num_experts": 4,
        "num_experts_per_tok": 2, "tie_word_embeddings": True,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = shape_of(PretrainedModel(name=str(tmp_path), dtype="bfloat16"))
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
