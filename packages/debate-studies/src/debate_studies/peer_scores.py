"""Peer scores estimated from the batch: verdicts of two judges that go together."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Literal

from debate_rewards import V2
from debate_rewards.reward import ReadDebate, RewardNeeds
from debate_rewards.votes import Verdict, Vote, by_pair

PeerScores = Literal["correlated_agreement", "determinant_mutual_information"]
# Number of parts that the questions are divided into: the scored one, and one for each set of
# counts that its scores need.
PARTS: Mapping[str, int] = {"correlated_agreement": 2, "determinant_mutual_information": 3}
VERDICTS: tuple[Verdict, ...] = (">", "=", "<")
Counts = list[list[int]]
# Both (3, 3), indexed by the verdict of one judge and of another, in the order of `VERDICTS`.
Scores = list[list[float]]


def correlated_agreement(joint: Counts) -> Scores:
    """Score 1 for verdicts that meet more often than by chance, else 0.

    Args:
        joint: How often a judge gave one verdict and another judge of the pair the other, in both
            orders.

    Source: Shnayder et al. (2016), the score matrix Sign(Δ), Δ = P(i, j) − P(i) P(j), estimated
    from other tasks than those that it scores.
    """
    total = sum(map(sum, joint))
    # Counts in both orders are symmetric, so rows and columns have the same marginal.
    marginal = [sum(row) for row in joint]
    scores = []
    for i in range(3):
        row = []
        for j in range(3):
            # Integers decide the sign exactly.
            is_beyond_chance = joint[i][j] * total > marginal[i] * marginal[j]
            row.append(float(is_beyond_chance))
        scores.append(row)
    return scores


def determinant_scores(first: Counts, second: Counts) -> Scores:
    """Score a further pair of verdicts by its contribution to det(P)², up to a factor.

    The payment of the source is det(M₁) det(M₂) over two sets of tasks. One more pair (i, j) in the
    first set adds the cofactor (i, j) of M₁ times det(M₂), here of frequencies and times 3⁵: judges
    who always agree on three verdicts that are equally frequent have the identity matrix.

    Args:
        first: Joint counts of verdicts in one part of the questions, not all 0.
        second: The same in another part.

    Source: Kong (2020), DMI-Mechanism, by marginal contributions.
    """
    num_first = sum(map(sum, first))
    num_second = sum(map(sum, second))
    determinant = sum(second[0][j] * _cofactor(second, 0, j) for j in range(3))
    # Frequencies are counts over their total: a determinant has three factors, a cofactor two.
    scale = 3**5 * determinant / num_second**3 / num_first**2
    scores = []
    for i in range(3):
        row = [scale * _cofactor(first, i, j) for j in range(3)]
        scores.append(row)
    return scores


def _cofactor(
    matrix: Counts,
    row: int,
    column: int,
) -> int:
    # Cyclic indices give the sign.
    next_row = matrix[(row + 1) % 3]
    last_row = matrix[(row + 2) % 3]
    left = (column + 1) % 3
    right = (column + 2) % 3
    return next_row[left] * last_row[right] - next_row[right] * last_row[left]


class V2PeerScores(V2):
    """`v2` with judges paid by scores that are estimated from the other questions of a step.

    A vote is worth its mean score with the other judges' verdicts on its pair, minus its mean score
    with verdicts on other questions, so that a habit earns 0 on average. `correlated_agreement`
    needs batches with more than two questions, `determinant_mutual_information` more than three.

    Source: Shnayder et al. (2016); Kong (2020).
    """

    type: Literal["v2_peer_scores"] = "v2_peer_scores"  # type: ignore[assignment]
    consensus: PeerScores = "correlated_agreement"  # type: ignore[assignment]
    """The scores of verdicts."""

    @property
    def centred(self) -> bool:
        """Whether a habit already earns 0 on average."""
        return True

    def needs(self) -> RewardNeeds:
        """Describe needs: comparisons on two questions in one part, and one in each other part."""
        return replace(super().needs(), num_questions=PARTS[self.consensus] + 1)

    def verdict_values(
        self, debates: Sequence[ReadDebate], votes: Sequence[list[Vote]]
    ) -> list[list[float | None]]:
        """Compute the value of each vote to the judge, per debate."""
        questions = [debate.transcript.question.id for debate in debates]
        return peer_score_values(questions, votes, self.consensus)


def peer_score_values(
    questions: Sequence[str],
    votes: Sequence[Sequence[Vote]],
    kind: PeerScores,
) -> list[list[float | None]]:
    """Compute the value of each vote, per debate.

    `None` for a pair with a single judge, for a part without two judges of the same turns, and for
    the only question with votes in a part.

    Args:
        questions: Question id per debate.
        votes: Counted votes per debate.
        kind: The scores of verdicts.
    """
    num_parts = PARTS[kind]
    distinct_questions = dict.fromkeys(questions)
    question_numbers = {question: number for number, question in enumerate(distinct_questions)}
    # By question, so that all debates on it are in one part.
    part_of_debate = [question_numbers[question] % num_parts for question in questions]

    votes_of_parts: list[list[Sequence[Vote]]] = [[] for _ in range(num_parts)]
    verdicts_in_part: list[Counter[Verdict]] = [Counter() for _ in range(num_parts)]
    verdicts_on_question: dict[str, Counter[Verdict]] = {}
    for question, part, debate_votes in zip(questions, part_of_debate, votes, strict=True):
        votes_of_parts[part].append(debate_votes)
        verdicts = [vote.verdict for vote in debate_votes]
        verdicts_in_part[part].update(verdicts)
        verdicts_on_question.setdefault(question, Counter()).update(verdicts)

    joint = [joint_counts(part_votes) for part_votes in votes_of_parts]
    scores_of_parts: list[Scores | None] = []
    for part in range(num_parts):
        # A part is scored by the counts of all other parts, so no vote changes its own score.
        other_parts = [joint[(part + offset) % num_parts] for offset in range(1, num_parts)]
        scores = None
        if all(any(map(any, counts)) for counts in other_parts):
            is_agreement = kind == "correlated_agreement"
            compute_scores = correlated_agreement if is_agreement else determinant_scores
            scores = compute_scores(*other_parts)
        scores_of_parts.append(scores)

    values = []
    for question, part, debate_votes in zip(questions, part_of_debate, votes, strict=True):
        # Counters subtract: what is left are the verdicts on the part's other questions.
        elsewhere = verdicts_in_part[part] - verdicts_on_question[question]
        values.append(_vote_values(debate_votes, scores_of_parts[part], elsewhere))
    return values


def joint_counts(debates: Iterable[Sequence[Vote]]) -> Counts:
    """Count the verdicts of two judges of a pair of turns, in both orders."""
    joint = [[0] * 3 for _ in range(3)]
    for votes in debates:
        for pair_votes in by_pair(votes).values():
            for first, second in product(pair_votes, repeat=2):
                if first.judge.agent != second.judge.agent:
                    row = VERDICTS.index(first.verdict)
                    column = VERDICTS.index(second.verdict)
                    joint[row][column] += 1
    return joint


def _vote_values(
    votes: Sequence[Vote],
    scores: Scores | None,
    elsewhere: Mapping[Verdict, int],
) -> list[float | None]:
    """Compute the value of each vote, given the counts of verdicts on other questions."""
    num_elsewhere = sum(elsewhere.values())
    if scores is None or not num_elsewhere:
        return [None] * len(votes)
    # Mean score of each verdict with verdicts on other questions: the income of a habit.
    mean_elsewhere = []
    for row in scores:
        weighted = [row[j] * elsewhere.get(verdict, 0) for j, verdict in enumerate(VERDICTS)]
        mean_elsewhere.append(sum(weighted) / num_elsewhere)
    pairs = by_pair(votes)
    values: list[float | None] = []
    for vote in votes:
        verdict_index = VERDICTS.index(vote.verdict)
        peer_scores = []
        for peer_vote in pairs[vote.pair]:
            if peer_vote.judge.agent != vote.judge.agent:
                peer_index = VERDICTS.index(peer_vote.verdict)
                peer_scores.append(scores[verdict_index][peer_index])
        value = None
        if peer_scores:
            mean_score = sum(peer_scores) / len(peer_scores)
            value = mean_score - mean_elsewhere[verdict_index]
        values.append(value)
    return values
