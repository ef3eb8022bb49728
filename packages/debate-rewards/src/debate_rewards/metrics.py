"""Metrics of a batch of debates: format, accuracy, judging, diversity and decisions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from debate_protocol.roles import answering_agents
from debate_protocol.types import Transcript, TurnKey
from debate_rewards.answers import answer_classes, check_many
from debate_rewards.decisions import last_turns, majority_of, peer_vote_of
from debate_rewards.reading import ReadDebate, read_debate
from debate_rewards.verifiable import turn_verdicts
from debate_rewards.votes import Vote, ballots, tally


@dataclass(slots=True)
class _Sums:
    """Per metric: the sum of what was observed, and how often it could be observed."""

    values: dict[str, tuple[float, float]] = field(default_factory=dict)

    def add(self, name: str, value: float, weight: float = 1.0) -> None:
        total, count = self.values.get(name, (0.0, 0.0))
        self.values[name] = (total + value, count + weight)

    def merge(self, other: "_Sums") -> None:
        for name, (total, count) in other.values.items():
            self.add(name, total, count)

    def means(self) -> dict[str, float]:
        return {name: total / count for name, (total, count) in self.values.items() if count}


def debate_metrics(transcripts: Sequence[Transcript], seed: int = 0) -> dict[str, float]:
    """Return the metrics of a batch; what cannot be observed in it is left out.

    - `format` (last round), `format_all`: share of turns in which an answer can be read.
    - `correct`, `avg@k`, `pass@k`, `cons@k`, `maj@k`: of the last round. An agent without a turn
      there counts as wrong. cons@k: more than half of the agents are right; maj@k: the largest
      answer class is right, ties between classes in expectation.
    - `accuracy/round_R`; `diversity/round_R`: answer classes per answer.
    - `decision/majority`, `decision/peer_vote`: accuracy of the debate's decision, ties drawn
      by `seed`.
    - `judge/accuracy`: over votes on a right and a wrong turn, `=` counting half;
      `judge/strict_accuracy`: the same with `=` counting 0; `judge/equal_share`: share of `=`
      among all votes; `comparisons_made`: counted pairs over expected pairs.
    - `winner_truth_correlation`: correlation of a voted turn's vote value with its correctness.
    - `turns`, `rounds`, `failed_turns`: per debate; `unverifiable`: share of debates whose
      question's answer is missing or unreadable; they count in nothing above that needs truth.

    Args:
        transcripts: Finished debates.
        seed: Draws among equals in decisions.
    """
    return statistics(transcripts, seed)[0]


def question_values(
    transcripts: Sequence[Transcript], seed: int = 0
) -> dict[str, dict[str, float]]:
    """Return metric → question id → value over the question's debates, for intervals."""
    return statistics(transcripts, seed)[1]


def statistics(
    transcripts: Sequence[Transcript], seed: int = 0
) -> tuple[dict[str, float], dict[str, dict[str, float]]]:
    """Return `debate_metrics` and `question_values` from one pass over the debates."""
    measured = _measure(transcripts, seed)
    pooled = _Sums()
    by_question: dict[str, _Sums] = {}
    for transcript, (sums, _) in zip(transcripts, measured, strict=True):
        pooled.merge(sums)
        by_question.setdefault(transcript.question.id, _Sums()).merge(sums)
    metrics = pooled.means()
    correlation = _correlation([point for _, points in measured for point in points])
    if correlation is not None:
        metrics["winner_truth_correlation"] = correlation
    values: dict[str, dict[str, float]] = {}
    for question, own in by_question.items():
        for name, value in own.means().items():
            values.setdefault(name, {})[question] = value
    return metrics, values


_Measured = tuple[_Sums, list[tuple[float, float]]]


def _measure(transcripts: Sequence[Transcript], seed: int) -> list[_Measured]:
    debates = [read_debate(transcript) for transcript in transcripts]
    verdicts = turn_verdicts(debates)
    chosen = [
        (debate.transcript.question, decide(debate, seed))
        for debate in debates
        for decide in (majority_of, peer_vote_of)
    ]
    decided = [verdict.verdict for verdict in check_many(chosen)]
    measured = []
    for index, (debate, its_verdicts) in enumerate(zip(debates, verdicts, strict=True)):
        sums = _Sums()
        _add_format(sums, debate)
        _add_diversity(sums, debate)
        verifiable = all(v.verdict != "unverifiable" for v in its_verdicts.values())
        sums.add("unverifiable", 0.0 if verifiable else 1.0)
        right = {key: verdict.verdict == "right" for key, verdict in its_verdicts.items()}
        if verifiable:
            _add_accuracy(sums, debate, right)
            for name, verdict in zip(
                ("majority", "peer_vote"), decided[2 * index : 2 * index + 2], strict=True
            ):
                sums.add(f"decision/{name}", float(verdict == "right"))
        points = _add_judging(sums, debate, right if verifiable else None)
        measured.append((sums, points))
    return measured


