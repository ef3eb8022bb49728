"""Every reward but the mixed one: ours, and those of other installed packages."""

from typing import Annotated

from debate_protocol.plugins import Variants
from debate_rewards.reward_config import RewardConfig
from debate_rewards.rewards.few_labels.certainty import Certainty
from debate_rewards.rewards.few_labels.majority import Majority
from debate_rewards.rewards.few_labels.majority_judge import MajorityJudge
from debate_rewards.rewards.overlong import Overlong
from debate_rewards.rewards.partial_trajectory import PartialTrajectory
from debate_rewards.rewards.persuasion import Persuasion
from debate_rewards.rewards.truth_judge import TruthJudge
from debate_rewards.rewards.v2 import V2
from debate_rewards.rewards.verifiable import Verifiable
from debate_rewards.votes.bradley_terry import BradleyTerry
from debate_rewards.votes.pairwise import WinMinusLoss, WinRate

OWN = (
    V2,
    WinRate,
    WinMinusLoss,
    BradleyTerry,
    Verifiable,
    TruthJudge,
    Majority,
    MajorityJudge,
    Certainty,
    Persuasion,
    Overlong,
    PartialTrajectory,
)
SINGLE_REWARDS: Variants[RewardConfig] = Variants("debate_rewards.rewards", RewardConfig, *OWN)
"""Rewards that can be a part of a mixed one."""

SingleReward = Annotated[RewardConfig, SINGLE_REWARDS]
