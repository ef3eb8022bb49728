"""Figures of votes and answers: judging, changes from round to round, subsets of samples."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from debate_protocol.parsing import get_contract
from debate_protocol.types import Transcript, TurnKey, answering_agents
from debate_rewards.answer_checking import same_answer
from debate_rewards.answer_rewards import turn_verdicts
from debate_rewards.estimates import Moments, Sums
from debate_rewards.reward import ReadDebate, ReadTurn, Score, read_debate
from debate_rewards.turn_rewards import critique_targets
from debate_rewards.votes import Verdict, Vote, ballots, by_pair, expected_verdicts, tally


def successive(turns: Iterable[TurnKey]) -> Iterator[tuple[TurnKey, TurnKey]]:
    """Yield each turn's agent's last one before it, and the turn; none for first turns."""
    latest: dict[int, TurnKey] = {}
    for key in sorted(turns, key=lambda one: one.round):
        if key.agent in latest:
            yield latest[key.agent], key
        latest[key.agent] = key


def add_change(sums: Sums, right: Mapping[TurnKey, bool]) -> None:
    """Add flips and drift of one debate.

    Flips compare an agent's turn with its last one before, as shares of all such pairs.
    `drift/round_t` is the accuracy of round t minus that of round t − 1; where every agent speaks
    in both it is `flips/wrong_to_right/round_t` − `flips/right_to_wrong/round_t`.

    Source: SDRL (paper), section 4: drift of the belief in the right answer.
    """
    by_round: dict[int, list[bool]] = {}
    for key, is_right in right.items():
        by_round.setdefault(key.round, []).append(is_right)
    for previous, key in successive(right):
        before, is_right = right[previous], right[key]
        for suffix in ("", f"/round_{key.round}"):
            sums.add(f"flips/right_to_wrong{suffix}", float(before and not is_right))
            sums.add(f"flips/wrong_to_right{suffix}", float(is_right and not before))
    for round_, now in by_round.items():
        earlier = by_round.get(round_ - 1)
        if earlier:
            drift = sum(now) / len(now) - sum(earlier) / len(earlier)
            sums.add(f"drift/round_{round_}", drift)


def add_dissent(sums: Sums, debate: ReadDebate, right: Mapping[TurnKey, bool]) -> None:
    """Add how often agents change sides, by how many of the peers they read were on the other.

    `flips/right_to_wrong/dissent_k` is the share that turned wrong of the agents that were right
    and read k wrong answers; `flips/wrong_to_right/dissent_k` the share that turned right of those
    that were wrong and read k right ones. Of each peer the newest answer counts.
    """
    for previous, key in successive(right):
        before = right[previous]
        read = {k.agent: right[k] for k in debate.turns[key].turn.shown if k in right}
        dissent = sum(other != before for other in read.values())
        kind = "right_to_wrong" if before else "wrong_to_right"
        sums.add(f"flips/{kind}/dissent_{dissent}", float(right[key] != before))


def add_criticism(sums: Sums, debate: ReadDebate, right: Mapping[TurnKey, bool]) -> None:
    """Add how often critics are right, and what becomes of those whom they criticise.

    - `critic/ok_when_right` and `critic/no_when_wrong`, of contracts that end with an answer line:
      a critic who names no answer, or the one it read, agrees with it; one who names another
      objects.
    - `critique/corrects`, `critique/harms`, of contracts with an evaluation: the share of critiques
      of a wrong answer whose target, when it next answers and was shown the critique, is right, and
      of those of a right answer whose target is then wrong.
    """
    question, rules = debate.transcript.question, debate.transcript.protocol
    readers: dict[TurnKey, dict[int, TurnKey]] = {}
    for key in sorted(debate.turns, key=lambda one: one.round):
        for shown in debate.turns[key].turn.shown:
            readers.setdefault(shown, {}).setdefault(key.agent, key)
    for critic in debate.judges.values():
        judged = debate.judged_by(critic)
        for target in () if critic.failed else critique_targets(debate, critic)[1]:
            before = judged[target].key
            after = readers.get(critic.key, {}).get(before.agent)
            if after is not None:
                what = "harms" if right[before] else "corrects"
                sums.add(f"critique/{what}", float(right[after] != right[before]))
    if get_contract(rules.contract).kind != "answer_line":
        return
    for key, critic in debate.judges.items():
        if key in debate.turns or critic.failed:
            continue
        for read in debate.judged_by(critic).values():
            own, answer = critic.parsed.answer, read.parsed.answer
            agrees = own is None or same_answer(question, own, answer)
            if right[read.key]:
                sums.add("critic/ok_when_right", float(agrees))
            elif not read.failed:
                sums.add("critic/no_when_wrong", float(not agrees))


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


def add_judging(sums: Sums, debate: ReadDebate, right: Mapping[TurnKey, bool] | None) -> None:
    """Add what votes show, and how far they go with the truth.

    `rank_truth_correlation` is Spearman's coefficient of the turns of a round, ranked by their
    votes, with their being right, over all debates.

    Source: CoNL (arXiv 2601.21464), which gives it for the final ranking.
    """
    votes = _add_votes(sums, debate, right, "", frozenset(key.agent for key in debate.judges))
    if right is not None:
        shares = tally(votes)
        points = ((share.balance, float(right[key])) for key, share in shares.items())
        sums.add_points("winner_truth_correlation", points)
        for round in {key.round for key in shares}:
            judged = [key for key in shares if key.round == round]
            places = _places([shares[key].balance for key in judged])
            truth = _places([float(right[key]) for key in judged])
            sums.add_points("rank_truth_correlation", zip(places, truth, strict=True))


def _places(values: Sequence[float]) -> list[float]:
    """Return the place of each value among all, equal ones their mean, from the middle place."""
    ordered, middle = sorted(values), (len(values) - 1) / 2
    return [
        (bisect_left(ordered, one) + bisect_right(ordered, one) - 1) / 2 - middle for one in values
    ]


def _add_votes(
    sums: Sums,
    debate: ReadDebate,
    right: Mapping[TurnKey, bool] | None,
    of: str,
    agents: frozenset[int],
) -> list[Vote]:
    """Add what the votes of some agents show, under names that begin with `of`; return them."""
    judges = {key: judge for key, judge in debate.judges.items() if key.agent in agents}
    votes = [vote for judge in judges.values() for vote in ballots(debate)[judge.key].votes]
    expected = sum(debate.expected_pairs(judge) for judge in judges.values())
    if expected:
        sums.add(f"{of}comparisons_made", len(votes), expected)
    said = Counter((*v.pair, v.verdict, v.judge.agent if v.is_own else None) for v in votes)
    for (left, other, verdict, own), count in said.items():
        sums.add(f"{of}judge/equal_share", count * (verdict == "="), count)
        if not of and verdict != "=":
            first_wins = count * (verdict == ">")
            sums.add("judge/first_shown", first_wins, count)
            for agent, wins in ((left.agent, first_wins), (other.agent, count - first_wins)):
                if agent != own:
                    sums.add(f"judge/wins/agent_{agent}", wins, count)
    if right is not None:
        # Whether the left turn is the right one, of votes on a right and a wrong one.
        decided = Counter(
            (right[vote.left], vote.verdict)
            for vote in votes
            if right[vote.left] != right[vote.right]
        )
        for (left_right, verdict), count in decided.items():
            agrees, equal = verdict == (">" if left_right else "<"), verdict == "="
            sums.add(f"{of}judge/accuracy", count * (0.5 if equal else agrees), count)
            sums.add(f"{of}judge/strict_accuracy", count * agrees, count)
            sums.add(f"{of}judge/tpr", count * agrees, count)
            sums.add(f"{of}judge/fpr", count * (not equal and not agrees), count)
        _add_error_correlation(sums, votes, right, of)
        for judge in judges.values():
            for value in owed_values(debate, judge, right):
                sums.add(f"{of}judge/owed_accuracy", value)
    return votes


def owed_values(
    debate: ReadDebate, judge: ReadTurn, right: Mapping[TurnKey, bool]
) -> Iterator[float]:
    """Yield, of each right and wrong turn that a turn owed a comparison of, whether it was right.

    `=` and a pair that was left out are worth 1/2, so that leaving out hard pairs gains nothing.
    """
    for (left, other), verdict in expected_verdicts(debate, judge):
        if right[left] != right[other]:
            yield 0.5 if verdict in ("=", None) else float((verdict == ">") == right[left])


def add_own(
    sums: Sums,
    debate: ReadDebate,
    right: Mapping[TurnKey, bool] | None,
    of: str,
    agents: frozenset[int],
) -> None:
    """Add what some agents did themselves, apart from the others."""
    _add_votes(sums, debate, right, of, agents)
    for key, turn in debate.turns.items():
        if key.agent in agents:
            sums.add(f"{of}format_all", float(not turn.failed))
    rules = debate.transcript.protocol
    for last in range(debate.last_round, -1, -1):
        due = agents.intersection(answering_agents(rules, last))
        if due and right is not None:
            answered = sum(right.get(TurnKey(agent, last), False) for agent in due)
            sums.add(f"{of}correct", answered, len(due))
        if due:
            return


def _add_error_correlation(
    sums: Sums, votes: Sequence[Vote], right: Mapping[TurnKey, bool], of: str
) -> None:
    """Add the errors of two judges of a right and a wrong turn, in both orders.

    An error is 0 where the right turn is named, 1/2 for `=`, and 1 where the wrong one is.
    """
    for (left, other), on_pair in by_pair(votes).items():
        if right[left] != right[other]:
            worth = {">": float(not right[left]), "=": 0.5, "<": float(right[left])}
            by_judge: dict[int, list[float]] = {}
            for vote in on_pair:
                by_judge.setdefault(vote.judge.agent, []).append(worth[vote.verdict])
            everyone = [error for errors in by_judge.values() for error in errors]
            for errors in by_judge.values():
                # All points of one of its errors and one of another judge.
                others = len(everyone) - len(errors)
                rest = sum(everyone) - sum(errors)
                squares = [sum(e * e for e in some) for some in (everyone, errors)]
                moments = (
                    float(len(errors) * others),
                    sum(errors) * others,
                    len(errors) * rest,
                    squares[1] * others,
                    len(errors) * (squares[0] - squares[1]),
                    sum(errors) * rest,
                )
                if others:
                    sums.join(f"{of}judge/error_correlation", moments)


def add_reward(sums: Sums, right: Mapping[TurnKey, bool], score: Score) -> None:
    """Add whether the turns that the reward values most are right, by round.

    Rounds count in which both a right and a wrong turn have a value; equal values share the first
    place. The parts of a mixed reward are added with their weights. Penalties do not count.
    """
    worth: dict[TurnKey, float] = {}
    for credit in score.credits:
        key = TurnKey(credit.agent, credit.round)
        valued = credit.value is not None and not credit.penalty and credit.span is None
        if valued and credit.stream in ("generator", "return") and key in right:
            worth[key] = worth.get(key, 0.0) + credit.weight * (credit.value or 0.0)
    for round_ in sorted({key.round for key in worth}):
        values = {key: value for key, value in worth.items() if key.round == round_}
        if len({right[key] for key in values}) == 2:
            first = [key for key, value in values.items() if value == max(values.values())]
            sums.add("reward/accuracy", sum(right[key] for key in first) / len(first))


def pass_at(right: int, samples: int, k: int) -> float:
    """Return the chance that at least one of k samples, drawn without replacement, is right.

    Args:
        right: Right samples.
        samples: All samples, at least k.
        k: Samples drawn.

    Source: Chen et al. (2021), Evaluating large language models trained on code, equation 1: the
    unbiased estimate 1 − C(n − c, k) / C(n, k).
    """
    _check(samples, k)
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def right_in_most(right: int, samples: int, k: int) -> float:
    """Return the chance that more than half of k samples, drawn without replacement, are right.

    Args:
        right: Right samples.
        samples: All samples, at least k.
        k: Samples drawn.
    """
    _check(samples, k)
    ways = sum(
        math.comb(right, hits) * math.comb(samples - right, k - hits)
        for hits in range(k // 2 + 1, k + 1)
    )
    return ways / math.comb(samples, k)


def majority_of_subsets(
    classes: Sequence[int | None], right: frozenset[int], most: int
) -> list[float]:
    """Return, for k = 1 … most, how often the majority of k samples is right.

    That is the mean over all subsets of k samples of the share of right classes among the largest
    ones: ties count in expectation. A subset in which nobody answers is wrong.

    Args:
        classes: The class of each sample's answer, None for a sample without one.
        right: Classes that are the right answer.
        most: The largest k, at most the number of samples.

    Returns:
        The values of k = 1, …, most.
    """
    _check(len(classes), most)
    sizes = Counter(number for number in classes if number is not None)
    silent = len(classes) - sizes.total()
    found = [0.0] * most
    for number in right & sizes.keys():
        others = [size for other, size in sizes.items() if other != number]
        for votes in range(1, min(sizes[number], most) + 1):
            own = math.comb(sizes[number], votes)
            for rest, ways in enumerate(_won_against(others, silent, votes, most - votes)):
                found[votes + rest - 1] += own * ways
    return [ways / math.comb(len(classes), k) for k, ways in enumerate(found, 1)]


def _won_against(others: Sequence[int], silent: int, votes: int, most: int) -> list[float]:
    """Return for 0 … most drawn samples of other classes the ways to draw them and not lose.

    A way in which t other classes have as many votes counts 1 / (t + 1).
    """
    ways = [[0] * (most + 1)]
    for drawn in range(min(silent, most) + 1):
        ways[0][drawn] = math.comb(silent, drawn)
    for size in others:
        # Row t holds the ways in which t classes have as many votes as the one in question.
        grown = [[0] * (most + 1) for _ in range(len(ways) + (size >= votes and votes <= most))]
        for ties, row in enumerate(ways):
            for before, known in enumerate(row):
                if not known:
                    continue
                for drawn in range(min(size, votes, most - before) + 1):
                    grown[ties + (drawn == votes)][before + drawn] += known * math.comb(size, drawn)
        while len(grown) > 1 and not any(grown[-1]):
            grown.pop()
        ways = grown
    return [
        sum(row[drawn] / (ties + 1) for ties, row in enumerate(ways)) for drawn in range(most + 1)
    ]


def _check(samples: int, k: int) -> None:
    if not 1 <= k <= samples:
        raise ValueError(f"k: found {k}, expected 1 to {samples}, the number of samples")


_MIRRORED: Mapping[Verdict, Verdict] = {">": "<", "<": ">", "=": "="}
# Judge, and two judged agents of whom the first has the lower number, to the verdict.
Verdicts = dict[tuple[int, int, int], Verdict]


def swapped_judging(plain: Transcript, reseated: Transcript) -> dict[str, tuple[float, float]]:
    """Return sum and weight of each figure, of one question judged in both orders.

    What counts are the judge and pair of the second round that have a verdict in both debates.

    - `judge/accuracy`: of pairs of a right and a wrong turn, mean over both orders of naming the
      right one, `=` counting half.
    - `judge/both_orders`: of the same pairs, the share in which both orders name the right one.
    - `judge/consistent`: of all pairs, the share with the same verdict in both orders.
    - `judge/first_shown`: of all verdicts that are not `=`, the share for the turn that stands
      first; a judge that does not mind the order has 1/2.
    - `judge/pairs_in_both`: of the pairs with a verdict in either debate, the share with one in
      both.

    Args:
        plain: A debate of two rounds or more.
        reseated: The same one with its agents in other seats (`forms.probes.Reseated`).

    Raises:
        ValueError: The second does not say who sits where.

    Source: Zheng et al. (2023), Judging LLM-as-a-judge with MT-Bench and Chatbot Arena, section
    3.4: position bias, and swapped positions as its remedy.
    """
    seats = reseated.protocol.extra.get("seats")
    count = plain.protocol.num_agents
    if not isinstance(seats, list) or sorted(seats) != list(range(count)):
        raise ValueError(
            f"debate {reseated.id!r}: found seats {seats!r}; expected the agents 0 to {count - 1}"
        )
    debate = read_debate(plain)
    (verdicts,) = turn_verdicts([debate])
    usable = all(verdict.verdict != "unverifiable" for verdict in verdicts.values())
    before = _verdicts(debate, list(range(count)))
    after = _verdicts(read_debate(reseated), seats)
    sums = Sums()
    for key in before.keys() | after.keys():
        sums.add("judge/pairs_in_both", float(key in before and key in after))
    for (judge, low, high), first in sorted(before.items()):
        second = after.get((judge, low, high))
        if second is None:
            continue
        sums.add("judge/consistent", float(first == second))
        # The lower number stands first, and in reversed seats that is the other turn.
        for verdict, leading in ((first, ">"), (second, "<")):
            if verdict != "=":
                sums.add("judge/first_shown", float(verdict == leading))
        hits = [verdicts[TurnKey(agent, 0)].verdict == "right" for agent in (low, high)]
        if usable and hits[0] != hits[1]:
            good: Verdict = ">" if hits[0] else "<"
            values = [0.5 if one == "=" else float(one == good) for one in (first, second)]
            sums.add("judge/accuracy", sum(values) / 2)
            sums.add("judge/both_orders", float(first == second == good))
    return {name: (moments[0], moments[1]) for name, moments in sums.moments.items()}


def _verdicts(debate: ReadDebate, seats: list[int]) -> Verdicts:
    """Return the verdicts of the second round on turns of the first, by the agents' own numbers."""
    found: Verdicts = {}
    for key, judge in debate.judges.items():
        if key.round != 1:
            continue
        for vote in ballots(debate)[judge.key].votes:
            left, right = seats[vote.left.agent], seats[vote.right.agent]
            verdict = vote.verdict if left < right else _MIRRORED[vote.verdict]
            found[seats[key.agent], min(left, right), max(left, right)] = verdict
    return found
