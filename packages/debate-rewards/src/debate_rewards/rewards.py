"""All rewards by name, as one discriminated union for configuration files."""

import difflib
from collections.abc import Mapping
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, Field

from debate_rewards.bradley_terry import BradleyTerry
from debate_rewards.credits import Reward
from debate_rewards.mixed import Component, Mixed
from debate_rewards.overlong import Overlong
from debate_rewards.pairwise import WinMinusLoss, WinRate
from debate_rewards.partial_trajectory import PartialTrajectory
from debate_rewards.persuasion import Persuasion
from debate_rewards.single_rewards import SINGLE_REWARDS, BuiltIn
from debate_rewards.truth_judge import TruthJudge
from debate_rewards.v2 import V2
from debate_rewards.verifiable import Verifiable

REWARDS: Mapping[str, type[BaseModel]] = {**SINGLE_REWARDS, "mixed": Mixed}
"""All rewards by `type`, those of other installed packages included."""

if TYPE_CHECKING:
    RewardConfig = Annotated[BuiltIn | Mixed, Field(discriminator="type")]
else:
    RewardConfig = Annotated[reduce(or_, REWARDS.values()), Field(discriminator="type")]
    """Any reward; `type` names it."""


def get_reward(name: str, **settings: Any) -> Reward:
    """Return the reward of this `type` with these settings.

    Raises:
        ValueError: No reward has this name, the message names the nearest one; or (pydantic's
            ValidationError) a setting is unknown or does not fit.
    """
    found = REWARDS.get(name)
    if found is None:
        near = difflib.get_close_matches(name, REWARDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"reward: found {name!r}, expected one of {', '.join(REWARDS)}{hint}")
    reward: Any = found.model_validate(settings)
    checked: Reward = reward
    return checked


__all__ = [
    "REWARDS",
    "BradleyTerry",
    "Component",
    "Mixed",
    "Overlong",
    "PartialTrajectory",
    "Persuasion",
    "RewardConfig",
    "TruthJudge",
    "V2",
    "Verifiable",
    "WinMinusLoss",
    "WinRate",
    "get_reward",
]
