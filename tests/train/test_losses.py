"""Losses against numbers worked by hand and against finite differences."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from debate_train.losses import (
    Dapo,
    Dpo,
    Grpo,
    ImportanceSampling,
    Kl,
    Loss,
    LossConfig,
    LossInputs,
    PpoClip,
    Reinforce,
    Sft,
)

pytestmark = pytest.mark.numeric

LN2 = math.log(2.0)


def vector(values: Sequence[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def inputs(
    ratios: Sequence[float],
    advantages: Sequence[float],
    *,
    old: float = -1.0,
    sampler: Sequence[float] | None = None,
    reference: Sequence[float] | None = None,
) -> LossInputs:
    """Actions of weight 1 whose log-probability is `old` plus the logarithm of their ratio."""
    old_logps = torch.full((len(ratios),), old, dtype=torch.float64)
    numbers = torch.arange(len(ratios))
    return LossInputs(
        logps_A=vector(ratios).log() + old,
        old_logps_A=old_logps,
        sampler_logps_A=old_logps if sampler is None else vector(sampler),
        advantages_A=vector(advantages),
        weights_A=torch.ones_like(old_logps),
        rows_A=numbers,
        pairs_A=torch.full_like(numbers, -1),
        reference_logps_A=None if reference is None else vector(reference),
    )


def each(loss: Callable[[LossInputs], Tensor], x: LossInputs) -> list[float]:
    """The loss of each action: the share when it alone has a weight."""
    alone = torch.eye(len(x.logps_A), dtype=torch.float64)
    return [loss(replace(x, weights_A=weights)).item() for weights in alone]


def test_importance_sampling_weighs_by_the_ratio() -> None:
    x = inputs([1.0, 2.0, 0.25, 3.0], [1.5, -1.0, 2.0, 0.0])
    assert each(ImportanceSampling(), x) == pytest.approx([-1.5, 2.0, -0.5, 0.0])


def test_share_is_the_weighted_sum_over_actions() -> None:
    x = replace(inputs([1.0, 2.0], [3.0, 5.0]), weights_A=vector([0.5, 0.25]))
    # 0.5·(-3) + 0.25·(-10)
    assert ImportanceSampling()(x).item() == pytest.approx(-4.0)


def test_reinforce_weighs_the_log_probability_and_no_ratio() -> None:
    x = inputs([math.e, 1.0], [2.0, -3.0], old=-4.0)
    # log p = -3 and -4
    assert each(Reinforce(), x) == pytest.approx([6.0, -12.0])


@pytest.mark.parametrize("kind", [PpoClip, Dapo])
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
def test_clip_is_pessimistic_on_both_sides(
    kind: type[PpoClip] | type[Dapo], ratio: float, advantage: float, expected: float
) -> None:
    assert each(kind(), inputs([ratio], [advantage])) == pytest.approx([expected])


def test_clip_bounds_are_settings() -> None:
    loss = PpoClip(clip_low=0.1, clip_high=0.5)
    assert each(loss, inputs([3.0, 0.2], [1.0, -1.0])) == pytest.approx([-1.5, 0.9])


def test_dual_clip_bounds_what_a_negative_advantage_costs() -> None:
    # Ratio 15 at -2: 30, at most 10 x 2 = 20. At 9: 18. Below 1 - .2 it is 1.6 as without, and a
    # gain is capped at 1.28 x 2 as without.
    x = inputs([15.0, 9.0, 0.5, 15.0], [-2.0, -2.0, -2.0, 2.0])
    assert each(Dapo(dual_clip=10.0), x) == pytest.approx([20.0, 18.0, 1.6, -2.56])
    assert each(Dapo(), x) == pytest.approx([30.0, 18.0, 1.6, -2.56])


def test_clip_fraction_counts_actions_without_a_gradient() -> None:
    # Bounds .8 and 1.28, dual clip 10. Clipped: 3 at +1 and .5 at -1; 15 at -1 by the dual clip.
    # Not clipped, though outside: 3 at -1, .5 at +1; nor 1.1, nor an action without an advantage.
    ratios = [3.0, 0.5, 3.0, 0.5, 1.1, 3.0, 15.0]
    x = inputs(ratios, [1.0, -1.0, -1.0, 1.0, 1.0, 0.0, -1.0])
    x.logps_A.requires_grad_()
    for loss, expected in (
        (Dapo(), [True, True, False, False, False, False, False]),
        (Dapo(dual_clip=10.0), [True, True, False, False, False, False, True]),
    ):
        assert loss.diagnostics(x)["optim/clip_fraction"].tolist() == expected
        (gradient,) = torch.autograd.grad(loss(x), x.logps_A)
        has_no_gradient = (gradient == 0) & (x.advantages_A != 0)
        assert has_no_gradient.tolist() == expected


def test_grpo_clips_alike_on_both_sides_and_adds_the_penalty() -> None:
    # Ratio 3 at advantage 2: capped at 1.2, -2.4. r = ref - p = ln 2: k3 = 2 - ln 2 - 1.
    p = math.log(3.0) - 1.0
    x = inputs([3.0], [2.0], reference=[p + LN2])
    assert each(Grpo(), x) == pytest.approx([-2.4 + 0.04 * (1 - LN2)])
    assert each(Grpo(), inputs([0.5], [-2.0], reference=[LN2 * -1 - 1])) == pytest.approx([1.6])


def test_sft_weighs_the_log_probability_by_the_advantage() -> None:
    x = inputs([1.0, 1.0], [1.0, 0.0], old=-2.0)
    assert each(Sft(), x) == [2.0, 0.0]


def test_mismatch_corrects_for_the_sampler_up_to_its_cap() -> None:
    # old - q = ln 1.5, ln 3, ln 0.5, 0: corrections 1.5, 2 (cap), 0.5, 1; the ratio p/old is 1.1.
    gaps = [math.log(1.5), math.log(3.0), math.log(0.5), 0.0]
    x = inputs([1.1] * 4, [1.0] * 4, sampler=[-1.0 - gap for gap in gaps])
    assert each(PpoClip(), x) == pytest.approx([-1.65, -2.2, -0.55, -1.1])
    assert each(PpoClip(importance_cap=1.2), x) == pytest.approx([-1.32, -1.32, -0.55, -1.1])
    assert each(PpoClip(importance_cap=None), x) == pytest.approx([-1.1] * 4)
    # exp(p - old)·exp(old - q) is exp(p - q) below the cap.
    assert each(ImportanceSampling(importance_cap=9.0), x) == pytest.approx(
        [-1.65, -3.3, -0.55, -1.1]
    )


def test_policy_and_kl_loss_add_up_to_the_loss() -> None:
    x = inputs([1.0, 1.1], [2.0, -1.0], reference=[-1.0 + LN2, -1.0])
    x = replace(x, weights_A=vector([0.5, 0.25]))
    loss = Grpo(kl=Kl(weight=0.5))
    found = {name: values.sum().item() for name, values in loss.diagnostics(x).items()}
    # k3 of the first action, r = log 2: 2 - log 2 - 1; its policy loss -1·2, the second's 1.1·1.
    assert found["optim/loss_policy"] == pytest.approx(0.5 * -2.0 + 0.25 * 1.1, rel=1e-12)
    second = math.exp(-math.log(1.1)) + math.log(1.1) - 1
    penalty = 0.5 * (0.5 * (1 - LN2) + 0.25 * second)
    assert found["optim/loss_kl"] == pytest.approx(penalty, rel=1e-12)
    assert loss(x).item() == pytest.approx(
        found["optim/loss_policy"] + found["optim/loss_kl"], rel=1e-12
    )
    assert "optim/loss_kl" not in PpoClip().diagnostics(inputs([1.0], [1.0]))


def test_kl_is_k3() -> None:
    # r = ref - p = ln 2: 2 - ln 2 - 1; r = -ln 2: 1/2 + ln 2 - 1; r = 0: 0
    logps = vector([-1.0, -1.0, -1.0])
    reference = logps + vector([LN2, -LN2, 0.0])
    assert Kl(weight=9.0)(logps, reference).tolist() == pytest.approx([1 - LN2, LN2 - 0.5, 0.0])


def test_kl_has_the_gradient_of_the_divergence_from_the_reference() -> None:
    # Two tokens: policy (.5, .5), reference (.8, .2). The gradient of KL(reference || policy) in
    # the logits is policy - reference = (-.3, .3). That of KL(policy || reference) is another one:
    # p(x)·(log(p/r) - KL) = .5·(log(.5/.8) - .2231) = -.3466 for the first token.
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    logps = logits.log_softmax(0)
    reference = vector([0.8, 0.2]).log()
    # Samples of the policy, in expectation: each token weighs its probability, held fixed.
    mean_k3 = (logps.exp().detach() * Kl(weight=1.0)(logps, reference)).sum()
    (gradient,) = torch.autograd.grad(mean_k3, logits)
    assert gradient.tolist() == pytest.approx([-0.3, 0.3])


def pairs() -> LossInputs:
    """Two pairs: rows 0 (chosen, 2 actions) and 1; rows 3 and 2 (chosen, 1 action). Row 4 has none.

    Gains p - ref: row 0: .4 + .6 = 1; row 1: -.5; row 2: -1; row 3: .5 + .5 = 1.
    """
    logps = vector([-1.0, -2.0, -3.0, -4.0, -1.5, -2.5, -9.0])
    gains = vector([0.4, 0.6, -0.5, -1.0, 0.5, 0.5, 7.0])
    return LossInputs(
        logps_A=logps,
        old_logps_A=logps,
        sampler_logps_A=logps,
        # One action of row 0 has no credit of its own; it is chosen with its row.
        advantages_A=vector([3.0, 0.0, -0.1, 1.0, -1.0, -1.0, 5.0]),
        weights_A=vector([0.25] * 6 + [0.0]),  # Four pairs in the step, two of them here.
        rows_A=torch.tensor([0, 0, 1, 2, 3, 3, 4]),
        pairs_A=torch.tensor([8, 8, 8, 2, 2, 2, -1]),
        reference_logps_A=logps - gains,
    )


def test_dpo_is_the_standard_loss_of_each_pair() -> None:
    # Pair 8: β·(1 + .5) = .15; pair 2: β·(-1 - 1) = -.2. log(1 + e^-m), a quarter of each.
    expected = (math.log1p(math.exp(-0.15)) + math.log1p(math.exp(0.2))) / 4
    assert Dpo()(pairs()).item() == pytest.approx(expected)
    sharper = (math.log1p(math.exp(-1.5)) + math.log1p(math.exp(2.0))) / 4
    assert Dpo(beta=1.0)(pairs()).item() == pytest.approx(sharper)


def test_dpo_adds_the_mean_log_likelihood_of_the_chosen() -> None:
    # Chosen rows: (-1 - 2)/2 = -1.5 and -4; a quarter of each, at weight 2.
    added = Dpo(nll_weight=2.0)(pairs()).item() - Dpo()(pairs()).item()
    assert added == pytest.approx(2.0 * (1.5 + 4.0) / 4)


def test_dpo_is_watched_by_margins_rewards_and_likelihood() -> None:
    # A quarter each of: margins .15 and -.2, one of them positive; rewards of the chosen .1 and
    # -.1, of the rejected -.05 and .1; mean log p of the chosen -1.5 and -4.
    found = {name: values.sum().item() for name, values in Dpo().diagnostics(pairs()).items()}
    expected = {
        "optim/preference_margin": -0.0125,
        "optim/preference_accuracy": 0.25,
        "optim/preference_reward_chosen": 0.0,
        "optim/preference_reward_rejected": 0.0125,
        "optim/preference_chosen_logp": -1.375,
    }
    assert found == pytest.approx(expected)


def test_dpo_reads_nothing_of_actions_outside_of_pairs() -> None:
    x, lost = pairs(), vector([0.0] * 6 + [math.nan])
    logps = (x.logps_A + lost).requires_grad_()
    loss = Dpo(nll_weight=0.5)
    total = loss(
        replace(
            x, logps_A=logps, reference_logps_A=x.reference_logps_A, weights_A=lost + x.weights_A
        )
    )
    total.backward()
    assert total.item() == loss(x).item()
    assert logps.grad is not None and logps.grad[6] == 0


def test_dpo_of_a_pack_without_pairs_is_0_with_a_gradient_of_0() -> None:
    x = replace(pairs(), pairs_A=torch.full((7,), -1))
    logps = x.logps_A.clone().requires_grad_()
    Dpo(nll_weight=1.0)(replace(x, logps_A=logps)).backward()
    assert logps.grad is not None
    assert not logps.grad.any()


LOSSES: Sequence[Loss] = [
    ImportanceSampling(),
    ImportanceSampling(importance_cap=1.1, kl=Kl(weight=0.3)),
    Reinforce(kl=Kl(weight=0.3)),
    PpoClip(),
    Dapo(importance_cap=0.9),
    Grpo(),
    Sft(),
    Dpo(nll_weight=0.5),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: str(loss.type))
def test_gradient_is_the_finite_difference(loss: Loss) -> None:
    # Ratios on both sides of all bounds, none at a corner, and a gain and a loss at each.
    ratios = [0.5, 0.5, 0.9, 1.15, 1.15, 1.6, 1.6]
    x = inputs(
        ratios,
        [1.0, -1.0, 2.0, -0.5, 0.7, 1.3, -1.3],
        sampler=[-1.0, -1.3, -0.9, -1.1, -1.0, -1.2, -0.7],
        reference=[-1.2, -2.0, -0.3, -1.0, -0.7, -0.9, -1.4],
    )
    x = replace(x, weights_A=vector([0.3, 1.0, 0.2, 0.7, 0.4, 0.6, 0.9]))
    if loss.type == "dpo":
        x = replace(pairs(), weights_A=vector([0.5] * 6 + [0.0]))
    elif loss.reference_policy is None:
        x = replace(x, reference_logps_A=None)
    logps = x.logps_A.clone().requires_grad_()
    loss(replace(x, logps_A=logps)).backward()
    step = 1e-6
    for k in range(len(logps)):
        moved = torch.zeros_like(x.logps_A)
        moved[k] = step
        up = loss(replace(x, logps_A=x.logps_A + moved))
        down = loss(replace(x, logps_A=x.logps_A - moved))
        assert logps.grad is not None
        assert logps.grad[k].item() == pytest.approx((up - down).item() / (2 * step), abs=1e-8)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: str(loss.type))
def test_loss_names_its_reference_only_where_it_reads_one(loss: Loss) -> None:
    reads = loss.type in ("dpo", "grpo") or loss.kl.weight > 0
    assert (loss.reference_policy is not None) == reads


@pytest.mark.parametrize(
    ("written", "expected"),
    [("phase_start", "phase_start"), ("base", "base"), ("runs/a", Path("runs/a"))],
)
def test_reference_is_a_name_or_a_directory(written: str, expected: object) -> None:
    loss = TypeAdapter(LossConfig).validate_python(
        {"type": "ppo_clip", "kl": {"weight": 0.1, "reference": written}}
    )
    assert loss.reference_policy == expected
    assert Dpo.model_validate({"reference": written}).reference_policy == expected


def test_dpo_takes_no_kl_and_no_other_mean() -> None:
    with pytest.raises(ValidationError, match="kl"):
        Dpo.model_validate({"kl": {"weight": 1.0}})
    with pytest.raises(ValidationError, match="pair_mean"):
        Dpo.model_validate({"aggregation": "token_sum"})
