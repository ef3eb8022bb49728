"""Votes: comparison lines booked on the turns that their judge was shown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, NamedTuple

from debate_protocol.parsing.comparisons import Comparison
from debate_protocol.parsing.tags import Range
from debate_protocol.types import TurnKey
from debate_rewards.reading import ReadDebate, ReadTurn

Ties = Literal["half", "ignore"]
Duplicates = Literal["one", "count"]
Verdict = Literal[">", "=", "<"]
Pair = tuple[TurnKey, TurnKey]
"""Two judged turns; that of the agent with the lower id stands left."""


class Line(NamedTuple):
    """One comparison, oriented so that the agent with the lower id stands left."""

    low: int
    high: int
    verdict: Verdict
    span: tuple[int, int]


class Vote(NamedTuple):
    """One judge's verdict on a pair of turns, and its line in the judge's text."""

    judge: TurnKey
    pair: Pair
    verdict: Verdict
    span: tuple[int, int]

    @property
    def left(self) -> TurnKey:
        """The judged turn of the agent with the lower id."""
        return self.pair[0]

    @property
    def right(self) -> TurnKey:
        """The judged turn of the agent with the higher id."""
        return self.pair[1]


class Share(NamedTuple):
    """Votes for and against one turn or agent."""

    up: float
    down: float

    @property
    def balance(self) -> float:
        """2·up/(up + down) − 1, from −1 (all against) to 1 (all for)."""
        return 2 * self.up / (self.up + self.down) - 1


@dataclass(frozen=True, slots=True)
class Ballot:
    """What one judge turn voted, what of it was dropped and why, and what was owed.

    `unseen` counts lines; `contradictory` and `owed` count pairs. `failed` says where in the text
    the lines stand about turns that had failed, `uncounted` where all others that do not count.
    """

    votes: tuple[Vote, ...] = ()
    unseen: int = 0
    failed: tuple[Range, ...] = ()
    contradictory: int = 0
    owed: int = 0
    uncounted: tuple[Range, ...] = ()

    @property
    def missing(self) -> bool:
        """Whether comparisons were owed and none counted.

        Lines dropped because the turn they judged had failed are no fault of their author.
        """
        return self.owed > 0 and not self.votes and not self.failed


def orient(comparison: Comparison) -> Line:
    """Return the comparison with the lower agent id on the left."""
    left, op, right, span = comparison.left, comparison.op, comparison.right, comparison.span
    if left < right:
        return Line(left, right, op, span)
    return Line(right, left, "=" if op == "=" else "<", span)


def settle(lines: Sequence[Line], duplicates: Duplicates) -> tuple[list[Line], int]:
    """Return the lines that count and the number of contradictory pairs that were dropped.

    With `one`, the last of several equal lines about a pair counts and a pair with different
    verdicts is dropped; with `count` every line counts.
    """
    if duplicates == "count":
        return list(lines), 0
    last: dict[tuple[int, int], Line] = {}
    clashing = set()
    for line in lines:
        pair = (line.low, line.high)
        if pair in last and last[pair].verdict != line.verdict:
            clashing.add(pair)
        last[pair] = line
    kept = [line for pair, line in last.items() if pair not in clashing]
    return kept, len(clashing)


def ballot(debate: ReadDebate, judge: ReadTurn, duplicates: Duplicates = "one") -> Ballot:
    """Return the votes of one turn on the turns it was shown; a failed turn casts none."""
    if judge.failed:
        return Ballot()
    judged = debate.judged_by(judge)
    lines, unseen, failed = [], [], []
    for comparison in judge.parsed.comparisons:
        line = orient(comparison)
        if line.low not in judged or line.high not in judged:
            unseen.append(line)
        elif judged[line.low].failed or judged[line.high].failed:
            failed.append(line.span)
        else:
            lines.append(line)
    kept, contradictory = settle(lines, duplicates)
    votes = tuple(
        Vote(judge.key, (judged[line.low].key, judged[line.high].key), line.verdict, line.span)
        for line in kept
    )
    wrong = {line.span for line in (*unseen, *lines)} - {line.span for line in kept}
    return Ballot(
        votes,
        len(unseen),
        tuple(failed),
        contradictory,
        debate.expected_pairs(judge),
        tuple(sorted(wrong.union(judge.parsed.dropped_lines))),
    )


def owed_verdicts(debate: ReadDebate, judge: ReadTurn) -> Iterator[tuple[Pair, Verdict | None]]:
    """Yield each pair of valid turns that a turn was shown, with its verdict on it.

    None stands for a pair that it did not compare, as for all pairs of a failed turn.
    """
    if not debate.compares:
        return
    said = {vote.pair: vote.verdict for vote in ballot(debate, judge).votes}
    valid = sorted((n, turn.key) for n, turn in debate.judged_by(judge).items() if not turn.failed)
    for (_, left), (_, right) in combinations(valid, 2):
        yield (left, right), said.get((left, right))


def ballots(debate: ReadDebate, duplicates: Duplicates = "one") -> dict[TurnKey, Ballot]:
    """Return the ballot of every turn, those of judges who owe no answer included."""
    return {key: ballot(debate, judge, duplicates) for key, judge in debate.judges.items()}


def all_votes(cast: Mapping[TurnKey, Ballot]) -> list[Vote]:
    """Return the votes of all ballots, in order."""
    return [vote for its_ballot in cast.values() for vote in its_ballot.votes]


def points(verdict: Verdict, ties: Ties) -> Share | None:
    """Return what a verdict gives the left side and the right side; None where it does not count.

    `half` gives each side of a tie half a vote; `ignore` drops ties.
    """
    if verdict == "=":
        return Share(0.5, 0.5) if ties == "half" else None
    return Share(1.0, 0.0) if verdict == ">" else Share(0.0, 1.0)


def tally(votes: Iterable[Vote], ties: Ties = "half") -> dict[TurnKey, Share]:
    """Return votes for and against each turn that got any."""
    up: dict[TurnKey, float] = {}
    total: dict[TurnKey, int] = {}
    for _, (left, right), verdict, _ in votes:
        given = points(verdict, ties)
        if given is None:
            continue
        up[left] = up.get(left, 0.0) + given.up
        up[right] = up.get(right, 0.0) + given.down
        total[left] = total.get(left, 0) + 1
        total[right] = total.get(right, 0) + 1
    return {key: Share(won, total[key] - won) for key, won in up.items()}


def by_pair(votes: Iterable[Vote]) -> dict[Pair, list[Vote]]:
    """Return the votes on each pair of turns."""
    pairs: dict[Pair, list[Vote]] = {}
    for vote in votes:
        pairs.setdefault(vote.pair, []).append(vote)
    return pairs
