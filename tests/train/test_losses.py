"""Losses against numbers worked by hand and against finite differences; shares of the gradient."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from debate_train.batches.row_types import Batch, Row
from debate_train.losses import (
    Dapo,
    Dpo,
    Grpo,
    ImportanceSampling,
    Kl,
    Loss,
    LossInputs,
    PpoClip,
    Reinforce,
    Sft,
    divide_gradient,
    gradient_shares,
)
from train.made_rows import row_of

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
    old_logps_A = torch.full((len(ratios),), old, dtype=torch.float64)
    rows_A = torch.arange(len(ratios))
    return LossInputs(
        logps_A=vector(ratios).log() + old,
        old_logps_A=old_logps_A,
        sampler_logps_A=old_logps_A if sampler is None else vector(sampler),
        advantages_A=vector(advantages),
        weights_A=torch.ones_like(old_logps_A),
        rows_A=rows_A,
        pairs_A=torch.full_like(rows_A, -1),
        reference_logps_A=None if reference is None else vector(reference),
    )


def per_action(loss: Loss, x: LossInputs) -> list[float]:
    """The loss of each action: the pack's share when that action alone has a weight."""
    one_hot_AA = torch.eye(len(x.logps_A), dtype=torch.float64)
    return [loss(replace(x, weights_A=weights_A)).item() for weights_A in one_hot_AA]


def summed_metrics(loss: Loss, x: LossInputs) -> dict[str, float]:
    return {name: values.sum().item() for name, values in loss.diagnostics(x).items()}


def test_importance_sampling_weighs_by_the_ratio() -> None:
    x = inputs([1.0, 2.0, 0.25, 3.0], [1.5, -1.0, 2.0, 0.0])
    assert per_action(ImportanceSampling(), x) == pytest.approx([-1.5, 2.0, -0.5, 0.0])


def test_reinforce_weighs_the_log_probability_and_no_ratio() -> None:
    # log p = -3 and -4
    x = inputs([math.e, 1.0], [2.0, -3.0], old=-4.0)
    assert per_action(Reinforce(), x) == pytest.approx([6.0, -12.0])


@pytest.mark.parametrize(
    ("loss", "ratio", "advantage", "expected"),
    [
        # Inside 0.8 .. 1.28: the plain ratio.
        (Dapo(), 1.1, 2.0, -2.2),
        (PpoClip(), 0.9, -2.0, 1.8),
        # Above: a gain is capped at 1.28, a loss is not.
        (Dapo(), 1.5, 2.0, -2.56),
        (PpoClip(), 1.5, -2.0, 3.0),
        # Below: a loss is capped at 0.8, a gain is not.
        (Dapo(), 0.5, -2.0, 1.6),
        (PpoClip(), 0.5, 2.0, -1.0),
        # Bounds are settings: 0.9 and 1.5.
        (PpoClip(clip_low=0.1, clip_high=0.5), 3.0, 1.0, -1.5),
        (PpoClip(clip_low=0.1, clip_high=0.5), 0.2, -1.0, 0.9),
        # Ratio 15 at -2: 30, at most 10 x 2 = 20; elsewhere as without.
        (Dapo(), 15.0, -2.0, 30.0),
        (Dapo(dual_clip=10.0), 15.0, -2.0, 20.0),
        (Dapo(dual_clip=10.0), 9.0, -2.0, 18.0),
        (Dapo(dual_clip=10.0), 0.5, -2.0, 1.6),
        (Dapo(dual_clip=10.0), 15.0, 2.0, -2.56),
    ],
)
def test_clip_is_pessimistic_on_both_sides(
    loss: Loss, ratio: float, advantage: float, expected: float
) -> None:
    assert per_action(loss, inputs([ratio], [advantage])) == pytest.approx([expected])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (Dapo(), [True, True, False, False, False, False, False]),
        (Dapo(dual_clip=10.0), [True, True, False, False, False, False, True]),
    ],
    ids=["clip", "dual clip"],
)
def test_clip_fraction_counts_actions_without_a_gradient(loss: Loss, expected: list[bool]) -> None:
    # Bounds .8 and 1.28, dual clip 10. Clipped: 3 at +1 and .5 at -1; 15 at -1 by the dual clip.
    # Not clipped, though outside: 3 at -1, .5 at +1; nor 1.1, nor an action without an advantage.
    ratios = [3.0, 0.5, 3.0, 0.5, 1.1, 3.0, 15.0]
    x = inputs(ratios, [1.0, -1.0, -1.0, 1.0, 1.0, 0.0, -1.0])
    x.logps_A.requires_grad_()
    assert loss.diagnostics(x)["optim/clip_fraction"].tolist() == expected
    (gradient_A,) = torch.autograd.grad(loss(x), x.logps_A)
    has_no_gradient_A = (gradient_A == 0) & (x.advantages_A != 0)
    assert has_no_gradient_A.tolist() == expected


