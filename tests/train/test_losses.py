"""Losses against numbers worked by hand and against finite differences."""

import math

import pytest
import torch

from debate_train.losses import (
    ImportanceSampling,
    Kl,
    Loss,
    LossInputs,
    PpoClip,
    Sft,
)

LN2 = math.log(2.0)


def inputs(ratios: list[float], advantages: list[float], old: float = -1.0) -> LossInputs:
    logps = torch.tensor(ratios, dtype=torch.float64).log() + old
    return LossInputs(
        logps, torch.full_like(logps, old), torch.tensor(advantages, dtype=torch.float64)
    )


def test_importance_sampling_weighs_by_the_ratio() -> None:
    found = ImportanceSampling()(inputs([1.0, 2.0, 0.25, 3.0], [1.5, -1.0, 2.0, 0.0]))
    assert found.tolist() == pytest.approx([-1.5, 2.0, -0.5, 0.0])


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [
        # Inside 0.8 .. 1.28: the plain ratio.
        (1.1, 2.0, -2.2),
        (0.9, -2.0, 1.8),
        # Above: a gain is capped at 1.28, a loss is not.
        (1.5, 2.0, -2.56),
        (1.5, -2.0, 3.0),
        # Below: a loss is capped at 0.8, a gain is not.
        (0.5, -2.0, 1.6),
        (0.5, 2.0, -1.0),
    ],
)
def test_ppo_clip_is_pessimistic_on_both_sides(
    ratio: float, advantage: float, expected: float
) -> None:
    assert PpoClip()(inputs([ratio], [advantage])).item() == pytest.approx(expected)


def test_ppo_clip_bounds_are_settings() -> None:
    loss = PpoClip(clip_low=0.1, clip_high=0.5)
    assert loss(inputs([3.0, 0.2], [1.0, -1.0])).tolist() == pytest.approx([-1.5, 0.9])


def test_sft_weighs_the_log_probability_by_the_advantage() -> None:
    x = LossInputs(torch.tensor([-2.0, -3.0]), torch.tensor([5.0, 5.0]), torch.tensor([1.0, 0.0]))
    assert Sft()(x).tolist() == [2.0, 0.0]


def test_kl_is_k3() -> None:
    # r = ref - p = ln 2: 2 - ln 2 - 1; r = -ln 2: 1/2 + ln 2 - 1; r = 0: 0
    logps = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64)
    reference = logps + torch.tensor([LN2, -LN2, 0.0], dtype=torch.float64)
    assert Kl(weight=9.0)(logps, reference).tolist() == pytest.approx([1 - LN2, LN2 - 0.5, 0.0])


@pytest.mark.parametrize(
    "loss", [ImportanceSampling(), PpoClip(), Sft()], ids=lambda loss: str(loss.type)
)
def test_gradient_is_the_finite_difference(loss: Loss) -> None:
    # Ratios on both sides of both bounds, none at a corner, and a gain and a loss at each.
    ratios = [0.5, 0.5, 0.9, 1.2, 1.2, 1.6, 1.6]
    advantages = [1.0, -1.0, 2.0, -0.5, 0.7, 1.3, -1.3]
    x = inputs(ratios, advantages)
    logps = x.logps_A.clone().requires_grad_()
    loss(LossInputs(logps, x.old_logps_A, x.advantages_A)).sum().backward()
    step = 1e-6
    for k in range(len(ratios)):
        moved = torch.zeros_like(x.logps_A)
        moved[k] = step
        up = loss(LossInputs(x.logps_A + moved, x.old_logps_A, x.advantages_A)).sum()
        down = loss(LossInputs(x.logps_A - moved, x.old_logps_A, x.advantages_A)).sum()
        assert logps.grad is not None
        assert logps.grad[k].item() == pytest.approx((up - down).item() / (2 * step), abs=1e-8)


def test_kl_gradient_is_the_finite_difference() -> None:
    reference = torch.tensor([-1.0, -2.0], dtype=torch.float64)
    logps = torch.tensor([-1.5, -1.2], dtype=torch.float64, requires_grad=True)
    Kl()(logps, reference).sum().backward()
    # d/dp (exp(ref-p) - (ref-p) - 1) = 1 - exp(ref - p)
    assert logps.grad is not None
    assert logps.grad.tolist() == pytest.approx([1 - math.exp(0.5), 1 - math.exp(-0.8)])
