"""Votes: comparison lines booked on the turns that their judge was shown."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from debate_protocol.comparisons import Comparison
from debate_protocol.types import TurnKey
from debate_rewards.reading import ReadDebate, ReadTurn

Ties = Literal["half", "ignore"]
Duplicates = Literal["one", "count"]
Verdict = Literal[">", "=", "<"]


class Line(NamedTuple):
    """One comparison, oriented so that the agent with the lower id stands left."""

    low: int
    high: int
    verdict: Verdict
    span: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Vote:
    """One judge's verdict on a pair of turns; `left` belongs to the agent with the lower id."""

    judge: TurnKey
    left: TurnKey
    right: TurnKey
    verdict: Verdict
    span: tuple[int, int]

    @property
    def pair(self) -> tuple[TurnKey, TurnKey]:
        """The two judged turns."""
        return self.left, self.right


class Share(NamedTuple):
    """Votes for and against one turn or agent."""

    up: float
    down: float


@dataclass(frozen=True, slots=True)
class Ballot:
    """What one judge turn voted, and what of it was dropped and why.

    `unseen` and `failed` count lines; `contradictory` counts pairs.
    """

    votes: tuple[Vote, ...] = ()
    unseen: int = 0
    failed: int = 0
    contradictory: int = 0


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
    lines, unseen, failed = [], 0, 0
    for comparison in judge.parsed.comparisons:
        line = orient(comparison)
        if line.low not in judged or line.high not in judged:
            unseen += 1
        elif judged[line.low].failed or judged[line.high].failed:
            failed += 1
        else:
            lines.append(line)
    kept, contradictory = settle(lines, duplicates)
    votes = tuple(
        Vote(judge.key, judged[line.low].key, judged[line.high].key, line.verdict, line.span)
        for line in kept
    )
    return Ballot(votes, unseen, failed, contradictory)


def ballots(debate: ReadDebate, duplicates: Duplicates = "one") -> dict[TurnKey, Ballot]:
    """Return the ballot of every turn."""
    return {key: ballot(debate, judge, duplicates) for key, judge in debate.turns.items()}


def missing_comparisons(debate: ReadDebate, turn: ReadTurn, cast: Ballot) -> bool:
    """Return whether a turn owed comparisons and none counted.

    Lines dropped because the turn they judged had failed are no fault of their author.
    """
    return debate.expected_pairs(turn) > 0 and not cast.votes and not cast.failed


def points(verdict: Verdict, ties: Ties) -> Share | None:
    """Return what a verdict gives the left side and the right side; None where it does not count.

    `half` gives each side of a tie half a vote; `ignore` drops ties.
    """
    if verdict == "=":
        return Share(0.5, 0.5) if ties == "half" else None
    return Share(1.0, 0.0) if verdict == ">" else Share(0.0, 1.0)


def tally(votes: Iterable[Vote], ties: Ties = "half") -> dict[TurnKey, Share]:
    """Return votes for and against each turn that got any."""
    shares: dict[TurnKey, Share] = {}
    for vote in votes:
        given = points(vote.verdict, ties)
        if given is None:
            continue
        left = shares.get(vote.left, Share(0.0, 0.0))
        right = shares.get(vote.right, Share(0.0, 0.0))
        shares[vote.left] = Share(left.up + given.up, left.down + given.down)
        shares[vote.right] = Share(right.up + given.down, right.down + given.up)
    return shares


def by_pair(votes: Iterable[Vote]) -> Mapping[tuple[TurnKey, TurnKey], list[Vote]]:
    """Return the votes on each pair of turns."""
    pairs: dict[tuple[TurnKey, TurnKey], list[Vote]] = {}
    for vote in votes:
        pairs.setdefault(vote.pair, []).append(vote)
    return pairs