def test_grpo_clips_alike_on_both_sides_and_adds_the_penalty() -> None:
    # Ratio 3 at advantage 2: capped at 1.2, -2.4. r = ref - p = ln 2: k3 = 2 - ln 2 - 1.
    logp = math.log(3.0) - 1.0
    gain = inputs([3.0], [2.0], reference=[logp + LN2])
    assert per_action(Grpo(), gain) == pytest.approx([-2.4 + 0.04 * (1 - LN2)])
    loss = inputs([0.5], [-2.0], reference=[-LN2 - 1])
    assert per_action(Grpo(), loss) == pytest.approx([1.6])


def test_mismatch_corrects_for_the_sampler_up_to_its_cap() -> None:
    # old - q = ln 1.5, ln 3, ln 0.5, 0: corrections 1.5, 2 (cap), 0.5, 1; the ratio p/old is 1.1.
    gaps = [math.log(1.5), math.log(3.0), math.log(0.5), 0.0]
    x = inputs([1.1] * 4, [1.0] * 4, sampler=[-1.0 - gap for gap in gaps])
    for loss, expected, capped in (
        (PpoClip(), [-1.65, -2.2, -0.55, -1.1], [False, True, False, False]),
        (PpoClip(importance_cap=1.2), [-1.32, -1.32, -0.55, -1.1], [True, True, False, False]),
        # exp(p - old)·exp(old - q) is exp(p - q) below the cap.
        (ImportanceSampling(importance_cap=9.0), [-1.65, -3.3, -0.55, -1.1], [False] * 4),
    ):
        assert per_action(loss, x) == pytest.approx(expected)
        assert loss.diagnostics(x)["optim/mismatch_capped_fraction"].tolist() == capped
    assert per_action(PpoClip(importance_cap=None), x) == pytest.approx([-1.1] * 4)


def test_kl_is_k3() -> None:
    # r = ref - p = ln 2: 2 - ln 2 - 1; r = -ln 2: 1/2 + ln 2 - 1; r = 0: 0
    logps_A = vector([-1.0, -1.0, -1.0])
    reference_A = logps_A + vector([LN2, -LN2, 0.0])
    k3_A = Kl(weight=9.0)(logps_A, reference_A)
    assert k3_A.tolist() == pytest.approx([1 - LN2, LN2 - 0.5, 0.0])


def test_kl_has_the_gradient_of_the_divergence_from_the_reference() -> None:
    # Two tokens: policy (.5, .5), reference (.8, .2). The gradient of KL(reference || policy) in
    # the logits is policy - reference = (-.3, .3). That of KL(policy || reference) is another one:
    # p(x)·(log(p/r) - KL) = .5·(log(.5/.8) - .2231) = -.3466 for the first token.
    logits_V = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    logps_V = logits_V.log_softmax(0)
    reference_V = vector([0.8, 0.2]).log()
    # Samples of the policy, in expectation: each token weighs its probability, not differentiated.
    probabilities_V = logps_V.exp().detach()
    mean_k3 = (probabilities_V * Kl(weight=1.0)(logps_V, reference_V)).sum()
    (gradient_V,) = torch.autograd.grad(mean_k3, logits_V)
    assert gradient_V.tolist() == pytest.approx([-0.3, 0.3])


