"""Values of single verdicts: agreement with the other judges of the same pair of turns."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from debate_rewards.votes import Verdict, Vote, by_pair

Consensus = Literal["leave_one_out", "inclusive", "peer_prediction"]


def majority_verdict(votes: Sequence[Vote]) -> Verdict | None:
    """Return the verdict with more strict votes, `=` when level, None without votes."""
    if not votes:
        return None
    margin = sum((vote.verdict == ">") - (vote.verdict == "<") for vote in votes)
    return ">" if margin > 0 else "<" if margin < 0 else "="


def consensus_values(
    votes: Sequence[Vote], consensus: Literal["leave_one_out", "inclusive"]
) -> list[float | None]:
    """Return +1 for a vote with the consensus on its pair, -1 against it, in the votes' order.

    None where the vote is `=`, the consensus is level, or nobody else judged the pair.

    Source: multi-agent debate overview, section 2.2.2; `leave_one_out` takes this judge's own
    votes out of the consensus, without which a lone judge always agrees with itself.
    """
    pairs = by_pair(votes)
    values: list[float | None] = []
    for vote in votes:
        electorate = pairs[vote.pair]
        if consensus == "leave_one_out":
            electorate = [other for other in electorate if other.judge.agent != vote.judge.agent]
        agreed = majority_verdict(electorate)
        if vote.verdict == "=" or agreed is None or agreed == "=":
            values.append(None)
        else:
            values.append(1.0 if vote.verdict == agreed else -1.0)
    return values


def peer_prediction_values(
    votes: Sequence[Vote], elsewhere: Mapping[Verdict, int]
) -> list[float | None]:
    """Return agreement with the other judges beyond what is usual on other questions.

    The value of a vote is the share of the other judges of its pair with the same verdict, minus
    that verdict's frequency on the other questions, so that a habit earns 0 on average. None
    where nobody else judged the pair or there are no votes elsewhere.

    Args:
        votes: All counted votes of one debate.
        elsewhere: How often each verdict was given on the other questions of the batch.

    Source: Dasgupta and Ghosh (2013); Shnayder et al. (2016), multi-task peer prediction.
    """
    total = sum(elsewhere.values())
    pairs = by_pair(votes)
    values: list[float | None] = []
    for vote in votes:
        others = [v for v in pairs[vote.pair] if v.judge.agent != vote.judge.agent]
        if not others or not total:
            values.append(None)
            continue
        same = sum(other.verdict == vote.verdict for other in others)
        values.append(same / len(others) - elsewhere.get(vote.verdict, 0) / total)
    return values


def verdicts_elsewhere(
    questions: Sequence[str], votes: Sequence[Sequence[Vote]]
) -> list[Counter[Verdict]]:
    """Return, per debate, how often each verdict was given on the other questions of the batch.

    Args:
        questions: Question id per debate; debates on one question do not count for each other.
        votes: Counted votes per debate.
    """
    total: Counter[Verdict] = Counter()
    own: dict[str, Counter[Verdict]] = {}
    for question, debate_votes in zip(questions, votes, strict=True):
        given = Counter(vote.verdict for vote in debate_votes)
        total.update(given)
        own.setdefault(question, Counter()).update(given)
    return [total - own[question] for question in questions]
