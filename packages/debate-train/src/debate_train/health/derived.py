"""Figures that are made of several metrics of a row, for the health watch and the preflight."""

from statistics import fmean

from debate_train.health.detector import Row

GUIDED = "offline/value_guided_right", "offline/value_natural", "offline/value_guided_wrong"
"""Values of states after these replies, which should fall in this order."""
_FEWEST = 16
"""Pairs of a set below which nothing is said of its sides."""
_RIGHT = ("offline/chosen_right_share", "offline/rejected_right_share")
_SHARES = ("offline/chosen_ok_share", "offline/actor_right_share")
"""Of pairs whose chosen reply agrees with the answer before it, and whose answer is right."""


def derived(row: Row) -> dict[str, float]:
    """Return a row with the figures that are made of several, where these were measured.

    - `judge/youden`: J = TPR − FPR of judges.
    - `pairs/gained`, `pairs/lost`: what guiding to the right answer gains, and to a wrong one
      loses, of the value of natural states.
    - `pairs/truth`: right chosen replies minus right rejected ones, as shares of the pairs.
    - `pairs/smaller_side`: the share of the pairs on the side that has fewer: of those whose chosen
      reply agrees and objects, of those about right and about wrong answers.
    - `kept_right`, `turned_right`: of a look at the dev split, how many answers are right among
      those whose agent was right, and was wrong, in the round before.
    """
    right, natural, wrong = GUIDED
    found = {
        "judge/youden": _difference(row, "judge/tpr", "judge/fpr"),
        "pairs/gained": _difference(row, right, natural),
        "pairs/lost": _difference(row, natural, wrong),
        "pairs/truth": _difference(
            row, "offline/chosen_right_share", "offline/rejected_right_share"
        ),
        "pairs/smaller_side": _smaller_side(row),
        **_transitions(row),
    }
    return {**row, **{name: value for name, value in found.items() if value is not None}}


def _difference(row: Row, more: str, less: str) -> float | None:
    first, second = row.get(more), row.get(less)
    return None if first is None or second is None else float(first - second)


def _smaller_side(row: Row) -> float | None:
    """Return the share of the pairs on the side that has fewer, by what divides them least evenly.

    Nothing is said of fewer than 16 pairs.
    """
    kept = sum(value for name, value in row.items() if name.startswith("offline/kept/"))
    shares = [float(row[name]) for name in _SHARES if row.get(name) is not None]
    if kept < _FEWEST or not shares:
        return None
    return min(min(share, 1 - share) for share in shares)


def _transitions(row: Row) -> dict[str, float | None]:
    """Return the shares of answers that stay right, and that become right, over all rounds."""
    lost, won = row.get("eval/flips/right_to_wrong"), row.get("eval/flips/wrong_to_right")
    rounds = [row[n] for r in range(len(row)) if (n := f"eval/accuracy/round_{r}") in row][:-1]
    if lost is None or won is None or not rounds:
        return {}
    before = fmean(rounds)
    return {
        "kept_right": 1 - lost / before if before > 0 else None,
        "turned_right": won / (1 - before) if before < 1 else None,
    }
