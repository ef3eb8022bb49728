"""Every reward but the mixed one: ours, and those of other installed packages."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, get_args

from pydantic import BaseModel, Field

from debate_rewards.bradley_terry import BradleyTerry
from debate_rewards.overlong import Overlong
from debate_rewards.pairwise import WinMinusLoss, WinRate
from debate_rewards.partial_trajectory import PartialTrajectory
from debate_rewards.persuasion import Persuasion
from debate_rewards.third_party import third_party_rewards
from debate_rewards.truth_judge import TruthJudge
from debate_rewards.v2 import V2
from debate_rewards.verifiable import Verifiable

BuiltIn = (
    V2
    | WinRate
    | WinMinusLoss
    | BradleyTerry
    | Verifiable
    | TruthJudge
    | Persuasion
    | Overlong
    | PartialTrajectory
)
_OWN: dict[str, type[BaseModel]] = {
    model.model_fields["type"].default: model for model in get_args(BuiltIn)
}
SINGLE_REWARDS = {**_OWN, **third_party_rewards({*_OWN, "mixed"})}
"""Rewards by `type`; each can be a part of a mixed one."""

if TYPE_CHECKING:
    SingleReward = Annotated[BuiltIn, Field(discriminator="type")]
else:
    SingleReward = Annotated[reduce(or_, SINGLE_REWARDS.values()), Field(discriminator="type")]
