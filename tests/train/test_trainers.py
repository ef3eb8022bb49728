"""The torch trainer: its updates, its metrics, and going on exactly where it stopped."""

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from arithmetic import UNIT
from debate_train.batches.row_types import Batch, Row
from debate_train.errors import RecipeError
from debate_train.losses import ImportanceSampling, Kl, Loss, PpoClip, Sft
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers import TorchTrainer
from debate_train.trainers.optimizers import AdamW
from debate_train.trainers.torch_session import trainable

pytestmark = pytest.mark.numeric

MakeModel = Callable[..., LoadedModel]
MakeBatch = Callable[..., Batch]
GradientOf = Callable[..., tuple[dict[str, float], dict[str, torch.Tensor]]]
PPO_KL = PpoClip(kl=Kl(weight=0.1))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1, 1, 1, 1, 1, 1]),
        # Warm-up in 2 steps: 1/2, 2/2.
        ({"warmup_steps": 2}, [0.5, 1, 1, 1, 1, 1]),
        # 4 steps are left after the warm-up: 1, 3/4, 1/2, 1/4.
        ({"warmup_steps": 2, "schedule": "linear"}, [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ({"schedule": "linear", "min_lr_ratio": 0.4}, [1, 0.9, 0.8, 0.7, 0.6, 0.5]),
        # cos(0), cos(π/4), cos(π/2), cos(3π/4) as (1 + cos)/2
        (
            {"warmup_steps": 2, "schedule": "cosine"},
            [0.5, 1, 1, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4],
        ),
    ],
)
def test_rate_warms_up_and_falls(settings: dict[str, object], expected: list[float]) -> None:
    trainer = TorchTrainer.model_validate(settings)
    assert [trainer.rate_factor(step, 6) for step in range(6)] == pytest.approx(expected)


def test_rate_stays_at_its_end_after_the_phases_steps() -> None:
    trainer = TorchTrainer(schedule="linear", min_lr_ratio=0.25)
    assert [trainer.rate_factor(step, 6) for step in (6, 7, 100)] == [0.25] * 3


@pytest.mark.usefixtures("float64")
def test_first_step_moves_each_parameter_by_the_warmed_up_rate(
    tiny: MakeModel, random_batch: MakeBatch, gradient_of: GradientOf
) -> None:
    # AdamW's first step is lr·g/(|g| + 1e-8): the rate, against the sign of the gradient.
    loaded = tiny()
    before = copy.deepcopy(trainable(loaded.model))
    batch = random_batch()
    _, gradient = gradient_of(loaded, batch, PpoClip())
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradient.values()))
    loaded.model.zero_grad()
    trainer = TorchTrainer(learning_rate=1e-3, warmup_steps=4, max_grad_norm=100.0).open(
        loaded, PpoClip(), 10
    )
    metrics = trainer.step(batch)
    assert metrics["optim/grad_norm"] == pytest.approx(norm, rel=1e-12)
    assert metrics["optim/learning_rate"] == pytest.approx(2.5e-4)
    assert metrics["optim/skipped"] == 0.0
    for name, parameter in trainable(loaded.model).items():
        slope = gradient[name]
        expected = -2.5e-4 * slope / (slope.abs() + 1e-8)
        # A gap of 1e-16 in g is one of 1e-16 / 1e-8 in the direction.
        torch.testing.assert_close(parameter.detach() - before[name], expected, rtol=0, atol=1e-11)
    assert trainer.step(batch)["optim/learning_rate"] == pytest.approx(5e-4)


def row(tokens: list[int], *, advantage: float, sampler: float, temperature: float) -> Row:
    size = len(tokens)
    sampled = np.arange(size) >= 2
    return Row.of_tokens(
        tokens=np.array(tokens),
        mask=sampled.astype(np.float32),
        advantages=np.where(sampled, advantage, 0.0).astype(np.float32),
        sampler_logps=np.where(sampled, sampler, 0.0).astype(np.float32),
        temperatures=np.where(sampled, temperature, 1.0).astype(np.float32),
        streams=sampled.astype(np.int64),
        versions=np.zeros(size, np.int64),
        segments=sampled.astype(np.int64),
        agent=0,
        debate=0,
    )


