"""`--plan`: the arithmetic of memory and traffic, against numbers by hand and a real pass."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from debate_train.checkpointing.policy_files import save_policy
from debate_train.checks.model_shape import Shape, shape_of
from debate_train.checks.plan_advice import advice
from debate_train.checks.plan_memory import HEAD_LOGITS, Layout, memory, moved
from debate_train.cli import main
from debate_train.losses import ImportanceSampling
from debate_train.models import Lora, PretrainedModel, ScratchModel
from debate_train.trainers.objective import KnownLogps, StepStats, accumulate
from debate_train.trainers.recomputing import recompute_layers
from debate_train.trainers.torch_trainer import TorchTrainer

# 1000 weights of 2 bytes in 1 layer: 6·10 + 3·8 + 3·4 + 4·20 = 176 numbers a token and layer.
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


class Kept(torch.autograd.graph.saved_tensors_hooks):
    """Counts what is kept for a backward pass, without the weights."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._found: dict[int, int] = {}
        super().__init__(self._note, lambda tensor: tensor)

    def __enter__(self) -> "Kept":
        super().__enter__()
        return self

    @property
    def bytes(self) -> int:
        return sum(self._found.values())

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._weights:
            self._found[storage.data_ptr()] = storage.nbytes()
        return tensor


@pytest.fixture
def qwen(tmp_path: Path) -> str:
    """Argument that names a folder with nothing but the configuration of Qwen3-8B."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN3_8B))
    return f"model.name={tmp_path}"


def test_shape_counts_bytes_a_token_when_asked() -> None:
    assert SMALL.activation_bytes() == 2 * (176 + 3 * 10)
    two = dataclasses.replace(SMALL, layers=2)
    assert two.activation_bytes(recompute=True) == 2 * (2 * 10 + 176 + 3 * 10)
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
    assert (found.weight_bytes, found.queries, found.keys, found.ffn) == (2, 16, 8, 24)
    assert shape_of(scratch).parameters == count


@pytest.mark.parametrize("recompute", [False, True])
def test_activations_are_about_those_kept_when_a_pack_is_computed(
    random_batch: Any, recompute: bool
) -> None:
    model = ScratchModel(hidden_size=64, layers=4, heads=4, kv_heads=2, head_dim=16, ffn_size=192)
    loaded = model.load(0)
    if recompute:
        recompute_layers(loaded.model.train())
    loss = ImportanceSampling()
    ((packs,),) = TorchTrainer(packing="rows").plan(random_batch(lengths=(200, 200)), loss)
    with Kept(loaded.model) as kept:
        accumulate(loaded.model, packs, loss, [KnownLogps()], lambda share: None, StepStats())
    shape = shape_of(model)
    planned = shape.activation_bytes(recompute)
    if recompute:  # The layer at work is not among what a forward pass keeps.
        one = shape.activation_bytes() - dataclasses.replace(shape, layers=3).activation_bytes()
        planned -= one
    planned *= packs[0].tokens_BT.numel()
    logits = packs[0].targets_A.numel() * loaded.model.config.vocab_size
    planned += 4 * logits  # Of a chunk, which all of them fit.
    assert 0.7 * planned < kept.bytes < 1.3 * planned


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
    assert main(["selfplay_v2", qwen, "--plan", "trainer.recompute_layers=false"]) == 0
    # Rows alone in their packs keep 154 GB: neither GPUs, adapters nor smaller packs help.
    assert "it would with trainer.recompute_layers=true\n" in capsys.readouterr().out
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
        (12000 + 412 * 1100, "it would with trainer.tokens_per_micro_batch=1024"),
        (8000 + 412 * 100, "it would with trainer.tokens_per_micro_batch=100"),
        (4000 + 412 * 100, "or trainer.tokens_per_micro_batch=100 with --gpus 7"),
        (412 * 90, "a rank needs 0.1 GB or more, and no setting of the trainer brings"),
    ],
)
def test_advice_names_the_fewest_changes_that_help(free: int, expected: str) -> None:
    layout = Layout(SMALL, ranks=2, rows=40, longest=100, budget=2000)
    assert expected in advice(layout, free + HEAD_LOGITS, None, alone=3)


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
    # (6 + 2 · 2) h + 3 q + 3 k + 4 f, and 3 h at the end.
    assert found.activation_bytes() == 2 * (160 + 48 + 24 + 192 + 48)


@pytest.mark.parametrize("experts", [2, 4])
def test_activations_are_about_those_kept_when_tokens_are_routed(
    experts: int, tmp_path: Path
) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    planned, measured = [], []
    for layers in (2, 4):
        config = Qwen3MoeConfig(
            vocab_size=50, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, moe_intermediate_size=48, num_experts=8,
            num_experts_per_tok=experts,
        )  # fmt: skip
        config.save_pretrained(tmp_path)
        shape = shape_of(PretrainedModel(name=str(tmp_path), dtype="float32"))
        planned.append(200 * shape.activation_bytes())
        model = Qwen3MoeForCausalLM(config)
        with Kept(model) as kept:
            model.model(input_ids=torch.arange(200)[None] % 50)
        measured.append(kept.bytes)
    # Of two layers, so that what the ends of a model keep does not count.
    two, real = planned[1] - planned[0], measured[1] - measured[0]
    assert 0.7 * two < real < 1.3 * two


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
