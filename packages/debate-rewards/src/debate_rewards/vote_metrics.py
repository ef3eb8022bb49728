"""Metrics of votes and answers: judging, changes from round to round, subsets of samples."""

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
from debate_rewards.votes import (
    TurnPair,
    Verdict,
    Vote,
    ballots,
    by_pair,
    expected_verdicts,
    judged_ballots,
    reads_one_answer,
    tally,
)

_MIRRORED: Mapping[Verdict, Verdict] = {">": "<", "<": ">", "=": "="}
# Judge, and two judged agents of whom the first has the lower number, to the verdict.
Verdicts = dict[tuple[int, int, int], Verdict]


def successive(turns: Iterable[TurnKey]) -> Iterator[tuple[TurnKey, TurnKey]]:
    """Yield each turn after the agent's previous turn; first turns have no previous turn."""
    latest: dict[int, TurnKey] = {}
    for key in sorted(turns, key=lambda turn: turn.round):
        if key.agent in latest:
            yield latest[key.agent], key
        latest[key.agent] = key


def add_change(sums: Sums, right: Mapping[TurnKey, bool]) -> None:
    """Add flips and drift of one debate.

    Flips compare an agent's turn with the agent's previous turn, as shares of all such pairs.
    `drift/round_t` is the accuracy of round t minus the accuracy of round t − 1; where every agent
    speaks in both, it is `flips/wrong_to_right/round_t` − `flips/right_to_wrong/round_t`.

    Source: SDRL (paper), section 4: drift of the belief in the right answer.
    """
    rounds: dict[int, list[bool]] = {}
    for key, is_right in right.items():
        rounds.setdefault(key.round, []).append(is_right)
    for previous, key in successive(right):
        was_right = right[previous]
        is_right = right[key]
        turned_wrong = float(was_right and not is_right)
        turned_right = float(is_right and not was_right)
        for suffix in ("", f"/round_{key.round}"):
            sums.add(f"flips/right_to_wrong{suffix}", turned_wrong)
            sums.add(f"flips/wrong_to_right{suffix}", turned_right)
    accuracies = {round: sum(answers) / len(answers) for round, answers in rounds.items()}
    for round, accuracy in accuracies.items():
        # The first round has no drift, nor has a round after one in which only judges spoke.
        if round - 1 in accuracies:
            drift = accuracy - accuracies[round - 1]
            sums.add(f"drift/round_{round}", drift)


def add_dissent(
    sums: Sums,
    debate: ReadDebate,
    right: Mapping[TurnKey, bool],
) -> None:
    """Add how often agents change sides, by the number of peers they read on the other side.

    `flips/right_to_wrong/dissent_k` is the share that turned wrong of the agents that were right
    and read k wrong answers; `flips/wrong_to_right/dissent_k` the share that turned right of the
    agents that were wrong and read k right ones. Of each peer the newest answer counts.
    """
    for previous, key in successive(right):
        was_right = right[previous]
        # Shown turns are in order: a peer's newest answer replaces its older ones.
        peer_answers: dict[int, bool] = {}
        for shown_key in debate.turns[key].turn.shown:
            if shown_key in right:
                peer_answers[shown_key.agent] = right[shown_key]
        num_dissenting = sum(is_right != was_right for is_right in peer_answers.values())
        change = "right_to_wrong" if was_right else "wrong_to_right"
        has_changed = right[key] != was_right
        sums.add(f"flips/{change}/dissent_{num_dissenting}", float(has_changed))


def add_criticism(
    sums: Sums,
    debate: ReadDebate,
    right: Mapping[TurnKey, bool],
) -> None:
    """Add how often critics are right, and how criticised answers change.

    - `critic/ok_when_right` and `critic/no_when_wrong`, of contracts that end with an answer line:
      a critic without an answer, or with the answer it read, agrees; a critic with another answer
      objects.
    - `critique/corrects`, `critique/harms`, of contracts with an evaluation: the share of critiques
      of a wrong answer whose target, when it next answers and was shown the critique, is right, and
      of critiques of a right answer whose target is then wrong.
    """
    # Of each turn, by agent: the first turn that was shown it.
    first_readers: dict[TurnKey, dict[int, TurnKey]] = {}
    for key in sorted(debate.turns, key=lambda turn: turn.round):
        for shown_key in debate.turns[key].turn.shown:
            readers = first_readers.setdefault(shown_key, {})
            readers.setdefault(key.agent, key)
    for critic in debate.judges.values():
        if critic.failed:
            continue
        judged = debate.judged_by(critic)
        _, targets = critique_targets(debate, critic)
        for target in targets:
            before = judged[target].key
            after = first_readers.get(critic.key, {}).get(before.agent)
            # A critique in the last round is read by nobody, and has no effect to measure.
            if after is not None:
                effect = "harms" if right[before] else "corrects"
                has_changed = right[after] != right[before]
                sums.add(f"critique/{effect}", float(has_changed))
    if get_contract(debate.transcript.protocol.contract).kind == "answer_line":
        _add_answer_critics(sums, debate, right)


