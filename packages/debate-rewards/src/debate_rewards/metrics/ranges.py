"""Between which values a figure of one question can lie, by the figure's name."""

Range = tuple[float, float]

_SHARES = frozenset(
    (
        "accuracy", "owed_accuracy", "correct", "avg@k", "pass@k", "cons@k", "maj@k", "mean@k",
        "format", "format_all", "unread", "flips", "decision", "strict_accuracy", "equal_share",
        "comparisons_made", "diversity", "unverifiable", "unmeasured", "maj", "central",
        "tokens_saved", "reached", "consistent", "both_orders", "first_shown", "pairs_in_both",
        "vote_win_rate", "tpr", "fpr", "wins", "unheard",
    )
)  # fmt: skip
_DIFFERENCES = frozenset(("drift", "delta"))


def range_of(figure: str) -> Range | None:
    """Return the least and the greatest value of a figure, None where it is not known.

    Args:
        figure: A name of `debate_metrics` or of an evaluation mode, such as `judge/accuracy`;
            parts before and after the figure's own word, as in `eval/` and `/round_1`, are allowed.
    """
    parts = set(figure.split("/"))
    if parts & _DIFFERENCES:
        return -1.0, 1.0
    return (0.0, 1.0) if parts & _SHARES else None
