"""What the votes of a debate show: of all agents together, and of the agents of one policy."""

from collections.abc import Mapping

from debate_protocol.roles import answering_agents
from debate_protocol.types import TurnKey
from debate_rewards.metrics.sums import Sums
from debate_rewards.reading import ReadDebate
from debate_rewards.votes.ballots import Vote, ballot, tally


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
        if right is not None and right[vote.left] != right[vote.right]:
            _add_judged_pair(sums, vote, of, left_is_right=right[vote.left])
    return votes


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
