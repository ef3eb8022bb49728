"""Several updates of one batch, against the same made by hand; updates that are skipped."""

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from arithmetic import UNIT
from debate_train.batches.row_types import Batch, Row, minibatches
from debate_train.losses import Dpo, ImportanceSampling, Kl, Loss, PpoClip, Reinforce
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers import TorchTrainer
from debate_train.trainers.torch_session import (
    KnownLogps,
    Skips,
    StepStats,
    Update,
    accumulate,
    trainable,
)

pytestmark = pytest.mark.numeric

MakeModel = Callable[..., LoadedModel]
MakeBatch = Callable[..., Batch]
GradientOf = Callable[..., tuple[dict[str, float], dict[str, Tensor]]]


def row_logps(model: Any, row: Row) -> Tensor:
    """Log-probabilities of a row's sampled tokens, from all logits."""
    tokens, heat = (torch.from_numpy(row.over_tokens(n)) for n in ("tokens", "temperatures"))
    every = (model(input_ids=tokens[None]).logits[0, :-1] / heat[1:, None]).log_softmax(-1)
    return every.gather(1, tokens[1:, None])[:, 0][torch.from_numpy(row.mask)[1:] > 0]


@pytest.mark.usefixtures("float64")
def test_several_updates_are_those_made_by_hand(tiny: MakeModel, random_batch: MakeBatch) -> None:
    # Two passes over two minibatches: the ratio is against the policy before the first update,
    # min(exp(old - q), 1.5) corrects for the sampler, the mean is over each minibatch's tokens.
    loaded, mirror = tiny(), tiny()
    batch = replace(random_batch(), seed=3)
    loss = PpoClip(importance_cap=1.5)
    config = TorchTrainer(learning_rate=0.02, epochs=2, minibatch_size=4, max_grad_norm=1e9)
    metrics = config.open(loaded, loss, 5).step(batch)

    optimizer = config.make_optimizer(dict(mirror.model.named_parameters()))
    with torch.no_grad():
        old = {row.debate: row_logps(mirror.model, row) for row in batch.rows}
    losses, outside, tokens = [], 0, 0
    for part in minibatches(batch, 4) * 2:
        total = torch.zeros(())
        for row in part.rows:
            p, q = row_logps(mirror.model, row), torch.from_numpy(row.sampler_logps)
            ratio, credit = (p - old[row.debate]).exp(), torch.from_numpy(row.advantages)
            worst = torch.minimum(ratio * credit, ratio.clamp(0.8, 1.28) * credit)
            total = total - (worst * (old[row.debate] - q).exp().clamp(max=1.5)).sum()
            outside += int(((ratio < 0.8) & (credit < 0)).sum())
            outside += int(((ratio > 1.28) & (credit > 0)).sum())
            tokens += len(p)
        loss_of_part = total / part.sampled_tokens
        losses.append(float(loss_of_part.detach()))
        optimizer.zero_grad()
        loss_of_part.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    assert 0 < outside < tokens
    gap = 4 * 0.02 * UNIT  # Four updates at this rate; the means' denominators are float32.
    for name, parameter in trainable(loaded.model).items():
        torch.testing.assert_close(parameter, trainable(mirror.model)[name], rtol=0, atol=gap)
    gaps = [
        float(q - p)
        for row in batch.rows
        for q, p in zip(row.sampler_logps, old[row.debate], strict=True)
    ]
    assert metrics["loss"] == pytest.approx(sum(losses) / 4, rel=2 * UNIT)
    assert metrics["optim/clip_fraction"] == pytest.approx(outside / tokens)
    assert metrics["optim/kl_sample_train_v1"] == pytest.approx(sum(gaps) / len(gaps), rel=1e-12)
    assert metrics["optim/skipped"] == 0.0


