"""Whether the last steps of a run moved any token, and why not."""

from collections.abc import Mapping, Sequence
from statistics import fmean

ZERO = "advantage/zero/share"
"""Share of a step's turns that have no advantage."""
LAST_STEPS = 8


def why_nothing_learned(rows: Sequence[Mapping[str, object]]) -> str | None:
    """Return why no turn of these steps had an advantage; None where one had.

    Args:
        rows: Of metrics; those without the share of turns without an advantage do not count.
    """
    steps = [row for row in rows if isinstance(row.get(ZERO), int | float)]
    if not steps or any(row[ZERO] != 1 for row in steps):
        return None
    if _mean(steps, "judged/unread") == 1:
        return "no judge's decision could be read (judged/unread is 1)"
    readable = _mean(steps, "train/format_all")
    if readable is not None and readable < 0.05:
        return f"{1 - readable:.0%} of the turns could not be read (train/format_all)"
    if _mean(steps, "advantage/zero/no_value") == 1:
        return "the reward gave no turn a value that is trained on (advantage/zero/no_value is 1)"
    return "all turns that were compared were worth the same (advantage/zero/no_contrast)"


def warning_of(rows: Sequence[Mapping[str, object]]) -> str:
    """Return what a report says first of a run whose last steps learned nothing, else nothing."""
    steps = [row for row in rows if ZERO in row][-LAST_STEPS:]
    reason = why_nothing_learned(steps)
    if reason is None:
        return ""
    when = "the last step" if len(steps) == 1 else f"the last {len(steps)} steps"
    return f"Nothing could be learned in {when}: {reason}."


def _mean(rows: Sequence[Mapping[str, object]], metric: str) -> float | None:
    values = [row.get(metric) for row in rows]
    known = [float(value) for value in values if isinstance(value, int | float)]
    return fmean(known) if known else None