def _add_answer_critics(
    sums: Sums,
    debate: ReadDebate,
    right: Mapping[TurnKey, bool],
) -> None:
    question = debate.transcript.question
    for key, critic in debate.judges.items():
        if key in debate.turns or critic.failed:
            continue
        critic_answer = critic.parsed.answer
        for turn in debate.judged_by(critic).values():
            agrees = True
            if critic_answer is not None:
                agrees = same_answer(question, critic_answer, turn.parsed.answer)
            if right[turn.key]:
                sums.add("critic/ok_when_right", float(agrees))
            # A failed turn counts as wrong, but gave the critic no answer to object to.
            elif not turn.failed:
                sums.add("critic/no_when_wrong", float(not agrees))


def intraclass_moments(debates: Sequence[Sequence[float]]) -> Moments | None:
    """Compute numerator and denominator of a question's intraclass correlation ρ.

    Over ≥ 2 independent debates of one question, ρ says how much the agents of one debate are
    right or wrong together beyond the question's own difficulty: with x = 1 for a right answer,

        (mean of x·x' over pairs in one debate − over pairs in two) / (mean of x² − the latter)

    Both parts are unbiased, so they are summed over questions before dividing. With debates of
    equal size it is the ANOVA estimate of ICC(1). None when no debate, or no two, can be compared.

    Args:
        debates: Per debate of the question the values of its agents.

    Source: SDRL (paper), Lemma 4.7; there the largest over all answers, here for the right one.
    """
    # Sums over pairs come from squares of totals, (Σx)² = Σx² + Σx·x', in time linear in the
    # number of agents. Every pair counts twice, once in each order.
    num_values = 0
    total = 0.0
    sum_of_squares = 0.0
    sum_of_squared_totals = 0.0
    sum_of_squared_sizes = 0
    for values in debates:
        num_values += len(values)
        sum_of_squared_sizes += len(values) ** 2
        sum_of_squares += sum(value * value for value in values)
        debate_total = sum(values)
        sum_of_squared_totals += debate_total * debate_total
        total += debate_total
    pairs_within = sum_of_squared_sizes - num_values
    pairs_between = num_values * num_values - sum_of_squared_sizes
    if not pairs_within or not pairs_between:
        return None
    mean_within = (sum_of_squared_totals - sum_of_squares) / pairs_within
    mean_between = (total * total - sum_of_squared_totals) / pairs_between
    mean_square = sum_of_squares / num_values
    return mean_within - mean_between, mean_square - mean_between


def add_intraclass(sums: Sums, debates: Iterable[Mapping[TurnKey, bool]]) -> None:
    """Add ρ and N_eff of one question for each round, from all debates on it.

    N_eff = N / (1 + (N − 1) ρ) is the number of independent voters that N agents are worth, N the
    agents that spoke in a round on average. With ρ = a / b it is N b / (b + (N − 1) a), so that it
    is summed over questions as ρ is.

    Source: SDRL (paper), Lemma 4.7.
    """
    rounds: dict[int, list[list[float]]] = {}
    for right in debates:
        debate_rounds: dict[int, list[float]] = {}
        for key, is_right in right.items():
            debate_rounds.setdefault(key.round, []).append(float(is_right))
        for round, values in debate_rounds.items():
            rounds.setdefault(round, []).append(values)
    for round, groups in rounds.items():
        moments = intraclass_moments(groups)
        if moments is None:
            continue
        sums.join(f"rho/round_{round}", moments)
        covariance, variance = moments
        # Failed debates may end early, so rounds differ in the number of agents that spoke.
        num_voters = sum(len(values) for values in groups) / len(groups)
        numerator = num_voters * variance
        denominator = variance + (num_voters - 1) * covariance
        sums.join(f"n_eff/round_{round}", (numerator, denominator))


