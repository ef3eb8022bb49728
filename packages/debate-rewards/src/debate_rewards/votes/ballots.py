"""Votes booked on the turns that their judge was shown; win rate and win-minus-loss."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar, Literal, NamedTuple

from debate_protocol.parsing import Comparison, Range
from debate_protocol.types import Protocol, Transcript, TurnKey, sees
from debate_rewards.reward import (
    Credit,
    Need,
    ReadDebate,
    ReadTurn,
    RewardConfig,
    Score,
    read_debate,
)

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


_RING = 64


def judges_of_a_pair(rules: Protocol) -> tuple[int, int]:
    """Return how many agents see both of a pair, for the pairs that fewest and that most see.

    Agents of a ring are alike, and so are all but the center of `central`: the pairs of agents 0
    and 1 stand for all, and a large ring is like a small one.
    """
    count = min(rules.num_agents, _RING)
    if rules.topology == "all":
        return rules.num_agents - 2, rules.num_agents - 2
    rules = replace(rules, num_agents=count, center=min(rules.center or 0, count - 1))
    found = [
        sum(sees(rules, judge, a) and sees(rules, judge, b) for judge in range(count))
        for a in range(min(2, count))
        for b in range(a + 1, count)
    ]
    return min(found), max(found)


FAILED_STEP = -1.0
"""Step reward of a failed turn, a part of its agent's total return."""


@dataclass(frozen=True, slots=True)
class PairwiseVotes:
    """Votes for and against each agent over all rounds, and how many lines were malformed."""

    shares: tuple[Share, ...]
    total: int
    malformed: int
    contradictory: int
    failed: int


class _Pairwise(RewardConfig):
    needs: ClassVar[frozenset[Need]] = frozenset(("votes",))
    can_be_tried: ClassVar[bool] = True

    ties: Ties = "half"
    """What `=` is worth: `half` a win for each side, or nothing (`ignore`)."""
    duplicates: Duplicates = "one"
    """Whether a voter's repeated verdict on a pair counts as `one` or each time (`count`)."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("return",)


class WinRate(_Pairwise):
    """The share of peer votes that an agent won, W/V in [0, 1], 0 without votes.

    Stream `return`: the same value on each of an agent's turns, with −1 added for each of its
    failed turns. Every comparison of two other agents counts, shown or not, except lines about a
    failed turn.

    Source: multi-agent debate implementation note, reward function 1. Deviation: repeated lines of
    a turn count once (`duplicates: count` is the note's rule).
    """

    type: Literal["win_rate"] = "win_rate"

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [_score(read_debate(t), self, "win_rate") for t in transcripts]


class WinMinusLoss(_Pairwise):
    """The mean signed result of an agent's matchups, S/M in [−1, 1], 0 without votes.

    Ties count as matchups with result 0 (`ties: ignore` leaves them out). All else is as in
    `WinRate`.

    Source: multi-agent debate implementation note, reward function 2.
    """

    type: Literal["win_minus_loss"] = "win_minus_loss"

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [_score(read_debate(t), self, "win_minus_loss") for t in transcripts]


def pairwise_votes(debate: ReadDebate, ties: Ties, duplicates: Duplicates) -> PairwiseVotes:
    """Count the votes for and against each agent over all rounds of a debate."""
    shares = [Share(0.0, 0.0)] * debate.transcript.protocol.num_agents
    total = malformed = contradictory = failed = 0
    for judge in debate.judges.values():
        malformed += judge.parsed.malformed
        if judge.failed:
            continue
        lines = [orient(comparison) for comparison in judge.parsed.comparisons]
        about_valid = _about_valid(debate, judge, lines)
        failed += len(lines) - len(about_valid)
        kept, clashes = settle(about_valid, duplicates)
        contradictory += clashes
        total += len(kept)
        for line in kept:
            given = points(line.verdict, ties)
            if given is None:
                continue
            low, high = shares[line.low], shares[line.high]
            shares[line.low] = Share(low.up + given.up, low.down + given.down)
            shares[line.high] = Share(high.up + given.down, high.down + given.up)
    return PairwiseVotes(tuple(shares), total, malformed, contradictory, failed)


def _about_valid(debate: ReadDebate, judge: ReadTurn, lines: Sequence[Line]) -> list[Line]:
    """Return the lines whose agents were not last shown to the judge with a failed turn."""
    broken = {agent for agent, turn in debate.judged_by(judge).items() if turn.failed}
    return [line for line in lines if line.low not in broken and line.high not in broken]


def _value(share: Share, mode: Literal["win_rate", "win_minus_loss"]) -> float:
    votes = share.up + share.down
    if not votes:
        return 0.0
    return share.up / votes if mode == "win_rate" else (share.up - share.down) / votes


def _score(
    debate: ReadDebate, reward: _Pairwise, mode: Literal["win_rate", "win_minus_loss"]
) -> Score:
    counted = pairwise_votes(debate, reward.ties, reward.duplicates)
    values = [_value(share, mode) for share in counted.shares]
    returns = list(values)
    for turn in debate.turns.values():
        if turn.failed:
            returns[turn.key.agent] += FAILED_STEP
    credits = tuple(
        Credit(*key, "return", returns[key.agent], penalty=turn.failed)
        for key, turn in debate.turns.items()
    )
    metrics = {
        "pairwise_reward": sum(values) / len(values) if values else 0.0,
        "pairwise_reward_is_win_rate": float(mode == "win_rate"),
        "pairwise_reward_is_win_minus_loss": float(mode == "win_minus_loss"),
        "pairwise_total_votes": float(counted.total),
        "pairwise_malformed": float(counted.malformed),
        "pairwise_contradictory": float(counted.contradictory),
        "pairwise_failed_dropped": float(counted.failed),
        "pairwise_any_votes": float(counted.total > 0),
    }
    return Score(credits, tuple(returns), metrics)