def pairs() -> LossInputs:
    """Two pairs: rows 0 (chosen, 2 actions) and 1; rows 3 and 2 (chosen, 1 action). Row 4 has none.

    Gains p - ref: row 0: .4 + .6 = 1; row 1: -.5; row 2: -1; row 3: .5 + .5 = 1.
    """
    logps_A = vector([-1.0, -2.0, -3.0, -4.0, -1.5, -2.5, -9.0])
    gains_A = vector([0.4, 0.6, -0.5, -1.0, 0.5, 0.5, 7.0])
    return LossInputs(
        logps_A=logps_A,
        old_logps_A=logps_A,
        sampler_logps_A=logps_A,
        # One action of row 0 has no credit; it is chosen with its row.
        advantages_A=vector([3.0, 0.0, -0.1, 1.0, -1.0, -1.0, 5.0]),
        weights_A=vector([0.25] * 6 + [0.0]),  # Four pairs in the step, two of them here.
        rows_A=torch.tensor([0, 0, 1, 2, 3, 3, 4]),
        pairs_A=torch.tensor([8, 8, 8, 2, 2, 2, -1]),
        reference_logps_A=logps_A - gains_A,
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
    assert summed_metrics(Dpo(), pairs()) == pytest.approx(
        {
            "optim/preference_margin": -0.0125,
            "optim/preference_accuracy": 0.25,
            "optim/preference_reward_chosen": 0.0,
            "optim/preference_reward_rejected": 0.0125,
            "optim/preference_chosen_logp": -1.375,
        }
    )


def test_dpo_reads_nothing_of_actions_outside_of_pairs() -> None:
    x = pairs()
    nan_A = vector([0.0] * 6 + [math.nan])
    logps_A = (x.logps_A + nan_A).requires_grad_()
    loss = Dpo(nll_weight=0.5)
    total = loss(replace(x, logps_A=logps_A, weights_A=x.weights_A + nan_A))
    total.backward()
    assert total.item() == loss(x).item()
    assert logps_A.grad is not None
    assert logps_A.grad[6] == 0


def test_dpo_of_a_pack_without_pairs_is_0_with_a_gradient_of_0() -> None:
    x = replace(pairs(), pairs_A=torch.full((7,), -1))
    logps_A = x.logps_A.clone().requires_grad_()
    Dpo(nll_weight=1.0)(replace(x, logps_A=logps_A)).backward()
    assert logps_A.grad is not None
    assert not logps_A.grad.any()


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
    x = inputs(
        ratios=[0.5, 0.5, 0.9, 1.15, 1.15, 1.6, 1.6],
        advantages=[1.0, -1.0, 2.0, -0.5, 0.7, 1.3, -1.3],
        sampler=[-1.0, -1.3, -0.9, -1.1, -1.0, -1.2, -0.7],
        reference=[-1.2, -2.0, -0.3, -1.0, -0.7, -0.9, -1.4],
    )
    x = replace(x, weights_A=vector([0.3, 1.0, 0.2, 0.7, 0.4, 0.6, 0.9]))
    if loss.type == "dpo":
        x = replace(pairs(), weights_A=vector([0.5] * 6 + [0.0]))
    elif loss.reference_policy is None:
        x = replace(x, reference_logps_A=None)
    logps_A = x.logps_A.clone().requires_grad_()
    (gradient_A,) = torch.autograd.grad(loss(replace(x, logps_A=logps_A)), logps_A)
    step = 1e-6
    for action in range(len(logps_A)):
        shift_A = torch.zeros_like(x.logps_A)
        shift_A[action] = step
        above = loss(replace(x, logps_A=x.logps_A + shift_A))
        below = loss(replace(x, logps_A=x.logps_A - shift_A))
        slope = (above - below).item() / (2 * step)
        assert gradient_A[action].item() == pytest.approx(slope, abs=1e-8)


def credited_row(agent: int, credits: list[list[float]], streams: list[int]) -> Row:
    """A row whose first token is the prompt; credits by stream and token, streams as bits."""
    positions = np.arange(len(streams))
    totals = np.sum(credits, 0)
    return row_of(
        positions, positions > 0, advantages=totals, streams=streams, agent=agent, credits=credits
    )


STREAMS = ("generator", "judge")
JUDGED_ROW = credited_row(0, [[0, 0], [0, -2]], [0, 2])
BATCH = Batch((credited_row(1, [[0, 3, -1], [0, 0, 2]], [0, 1, 3]), JUDGED_ROW), STREAMS, 3, 2)


def test_gradient_shares_are_of_weighted_sizes() -> None:
    # Token means: the generator covers two tokens, the judge two: every credit counts a half.
    # Agent 1: |3|/2 + |-1 + 2|/2 = 2, agent 0: 2/2 = 1. Streams: 3/2 + 1/2 = 2 and 2/2 + 2/2 = 2.
    assert gradient_shares(BATCH, Dapo()) == pytest.approx(
        {
            "optim/gradient_share/agent_0": 1 / 3,
            "optim/gradient_share/agent_1": 2 / 3,
            "optim/gradient_share/generator": 0.5,
            "optim/gradient_share/judge": 0.5,
        }
    )
    assert gradient_shares(Batch((), ("generator",), 0, 0), Dapo()) == {}


def test_streams_are_scaled_to_the_shares_of_the_recipe() -> None:
    # Each stream has 2 of 4. For a fifth, the judge's credits are scaled by .8/2 and the
    # generator's by 3.2/2. Row of agent 1: (3, -1) * 1.6 + (0, 2) * .4 = 4.8, -.8.
    divided = divide_gradient(BATCH, Dapo(), {"judge": 0.2})
    shares = gradient_shares(divided, Dapo())
    assert shares["optim/gradient_share/judge"] == pytest.approx(0.2)
    assert shares["optim/gradient_share/generator"] == pytest.approx(0.8)
    assert divided.rows[0].advantages == pytest.approx([4.8, -0.8])
    assert divided.rows[1].advantages == pytest.approx([-0.8])
    # Set for both, .5 and .25 are 2 to 1.
    divided = divide_gradient(BATCH, Dapo(), {"judge": 0.25, "generator": 0.5})
    shares = gradient_shares(divided, Dapo())
    assert shares["optim/gradient_share/judge"] == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    "shares", [{"judge": 0.2}, {"generator": 0.9}, {"generator": 0.5, "judge": 0.5}]
)
def test_a_stream_without_credits_leaves_its_share_to_the_others(shares: dict[str, float]) -> None:
    divided = divide_gradient(Batch((JUDGED_ROW,), STREAMS, 1, 1), Dapo(), shares)
    assert divided.rows[0].advantages == pytest.approx([-2])
    assert divide_gradient(Batch((), STREAMS, 0, 0), Dapo(), shares).rows == ()


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: str(loss.type))
def test_loss_names_its_reference_only_where_it_reads_one(loss: Loss) -> None:
    reads_reference = loss.type == "dpo" or loss.kl.weight > 0
    assert (loss.reference_policy is not None) == reads_reference
