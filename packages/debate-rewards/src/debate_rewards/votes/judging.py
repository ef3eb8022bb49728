"""Values of single verdicts: agreement with other judges of the same pair, or with the truth."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from debate_protocol.types import TurnKey
from debate_rewards.votes.ballots import Verdict, Vote, by_pair

Consensus = Literal[
    "leave_one_out",
    "inclusive",
    "peer_prediction",
    "correlated_agreement",
    "determinant_mutual_information",
    "none",
]
CENTRED = frozenset(("peer_prediction", "correlated_agreement", "determinant_mutual_information"))
"""Those under which a verdict that does not depend on the turns already earns 0 on average."""


def margin(votes: Sequence[Vote]) -> int:
    """Return votes for the left turn of a pair minus votes for the right one."""
    return sum((vote.verdict == ">") - (vote.verdict == "<") for vote in votes)


def consensus_values(
    votes: Sequence[Vote], consensus: Literal["leave_one_out", "inclusive"]
) -> list[float | None]:
    """Return +1 for a vote with the consensus on its pair, -1 against it, in the votes' order.

    None where the vote is `=`, the consensus is level, or nobody else judged the pair.

    Source: multi-agent debate overview, section 2.2.2; `leave_one_out` takes this judge's own
    votes out of the consensus, without which a lone judge always agrees with itself.
    """
    pairs = by_pair(votes)
    margins = {pair: margin(cast) for pair, cast in pairs.items()}
    values: list[float | None] = []
    for vote in votes:
        lead = margins[vote.pair]
        if consensus == "leave_one_out":
            agent = vote.judge.agent
            lead -= margin([own for own in pairs[vote.pair] if own.judge.agent == agent])
        if vote.verdict == "=" or lead == 0:
            values.append(None)
        else:
            values.append(1.0 if (vote.verdict == ">") == (lead > 0) else -1.0)
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
        agent = vote.judge.agent
        others = [other.verdict for other in pairs[vote.pair] if other.judge.agent != agent]
        if not others or not total:
            values.append(None)
        else:
            chance = elsewhere.get(vote.verdict, 0) / total
            values.append(others.count(vote.verdict) / len(others) - chance)
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


def truth_values(votes: Sequence[Vote], right: Mapping[TurnKey, bool]) -> list[float | None]:
    """Return +1 for a vote that names the right turn of a pair, -1 for the wrong one, 0 for `=`.

    None where both turns are right or both are wrong, as the truth does not say which is better,
    and where it is not known of one of them.
    `=` is worth the chance level of a guess and not None, or a judge who says it whenever in
    doubt would raise the mean of what is left.

    Args:
        votes: Counted votes of one debate.
        right: Whether the answer of a judged turn is right, where that is known.
    """
    values: list[float | None] = []
    for vote in votes:
        left, other = right.get(vote.left), right.get(vote.right)
        if left is None or other is None or left == other:
            values.append(None)
        elif vote.verdict == "=":
            values.append(0.0)
        else:
            values.append(1.0 if (vote.verdict == ">") == left else -1.0)
    return values
