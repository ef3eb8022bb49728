"""Whether the last steps of a run moved any token, and why not."""

from collections.abc import Mapping, Sequence
from statistics import fmean

# Share of a step's turns without an advantage.
ZERO = "advantage/zero/share"
GRADIENT_NORM = "optim/grad_norm"
LAST_STEPS = 8
# Below this share of readable turns, the format is to blame.
FEW_READABLE = 0.05


def why_nothing_learned(rows: Sequence[Mapping[str, object]]) -> str | None:
    """Explain why no turn of these steps had an advantage; `None` where one had.

    Args:
        rows: Rows of metrics; those without the share of turns without an advantage do not count.
    """
    steps = [row for row in rows if isinstance(row.get(ZERO), int | float)]
    if not steps or any(row[ZERO] != 1 for row in steps):
        return None
    if _mean(steps, "judged/unread") == 1:
        return "no judge's decision could be read (judged/unread is 1)"
    readable = _mean(steps, "train/format_all")
    if readable is not None and readable < FEW_READABLE:
        return f"{1 - readable:.0%} of the turns could not be read (train/format_all)"
    if _mean(steps, "advantage/zero/no_value") == 1:
        return "the reward gave no turn a value that is trained on (advantage/zero/no_value is 1)"
    return "all turns that were compared were worth the same (advantage/zero/no_contrast)"


def warning_of(rows: Sequence[Mapping[str, object]]) -> str:
    """Write the warning that opens the report of a run whose last steps learned nothing."""
    steps = [row for row in rows if ZERO in row][-LAST_STEPS:]
    reason = why_nothing_learned(steps)
    gradient_norms = [row.get(GRADIENT_NORM) for row in steps]
    # As where the sections that a stream trains are in no reply.
    if reason is None and steps and all(norm == 0 for norm in gradient_norms):
        reason = f"advantages fell on no sampled token ({GRADIENT_NORM} is 0)"
    if reason is None:
        return ""
    when = "the last step" if len(steps) == 1 else f"the last {len(steps)} steps"
    return f"Nothing could be learned in {when}: {reason}."


def _mean(rows: Sequence[Mapping[str, object]], metric: str) -> float | None:
    values = [row.get(metric) for row in rows]
    numbers = [float(value) for value in values if isinstance(value, int | float)]
    return fmean(numbers) if numbers else None