@pytest.mark.usefixtures("float64")
def test_metrics_are_means_over_all_sampled_tokens(tiny: MakeModel) -> None:
    loaded = tiny()
    rows = (
        row([7, 30, 31, 32, 33], advantage=-1.0, sampler=-4.0, temperature=0.5),
        row([7, 50, 51], advantage=2.0, sampler=-5.0, temperature=2.0),
    )
    p: list[float] = []
    entropy: list[float] = []
    with torch.no_grad():
        for one, temperature in zip(rows, (0.5, 2.0), strict=True):
            logits = loaded.model(input_ids=torch.from_numpy(one.tokens)[None]).logits[0]
            every = (logits / temperature).log_softmax(-1)
            p += [float(every[t - 1, one.tokens[t]]) for t in range(2, len(one.tokens))]
            entropy += [float(-(e.exp() * e).sum()) for e in every[1:-1]]
    q = [-4.0, -4.0, -4.0, -5.0]
    ratio = [math.exp(a - b) for a, b in zip(p, q, strict=True)]
    assert len(p) == len(entropy) == 4
    trainer = TorchTrainer(tokens_per_micro_batch=1).open(loaded, PPO_KL, 1)
    metrics = trainer.step(Batch(rows, ("generator",), 4, 2))
    gaps = [b - a for a, b in zip(p, q, strict=True)]
    capped = [min(max(r, 0.8), 1.28) for r in ratio]
    advantages = [-1.0, -1.0, -1.0, 2.0]
    gains = [min(r * a, c * a) for r, c, a in zip(ratio, capped, advantages, strict=True)]
    # Only where the ratio has moved as far as the advantage wants is the gradient 0.
    clipped = [r > 1.28 if a > 0 else r < 0.8 for r, a in zip(ratio, advantages, strict=True)]
    expected = {
        "loss": -sum(gains) / 4,
        "optim/kl_sample_train_v1": sum(gaps) / 4,
        "optim/kl_sample_train_v2": sum(g * g for g in gaps) / 8,
        "optim/entropy": sum(entropy) / 4,
        "optim/clip_fraction": sum(clipped) / 4,
        "optim/ratio_min": min(ratio),
        "optim/ratio_max": max(ratio),
        "optim/kl_reference": 0.0,
        "optim/loss_policy": -sum(gains) / 4,
        "optim/loss_kl": 0.0,
    }
    assert {name: metrics[name] for name in expected} == pytest.approx(
        expected, rel=1e-12, abs=1e-14
    )
    assert 0 < expected["optim/clip_fraction"] <= 1


@pytest.mark.usefixtures("float64")
def test_supervised_loss_reads_temperature_1(tiny: MakeModel) -> None:
    loaded = tiny()
    tokens = [7, 30, 31, 32]
    rows = (row(tokens, advantage=1.0, sampler=0.0, temperature=0.5),)
    with torch.no_grad():
        every = loaded.model(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
    expected = -float(every[1, 31] + every[2, 32]) / 2
    metrics = TorchTrainer().open(loaded, Sft(), 1).step(Batch(rows, ("generator",), 2, 1))
    assert metrics["loss"] == pytest.approx(expected, rel=1e-12)
    assert "optim/ratio_min" not in metrics


@pytest.mark.usefixtures("float64")
def test_kl_pulls_back_to_the_policy_at_the_phases_start(
    tiny: MakeModel, random_batch: MakeBatch
) -> None:
    loaded = tiny()
    batch = random_batch()
    still = replace(
        batch, rows=tuple(replace(r, advantages=np.zeros_like(r.advantages)) for r in batch.rows)
    )
    trainer = TorchTrainer(learning_rate=1e-2).open(loaded, PpoClip(kl=Kl(weight=0.5)), 9)
    assert trainer.step(still)["optim/kl_reference"] == pytest.approx(0.0, abs=1e-14)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.manual_seed(0)))
    found = [trainer.step(still) for _ in range(4)]
    kl = [metrics["optim/kl_reference"] for metrics in found]
    assert kl[0] > 0.01
    assert kl[-1] < 0.5 * kl[0]
    # Without credit the loss is the penalty: weight times the mean. 1/n of it is float32.
    assert found[0]["loss"] == pytest.approx(0.5 * kl[0], rel=UNIT)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_step_with_a_gradient_that_is_not_finite_is_skipped_and_counted(
    tiny: MakeModel, random_batch: MakeBatch, bad: float
) -> None:
    loaded = tiny()
    trainer = TorchTrainer(learning_rate=0.1).open(loaded, ImportanceSampling(), 5)
    batch = random_batch()
    wrong = replace(batch.rows[0], advantages=np.full_like(batch.rows[0].advantages, bad))
    before = copy.deepcopy(trainable(loaded.model))
    assert trainer.step(replace(batch, rows=(wrong, *batch.rows[1:])))["optim/skipped"] == 1.0
    assert all(torch.equal(before[n], p) for n, p in trainable(loaded.model).items())
    assert trainer.step(batch)["optim/skipped"] == 0.0
    assert all(bool(p.isfinite().all()) for p in loaded.model.parameters())


