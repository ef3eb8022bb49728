"""All rewards by name, for configuration files."""

from typing import Annotated

from debate_protocol.plugins import Variants
from debate_rewards.reward import RewardConfig
from debate_rewards.rewards.few_labels import Certainty, Majority, MajorityJudge
from debate_rewards.rewards.mixed import OWN, Component, Fading, Labelled, Mixed
from debate_rewards.rewards.partial_trajectory import PartialTrajectory
from debate_rewards.rewards.persuasion import Persuasion
from debate_rewards.rewards.spans import Overlong
from debate_rewards.rewards.truth import TruthJudge, Verifiable
from debate_rewards.rewards.v2 import V2
from debate_rewards.votes.ballots import WinMinusLoss, WinRate
from debate_rewards.votes.decisions import BradleyTerry

REWARDS: Variants[RewardConfig] = Variants(
    "debate_rewards.rewards", RewardConfig, *OWN, Mixed, Labelled
)
"""All rewards, those of other installed packages included."""

RewardChoice = Annotated[RewardConfig, REWARDS]
"""Any reward; `type` names it."""


def get_reward(name: str, **settings: object) -> RewardConfig:
    """Return the reward of this `type` with these settings.

    Raises:
        ValueError: No reward has this name, the message names the nearest one; or (pydantic's
            ValidationError) a setting is unknown or does not fit.
    """
    try:
        return REWARDS.make(name, settings)
    except KeyError as error:
        raise ValueError(f"reward: {error.args[0]}") from error


__all__ = [
    "REWARDS",
    "BradleyTerry",
    "Certainty",
    "Component",
    "Fading",
    "Labelled",
    "Majority",
    "MajorityJudge",
    "Mixed",
    "Overlong",
    "PartialTrajectory",
    "Persuasion",
    "RewardChoice",
    "RewardConfig",
    "TruthJudge",
    "V2",
    "Verifiable",
    "WinMinusLoss",
    "WinRate",
    "get_reward",
]