def add_judging(
    sums: Sums,
    debate: ReadDebate,
    right: Mapping[TurnKey, bool] | None,
) -> None:
    """Add the metrics of votes, and their correlation with the truth.

    `rank_truth_correlation` is Spearman's coefficient of the turns of a round, ranked by their
    votes, with their being right, over all debates.

    Source: CoNL (arXiv 2601.21464), which gives it for the final ranking.
    """
    all_agents = frozenset(key.agent for key in debate.judges)
    votes = _add_votes(sums, debate, right, "", all_agents)
    if right is None:
        return
    # Ranks compare turns of one round: only these had the same judges.
    points: list[tuple[float, float]] = []
    points_by_round: dict[int, list[tuple[float, float]]] = {}
    for key, share in tally(votes).items():
        point = (share.balance, float(right[key]))
        points.append(point)
        points_by_round.setdefault(key.round, []).append(point)
    sums.add_points("winner_truth_correlation", points)
    for round_points in points_by_round.values():
        balances, truths = zip(*round_points, strict=True)
        vote_ranks = _centred_ranks(balances)
        truth_ranks = _centred_ranks(truths)
        ranks = zip(vote_ranks, truth_ranks, strict=True)
        sums.add_points("rank_truth_correlation", ranks)


def _centred_ranks(values: Sequence[float]) -> list[float]:
    """Rank each value from the middle rank on, equal values by their mean rank."""
    ordered = sorted(values)
    middle = (len(values) - 1) / 2
    ranks = []
    for value in values:
        first = bisect_left(ordered, value)
        last = bisect_right(ordered, value) - 1
        # Centred, so that rounds with different numbers of turns pool without a shift.
        ranks.append((first + last) / 2 - middle)
    return ranks


def _add_votes(
    sums: Sums,
    debate: ReadDebate,
    right: Mapping[TurnKey, bool] | None,
    prefix: str,
    agents: frozenset[int],
) -> list[Vote]:
    """Add the metrics of some agents' votes, under names that begin with `prefix`."""
    judges = {key: judge for key, judge in debate.judges.items() if key.agent in agents}
    turn_ballots = ballots(debate)
    judge_ballots = judged_ballots(debate, turn_ballots)
    votes: list[Vote] = []
    num_compared = 0
    num_expected = 0
    for key in judges:
        votes += turn_ballots[key].votes
        num_compared += len(judge_ballots[key].votes)
        num_expected += judge_ballots[key].num_expected
    if num_expected:
        sums.add(f"{prefix}comparisons_made", num_compared, num_expected)
    # Nobody was shown both turns of a vote that is made of two checks.
    checkers = {key for key in judges if reads_one_answer(debate, key)}
    _add_habits(sums, votes, prefix, checkers)
    if right is not None:
        _add_judge_accuracy(sums, votes, right, prefix)
        _add_error_correlation(sums, votes, right, prefix)
        for judge in judges.values():
            for value in owed_values(debate, judge, right):
                sums.add(f"{prefix}judge/owed_accuracy", value)
    return votes


def _add_habits(
    sums: Sums,
    votes: Sequence[Vote],
    prefix: str,
    checkers: set[TurnKey],
) -> None:
    """Add how often judges find turns equal, name the first one, and vote for each agent."""
    # Equal votes are added at once: N agents cast N³ votes, and few of them differ. An agent's
    # vote on its own turn is counted apart, as it is no win or loss of that agent.
    vote_counts: Counter[tuple[TurnPair, Verdict, int | None, bool]] = Counter()
    for vote in votes:
        own_agent = vote.judge.agent if vote.is_own else None
        is_check = vote.judge in checkers
        vote_counts[vote.pair, vote.verdict, own_agent, is_check] += 1
    for (pair, verdict, own_agent, is_check), count in vote_counts.items():
        left, right = pair
        is_equal = verdict == "="
        sums.add(f"{prefix}judge/equal_share", count * is_equal, count)
        # Wins and the order shown are figures of a whole debate, not of one policy's votes.
        if prefix or is_equal:
            continue
        num_left_wins = count if verdict == ">" else 0
        if not is_check:
            sums.add("judge/first_shown", num_left_wins, count)
        if left.agent != own_agent:
            sums.add(f"judge/wins/agent_{left.agent}", num_left_wins, count)
        if right.agent != own_agent:
            sums.add(f"judge/wins/agent_{right.agent}", count - num_left_wins, count)


