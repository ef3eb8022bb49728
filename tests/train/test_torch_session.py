"""The torch trainer: updates beside ones made by hand, metrics, skips, resumes, refusals."""

import copy
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GptOssConfig,
    GptOssForCausalLM,
    Lfm2Config,
    Lfm2ForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    MiniMaxConfig,
    MiniMaxForCausalLM,
    MptConfig,
    MptForCausalLM,
)

from arithmetic import UNIT
from debate_train.batches.row_types import Batch, minibatches
from debate_train.errors import ModelError, RecipeError
from debate_train.losses import Dpo, ImportanceSampling, Kl, PpoClip, Sft
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers import TorchTrainer
from debate_train.trainers.optimizers import AdamW
from debate_train.trainers.processes import LostProcessError
from debate_train.trainers.torch_session import (
    KnownLogps,
    Skips,
    StepStats,
    Update,
    accumulate,
    trainable,
)
from train.made_rows import row_of

pytestmark = pytest.mark.numeric

PPO_KL = PpoClip(kl=Kl(weight=0.1))
EMPTY = Batch((), ("generator",), 0, 0)


def copy_parameters(loaded):
    return copy.deepcopy(trainable(loaded.model))


def assert_unchanged(loaded, before):
    assert all(torch.equal(before[name], p) for name, p in trainable(loaded.model).items())


def with_advantages(row, value):
    return replace(row, advantages=np.full_like(row.advantages, value))


def make_row(tokens, *, advantage, sampler_logp, temperature):
    """Make a row whose tokens were sampled from the third on."""
    return row_of(
        tokens,
        np.arange(len(tokens)) >= 2,
        advantages=advantage,
        sampler_logps=sampler_logp,
        temperatures=temperature,
    )


def row_logps(model, row):
    """Compute the log-probabilities of a row's sampled tokens, from all logits."""
    tokens = torch.from_numpy(row.over_tokens("tokens"))
    temperatures = torch.from_numpy(row.over_tokens("temperatures"))
    logits = model(input_ids=tokens[None]).logits[0, :-1] / temperatures[1:, None]
    logps = logits.log_softmax(-1).gather(1, tokens[1:, None])[:, 0]
    return logps[torch.from_numpy(row.mask)[1:] > 0]


# Learning rate


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        # Warm-up in 2 steps: 1/2, 2/2.
        ({"warmup_steps": 2}, [0.5, 1, 1, 1, 1, 1]),
        # 4 steps are left after the warm-up: 1, 3/4, 1/2, 1/4.
        ({"warmup_steps": 2, "schedule": "linear"}, [0.5, 1, 1, 0.75, 0.5, 0.25]),
        # It stays at its end after the phase's steps.
        (
            {"schedule": "linear", "min_lr_ratio": 0.4},
            [1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.4],
        ),
        # cos(0), cos(π/4), cos(π/2), cos(3π/4) as (1 + cos)/2
        (
            {"warmup_steps": 2, "schedule": "cosine"},
            [0.5, 1, 1, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4],
        ),
    ],
)
def test_rate_warms_up_and_falls(settings, expected):
    trainer = TorchTrainer.model_validate(settings)
    rates = [trainer.rate_factor(step, 6) for step in range(len(expected))]
    assert rates == pytest.approx(expected)


# Updates by hand


