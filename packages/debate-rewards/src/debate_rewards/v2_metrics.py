"""Metrics of the votes of a debate, reported by reward `v2`."""

from collections.abc import Mapping, Sequence

from debate_protocol.types import TurnKey
from debate_rewards.reward import Credit, ReadDebate, known_mean
from debate_rewards.votes import Ballot, all_votes, by_pair


def v2_metrics(
    debate: ReadDebate,
    turn_ballots: Mapping[TurnKey, Ballot],
    own_ballots: Mapping[TurnKey, Ballot],
    generator_credits: Sequence[Credit],
    judge_credits: Sequence[Credit],
) -> dict[str, float | None]:
    """Compute the vote metrics of a debate; empty means and shares are `None`.

    Args:
        debate: The debate.
        turn_ballots: The ballot of each turn.
        own_ballots: The same with the checks of single answers, by judge (`judged_ballots`).
        generator_credits: Credits of turns.
        judge_credits: Credits of judges, of whole turns and of lines.
    """
    votes = all_votes(turn_ballots)
    votes_by_pair = by_pair(votes)
    num_pairs = len(votes_by_pair)
    num_level_pairs = 0
    num_judges = 0
    num_lone_judges = 0
    for pair_votes in votes_by_pair.values():
        verdicts = [vote.verdict for vote in pair_votes]
        num_level_pairs += verdicts.count(">") == verdicts.count("<")
        num_pair_judges = len({vote.judge.agent for vote in pair_votes})
        num_judges += num_pair_judges
        num_lone_judges += num_pair_judges == 1

    num_expected = 0
    num_compared = 0
    for ballot in own_ballots.values():
        num_expected += ballot.num_expected
        if ballot.num_expected:
            # Repeated lines on a pair make one comparison.
            num_compared += len({vote.pair for vote in ballot.votes})

    num_lines = num_invalid = num_malformed = num_about_self = 0
    for judge in debate.judges.values():
        parsed = judge.parsed
        num_invalid += parsed.invalid_lines
        num_malformed += parsed.malformed
        num_about_self += parsed.self_dropped
        num_lines += (
            len(parsed.comparisons) + parsed.invalid_lines + parsed.self_dropped + parsed.malformed
        )

    all_ballots = own_ballots.values()
    sums = {
        "v2/total_votes": len(votes),
        "v2/missing_comparisons": sum(ballot.lacks_comparisons for ballot in all_ballots),
        "v2/comparison_lines_total": num_lines,
        "v2/comparison_lines_invalid": num_invalid,
        "v2/comparison_lines_malformed": num_malformed,
        "v2/self_comparisons_dropped": num_about_self,
        "v2/unseen_dropped": sum(ballot.num_unseen for ballot in all_ballots),
        "v2/failed_dropped": sum(len(ballot.failed_turn_spans) for ballot in all_ballots),
        "v2/contradictory_dropped": sum(ballot.num_contradictory for ballot in all_ballots),
        "v2/comparison_pairs_tie": num_level_pairs,
        "v2/failed_turns": sum(turn.failed for turn in debate.turns.values()),
    }
    metrics: dict[str, float | None] = {name: float(value) for name, value in sums.items()}
    metrics["v2/votes_per_step"] = _share(len(votes), len(debate.turns))
    metrics["v2/comparisons_made"] = _share(num_compared, num_expected)
    metrics["v2/judges_per_pair"] = _share(num_judges, num_pairs)
    metrics["v2/self_consensus_fraction"] = _share(num_lone_judges, num_pairs)
    metrics["reward/gen/mean"] = known_mean(credit.value for credit in generator_credits)
    turn_values = [credit.value for credit in judge_credits if credit.span is None]
    metrics["reward/judge/mean"] = known_mean(turn_values)
    return metrics


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None