def _add_judge_accuracy(
    sums: Sums,
    votes: Sequence[Vote],
    right: Mapping[TurnKey, bool],
    prefix: str,
) -> None:
    """Add the accuracy of votes on a right and a wrong turn."""
    # N agents cast N³ votes of only six kinds: each kind is added once.
    verdict_counts: Counter[tuple[bool, Verdict]] = Counter()
    for vote in votes:
        left_is_right = right[vote.left]
        # Of two right turns, or two wrong ones, no verdict is right.
        if left_is_right != right[vote.right]:
            verdict_counts[left_is_right, vote.verdict] += 1
    for (left_is_right, verdict), count in verdict_counts.items():
        right_verdict = ">" if left_is_right else "<"
        names_right_turn = verdict == right_verdict
        names_wrong_turn = verdict not in (right_verdict, "=")
        value = 0.5 if verdict == "=" else float(names_right_turn)
        sums.add(f"{prefix}judge/accuracy", count * value, count)
        sums.add(f"{prefix}judge/strict_accuracy", count * names_right_turn, count)
        sums.add(f"{prefix}judge/tpr", count * names_right_turn, count)
        sums.add(f"{prefix}judge/fpr", count * names_wrong_turn, count)


def owed_values(
    debate: ReadDebate,
    judge: ReadTurn,
    right: Mapping[TurnKey, bool],
) -> Iterator[float]:
    """Yield the accuracy of each expected comparison of a right and a wrong turn."""
    for (left, other), verdict in expected_verdicts(debate, judge):
        if right[left] == right[other]:
            continue
        # An omitted pair is worth as much as `=`: leaving out hard pairs gains nothing.
        if verdict is None or verdict == "=":
            yield 0.5
        else:
            names_left = verdict == ">"
            yield float(names_left == right[left])


def add_own(
    sums: Sums,
    debate: ReadDebate,
    right: Mapping[TurnKey, bool] | None,
    prefix: str,
    agents: frozenset[int],
) -> None:
    """Add the metrics of some agents' own turns and votes, under names that begin with `prefix`."""
    _add_votes(sums, debate, right, prefix, agents)
    for key, turn in debate.turns.items():
        if key.agent in agents:
            sums.add(f"{prefix}format_all", float(not turn.failed))
    if right is None:
        return
    # The last round of the debate may be others' alone, such as a judge's.
    protocol = debate.transcript.protocol
    for round in reversed(range(debate.last_round + 1)):
        expected_agents = agents.intersection(answering_agents(protocol, round))
        if not expected_agents:
            continue
        num_right = 0
        for agent in expected_agents:
            # An agent that did not speak counts as wrong.
            num_right += right.get(TurnKey(agent, round), False)
        sums.add(f"{prefix}correct", num_right, len(expected_agents))
        return


def _add_error_correlation(
    sums: Sums,
    votes: Sequence[Vote],
    right: Mapping[TurnKey, bool],
    prefix: str,
) -> None:
    """Add the errors of two judges of a right and a wrong turn, in both orders.

    An error is 0 where the right turn is named, 1/2 for `=`, and 1 where the wrong one is.
    """
    for (left, other), pair_votes in by_pair(votes).items():
        # Of two right turns, or two wrong ones, no verdict is an error.
        if right[left] == right[other]:
            continue
        left_is_right = right[left]
        error_of = {
            ">": float(not left_is_right),
            "=": 0.5,
            "<": float(left_is_right),
        }
        errors_by_judge: dict[int, list[float]] = {}
        for vote in pair_votes:
            judge_errors = errors_by_judge.setdefault(vote.judge.agent, [])
            judge_errors.append(error_of[vote.verdict])
        pair_errors: list[float] = []
        for errors in errors_by_judge.values():
            pair_errors += errors
        pair_sum = sum(pair_errors)
        pair_squares = sum(error * error for error in pair_errors)
        for errors in errors_by_judge.values():
            # The moments of all points (x, y), x an error of this judge and y of another, from
            # sums alone: listing the points takes as many steps as there are pairs of votes.
            num_x = len(errors)
            num_y = len(pair_errors) - num_x
            sum_x = sum(errors)
            sum_y = pair_sum - sum_x
            squares_x = sum(error * error for error in errors)
            squares_y = pair_squares - squares_x
            # Each x meets every y, so that a sum over x alone counts num_y times.
            if num_y:
                moments = (
                    float(num_x * num_y),
                    sum_x * num_y,
                    num_x * sum_y,
                    squares_x * num_y,
                    num_x * squares_y,
                    sum_x * sum_y,
                )
                sums.join(f"{prefix}judge/error_correlation", moments)


