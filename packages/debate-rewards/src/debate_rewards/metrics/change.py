"""How answers change from round to round, and how much those of one debate go together."""

from collections.abc import Iterable, Mapping, Sequence

from debate_protocol.types import TurnKey
from debate_rewards.metrics.sums import Moments, Sums


def add_change(sums: Sums, right: Mapping[TurnKey, bool]) -> None:
    """Add flips and drift of one debate.

    Flips compare an agent's turns in a round and in the round before, as shares of all such pairs.
    `drift/round_t` is the accuracy of round t minus that of round t − 1; where every agent speaks
    in both it is `flips/wrong_to_right/round_t` − `flips/right_to_wrong/round_t`.

    Source: SDRL (paper), section 4: drift of the belief in the right answer.
    """
    by_round: dict[int, list[bool]] = {}
    for key, is_right in right.items():
        by_round.setdefault(key.round, []).append(is_right)
        before = right.get(TurnKey(key.agent, key.round - 1))
        if before is None:
            continue
        for suffix in ("", f"/round_{key.round}"):
            sums.add(f"flips/right_to_wrong{suffix}", float(before and not is_right))
            sums.add(f"flips/wrong_to_right{suffix}", float(is_right and not before))
    for round_, now in by_round.items():
        earlier = by_round.get(round_ - 1)
        if earlier:
            drift = sum(now) / len(now) - sum(earlier) / len(earlier)
            sums.add(f"drift/round_{round_}", drift)


def intraclass_moments(debates: Sequence[Sequence[float]]) -> Moments | None:
    """Return numerator and denominator of a question's intraclass correlation ρ.

    Over ≥ 2 independent debates of one question, ρ says how much the agents of one debate are
    right or wrong together beyond what the question makes them: with x = 1 for a right answer,

        (mean of x·x' over pairs in one debate − over pairs in two) / (mean of x² − the latter)

    Both parts are unbiased, so they are summed over questions before dividing. With debates of
    equal size it is the ANOVA estimate of ICC(1). None when no debate, or no two, can be compared.

    Args:
        debates: Per debate of the question the values of its agents.

    Source: SDRL (paper), Lemma 4.7; there the largest over all answers, here for the right one.
    """
    groups = [list(values) for values in debates if values]
    totals = [sum(group) for group in groups]
    sizes = [len(group) for group in groups]
    squares = sum(value * value for group in groups for value in group)
    # Every pair counts twice, once in each order.
    pairs_within = sum(size * size for size in sizes) - sum(sizes)
    pairs_between = sum(sizes) ** 2 - sum(size * size for size in sizes)
    if not pairs_within or not pairs_between:
        return None
    within = (sum(total * total for total in totals) - squares) / pairs_within
    between = (sum(totals) ** 2 - sum(total * total for total in totals)) / pairs_between
    mean_square = squares / sum(sizes)
    return within - between, mean_square - between


def add_intraclass(sums: Sums, debates: Iterable[Mapping[TurnKey, bool]]) -> None:
    """Add ρ and N_eff of one question for each round, from the debates that were held on it.

    N_eff = N / (1 + (N − 1) ρ) is the number of independent voters that N agents are worth, N the
    agents that spoke in a round on average. With ρ = a / b it is N b / (b + (N − 1) a), so that it
    is summed over questions as ρ is.

    Source: SDRL (paper), Lemma 4.7.
    """
    by_round: dict[int, list[list[float]]] = {}
    for right in debates:
        spoken: dict[int, list[float]] = {}
        for key, is_right in right.items():
            spoken.setdefault(key.round, []).append(float(is_right))
        for round_, values in spoken.items():
            by_round.setdefault(round_, []).append(values)
    for round_, groups in by_round.items():
        moments = intraclass_moments(groups)
        if moments is not None:
            sums.join(f"rho/round_{round_}", moments)
            shared, spread = moments
            voters = sum(map(len, groups)) / len(groups)
            together = spread + (voters - 1) * shared
            sums.join(f"n_eff/round_{round_}", (voters * spread, together))