def test_step_on_nothing_changes_nothing(tiny: MakeModel) -> None:
    loaded = tiny()
    before = copy.deepcopy(trainable(loaded.model))
    trainer = TorchTrainer(learning_rate=0.1).open(loaded, PPO_KL, 5)
    trainer.step(Batch((), ("generator",), 0, 0))
    assert all(torch.equal(before[n], p) for n, p in trainable(loaded.model).items())


def test_weights_hold_all_or_only_the_adapter(tiny: MakeModel) -> None:
    full = TorchTrainer().open(tiny(), PpoClip(), 1).weights(7)
    assert (full.version, full.kind, full.adapter) == (7, "full", None)
    assert set(full.tensors) == set(tiny().model.state_dict())
    lora = TorchTrainer().open(tiny(lora_rank=2), PpoClip(), 1).weights(8)
    assert (lora.version, lora.kind) == (8, "lora")
    assert lora.adapter is not None
    assert lora.adapter["r"] == 2
    assert all("lora_" in name for name in lora.tensors)


def test_lora_trains_the_adapter_alone(tiny: MakeModel, random_batch: MakeBatch) -> None:
    loaded = tiny(lora_rank=2)
    before = {n: p.detach().clone() for n, p in loaded.model.named_parameters()}
    trainer = TorchTrainer(learning_rate=1e-2).open(loaded, PPO_KL, 5)
    for seed in range(2):
        trainer.step(random_batch(seed))
    changed = {n for n, p in loaded.model.named_parameters() if not torch.equal(p, before[n])}
    assert changed == {n for n in before if "lora_" in n}


@pytest.mark.parametrize("lora_rank", [0, 2])
@pytest.mark.parametrize("loss", [PPO_KL, Sft()], ids=lambda loss: str(loss.type))
def test_resumed_trainer_goes_on_exactly(
    tiny: MakeModel, random_batch: MakeBatch, tmp_path: Path, lora_rank: int, loss: Loss
) -> None:
    optimizer = AdamW(weight_decay=0.1)
    config = TorchTrainer(
        learning_rate=1e-2, warmup_steps=2, schedule="linear", optimizer=optimizer
    )
    batches = [random_batch(seed) for seed in range(6)]

    def steps(trainer: object, part: list[Batch]) -> list[dict[str, float]]:
        found = [trainer.step(batch) for batch in part]  # type: ignore[attr-defined]
        return [{k: v for k, v in m.items() if not k.startswith("time/")} for m in found]

    whole_model = tiny(lora_rank=lora_rank)
    whole = config.open(whole_model, loss, 6)
    expected = steps(whole, batches)

    first = config.open(tiny(lora_rank=lora_rank), loss, 6)
    before = steps(first, batches[:3])
    first.save(tmp_path)
    # A run that is resumed begins with the checkpoint's weights; only they were trained.
    other = tiny(lora_rank=lora_rank)
    with torch.no_grad():
        for parameter in trainable(other.model).values():
            parameter.add_(0.5)
    second = config.open(other, loss, 6)
    second.load(tmp_path)
    assert before + steps(second, batches[3:]) == expected
    for name, parameter in trainable(whole_model.model).items():
        assert torch.equal(parameter, trainable(other.model)[name])
    files = {path.name for path in tmp_path.iterdir()}
    assert ("adapter_model.safetensors" if lora_rank else "model.safetensors") in files
    assert "README.md" not in files
    assert any(name.startswith("reference-") for name in files) == (loss.kl.weight > 0)


def test_liger_kernel_is_refused_where_it_cannot_run(
    tiny: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = tiny()
    with pytest.raises(RecipeError, match=r"use_liger_kernel: found no CUDA device; expected one"):
        TorchTrainer(use_liger_kernel=True).open(loaded, PpoClip(), 1)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(RecipeError, match=r"cannot be imported .*pip install 'liger-kernel"):
        TorchTrainer(use_liger_kernel=True, device="cpu").open(loaded, PpoClip(), 1)
