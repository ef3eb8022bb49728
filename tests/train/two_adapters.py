"""A recipe of two roles with adapters of their own on one base."""

from typing import Any

NAMES = ("first", "second")
BOTH = {"ours": {"adapter": "first", "temperature": 0.75}, "theirs": {"adapter": "second"}}
ONE = {"ours": {"adapter": "first", "train": False}, "theirs": {"adapter": "second"}}
REINFORCE = {"type": "reinforce", "aggregation": "token_sum"}
CLIPPED = {"type": "ppo_clip", "aggregation": "token_sum"}
MEANS = {"type": "ppo_clip", "aggregation": "token_mean_batch"}


def settings(base: str, roles: dict[str, Any], **others: Any) -> dict[str, Any]:
    return {
        "name": "adapters",
        "steps": 2,
        "model": {
            "type": "pretrained",
            "name": base,
            "dtype": "float32",
            "lora": {"rank": 2, "alpha": 4, "adapters": list(NAMES)},
        },
        "data": {"type": "signs_puzzle", "batch_size": 2, "num_digits": 3, "largest_digit": 4},
        "debate": {"max_rounds": 2, "style": "compact", "personas": "none", "roles": roles},
        "rollout": {"max_tokens": 6},
        "reward": {"type": "verifiable"},
        "advantage": {"baseline": "none"},
        "loss": REINFORCE,
        "trainer": {
            "type": "torch",
            "device": "cpu",
            "learning_rate": 0.05,
            "max_grad_norm": 0.5,
            "optimizer": {"type": "adamw", "weight_decay": 0.1},
        },
        "evaluation": {"questions": 0},
        "tracking": {"wandb": False},
    } | others