def add_reward(
    sums: Sums,
    right: Mapping[TurnKey, bool],
    score: Score,
) -> None:
    """Add whether the turns with the highest reward of a round are right, and the share of right.

    Only rounds with values of both a right and a wrong turn count; equal values share the first
    place. The parts of a mixed reward are added with their weights. Penalties do not count.
    """
    values: dict[TurnKey, float] = {}
    for credit in score.credits:
        key = TurnKey(credit.agent, credit.round)
        # A penalty marks a failed turn, which the format metrics count: it judges no answer.
        if credit.value is None or credit.penalty or credit.span is not None:
            continue
        # Streams of judging and criticism say nothing about the turn's own answer.
        if credit.stream in ("generator", "return") and key in right:
            values[key] = values.get(key, 0.0) + credit.weight * credit.value
    for round_ in sorted({key.round for key in values}):
        round_values = {key: value for key, value in values.items() if key.round == round_}
        num_turns = len(round_values)
        num_right = sum(right[key] for key in round_values)
        # Where all are right or all wrong, any reward names the best.
        if num_right in (0, num_turns):
            continue
        highest = max(round_values.values())
        best_keys = [key for key, value in round_values.items() if value == highest]
        num_best_right = sum(right[key] for key in best_keys)
        sums.add("reward/accuracy", num_best_right / len(best_keys))
        sums.add("reward/chance", num_right / num_turns)


def pass_at(
    right: int,
    samples: int,
    k: int,
) -> float:
    """Compute the chance that at least one of k samples, drawn without replacement, is right.

    Args:
        right: Right samples.
        samples: All samples, at least k.
        k: Samples drawn.

    Source: Chen et al. (2021), Evaluating large language models trained on code, equation 1: the
    unbiased estimate 1 − C(n − c, k) / C(n, k).
    """
    _check(samples, k)
    return 1 - math.comb(samples - right, k) / math.comb(samples, k)


