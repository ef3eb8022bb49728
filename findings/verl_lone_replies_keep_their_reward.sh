#!/usr/bin/env bash
# verl 0.9.1: estimators that subtract a mean of the group from each reward. One would expect that
# 1 more for all rewards changes no advantage, and that a reply without siblings, which was compared
# with nothing, gets 0. Seven of eight give it its whole reward, so where the other rollouts of a
# question failed, the level of rewards alone pushes the last one up or down. rloo gives it the
# reward and rloo_vectorized, of the same docstring, 0. gpg follows the level in whole groups, too:
# it divides by the share of rewards that are not 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 verl==0.9.1
"$folder/venv/bin/python" -W ignore - 2>/dev/null <<'PYTHON'
from importlib.metadata import version

import numpy as np
import torch
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

ESTIMATORS = (
    "grpo", "grpo_vectorized", "rloo", "rloo_vectorized", "opo", "gpg",
    "optimal_token_baseline", "tir_optimal_token_baseline",
)


def advantages(estimator: str, rewards: list[float]) -> list[float]:
    """Compute the advantages of replies of two tokens, rewarded at the second."""
    shape = (len(rewards), 2)
    token_rewards = torch.zeros(shape)
    token_rewards[:, 1] = torch.tensor(rewards)
    inputs = {
        "token_level_rewards": token_rewards,
        "response_mask": torch.ones(shape),
        "index": np.array(["question"] * len(rewards), dtype=object),
        "config": AlgoConfig(),
    }
    if "optimal_token" in estimator:
        inputs |= {"old_log_probs": -torch.ones(shape), "sum_pi_squared": torch.full(shape, 0.3)}
    values, _ = get_adv_estimator_fn(estimator)(**inputs)
    return [round(value, 2) for value in values[:, 0].tolist()]


print(f"verl {version('verl')}: advantages of rewards 1, 0, 0, 0, of 2, 1, 1, 1 and of 2 alone")
for estimator in ESTIMATORS:
    group = advantages(estimator, [1.0, 0.0, 0.0, 0.0])
    raised_group = advantages(estimator, [2.0, 1.0, 1.0, 1.0])
    lone_reply = advantages(estimator, [2.0])
    print(f"  {estimator}: {group}, {raised_group}, {lone_reply}")
    assert (group == raised_group) == (estimator != "gpg"), "what was seen has changed"
    expected = [0.0] if estimator == "rloo_vectorized" else [2.0]
    assert lone_reply == expected, "what was seen has changed"
PYTHON
