"""From the rewards of one group of replies to advantages, as published methods do it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

STD_EPSILON = 1e-6
"""What is added to a standard deviation before it divides."""

GroupRule = Callable[[Sequence[float]], Sequence[float] | None]
"""From the rewards of a group to advantages; None leaves the group out of the batch."""


def group_mean(values: Sequence[float]) -> float:
    """Average values; equal ones exactly, where rounding would give each a tiny advantage."""
    return values[0] if len(set(values)) == 1 else fmean(values)


def std_factor(values: Sequence[float]) -> float:
    """Compute 1 / (standard deviation (n-1) + 1e-6); 0 for values without spread."""
    spread = stdev(values) if len(values) > 1 else 0.0
    return 1.0 / (spread + STD_EPSILON) if spread > 0 else 0.0


def centered(rewards: Sequence[float]) -> list[float]:
    """Take off the group's mean."""
    mean = group_mean(rewards)
    return [reward - mean for reward in rewards]


def standardized(rewards: Sequence[float]) -> list[float]:
    """Take off the group's mean, and divide by its standard deviation."""
    factor = std_factor(rewards)
    return [advantage * factor for advantage in centered(rewards)]


def leave_one_out(rewards: Sequence[float]) -> list[float]:
    """Take off the mean of the other replies, n / (n - 1) times what `centered` gives."""
    if len(rewards) < 2:
        return [0.0] * len(rewards)
    factor = len(rewards) / (len(rewards) - 1)
    return [advantage * factor for advantage in centered(rewards)]


def standardized_if_informative(rewards: Sequence[float]) -> list[float] | None:
    """Standardize a group, or leave it out where all replies earn the same."""
    return standardized(rewards) if len(set(rewards)) > 1 else None


@dataclass(frozen=True, slots=True)
class GroupMethod:
    """How a method values the replies of a group, and each of their tokens.

    Attributes:
        name: The method.
        rule: From rewards to advantages.
        averages_replies: Whether a reply's tokens share its advantage, each 1 / length of it;
            else each token has all of it, and a long reply weighs more.
        source: Paper and deviations.
    """

    name: str
    rule: GroupRule
    averages_replies: bool
    source: str

    def token_weights(self, rewards: Sequence[float], lengths: Sequence[int]) -> list[float] | None:
        """Compute the weight of one token of each reply, before the step's denominator."""
        advantages = self.rule(rewards)
        if advantages is None or not self.averages_replies:
            return None if advantages is None else list(advantages)
        return [
            advantage / max(1, length)
            for advantage, length in zip(advantages, lengths, strict=True)
        ]


GROUP_METHODS: tuple[GroupMethod, ...] = (
    GroupMethod("GRPO", standardized, True, "Shao et al. 2024, eq. 3; mean over each reply"),
    GroupMethod("Dr. GRPO", centered, False, "Liu et al. 2025: neither spread nor length divides"),
    GroupMethod("RLOO", leave_one_out, False, "Ahmadian et al. 2024: the mean of all others"),
    GroupMethod(
        "DAPO", standardized_if_informative, False, "Yu et al. 2025, eq. 8 and 11: dead groups out"
    ),
    GroupMethod(
        "ours (grouped)", centered, False, "advantage.type: grouped, the default of recipes"
    ),
)