@pytest.mark.usefixtures("float64")
def test_several_updates_are_those_made_by_hand(tiny, random_batch):
    # Two passes over two minibatches: the ratio is against the policy before the first update,
    # min(exp(old - q), 1.5) corrects for the sampler, the mean is over each minibatch's tokens.
    loaded = tiny()
    mirror = tiny().model
    batch = replace(random_batch(), seed=3)
    config = TorchTrainer(learning_rate=0.02, epochs=2, minibatch_size=4, max_grad_norm=1e9)
    metrics = config.open(loaded, PpoClip(importance_cap=1.5), 5).step(batch)
    optimizer = config.make_optimizer(dict(mirror.named_parameters()))
    with torch.no_grad():
        old_logps = {row.debate: row_logps(mirror, row) for row in batch.rows}
    losses = []
    num_clipped = num_tokens = 0
    for update in minibatches(batch, 4) * 2:
        total = torch.zeros(())
        for row in update.rows:
            logps = row_logps(mirror, row)
            old = old_logps[row.debate]
            advantages = torch.from_numpy(row.advantages)
            ratio = (logps - old).exp()
            surrogate = torch.minimum(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
            correction = (old - torch.from_numpy(row.sampler_logps)).exp().clamp(max=1.5)
            total = total - (surrogate * correction).sum()
            num_clipped += int(((ratio < 0.8) & (advantages < 0)).sum())
            num_clipped += int(((ratio > 1.28) & (advantages > 0)).sum())
            num_tokens += len(logps)
        loss = total / update.sampled_tokens
        losses.append(float(loss.detach()))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert 0 < num_clipped < num_tokens
    gap = 4 * 0.02 * UNIT  # Four updates at this rate; the means' denominators are float32.
    for name, parameter in trainable(loaded.model).items():
        torch.testing.assert_close(parameter, trainable(mirror)[name], rtol=0, atol=gap)
    assert metrics["loss"] == pytest.approx(sum(losses) / 4, rel=2 * UNIT)
    assert metrics["optim/clip_fraction"] == pytest.approx(num_clipped / num_tokens)
    assert metrics["optim/skipped"] == 0.0


def paired(batch):
    """Make pairs of neighbors, the first of which is rejected."""
    rows = []
    for number, row in enumerate(batch.rows[: len(batch.rows) // 2 * 2]):
        rows.append(with_advantages(replace(row, pair=number // 2), 1 if number % 2 else -1))
    return replace(batch, rows=tuple(rows))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("lora_rank", [0, 2])
@pytest.mark.parametrize(
    ("loss", "arrange"),
    [
        (ImportanceSampling(aggregation="token_mean_group", kl=Kl(weight=0.3)), lambda b: b),
        (Dpo(nll_weight=0.5), paired),
    ],
    ids=["importance sampling", "dpo"],
)
def test_gradient_is_the_finite_difference_through_the_model(
    tiny, random_batch, gradient_of, lora_rank, loss, arrange
):
    loaded = tiny(lora_rank=lora_rank)
    reference = tiny(seed=1, lora_rank=lora_rank)
    batch = arrange(random_batch())
    _, gradient = gradient_of(loaded, batch, loss, reference)
    generator = torch.Generator().manual_seed(0)
    for name in sorted(gradient)[::3]:
        parameter = trainable(loaded.model)[name]
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        ends = []
        for step in (1e-5, -1e-5):
            parameter.data.add_(step * direction)
            ends.append(gradient_of(loaded, batch, loss, reference)[0]["loss"])
            parameter.data.sub_(step * direction)
        slope = (ends[0] - ends[1]) / 2e-5
        expected = float((gradient[name] * direction).sum())
        assert slope == pytest.approx(expected, rel=1e-5, abs=1e-6), name


# Metrics


@pytest.mark.usefixtures("float64")
def test_metrics_are_means_over_all_sampled_tokens(tiny):
    loaded = tiny()
    temperatures = (0.5, 2.0)
    rows = (
        make_row([7, 30, 31, 32, 33], advantage=-1.0, sampler_logp=-4.0, temperature=0.5),
        make_row([7, 50, 51], advantage=2.0, sampler_logp=-5.0, temperature=2.0),
    )
    logps = []
    entropies = []
    with torch.no_grad():
        for row, temperature in zip(rows, temperatures, strict=True):
            logits = loaded.model(input_ids=torch.from_numpy(row.tokens)[None]).logits[0, 1:-1]
            all_logps = (logits / temperature).log_softmax(-1)
            logps += all_logps.gather(1, torch.from_numpy(row.tokens)[2:, None])[:, 0].tolist()
            entropies += (-(all_logps.exp() * all_logps).sum(-1)).tolist()
    logps = np.array(logps)
    sampler_logps = np.array([-4.0, -4.0, -4.0, -5.0])
    advantages = np.array([-1.0, -1.0, -1.0, 2.0])
    ratio = np.exp(logps - sampler_logps)
    gains = np.minimum(ratio * advantages, ratio.clip(0.8, 1.28) * advantages)
    # Only where the ratio has moved as far as the advantage wants is the gradient 0.
    is_clipped = np.where(advantages > 0, ratio > 1.28, ratio < 0.8)
    trainer = TorchTrainer(tokens_per_micro_batch=1).open(loaded, PPO_KL, 1)
    metrics = trainer.step(Batch(rows, ("generator",), 4, 2))
    expected = {
        "loss": -gains.sum() / 4,
        "optim/kl_sample_train_v1": (sampler_logps - logps).sum() / 4,
        "optim/kl_sample_train_v2": ((sampler_logps - logps) ** 2).sum() / 8,
        "optim/entropy": sum(entropies) / 4,
        "optim/clip_fraction": is_clipped.sum() / 4,
        "optim/ratio_min": ratio.min(),
        "optim/ratio_max": ratio.max(),
        "optim/kl_reference": 0.0,
        "optim/loss_policy": -gains.sum() / 4,
        "optim/loss_kl": 0.0,
    }
    computed = {name: metrics[name] for name in expected}
    assert computed == pytest.approx(expected, rel=1e-12, abs=1e-14)
    assert is_clipped.any()


def test_step_stats_of_all_ranks_are_sums_and_extremes():
    ranks = []
    for values in ([1.0, 4.0], [2.0, 8.0]):
        stats = StepStats(epochs=1, updates=1)
        stats.add("optim/entropy", torch.tensor(values))
        stats.watch("optim/ratio_min", "optim/ratio_max", torch.tensor(values))
        ranks.append(stats.on_cpu())
    metrics = StepStats.of_all(ranks).metrics(5)
    # (1 + 4 + 2 + 8) / 5 tokens
    assert metrics == {"optim/entropy": 3.0, "optim/ratio_min": 1.0, "optim/ratio_max": 8.0}


# Steps that change nothing


def test_step_on_nothing_changes_nothing(tiny):
    loaded = tiny()
    before = copy_parameters(loaded)
    TorchTrainer(learning_rate=0.1).open(loaded, PPO_KL, 5).step(EMPTY)
    assert_unchanged(loaded, before)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_update_that_is_not_finite_leaves_weights_and_optimizer_as_they_were(
    tiny, random_batch, value
):
    loaded = tiny()
    trainer = TorchTrainer(learning_rate=0.01).open(loaded, ImportanceSampling(), 5)
    batch = random_batch()
    first, *others = batch.rows
    endless = replace(batch, rows=(with_advantages(first, value), *others))
    trainer.step(batch)
    before = copy_parameters(loaded)
    states = copy.deepcopy(list(trainer._optimizer.state.values()))
    skipped = [trainer.step(endless)["optim/skipped_in_a_row"] for _ in range(2)]
    assert skipped == [1.0, 2.0]
    assert_unchanged(loaded, before)
    for state, later in zip(states, trainer._optimizer.state.values(), strict=True):
        assert all(torch.equal(state[name], later[name]) for name in state)
    metrics = trainer.step(batch)
    assert (metrics["optim/skipped"], metrics["optim/skipped_in_a_row"]) == (0.0, 0.0)


@pytest.mark.parametrize(("reference_logp", "is_finite"), [(-50.0, True), (-math.inf, False)])
def test_loss_that_is_not_finite_makes_the_gradient_so(
    tiny, random_batch, reference_logp, is_finite
):
    # A reference that cannot say a token: k3 = exp(-inf) + inf - 1, its slope 1 - exp(-inf) = 1.
    model = tiny().model
    loss = PpoClip(kl=Kl(weight=1.0))
    packs = TorchTrainer().packs(random_batch(), loss)[0]
    logps = [torch.full_like(pack.advantages_A, reference_logp) for pack in packs]
    stats = StepStats()
    known_logps = [KnownLogps(reference_A=logps_A) for logps_A in logps]
    accumulate(model, packs, loss, known_logps, lambda share: share.backward(), stats)
    assert math.isfinite(stats.metrics(1)["loss"]) == is_finite
    slopes = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(bool(slope.isfinite().all()) for slope in slopes) == is_finite


def test_skips_count_updates_in_a_row():
    skips = Skips(1)
    made = Update(2.0, False)
    lost = Update(math.inf, True)
    assert skips.metrics([lost, lost])["optim/skipped_in_a_row"] == 3.0
    metrics = skips.metrics([lost, made, made])
    assert (metrics["optim/skipped"], metrics["optim/skipped_in_a_row"]) == (1.0, 0.0)
    metrics = skips.metrics([made, made])
    assert (metrics["optim/grad_norm"], metrics["optim/updates"]) == (2.0, 2.0)
    assert skips.metrics([])["optim/grad_norm"] == 0.0


# Adapters, weights and resumes


@pytest.mark.parametrize(
    ("lora_rank", "loss", "dtype"),
    [
        (0, PPO_KL, torch.float32),
        (0, PpoClip(), torch.bfloat16),
        (2, Sft(), torch.float32),
    ],
    ids=["full", "bfloat16", "adapter"],
)
def test_resumed_trainer_goes_on_exactly(tiny, random_batch, tmp_path, lora_rank, loss, dtype):
    settings = {"warmup_steps": 2, "schedule": "linear", "optimizer": AdamW(weight_decay=0.1)}
    config = TorchTrainer(learning_rate=1e-2, **settings)

    def load():
        loaded = tiny(lora_rank=lora_rank)
        if dtype is torch.bfloat16:
            loaded.model.to(dtype)
        return loaded

    def train_steps(trainer, seeds):
        steps = []
        for seed in seeds:
            metrics = trainer.step(random_batch(seed))
            steps.append({k: v for k, v in metrics.items() if not k.startswith("time/")})
        return steps

    whole = load()
    expected = train_steps(config.open(whole, loss, 6), range(4))
    first = config.open(load(), loss, 6)
    steps = train_steps(first, range(2))
    first.save(tmp_path)
    # A run that is resumed begins with the checkpoint's weights.
    resumed = load()
    with torch.no_grad():
        for parameter in trainable(resumed.model).values():
            parameter.add_(0.5)
    second = config.open(resumed, loss, 6)
    second.load(tmp_path)
    assert steps + train_steps(second, (2, 3)) == expected
    assert_unchanged(resumed, trainable(whole.model))
    names = {path.name for path in tmp_path.iterdir()}
    assert ("adapter_model.safetensors" if lora_rank else "model.safetensors") in names
    assert "README.md" not in names
    assert any(name.startswith("reference-") for name in names) == (loss.kl.weight > 0)


# Models that are refused when a trainer opens

SHAPE = {
    "vocab_size": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "initializer_range": 0.3,
}
TWO_LAYERS = SHAPE | {"num_hidden_layers": 2, "num_key_value_heads": 1}
EXPERTS = {"num_local_experts": 4, "num_key_value_heads": 1, "head_dim": 8}


def make_llama(**changes):
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE | changes))


def make_convolution():
    """Make a convolution over tokens, before a layer that attends as packs say."""
    torch.manual_seed(0)
    return Lfm2ForCausalLM(Lfm2Config(**TWO_LAYERS, layer_types=["conv", "full_attention"]))


def make_linear_attention():
    """Make small weights, as before training: what leaks is less than rounding may come to."""
    torch.manual_seed(0)
    small = TWO_LAYERS | {"initializer_range": 0.02, "head_dim": 8, "num_local_experts": 2}
    layers = ["linear_attention", "full_attention"]
    return MiniMaxForCausalLM(MiniMaxConfig(**small, layer_types=layers))


class Blind(LlamaForCausalLM):
    """A model that counts positions itself, whatever they are."""

    def __init__(self, config):
        super().__init__(config)
        inner = self.model.forward
        self.model.forward = lambda *args, position_ids=None, **settings: inner(*args, **settings)


def make_blind():
    torch.manual_seed(0)
    return Blind(LlamaConfig(**SHAPE))


def open_trainer(model, packing="prefix"):
    TorchTrainer(packing=packing).open(LoadedModel(model, None), PpoClip(), 1)


@pytest.mark.parametrize("packing", ["prefix", "rows", "none"])
@pytest.mark.parametrize(
    "model",
    [
        make_llama(),
        GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2, attn_pdrop=0.0)),
    ],
    ids=["llama", "gpt2"],
)
def test_model_that_attends_as_packs_say_is_taken(model, packing):
    model.eval()
    open_trainer(model, packing)
    assert not model.training


@pytest.mark.parametrize("packing", ["prefix", "rows"])
@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (MambaForCausalLM(MambaConfig(**SHAPE, state_size=4)), "mamba.*packing=none"),
        (GptOssForCausalLM(GptOssConfig(**SHAPE, **EXPERTS)), "s_aux.*packing=none"),
        (
            MptForCausalLM(MptConfig(vocab_size=64, d_model=16, n_layers=1, n_heads=2)),
            "mpt.*packing=none",
        ),
        (make_convolution(), "lets a row read the one before it"),
        (make_linear_attention(), "lets a row read the one before it"),
    ],
    ids=["mamba", "sinks", "alibi", "convolution", "small weights"],
)
def test_model_that_packs_would_score_otherwise_is_refused(model, reason, packing):
    with pytest.raises(RecipeError, match=reason):
        open_trainer(model, packing)


def test_model_that_reads_other_positions_is_refused():
    with pytest.raises(RecipeError, match=r"off by .* nats a token; expected packed rows"):
        open_trainer(make_blind())


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("FlashAttention only supports Ampere GPUs or newer.\nmore lines"),
        # Failures that are not the model's pass as they are.
        torch.OutOfMemoryError("CUDA out of memory"),
        LostProcessError("rank 0 of 2: found another process gone"),
    ],
    ids=["old gpu", "memory", "process"],
)
def test_torch_without_the_kernel_is_refused_with_a_way_out(error, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr("debate_train.batches.forward.block_attention", fail)
    first_line = re.escape(str(error).splitlines()[0])
    if isinstance(error, torch.OutOfMemoryError | LostProcessError):
        with pytest.raises(type(error), match=first_line):
            open_trainer(make_llama())
    else:
        with pytest.raises(RecipeError, match=rf"with torch .*{first_line}\); .*packing=none"):
            open_trainer(make_llama())


@pytest.mark.parametrize("packing", ["prefix", "none"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_model_whose_weights_are_not_finite_is_refused(value, packing):
    model = make_llama()
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 5] = value
    with pytest.raises(ModelError, match="are not finite: its weights hold NaN"):
        open_trainer(model, packing)
