#!/usr/bin/env bash
# verl 0.9.1: a batch of eight replies, split into micro-batches whose gradients add up, as its
# engines do. agg_loss promises a loss that does not depend on how work is divided, so one would
# expect the same gradient however many micro-batches there are. Eight losses keep that, in each
# mode of aggregation. "geo_mean" (GMPO) takes the mean over the micro-batch's replies instead: two
# micro-batches give twice the gradient, eight give eight times. With use_dynamic_bsz their number
# changes from step to step, and so does the size of the update.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 verl==0.9.1
"$folder/venv/bin/python" -W ignore - 2>/dev/null <<'PYTHON'
from importlib.metadata import version

import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import FSDPActorConfig, PolicyLossConfig

LOSSES = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "sapo", "gpg", "dro", "cispo", "geo_mean")
MODES = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
REPLIES, TOKENS = 8, 6
torch.manual_seed(0)
old_log_probs = -torch.rand(REPLIES, TOKENS, dtype=torch.float64)
log_probs = old_log_probs + 0.1 * torch.randn(REPLIES, TOKENS, dtype=torch.float64)
lengths = torch.tensor([6, 5, 4, 3, 6, 5, 4, 3])
response_mask = torch.arange(TOKENS) < lengths[:, None]
advantages = torch.randn(REPLIES, 1, dtype=torch.float64) * response_mask


def gradient(loss_name: str, mode: str, num_micro_batches: int) -> torch.Tensor:
    config = FSDPActorConfig(
        strategy="fsdp",
        rollout_n=1,
        ppo_micro_batch_size_per_gpu=1,
        policy_loss=PolicyLossConfig(dro_beta=0.1),
    )
    config.global_batch_info.update(
        dp_size=1, batch_num_tokens=int(lengths.sum()), global_batch_size=REPLIES
    )
    policy = log_probs.clone().requires_grad_()
    for rows in torch.arange(REPLIES).chunk(num_micro_batches):
        loss, _ = get_policy_loss_fn(loss_name)(
            old_log_prob=old_log_probs[rows],
            log_prob=policy[rows],
            advantages=advantages[rows],
            response_mask=response_mask[rows],
            loss_agg_mode=mode,
            config=config,
        )
        loss.backward()
    return policy.grad


print(f"verl {version('verl')}: gradient of 2, 4, 8 micro-batches, in relation to one of all rows")
for loss_name in LOSSES:
    seen = set()
    for mode in MODES:
        whole = gradient(loss_name, mode, 1)
        factors = []
        for num_micro_batches in (2, 4, 8):
            split = gradient(loss_name, mode, num_micro_batches)
            factor = round((split.norm() / whole.norm()).item(), 6)
            assert torch.allclose(split, factor * whole, atol=1e-6), "more than the size differs"
            factors.append(factor)
        seen.add(tuple(factors))
    print(f"  {loss_name}: expected (1, 1, 1) in each mode, seen {seen}")
    expected = (2, 4, 8) if loss_name == "geo_mean" else (1, 1, 1)
    assert seen == {expected}, "what was seen has changed"
PYTHON
