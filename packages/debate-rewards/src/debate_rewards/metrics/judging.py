"""What the votes of a debate show: of all agents together, and of the agents of one policy."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations

from debate_protocol.roles import answering_agents
from debate_protocol.types import TurnKey
from debate_rewards.credits import Score
from debate_rewards.metrics.sums import Sums
from debate_rewards.reading import ReadDebate, ReadTurn
from debate_rewards.votes.ballots import Vote, ballot, by_pair, owed_verdicts, tally


def add_judging(sums: Sums, debate: ReadDebate, right: Mapping[TurnKey, bool] | None) -> None:
    """Add what votes show, and how far they go with the truth."""
    votes = _add_votes(sums, debate, right, "", frozenset(key.agent for key in debate.judges))
    if right is not None:
        shares = tally(votes).items()
        points = ((share.balance, float(right[key])) for key, share in shares)
        sums.add_points("winner_truth_correlation", points)


def _add_votes(
    sums: Sums,
    debate: ReadDebate,
    right: Mapping[TurnKey, bool] | None,
    of: str,
    agents: frozenset[int],
) -> list[Vote]:
    """Add what the votes of some agents show, under names that begin with `of`; return them."""
    judges = {key: judge for key, judge in debate.judges.items() if key.agent in agents}
    votes = [vote for judge in judges.values() for vote in ballot(debate, judge).votes]
    expected = sum(debate.expected_pairs(judge) for judge in judges.values())
    if expected:
        sums.add(f"{of}comparisons_made", len(votes), expected)
    for vote in votes:
        sums.add(f"{of}judge/equal_share", float(vote.verdict == "="))
        if not of and vote.verdict != "=":
            first_wins = float(vote.verdict == ">")
            sums.add("judge/first_shown", first_wins)
            sums.add(f"judge/wins/agent_{vote.left.agent}", first_wins)
            sums.add(f"judge/wins/agent_{vote.right.agent}", 1 - first_wins)
        if right is not None and right[vote.left] != right[vote.right]:
            _add_judged_pair(sums, vote, of, left_is_right=right[vote.left])
    if right is not None:
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
    for (left, other), verdict in owed_verdicts(debate, judge):
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


def _add_judged_pair(sums: Sums, vote: Vote, of: str, *, left_is_right: bool) -> None:
    agrees = vote.verdict == (">" if left_is_right else "<")
    sums.add(f"{of}judge/accuracy", 0.5 if vote.verdict == "=" else float(agrees))
    sums.add(f"{of}judge/strict_accuracy", float(agrees))
    sums.add(f"{of}judge/tpr", float(agrees))
    sums.add(f"{of}judge/fpr", float(vote.verdict != "=" and not agrees))


def _add_error_correlation(
    sums: Sums, votes: Sequence[Vote], right: Mapping[TurnKey, bool], of: str
) -> None:
    """Add the errors of two judges of a right and a wrong turn, in both orders.

    An error is 0 where the right turn is named, 1/2 for `=`, and 1 where the wrong one is.
    """
    for (left, other), on_pair in by_pair(votes).items():
        if right[left] != right[other]:
            worth = {">": float(not right[left]), "=": 0.5, "<": float(right[left])}
            errors = [(vote.judge.agent, worth[vote.verdict]) for vote in on_pair]
            points = ((x, y) for (a, x), (b, y) in permutations(errors, 2) if a != b)
            sums.add_points(f"{of}judge/error_correlation", points)


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
