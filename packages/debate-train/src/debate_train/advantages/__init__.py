"""From credits to advantages: baselines, scales and the weights of streams."""

from typing import Annotated

from debate_protocol.plugins import Variants
from debate_train.advantages.advantage import (
    METRIC,
    RETURN,
    SECTIONS,
    Advantage,
    AdvantageConfig,
    Baseline,
    Baselines,
    Compared,
    Stream,
    TurnAdvantages,
)
from debate_train.advantages.grouped import STD_EPSILON, Grouped, Scale
from debate_train.advantages.role_ema import RoleEma

ADVANTAGES: Variants[AdvantageConfig] = Variants(
    "debate_train.advantages", AdvantageConfig, Grouped, RoleEma
)
"""All advantages, those of other installed packages included."""

AdvantageChoice = Annotated[AdvantageConfig, ADVANTAGES]
"""Any advantage; recipes choose by `type`."""

__all__ = [
    "ADVANTAGES",
    "METRIC",
    "RETURN",
    "SECTIONS",
    "STD_EPSILON",
    "Advantage",
    "AdvantageChoice",
    "AdvantageConfig",
    "Baseline",
    "Baselines",
    "Compared",
    "Grouped",
    "RoleEma",
    "Scale",
    "Stream",
    "TurnAdvantages",
]
