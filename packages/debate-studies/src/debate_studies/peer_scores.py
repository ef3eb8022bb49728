"""Peer scores that are estimated from the batch: which verdicts of two judges go together."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from debate_rewards import V2
from debate_rewards.reward import ReadDebate
from debate_rewards.votes import Verdict, Vote, by_pair

PeerScores = Literal["correlated_agreement", "determinant_mutual_information"]
# Into how many parts the questions are dealt.
PARTS: Mapping[str, int] = {"correlated_agreement": 2, "determinant_mutual_information": 3}
VERDICTS: tuple[Verdict, ...] = (">", "=", "<")
Counts = list[list[int]]
# Both (3, 3), indexed by the verdict of one judge and of another, in the order of `VERDICTS`.
Scores = list[list[float]]


def correlated_agreement(joint: Counts) -> Scores:
    """Return 1 for verdicts that meet more often than by chance, else 0.

    Args:
        joint: How often a judge gave one verdict and another judge of the pair the other, in both
            orders.

    Source: Shnayder et al. (2016), the score matrix Sign(Δ), Δ = P(i, j) − P(i) P(j), estimated
    from other tasks than those that it scores.
    """
    total = sum(map(sum, joint))
    given = [sum(row) for row in joint]
    return [[float(joint[i][j] * total > given[i] * given[j]) for j in range(3)] for i in range(3)]


def determinant_scores(first: Counts, second: Counts) -> Scores:
    """Return what one more pair of verdicts adds to det(P)², up to a factor.

    The payment of the source is det(M₁) det(M₂) over two sets of tasks. One more pair (i, j) in the
    first set adds the cofactor (i, j) of M₁ times det(M₂), here of frequencies and times 3⁵: judges
    who always agree on three verdicts that are equally frequent have the identity matrix.

    Args:
        first: Joint counts of verdicts in one part of the questions, not all 0.
        second: The same in another part.

    Source: Kong (2020), DMI-Mechanism, by marginal contributions.
    """
    scale = 3**5 * _determinant(second) / sum(map(sum, second)) ** 3 / sum(map(sum, first)) ** 2
    return [[scale * _cofactor(first, i, j) for j in range(3)] for i in range(3)]


class V2PeerScores(V2):
    """`v2` whose judges are paid by scores that are estimated from the other questions of a step.

    A vote is worth its mean score with the other judges' verdicts on its pair, minus its mean score
    with verdicts on other questions, so that a habit earns 0 on average. `correlated_agreement`
    needs batches with more than two questions, `determinant_mutual_information` more than three.

    Source: Shnayder et al. (2016); Kong (2020).
    """

    type: Literal["v2_peer_scores"] = "v2_peer_scores"  # type: ignore[assignment]
    consensus: PeerScores = "correlated_agreement"  # type: ignore[assignment]
    """Which scores."""

    @property
    def centred(self) -> bool:
        """Whether a habit already earns 0 on average."""
        return True

    @property
    def least_questions(self) -> int:
        """Two in one part, and one in each other part."""
        return PARTS[self.consensus] + 1

    def verdict_values(
        self, debates: Sequence[ReadDebate], votes: Sequence[list[Vote]]
    ) -> list[list[float | None]]:
        """Return what each vote earns its judge, per debate."""
        questions = [debate.transcript.question.id for debate in debates]
        return peer_score_values(questions, votes, self.consensus)


def peer_score_values(
    questions: Sequence[str], votes: Sequence[Sequence[Vote]], kind: PeerScores
) -> list[list[float | None]]:
    """Return the value of each vote, per debate.

    None where nobody else judged the pair, where a part has no pair of judges who judged the same
    turns, or where no other question of the vote's part has votes.

    Args:
        questions: Question id per debate.
        votes: Counted votes per debate.
        kind: Which scores.
    """
    parts = PARTS[kind]
    numbers = {question: n for n, question in enumerate(dict.fromkeys(questions))}
    part_of = [numbers[question] % parts for question in questions]
    joint = [
        joint_counts(v for part, v in zip(part_of, votes, strict=True) if part == own)
        for own in range(parts)
    ]
    scores = [
        _scores(kind, [joint[(own + k) % parts] for k in range(1, parts)]) for own in range(parts)
    ]
    given = [Counter(vote.verdict for vote in its_votes) for its_votes in votes]
    in_part: list[Counter[Verdict]] = [Counter() for _ in range(parts)]
    on_question: dict[str, Counter[Verdict]] = {}
    for question, part, own in zip(questions, part_of, given, strict=True):
        in_part[part].update(own)
        on_question.setdefault(question, Counter()).update(own)
    return [
        _values(its_votes, scores[part], in_part[part] - on_question[question])
        for question, part, its_votes in zip(questions, part_of, votes, strict=True)
    ]


def joint_counts(debates: Iterable[Sequence[Vote]]) -> Counts:
    """Return how often two judges of a pair of turns gave which verdicts, in both orders."""
    joint = [[0] * 3 for _ in range(3)]
    for votes in debates:
        for on_pair in by_pair(votes).values():
            for one in on_pair:
                for other in on_pair:
                    if one.judge.agent != other.judge.agent:
                        joint[VERDICTS.index(one.verdict)][VERDICTS.index(other.verdict)] += 1
    return joint


def _scores(kind: PeerScores, joint: Sequence[Counts]) -> Scores | None:
    if not all(any(map(any, counts)) for counts in joint):
        return None
    if kind == "correlated_agreement":
        return correlated_agreement(*joint)
    return determinant_scores(*joint)


def _values(
    votes: Sequence[Vote], scores: Scores | None, elsewhere: Mapping[Verdict, int]
) -> list[float | None]:
    total = sum(elsewhere.values())
    if scores is None or not total:
        return [None] * len(votes)
    usual = [
        sum(row[j] * elsewhere.get(verdict, 0) for j, verdict in enumerate(VERDICTS)) / total
        for row in scores
    ]
    pairs = by_pair(votes)
    values: list[float | None] = []
    for vote in votes:
        own = VERDICTS.index(vote.verdict)
        met = [
            scores[own][VERDICTS.index(other.verdict)]
            for other in pairs[vote.pair]
            if other.judge.agent != vote.judge.agent
        ]
        values.append(sum(met) / len(met) - usual[own] if met else None)
    return values


def _cofactor(m: Counts, i: int, j: int) -> int:
    # Cyclic indices give the sign.
    a, b, c, d = (i + 1) % 3, (i + 2) % 3, (j + 1) % 3, (j + 2) % 3
    return m[a][c] * m[b][d] - m[a][d] * m[b][c]


def _determinant(m: Counts) -> int:
    return sum(m[0][j] * _cofactor(m, 0, j) for j in range(3))