@pytest.mark.usefixtures("float64")
def test_ratio_against_the_trainer_is_1_when_a_batch_makes_one_update(
    tiny: MakeModel, random_batch: MakeBatch, gradient_of: GradientOf
) -> None:
    loss = PpoClip(old_policy="trainer", importance_cap=None)
    metrics, gradient = gradient_of(tiny(), random_batch(), loss)
    assert metrics["optim/ratio_min"] == metrics["optim/ratio_max"] == 1.0
    # Its slope is that of -A·log p.
    _, expected = gradient_of(tiny(), random_batch(), Reinforce())
    for name, slope in expected.items():
        torch.testing.assert_close(gradient[name], slope, rtol=0, atol=1e-13)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("lora_rank", [0, 2])
def test_gradient_is_the_finite_difference_through_the_model(
    tiny: MakeModel, random_batch: MakeBatch, gradient_of: GradientOf, lora_rank: int
) -> None:
    loaded, reference = tiny(lora_rank=lora_rank), tiny(seed=1, lora_rank=lora_rank)
    loaded.model.double()
    reference.model.double()
    rows = tuple(replace(r, pair=n // 2) for n, r in enumerate(random_batch().rows[:4]))
    signs = (1, -1, -1, 1)
    paired = replace(
        random_batch(),
        rows=tuple(
            replace(r, advantages=np.full_like(r.advantages, s))
            for r, s in zip(rows, signs, strict=True)
        ),
    )
    losses: list[tuple[Loss, Batch]] = [
        (ImportanceSampling(aggregation="token_mean_group", kl=Kl(weight=0.3)), random_batch()),
        (Dpo(nll_weight=0.5), paired),
    ]
    generator = torch.Generator().manual_seed(0)
    for loss, batch in losses:
        _, gradient = gradient_of(loaded, batch, loss, reference)
        for name in sorted(gradient)[::3]:
            parameter = trainable(loaded.model)[name]
            way = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            ends = []
            for step in (1e-5, -1e-5):
                parameter.data.add_(step * way)
                ends.append(gradient_of(loaded, batch, loss, reference)[0]["loss"])
                parameter.data.sub_(step * way)
            slope = (ends[0] - ends[1]) / 2e-5
            expected = float((gradient[name] * way).sum())
            assert slope == pytest.approx(expected, rel=1e-5, abs=1e-6), (loss.type, name)


@pytest.mark.usefixtures("float64")
def test_dpo_comes_to_prefer_the_chosen_rows(tiny: MakeModel, random_batch: MakeBatch) -> None:
    loaded = tiny()
    rows = tuple(
        replace(row, pair=n // 2, advantages=row.mask[row.sampled_positions] * (1 if n % 2 else -1))
        for n, row in enumerate(random_batch(lengths=(9, 12, 8, 15, 11, 10)).rows)
    )
    batch = replace(random_batch(), rows=rows)
    trainer = TorchTrainer(learning_rate=3e-3).open(loaded, Dpo(nll_weight=0.1), 9)
    found = [trainer.step(batch) for _ in range(6)]
    assert found[0]["optim/preference_margin"] == pytest.approx(0.0, abs=1e-13)
    # -log σ(0) = ln 2, and .1 times the mean of -log p.
    assert found[0]["loss"] > math.log(2.0)
    assert found[-1]["optim/preference_accuracy"] == pytest.approx(1.0)
    assert found[-1]["optim/preference_margin"] > 0.05
    assert found[-1]["loss"] < found[0]["loss"]


def test_learning_rate_falls_by_step_and_not_by_update(
    tiny: MakeModel, random_batch: MakeBatch
) -> None:
    config = TorchTrainer(learning_rate=0.1, schedule="linear", epochs=3, minibatch_size=4)
    trainer = config.open(tiny(), PpoClip(), 4)
    rates = [trainer.step(random_batch())["optim/learning_rate"] for _ in range(3)]
    assert rates == pytest.approx([0.1, 0.075, 0.05])


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_update_that_is_not_finite_leaves_weights_and_optimizer_as_they_were(
    tiny: MakeModel, random_batch: MakeBatch, bad: float
) -> None:
    loaded = tiny()
    trainer = TorchTrainer(learning_rate=0.01).open(loaded, ImportanceSampling(), 5)
    batch = random_batch()
    first = batch.rows[0]
    credit = np.full_like(first.advantages, bad)
    wrong = replace(batch, rows=(replace(first, advantages=credit), *batch.rows[1:]))
    trainer.step(batch)
    before = copy.deepcopy(trainable(loaded.model))
    state = [{k: v.clone() for k, v in s.items()} for s in trainer._optimizer.state.values()]
    counts = [trainer.step(wrong)["optim/skipped_in_a_row"] for _ in range(2)]
    assert counts == [1.0, 2.0]
    assert all(torch.equal(before[n], p) for n, p in trainable(loaded.model).items())
    after = list(trainer._optimizer.state.values())
    assert all(torch.equal(a[k], b[k]) for a, b in zip(state, after, strict=True) for k in a)
    found = trainer.step(batch)
    assert (found["optim/skipped"], found["optim/skipped_in_a_row"]) == (0.0, 0.0)


def test_loss_that_is_not_finite_makes_the_gradient_so_though_no_slope_is(
    tiny: MakeModel, random_batch: MakeBatch
) -> None:
    # A reference that cannot say a token: k3 = exp(-inf) + inf - 1, its slope 1 - exp(-inf) = 1.
    loaded, loss = tiny(), PpoClip(kl=Kl(weight=1.0))
    packs = TorchTrainer().packs(random_batch(), loss)[0]
    for low, is_finite in ((-50.0, True), (-math.inf, False)):
        known = [KnownLogps(reference_A=torch.full_like(p.advantages_A, low)) for p in packs]
        loaded.model.zero_grad()
        stats = StepStats()
        accumulate(loaded.model, packs, loss, known, lambda share: share.backward(), stats)
        assert math.isfinite(stats.metrics(1)["loss"]) == is_finite
        slopes = [p.grad for p in loaded.model.parameters() if p.grad is not None]
        assert all(bool(slope.isfinite().all()) for slope in slopes) == is_finite


def test_step_stats_leave_the_device_whole_and_at_once_when_ranks_share_them() -> None:
    copies = []

    class Copies(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            found = func(*args, **(kwargs or {}))
            if func is torch.ops.aten._to_copy.default and found.device.type == "cpu":
                copies.append(found)
            return found

    stats = StepStats(epochs=2, updates=3)
    with FakeTensorMode():
        for name in ("loss", "optim/entropy", "optim/kl"):
            stats.add(name, torch.ones(4, device="cuda:0"))
        stats.watch("optim/ratio_min", "optim/ratio_max", torch.ones(4, device="cuda:0"))
        with Copies():
            here = stats.on_cpu()
    assert {value.device.type for value in here.sums.values()} == {"cpu"}
    assert len(copies) == 1
    assert (list(here.sums), list(here.lows), list(here.highs)) == (
        ["loss", "optim/entropy", "optim/kl"],
        ["optim/ratio_min"],
        ["optim/ratio_max"],
    )


def test_step_stats_of_all_ranks_are_sums_and_extremes_of_what_each_sent() -> None:
    ranks = []
    for values in ([1.0, 4.0], [2.0, 8.0]):
        stats = StepStats(epochs=1, updates=1)
        stats.add("optim/entropy", torch.tensor(values))
        stats.watch("optim/ratio_min", "optim/ratio_max", torch.tensor(values))
        ranks.append(stats.on_cpu())
    found = StepStats.of_all(ranks).metrics(5)
    # (1 + 4 + 2 + 8) / 5 tokens
    assert found == {"optim/entropy": 3.0, "optim/ratio_min": 1.0, "optim/ratio_max": 8.0}


def test_skips_count_updates_in_a_row() -> None:
    skips = Skips(1)
    made, lost = Update(2.0, False), Update(math.inf, True)
    assert skips.metrics([lost, lost])["optim/skipped_in_a_row"] == 3.0
    found = skips.metrics([lost, made, replace(made, grad_norm=4.0)])
    assert (found["optim/skipped"], found["optim/skipped_in_a_row"]) == (1.0, 0.0)
    assert skips.metrics([made, made]) == {
        "optim/grad_norm": 2.0,
        "optim/updates": 2.0,
        "optim/skipped": 0.0,
        "optim/skipped_in_a_row": 0.0,
    }
    assert skips.metrics([])["optim/grad_norm"] == 0.0
