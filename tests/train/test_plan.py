"""`--plan`: the arithmetic of memory by hand, beside DeepSpeed's estimators and real passes."""

import json
from dataclasses import replace

import pytest
import torch
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
from transformers import Qwen3MoeConfig

from debate_train.checkpoints.policy_files import save_policy
from debate_train.commands.cli import main
from debate_train.losses import ImportanceSampling, PpoClip
from debate_train.models import PretrainedModel, ScratchModel
from debate_train.models.loaded_model import Lora, with_adapter
from debate_train.recipe.model_shape import Shape, shape_of
from debate_train.recipe.plan import memory
from debate_train.trainers import TorchTrainer
from debate_train.trainers.torch_session import (
    KnownLogps,
    StepStats,
    accumulate,
    gradient_checkpointing,
)

QWEN3_8B = {
    "model_type": "qwen3",
    "hidden_size": 4096,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "tie_word_embeddings": False,
    "max_position_embeddings": 40960,
}

# 1000 weights of 2 bytes in 1 layer. It keeps of a token two norms of 4·10 + 2·10 bytes and their
# outputs, 2·2·10; rotated queries and keys, values and the output, 2·2·12; the MLP's 4·2·20: 368.
SMALL = Shape(1000, 1000, 2, layers=1, hidden=10, queries=8, keys=4, ffn=20)
SCRATCH = ScratchModel(hidden_size=16, layers=2, heads=2, kv_heads=1, head_dim=8, ffn_size=24)


# Shapes


def test_shape_counts_bytes_a_token():
    # The last norm and its output 80, hidden states of actions 20; a layer at work 2·2·(20 + 10).
    ends = 100 + 120
    assert SMALL.activation_bytes() == 368 + ends
    two_layers = replace(SMALL, layers=2)
    assert two_layers.activation_bytes(recompute=True) == 2 * 2 * 10 + 368 + ends
    # Frozen weights keep no inputs: 3 norms of 10 less; 6 features of adapters are kept.
    lora = replace(SMALL, adapter=6)
    assert lora.activation_bytes() == 368 + ends - 3 * 20 + 2 * 6
    # Adapters in float32 train in float32, but their layers are computed as the others.
    wide = replace(lora, wide_adapters=True)
    assert wide.activation_bytes() == lora.activation_bytes()
    assert (lora.trained_bytes, wide.trained_bytes) == (2, 4)
    assert SMALL.cache_bytes_per_token == 2 * 1 * 4 * 2  # keys and values of 4 features


def test_shape_of_a_model_counts_its_parameters_without_loading_it(tmp_path):
    loaded = SCRATCH.load(0)
    save_policy(tmp_path, loaded)
    num_parameters = sum(parameter.numel() for parameter in loaded.model.parameters())
    assert shape_of(SCRATCH).parameters == num_parameters

    def lora_shape(lora):
        return shape_of(PretrainedModel(name=str(tmp_path), dtype="bfloat16", lora=lora))

    shape = lora_shape(Lora(rank=2))
    # A layer: q 16+16, k and v 16+8, o 16+16, gate and up 16+24, down 24+16: 232 in all.
    assert shape.trained == 2 * 2 * 232
    assert shape.parameters == num_parameters + shape.trained
    assert (shape.weight_bytes, shape.queries, shape.keys, shape.ffn) == (2, 16, 8, 24)
    two_adapters = lora_shape(Lora(rank=2, adapters=("one", "other")))
    assert two_adapters.trained == 2 * shape.trained
    assert two_adapters.adapter == shape.adapter


def test_shape_counts_the_experts_that_a_token_passes(tmp_path):
    Qwen3MoeConfig(
        vocab_size=10,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=40,
        moe_intermediate_size=24,
        num_experts=4,
        num_experts_per_tok=2,
        tie_word_embeddings=True,
    ).save_pretrained(tmp_path)
    shape = shape_of(PretrainedModel(name=str(tmp_path), dtype="bfloat16"))
    # Experts 4 · 3 · 16 · 24, router 4 · 16, attention 16 · (16 + 8 + 8 + 16) and norms of heads
    # 2 · 8, norms 3 · 16, embedding 10 · 16.
    assert shape.parameters == 4608 + 64 + 768 + 16 + 48 + 160
    assert (shape.experts, shape.ffn) == (2, 2 * 24)
    # Two norms with outputs 2 · (6 h + 2 h), those of heads 6 (q + k), 4 (q + k), 8 f, and of two
    # experts 8 h; 10 h at the end, 4 (f + h) at work.
    assert shape.activation_bytes() == 256 + 144 + 96 + 384 + 128 + 160 + 256


# Weights, gradients, optimizer


@pytest.mark.parametrize(
    ("stage", "weights", "gradients", "optimizer", "reference"),
    [
        (0, 2000, 2000, 8000, 2000),  # moments 8 a weight
        (1, 2000, 2000, 3000, 2000),  # (4 + 8) · 1000 / 4
        (2, 2000, 500, 3000, 2000),
        (3, 500, 500, 3000, 500),
    ],
)
def test_memory_is_that_of_zero_on_four_ranks(stage, weights, gradients, optimizer, reference):
    planned = memory(SMALL, stage, 4, 0, reference=True)
    assert (planned.weights, planned.gradients) == (weights, gradients)
    assert (planned.optimizer, planned.reference) == (optimizer, reference)


