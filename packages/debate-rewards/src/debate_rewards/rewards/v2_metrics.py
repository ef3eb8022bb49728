"""Counts and means that say how well the votes of one debate work."""

from collections.abc import Mapping, Sequence

from debate_protocol.types import TurnKey
from debate_rewards.credits import Credit
from debate_rewards.reading import ReadDebate, ReadTurn
from debate_rewards.votes.ballots import Ballot, all_votes, by_pair
from debate_rewards.votes.judging import margin


def comparison_lines(turn: ReadTurn) -> int:
    """Return how many lines a turn's comparison section held, whatever they were worth."""
    parsed = turn.parsed
    return len(parsed.comparisons) + parsed.invalid_lines + parsed.self_dropped + parsed.malformed


def v2_metrics(
    debate: ReadDebate,
    cast: Mapping[TurnKey, Ballot],
    generator: Sequence[Credit],
    judge: Sequence[Credit],
) -> dict[str, float]:
    """Return the vote metrics of one debate; a mean or share over nothing is left out.

    Args:
        debate: The debate.
        cast: The ballot of each of its turns.
        generator: Its generator credits.
        judge: Its judge credits, those of lines included.
    """
    turns, judges_read = debate.turns.values(), debate.judges.values()
    votes = all_votes(cast)
    pairs = by_pair(votes)
    judges = [len({vote.judge.agent for vote in its_votes}) for its_votes in pairs.values()]
    wholes = [credit for credit in judge if credit.span is None]
    expected = sum(ballot.owed for ballot in cast.values())
    made = sum(len({vote.pair for vote in b.votes}) for b in cast.values() if b.owed)
    sums = {
        "v2/total_votes": len(votes),
        "v2/missing_comparisons": sum(ballot.missing for ballot in cast.values()),
        "v2/comparison_lines_total": sum(comparison_lines(turn) for turn in judges_read),
        "v2/comparison_lines_invalid": sum(turn.parsed.invalid_lines for turn in judges_read),
        "v2/comparison_lines_malformed": sum(turn.parsed.malformed for turn in judges_read),
        "v2/self_comparisons_dropped": sum(turn.parsed.self_dropped for turn in judges_read),
        "v2/unseen_dropped": sum(ballot.unseen for ballot in cast.values()),
        "v2/failed_dropped": sum(len(ballot.failed) for ballot in cast.values()),
        "v2/contradictory_dropped": sum(ballot.contradictory for ballot in cast.values()),
        "v2/comparison_pairs_tie": sum(margin(its_votes) == 0 for its_votes in pairs.values()),
        "v2/failed_turns": sum(turn.failed for turn in turns),
    }
    shares = {
        "v2/votes_per_step": _share(len(votes), len(debate.turns)),
        "v2/comparisons_made": _share(made, expected),
        "v2/judges_per_pair": _share(sum(judges), len(pairs)),
        "v2/self_consensus_fraction": _share(judges.count(1), len(pairs)),
        "reward/gen/mean": _mean(generator),
        "reward/judge/mean": _mean(wholes),
    }
    return {
        **{name: float(value) for name, value in sums.items()},
        **{name: value for name, value in shares.items() if value is not None},
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(credits: Sequence[Credit]) -> float | None:
    values = [credit.value for credit in credits if credit.value is not None]
    return sum(values) / len(values) if values else None