def _add_format(sums: _Sums, debate: ReadDebate) -> None:
    for key, turn in debate.turns.items():
        valid = float(not turn.failed)
        sums.add("format_all", valid)
        if key.round == debate.last_round:
            sums.add("format", valid)
    sums.add("turns", len(debate.turns))
    sums.add("rounds", debate.last_round + 1)
    sums.add("failed_turns", sum(turn.failed for turn in debate.turns.values()))


def _add_diversity(sums: _Sums, debate: ReadDebate) -> None:
    for round_ in range(debate.last_round + 1):
        answers = [
            None if turn.failed else turn.parsed.answer
            for key, turn in debate.turns.items()
            if key.round == round_
        ]
        classes = [n for n in answer_classes(debate.transcript.question, answers) if n is not None]
        if classes:
            sums.add(f"diversity/round_{round_}", len(set(classes)) / len(classes))


def _add_accuracy(sums: _Sums, debate: ReadDebate, right: Mapping[TurnKey, bool]) -> None:
    for key, is_right in right.items():
        sums.add(f"accuracy/round_{key.round}", float(is_right))
    last = last_turns(debate)
    num_agents = max(1, len(answering_agents(debate.transcript.protocol, debate.last_round)))
    right_agents = sum(right[turn.key] for turn in last.values())
    sums.add("correct", right_agents, num_agents)
    sums.add("avg@k", right_agents / num_agents)
    sums.add("pass@k", float(right_agents > 0))
    sums.add("cons@k", float(2 * right_agents > num_agents))
    turns = list(last.values())
    answers = [None if turn.failed else turn.parsed.answer for turn in turns]
    classes = answer_classes(debate.transcript.question, answers)
    sizes = {n: classes.count(n) for n in classes if n is not None}
    largest = [n for n, size in sizes.items() if size == max(sizes.values())]
    winners = [right[turns[classes.index(n)].key] for n in largest]
    sums.add("maj@k", sum(winners) / len(winners) if winners else 0.0)


def _add_judging(
    sums: _Sums, debate: ReadDebate, right: Mapping[TurnKey, bool] | None
) -> list[tuple[float, float]]:
    """Add what votes show; return (vote value, correctness) of each voted turn."""
    cast = ballots(debate)
    votes = [vote for ballot in cast.values() for vote in ballot.votes]
    expected = sum(debate.expected_pairs(turn) for turn in debate.turns.values())
    if expected:
        sums.add("comparisons_made", len(votes), expected)
    for vote in votes:
        sums.add("judge/equal_share", float(vote.verdict == "="))
        if right is not None and right[vote.left] != right[vote.right]:
            _add_judged_pair(sums, vote, left_is_right=right[vote.left])
    if right is None:
        return []
    return [
        (2 * share.up / (share.up + share.down) - 1, float(right[key]))
        for key, share in tally(votes).items()
    ]


def _add_judged_pair(sums: _Sums, vote: Vote, *, left_is_right: bool) -> None:
    agrees = vote.verdict == (">" if left_is_right else "<")
    sums.add("judge/accuracy", 0.5 if vote.verdict == "=" else float(agrees))
    sums.add("judge/strict_accuracy", float(agrees))


def _correlation(points: Sequence[tuple[float, float]]) -> float | None:
    """Return Pearson's correlation, None without spread on both sides."""
    if len(points) < 2:
        return None
    xs, ys = zip(*points, strict=True)
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    spread_x = sum((x - mean_x) ** 2 for x in xs)
    spread_y = sum((y - mean_y) ** 2 for y in ys)
    if spread_x < 1e-12 or spread_y < 1e-12:
        return None
    shared = sum((x - mean_x) * (y - mean_y) for x, y in points)
    return float(shared / (spread_x * spread_y) ** 0.5)