@pytest.mark.parametrize("ranks", [1, 4])
def test_memory_is_that_of_deepspeeds_estimators_where_they_count_the_same(ranks):
    # All parameters in bfloat16 with AdamW, nothing offloaded, no activations. They count the
    # float32 copy of an update, 4 bytes each, and no bucket, nor the rank's weights at stage 3.
    num_parameters = SMALL.parameters
    copy = 4 * num_parameters / ranks
    machine = {"num_gpus_per_node": ranks, "cpu_offload": False}
    second = memory(SMALL, 2, ranks, 0, reference=False)
    _, estimate = estimate_zero2_model_states_mem_needs(num_parameters, **machine)[:2]
    assert second.total - second.buffers + copy == estimate
    third = memory(SMALL, 3, ranks, 0, reference=False)
    _, estimate = estimate_zero3_model_states_mem_needs(num_parameters, 0, **machine)[:2]
    assert third.total - third.buffers - third.weights + copy == estimate


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["full", "lora"])
def test_plan_counts_weights_and_gradients_as_the_torch_trainer_has_them(
    tmp_path, random_batch, lora, dtype
):
    save_policy(tmp_path, SCRATCH.load(0))
    model = PretrainedModel(name=str(tmp_path), dtype=dtype, lora=lora)
    loaded = with_adapter(model.load(0), 0)
    measured = []

    def measure(*_):
        parameters = list(loaded.model.parameters())
        gradients = [p.grad for p in parameters if p.grad is not None]
        measured.append(sum(parameter.nbytes for parameter in parameters))
        measured.append(sum(gradient.nbytes for gradient in gradients))

    trainer = TorchTrainer().open(loaded, PpoClip(), 1)
    trainer._optimizer.register_step_pre_hook(measure)
    trainer.step(random_batch())
    planned = memory(shape_of(model, wide_adapters=True), 0, 1, 0, reference=False)
    assert measured == [planned.weights, planned.gradients]


# Activations: about what real passes keep


class SavedBytes(torch.autograd.graph.saved_tensors_hooks):
    """Counts what is kept for a backward pass, without the weights."""

    def __init__(self, model):
        self._weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self._sizes = {}
        super().__init__(self._note, lambda tensor: tensor)

    def _note(self, tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._weights:
            self._sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def total(self):
        return sum(self._sizes.values())


@pytest.mark.parametrize("recompute", [False, True])
def test_activations_are_about_those_kept_when_a_pack_is_computed(random_batch, recompute):
    model = ScratchModel(hidden_size=64, layers=4, heads=4, kv_heads=2, head_dim=16, ffn_size=192)
    loaded = model.load(0)
    if recompute:
        gradient_checkpointing(loaded.model.train())
    loss = ImportanceSampling()
    ((packs,),) = TorchTrainer(packing="rows").plan(random_batch(lengths=(200, 200)), loss)
    saved = SavedBytes(loaded.model)
    with saved:
        accumulate(loaded.model, packs, loss, [KnownLogps()], lambda share: None, StepStats())
    shape = shape_of(model)
    per_token = shape.activation_bytes(recompute)
    per_token -= 2 * 4 * (192 + 64)  # Gradients are not among what a forward pass keeps.
    if recompute:  # Nor is the layer at work.
        three_layers = replace(shape, layers=3).activation_bytes()
        per_token -= shape.activation_bytes() - three_layers
    logits = 4 * packs[0].targets_A.numel() * loaded.model.config.vocab_size
    planned = per_token * packs[0].tokens_BT.numel() + logits
    assert 0.7 * planned < saved.total() < 1.3 * planned


# The command


@pytest.fixture(scope="module", autouse=True)
def shapes():
    """Compute a model's shape once: peft takes most of the time of a plan."""
    shapes = {}

    def remembered_shape(model, wide_adapters=False):
        key = (model.model_dump_json(), wide_adapters)
        if key not in shapes:
            shapes[key] = shape_of(model, wide_adapters)
        return shapes[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("debate_train.recipe.plan.shape_of", remembered_shape)
        yield


@pytest.fixture(scope="module")
def qwen_folder(tmp_path_factory):
    """Make a folder with nothing but the configuration of Qwen3-8B."""
    folder = tmp_path_factory.mktemp("qwen")
    (folder / "config.json").write_text(json.dumps(QWEN3_8B))
    return folder


@pytest.fixture
def qwen(qwen_folder):
    return f"model.name={qwen_folder}"


@pytest.fixture
def plan(qwen, capsys):
    """Print the plan of a recipe; 80 GB a GPU."""

    def run(recipe, *arguments):
        assert main([recipe, qwen, "--plan", "--gpu-memory", "80", *arguments]) == 0
        return capsys.readouterr().out

    return run


TWO_GPUS = "vllm_args: {tensor_parallel_size: 2}"
BESIDE = f"rollout.engine={{type: vllm_server, max_lora_rank: 32, {TWO_GPUS}}}"
SERVED = f"rollout.engine={{type: vllm_server, devices: '2,3', max_lora_rank: 32, {TWO_GPUS}}}"


@pytest.mark.parametrize(
    ("arguments", "messages"),
    [
        (["rollout.engine.gpu_memory_utilization=0.45"], ["44.0 of 80 GB are free for training"]),
        (
            ["--gpus", "8"],
            ["refused: rollout.engine.type: found vllm in 8 processes", "expected vllm_server"],
        ),
        (
            ["--gpus", "4", BESIDE],
            ["4 trainer ranks, 0 GPUs for engines alone", "it takes 36.00 GB of rank 0's GPU"],
        ),
        (["--gpus", "4", SERVED], ["2 trainer ranks, 2 GPUs for engines alone"]),
    ],
    ids=["awake", "processes", "beside", "served"],
)
def test_plan_says_where_an_engine_runs_and_what_it_leaves(arguments, messages, plan):
    printed = plan("selfplay_v2", *arguments)
    assert all(message in printed for message in messages)