def right_in_most(
    right: int,
    samples: int,
    k: int,
) -> float:
    """Compute the chance that more than half of k samples, drawn without replacement, are right.

    Args:
        right: Right samples.
        samples: All samples, at least k.
        k: Samples drawn.
    """
    _check(samples, k)
    num_wrong = samples - right
    num_ways = 0
    for hits in range(k // 2 + 1, k + 1):
        num_ways += math.comb(right, hits) * math.comb(num_wrong, k - hits)
    return num_ways / math.comb(samples, k)


def majority_of_subsets(
    classes: Sequence[int | None],
    right: frozenset[int],
    most: int,
) -> list[float]:
    """Compute, for k = 1 … most, how often the majority of k samples is right.

    The mean runs over all subsets of k samples, of the share of right classes among the largest
    classes: ties count in expectation. A subset without answers is wrong.

    Args:
        classes: The class of each sample's answer, `None` for a sample without one.
        right: Classes that are the right answer.
        most: The largest k, at most the number of samples.

    Returns:
        The values of k = 1, …, most.
    """
    _check(len(classes), most)
    class_sizes = Counter(number for number in classes if number is not None)
    num_silent = len(classes) - class_sizes.total()
    # Subsets of k samples that a right class wins, a tie of t classes as 1/t. They are counted by
    # the votes of the winner: listing them takes 2^n steps.
    num_won = [0.0] * most
    for right_class in right & class_sizes.keys():
        class_size = class_sizes[right_class]
        other_sizes = [size for other, size in class_sizes.items() if other != right_class]
        for num_votes in range(1, min(class_size, most) + 1):
            ways_to_vote = math.comb(class_size, num_votes)
            most_others = most - num_votes
            ways_by_others = _ways_to_win(other_sizes, num_silent, num_votes, most_others)
            for num_others, ways in enumerate(ways_by_others):
                num_won[num_votes + num_others - 1] += ways_to_vote * ways
    return [ways / math.comb(len(classes), k) for k, ways in enumerate(num_won, 1)]


def _ways_to_win(
    other_sizes: Sequence[int],
    num_silent: int,
    num_votes: int,
    most: int,
) -> list[float]:
    """Count the ways to draw 0 … most samples of other classes without losing to any.

    A way to tie with t other classes counts 1 / (t + 1).
    """
    # Row t, column n: ways to draw n samples in which t classes have as many votes. Python's
    # integers are exact: the binomials of 100 samples exceed a float's 53 bits.
    ways = [[0] * (most + 1)]
    for num_drawn in range(min(num_silent, most) + 1):
        ways[0][num_drawn] = math.comb(num_silent, num_drawn)
    for size in other_sizes:
        # A class that can tie may add one to the largest number of ties.
        can_tie = size >= num_votes and num_votes <= most
        next_ways = [[0] * (most + 1) for _ in range(len(ways) + can_tie)]
        for num_ties, row in enumerate(ways):
            for num_before, ways_before in enumerate(row):
                if not ways_before:
                    continue
                # More than `num_votes` of one class would beat the winner.
                most_drawn = min(size, num_votes, most - num_before)
                for num_drawn in range(most_drawn + 1):
                    adds_tie = num_drawn == num_votes
                    next_row = next_ways[num_ties + adds_tie]
                    ways_to_draw = ways_before * math.comb(size, num_drawn)
                    next_row[num_before + num_drawn] += ways_to_draw
        # Rows of more ties than samples allow would only be carried along.
        while len(next_ways) > 1 and not any(next_ways[-1]):
            next_ways.pop()
        ways = next_ways
    totals = []
    for num_drawn in range(most + 1):
        shares = [row[num_drawn] / (num_ties + 1) for num_ties, row in enumerate(ways)]
        totals.append(sum(shares))
    return totals


def _check(samples: int, k: int) -> None:
    if not 1 <= k <= samples:
        raise ValueError(f"k: found {k}, expected 1 to {samples}, the number of samples")


def swapped_judging(plain: Transcript, reseated: Transcript) -> dict[str, tuple[float, float]]:
    """Compute sum and weight of each metric of one question judged in both orders.

    Verdicts of the second round count, of a judge on a pair with a verdict in both debates.

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
    num_agents = plain.protocol.num_agents
    if not isinstance(seats, list) or sorted(seats) != list(range(num_agents)):
        raise ValueError(
            f"debate {reseated.id!r}: found seats {seats!r}; expected the agents 0 to "
            f"{num_agents - 1}"
        )
    debate = read_debate(plain)
    (answer_verdicts,) = turn_verdicts([debate])
    has_truth = all(verdict.verdict != "unverifiable" for verdict in answer_verdicts.values())
    plain_verdicts = _verdicts(debate, list(range(num_agents)))
    reseated_verdicts = _verdicts(read_debate(reseated), seats)
    sums = Sums()
    for key in plain_verdicts.keys() | reseated_verdicts.keys():
        is_in_both = key in plain_verdicts and key in reseated_verdicts
        sums.add("judge/pairs_in_both", float(is_in_both))
    for key, first in sorted(plain_verdicts.items()):
        # A pair left out in one order says nothing about the judge's bias.
        if key not in reseated_verdicts:
            continue
        second = reseated_verdicts[key]
        sums.add("judge/consistent", float(first == second))
        # The lower number comes first, and in reversed seats the higher one does.
        for verdict, names_first in ((first, ">"), (second, "<")):
            if verdict != "=":
                sums.add("judge/first_shown", float(verdict == names_first))
        _, low, high = key
        low_is_right = answer_verdicts[TurnKey(low, 0)].verdict == "right"
        high_is_right = answer_verdicts[TurnKey(high, 0)].verdict == "right"
        if has_truth and low_is_right != high_is_right:
            right_verdict: Verdict = ">" if low_is_right else "<"
            accuracy_of = {right_verdict: 1.0, "=": 0.5}
            accuracy = (accuracy_of.get(first, 0.0) + accuracy_of.get(second, 0.0)) / 2
            sums.add("judge/accuracy", accuracy)
            sums.add("judge/both_orders", float(first == second == right_verdict))
    return {name: (moments[0], moments[1]) for name, moments in sums.moments.items()}


def _verdicts(debate: ReadDebate, seats: list[int]) -> Verdicts:
    """Collect second-round verdicts on first-round turns, by the agents' own numbers."""
    verdicts: Verdicts = {}
    for key, ballot in ballots(debate).items():
        if key.round != 1:
            continue
        for vote in ballot.votes:
            judge = seats[key.agent]
            left = seats[vote.left.agent]
            right = seats[vote.right.agent]
            if left < right:
                verdicts[judge, left, right] = vote.verdict
            else:
                verdicts[judge, right, left] = _MIRRORED[vote.verdict]
    return verdicts
