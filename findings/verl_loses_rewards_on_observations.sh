#!/usr/bin/env bash
# verl 0.9.1: two trajectories that end in an observation (response_mask 0), as an agent loop gives
# them where the environment has the last word; one is paid 1, one 0. One would expect the policy's
# tokens of the paid one to have the higher advantage under each estimator. The reward manager puts
# the reward on the last token, which is the observation's. grpo, rloo and seven more sum a row
# before they mask it, and pay; gae, reinforce_plus_plus, remax and the optimal token baselines mask
# first: without a word, all advantages are 0, and a critic learns that nothing is worth anything.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 verl==0.9.1
"$folder/venv/bin/python" -W ignore - 2>/dev/null <<'PYTHON'
from importlib.metadata import version

import numpy as np
import torch
from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import get_adv_estimator_fn

PAYING = (
    "grpo", "grpo_vectorized", "grpo_passk", "gdpo", "rloo", "rloo_vectorized", "opo", "gpg",
    "reinforce_plus_plus_baseline",
)
LOSING = (
    "gae", "reinforce_plus_plus", "remax", "optimal_token_baseline", "tir_optimal_token_baseline"
)
tokens = torch.ones(2, 4, dtype=torch.long)
rows = DataProto.from_dict(
    tensors={"prompts": tokens, "responses": tokens, "attention_mask": tokens.repeat(1, 2)}
)
rewards = RewardManagerBase.assemble_rm_scores(rows, [1.0, 0.0])


def difference(estimator: str, response_mask: list[int]) -> float:
    """Compute how much more the first policy token of the paid trajectory gets."""
    inputs = {
        "token_level_rewards": rewards.clone(),
        "response_mask": torch.tensor([response_mask, response_mask], dtype=torch.float32),
    }
    if estimator == "gae":
        inputs |= {"values": torch.zeros(2, 4), "gamma": 1.0, "lam": 1.0}
    else:
        inputs |= {"index": np.array(["q", "q"], dtype=object), "config": AlgoConfig(gamma=1.0)}
    if estimator == "remax":
        inputs["reward_baselines"] = torch.zeros(2)
    if "optimal_token" in estimator:
        inputs |= {"old_log_probs": -torch.ones(2, 4), "sum_pi_squared": torch.full((2, 4), 0.3)}
    advantages, _ = get_adv_estimator_fn(estimator)(**inputs)
    return round((advantages[0, 0] - advantages[1, 0]).item(), 3)


print(f"verl {version('verl')}: advantage of the paid trajectory, more than the other's")
for estimator in PAYING + LOSING:
    ends_in_reply = difference(estimator, [1, 0, 1, 1])
    ends_in_observation = difference(estimator, [1, 1, 1, 0])
    print(f"  {estimator}: {ends_in_reply} if it ends in a reply, {ends_in_observation} if not")
    assert ends_in_reply > 0, "what was seen has changed"
    assert (ends_in_observation > 0) == (estimator in PAYING), "what was seen has changed"
PYTHON
