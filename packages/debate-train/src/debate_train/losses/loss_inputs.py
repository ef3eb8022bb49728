"""What losses read of a pack, and the names of policies and means that they choose from."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Aggregation = Literal["token_sum", "token_mean_batch", "token_mean_group", "sequence_mean"]
Material = Literal["samples", "demonstrations", "pairs"]
"""Replies that a policy sampled, replies to imitate, or pairs of which one is preferred."""
ReferencePolicy = Literal["phase_start", "base"] | Path
"""The policy at the phase's start, the model as the recipe names it, or one in a directory."""
OldPolicy = Literal["auto", "sampler", "trainer"]
"""`auto` is the sampler, and the trainer at batch start where a batch makes several updates."""


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a loss reads, all of shape (A,); `advantages_A` is 0 where there is no credit.

    `old_logps_A` is what ratios are against, `sampler_logps_A` what the engine sampled with.
    `rows_A` numbers the row that an action stands in, `pairs_A` its preference pair (-1: none).
    """

    logps_A: "Tensor"
    old_logps_A: "Tensor"
    sampler_logps_A: "Tensor"
    advantages_A: "Tensor"
    weights_A: "Tensor"
    rows_A: "Tensor"
    pairs_A: "Tensor"
    reference_logps_A: "Tensor | None" = None


def reference_error(policy: ReferencePolicy | None) -> str | None:
    """Return what is wrong with a reference that is neither a name nor a directory."""
    if not isinstance(policy, Path) or policy.is_dir():
        return None
    return (
        f"loss: found the reference {str(policy)!r}, which is no directory; expected phase_start, "
        "base, or a directory with weights, such as a checkpoint"
    )
