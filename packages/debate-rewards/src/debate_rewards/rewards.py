"""All rewards by name, as one discriminated union for configuration files."""

from typing import Annotated

from pydantic import Field

from debate_rewards.mixed import Component, Mixed
from debate_rewards.pairwise import WinMinusLoss, WinRate
from debate_rewards.v2 import V2
from debate_rewards.verifiable import Verifiable

RewardConfig = Annotated[
    WinRate | WinMinusLoss | V2 | Verifiable | Mixed, Field(discriminator="type")
]
"""Any reward; `type` names it."""

__all__ = ["Component", "Mixed", "RewardConfig", "V2", "Verifiable", "WinMinusLoss", "WinRate"]
