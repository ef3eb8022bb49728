"""From debate transcripts to credits: peer votes, verified answers and debate metrics."""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from debate_rewards.answers.checking import (
        Verdict,
        answer_classes,
        check,
        check_many,
        same_answer,
    )
    from debate_rewards.gate_rules import Agreed, AtMost, GateRule, Informative, InOrder
    from debate_rewards.metrics.debate_metrics import (
        debate_metrics,
        debate_statistics,
        question_values,
    )
    from debate_rewards.metrics.statistics import Estimate, Paired, bootstrap_interval, paired
    from debate_rewards.reward import Credit, Reward, RewardConfig, Score, Use
    from debate_rewards.reward_functions import answer_reward, verify
    from debate_rewards.rewards import REWARDS, RewardChoice, get_reward
    from debate_rewards.rewards.few_labels import Certainty, Majority, MajorityJudge
    from debate_rewards.rewards.mixed import Component, Fading, Labelled, Mixed
    from debate_rewards.rewards.partial_trajectory import (
        PartialTrajectory,
        StateValue,
        state_values,
    )
    from debate_rewards.rewards.persuasion import Persuasion
    from debate_rewards.rewards.spans import Overlong
    from debate_rewards.rewards.truth import TruthJudge, Verifiable
    from debate_rewards.rewards.v2 import V2
    from debate_rewards.votes.ballots import WinMinusLoss, WinRate
    from debate_rewards.votes.decisions import (
        BradleyTerry,
        bradley_terry,
        central,
        confidence,
        majority,
        peer_vote,
    )

_HOMES = {
    "answers.checking": (
        "Verdict",
        "answer_classes",
        "check",
        "check_many",
        "same_answer",
    ),
    "gate_rules": (
        "Agreed",
        "AtMost",
        "GateRule",
        "InOrder",
        "Informative",
    ),
    "metrics.debate_metrics": (
        "debate_metrics",
        "debate_statistics",
        "question_values",
    ),
    "metrics.statistics": (
        "Estimate",
        "bootstrap_interval",
        "Paired",
        "paired",
    ),
    "reward": (
        "Credit",
        "Reward",
        "Score",
        "RewardConfig",
        "Use",
    ),
    "reward_functions": (
        "answer_reward",
        "verify",
    ),
    "rewards": (
        "REWARDS",
        "RewardChoice",
        "get_reward",
    ),
    "rewards.few_labels": (
        "Certainty",
        "Majority",
        "MajorityJudge",
    ),
    "rewards.mixed": (
        "Labelled",
        "Component",
        "Fading",
        "Mixed",
    ),
    "rewards.partial_trajectory": (
        "PartialTrajectory",
        "StateValue",
        "state_values",
    ),
    "rewards.persuasion": ("Persuasion",),
    "rewards.spans": ("Overlong",),
    "rewards.truth": (
        "TruthJudge",
        "Verifiable",
    ),
    "rewards.v2": ("V2",),
    "votes.ballots": (
        "WinMinusLoss",
        "WinRate",
    ),
    "votes.decisions": (
        "BradleyTerry",
        "bradley_terry",
        "central",
        "confidence",
        "majority",
        "peer_vote",
    ),
}
_MODULES = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    # Importing a name's module only when it is asked for keeps `import debate_rewards` quick.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Agreed",
    "AtMost",
    "BradleyTerry",
    "Certainty",
    "Component",
    "Credit",
    "Estimate",
    "Fading",
    "GateRule",
    "InOrder",
    "Informative",
    "Labelled",
    "Majority",
    "MajorityJudge",
    "Mixed",
    "Overlong",
    "Paired",
    "PartialTrajectory",
    "Persuasion",
    "REWARDS",
    "Reward",
    "RewardChoice",
    "RewardConfig",
    "Score",
    "StateValue",
    "TruthJudge",
    "Use",
    "V2",
    "Verdict",
    "Verifiable",
    "WinMinusLoss",
    "WinRate",
    "answer_classes",
    "answer_reward",
    "bootstrap_interval",
    "bradley_terry",
    "central",
    "check",
    "check_many",
    "confidence",
    "debate_metrics",
    "debate_statistics",
    "get_reward",
    "majority",
    "paired",
    "peer_vote",
    "question_values",
    "same_answer",
    "state_values",
    "verify",
]
