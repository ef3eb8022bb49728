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
    from debate_rewards.credits import Credit, Reward, Score
    from debate_rewards.gate_rules import Agreed, AtMost, GateRule, Informative, InOrder
    from debate_rewards.metrics.debate_metrics import (
        debate_metrics,
        debate_statistics,
        question_values,
    )
    from debate_rewards.metrics.intervals import Estimate, bootstrap_interval
    from debate_rewards.metrics.paired import Paired, paired
    from debate_rewards.reward_config import RewardConfig, Use
    from debate_rewards.reward_functions import answer_reward, verify
    from debate_rewards.rewards import REWARDS, RewardChoice, get_reward
    from debate_rewards.rewards.few_labels.certainty import Certainty
    from debate_rewards.rewards.few_labels.labelled import Labelled
    from debate_rewards.rewards.few_labels.majority import Majority
    from debate_rewards.rewards.few_labels.majority_judge import MajorityJudge
    from debate_rewards.rewards.mixed import Component, Fading, Mixed
    from debate_rewards.rewards.overlong import Overlong
    from debate_rewards.rewards.partial_trajectory import (
        PartialTrajectory,
        StateValue,
        state_values,
    )
    from debate_rewards.rewards.persuasion import Persuasion
    from debate_rewards.rewards.truth_judge import TruthJudge
    from debate_rewards.rewards.v2 import V2
    from debate_rewards.rewards.verifiable import Verifiable
    from debate_rewards.votes.bradley_terry import BradleyTerry
    from debate_rewards.votes.decisions import (
        bradley_terry,
        central,
        confidence,
        majority,
        peer_vote,
    )
    from debate_rewards.votes.pairwise import WinMinusLoss, WinRate

_HOMES = {
    "answers.checking": ("Verdict", "answer_classes", "check", "check_many", "same_answer"),
    "votes.bradley_terry": ("BradleyTerry",),
    "credits": ("Credit", "Reward", "Score"),
    "votes.decisions": ("bradley_terry", "central", "confidence", "majority", "peer_vote"),
    "gate_rules": ("Agreed", "AtMost", "GateRule", "InOrder", "Informative"),
    "metrics.intervals": ("Estimate", "bootstrap_interval"),
    "metrics.paired": ("Paired", "paired"),
    "metrics.debate_metrics": ("debate_metrics", "debate_statistics", "question_values"),
    "rewards.few_labels.certainty": ("Certainty",),
    "rewards.few_labels.labelled": ("Labelled",),
    "rewards.few_labels.majority": ("Majority",),
    "rewards.few_labels.majority_judge": ("MajorityJudge",),
    "rewards.mixed": ("Component", "Fading", "Mixed"),
    "rewards.overlong": ("Overlong",),
    "votes.pairwise": ("WinMinusLoss", "WinRate"),
    "rewards.partial_trajectory": ("PartialTrajectory", "StateValue", "state_values"),
    "rewards.persuasion": ("Persuasion",),
    "reward_config": ("RewardConfig", "Use"),
    "reward_functions": ("answer_reward", "verify"),
    "rewards": ("REWARDS", "RewardChoice", "get_reward"),
    "rewards.truth_judge": ("TruthJudge",),
    "rewards.v2": ("V2",),
    "rewards.verifiable": ("Verifiable",),
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
