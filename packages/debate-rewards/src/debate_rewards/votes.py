"""Votes on the turns that their judge was shown, and what a vote earns its judge."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar, Literal, NamedTuple

from pydantic import Field

from debate_protocol.parsing import Comparison, Range, evaluation_parts
from debate_protocol.plugins import Config
from debate_protocol.types import Protocol, TurnKey, decided, judging_agents, reads_backwards, sees
from debate_rewards.reward import (
    Credit,
    ReadDebate,
    ReadTurn,
    Requirement,
    RewardConfig,
    known_mean,
)

Ties = Literal["half", "ignore"]
Duplicates = Literal["one", "count"]
Verdict = Literal[">", "=", "<"]
JudgeCredit = Literal["line", "block", "segment"]
# Two judged turns; the agent with the lower id stands left.
Pair = tuple[TurnKey, TurnKey]


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

    @property
    def is_own(self) -> bool:
        """Whether its judge wrote one of the two."""
        return self.judge.agent in (self.left.agent, self.right.agent)


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


@dataclass(frozen=True, slots=True)
class Judgment:
    """A judge's turn and for which agent it decides: 0 or 1, None where it says neither."""

    turn: ReadTurn
    decision: int | None
    backwards: bool


def judgments(debate: ReadDebate) -> list[Judgment]:
    """Return all judgments of a debate, in order; none without a judge."""
    rules, found = debate.transcript.protocol, []
    for agent in judging_agents(rules):
        for key, turn in debate.judges.items():
            if key.agent == agent:
                section = None if turn.failed else turn.parsed.sections.get("decision")
                said = None if section is None else section.text
                backwards = reads_backwards(rules, agent)
                found.append(Judgment(turn, decided(rules, said), backwards))
    return found


def orient(comparison: Comparison) -> Line:
    """Return the comparison with the lower agent id on the left."""
    left, op, right, span = comparison.left, comparison.op, comparison.right, comparison.span
    if left < right:
        return Line(left, right, op, span)
    return Line(right, left, "=" if op == "=" else "<", span)


def without_repetitions(lines: Sequence[Line], duplicates: Duplicates) -> tuple[list[Line], int]:
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


def _ballot(debate: ReadDebate, judge: ReadTurn, duplicates: Duplicates) -> Ballot:
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
    kept, contradictory = without_repetitions(lines, duplicates)
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
    said = {vote.pair: vote.verdict for vote in ballots(debate)[judge.key].votes}
    valid = sorted((n, turn.key) for n, turn in debate.judged_by(judge).items() if not turn.failed)
    for (_, left), (_, right) in combinations(valid, 2):
        yield (left, right), said.get((left, right))


def ballots(debate: ReadDebate, duplicates: Duplicates = "one") -> dict[TurnKey, Ballot]:
    """Return the ballot of every turn, those of judges who owe no answer included."""
    known: dict[TurnKey, Ballot] | None = debate.cast.get(duplicates)
    if known is None:
        known = {key: _ballot(debate, judge, duplicates) for key, judge in debate.judges.items()}
        debate.cast[duplicates] = known
    return known


def all_votes(cast: Mapping[TurnKey, Ballot]) -> list[Vote]:
    """Return the votes of all ballots, in order."""
    return [vote for its_ballot in cast.values() for vote in its_ballot.votes]


_POINTS = {">": Share(1.0, 0.0), "=": Share(0.5, 0.5), "<": Share(0.0, 1.0)}


def points(verdict: Verdict, ties: Ties) -> Share | None:
    """Return what a verdict gives the left side and the right side; None where it does not count.

    `half` gives each side of a tie half a vote; `ignore` drops ties.
    """
    return None if verdict == "=" and ties == "ignore" else _POINTS[verdict]


def tally(votes: Iterable[Vote], ties: Ties = "half") -> dict[TurnKey, Share]:
    """Return votes for and against each turn that got any; none counts for its judge's own turn."""
    up: dict[TurnKey, float] = {}
    total: dict[TurnKey, int] = {}
    for judge, pair, verdict, _ in votes:
        given = points(verdict, ties)
        for turn, won in zip(pair, given or (), strict=False):
            if turn.agent == judge.agent:
                continue
            up[turn] = up.get(turn, 0.0) + won
            total[turn] = total.get(turn, 0) + 1
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


Consensus = Literal[
    "leave_one_out",
    "inclusive",
    "peer_prediction",
    "none",
]


_POINTS_LEFT = {">": 1, "=": 0, "<": -1}


def margin(votes: Sequence[Vote]) -> int:
    """Return votes for the left turn of a pair minus votes for the right one."""
    return sum(_POINTS_LEFT[vote.verdict] for vote in votes)


def consensus_values(
    votes: Sequence[Vote], consensus: Literal["leave_one_out", "inclusive"]
) -> list[float | None]:
    """Return +1 for a vote with the consensus on its pair, -1 against it, in the votes' order.

    None where the vote is `=`, the consensus is level, or nobody else judged the pair.

    Source: multi-agent debate overview, section 2.2.2; `leave_one_out` takes this judge's own
    votes out of the consensus, without which a lone judge always agrees with itself.
    """
    values: list[float | None] = [None] * len(votes)
    for places in places_by_pair(votes):
        lead = 0
        # Counted by judge: reading all votes of a pair again for each of them takes N⁴ steps for
        # N agents, who cast N³ votes.
        judge_lead: Counter[int] = Counter()
        for place in places:
            points_left = _POINTS_LEFT[votes[place].verdict]
            lead += points_left
            judge_lead[votes[place].judge.agent] += points_left
        for place in places:
            vote = votes[place]
            others_lead = lead
            if consensus == "leave_one_out":
                others_lead -= judge_lead[vote.judge.agent]
            if vote.verdict != "=" and others_lead != 0:
                values[place] = 1.0 if (vote.verdict == ">") == (others_lead > 0) else -1.0
    return values


def places_by_pair(votes: Sequence[Vote]) -> list[list[int]]:
    """Return, for each pair of turns, where its votes are in the sequence."""
    places: dict[Pair, list[int]] = {}
    for place, vote in enumerate(votes):
        places.setdefault(vote.pair, []).append(place)
    return list(places.values())


def peer_prediction_values(
    votes: Sequence[Vote], elsewhere: Mapping[Verdict, int]
) -> list[float | None]:
    """Return agreement with the other judges beyond what is usual on other questions.

    The value of a vote is the share of the other judges of its pair with the same verdict, minus
    that verdict's frequency on the other questions, so that a shared habit that is the same on
    every question earns 0 on average. One that changes with the question is paid: where all judges
    say `>` on half of the questions and `<` on the others, each vote earns 1 - 1/2. None where
    nobody else judged the pair or there are no votes elsewhere.

    Args:
        votes: All counted votes of one debate.
        elsewhere: How often each verdict was given on the other questions of the batch.

    Source: Dasgupta and Ghosh (2013); Shnayder et al. (2016), multi-task peer prediction.
    """
    total = sum(elsewhere.values())
    values: list[float | None] = [None] * len(votes)
    if not total:
        return values
    for places in places_by_pair(votes):
        verdicts = Counter(votes[place].verdict for place in places)
        cast_by = Counter(votes[place].judge.agent for place in places)
        verdicts_by = Counter((votes[place].judge.agent, votes[place].verdict) for place in places)
        for place in places:
            judge = votes[place].judge.agent
            verdict = votes[place].verdict
            num_others = len(places) - cast_by[judge]
            if num_others:
                num_agreeing = verdicts[verdict] - verdicts_by[judge, verdict]
                chance = elsewhere.get(verdict, 0) / total
                values[place] = num_agreeing / num_others - chance
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


# The stream's name.
JUDGE = "judge"


def _part_values(
    turn: ReadTurn, lines: Sequence[tuple[Vote, float | None]]
) -> list[tuple[tuple[int, int], float | None]]:
    naming: dict[int, list[float]] = {}
    for vote, value in lines:
        if value is not None:
            naming.setdefault(vote.left.agent, []).append(value)
            naming.setdefault(vote.right.agent, []).append(value)
    parts = []
    for agent, span in evaluation_parts(turn.turn.text, turn.parsed):
        values = naming.get(agent)
        parts.append((span, sum(values) / len(values) if values else None))
    return parts


class VoteReward(RewardConfig):
    """A reward that is made of votes."""

    needs: ClassVar[frozenset[Requirement]] = frozenset(("votes",))
    can_be_tried: ClassVar[bool] = True

    duplicates: Duplicates = "one"
    """Whether a voter's repeated verdict on a pair counts as `one` or each time (`count`)."""


class PeerReward(VoteReward):
    """A reward for which votes are points of those that were judged."""

    ties: Ties = "half"
    """What `=` is worth: `half` a win for each side, or nothing (`ignore`)."""


class JudgeSettings(Config):
    """How the values of a judge's votes become credits of its turn."""

    judge_credit: JudgeCredit = "block"
    """Where a judge's values go: one for the `block`, one per `line`, or per `segment` (lines, and
    each part of the evaluation about one agent)."""
    format_penalty: float | None = Field(default=-0.5, le=0)
    """What a turn is worth as a judge where comparisons were expected and none counted (null: no
    penalty); under `line` and `segment` also a line that does not count, and an early end."""

    def judge_credits(
        self,
        debate: ReadDebate,
        cast: Mapping[TurnKey, Ballot],
        values: Sequence[float | None],
        *,
        centred: bool = False,
    ) -> list[Credit]:
        """Return each valid turn's judge value, followed by those of its lines and parts.

        A turn's value is the mean over its valued votes, or the format penalty where comparisons
        were owed and none counted. A failed turn has none.

        Args:
            debate: The debate.
            cast: The ballot of each of its turns.
            values: The value of each vote, in the order of the ballots.
            centred: Whether a habit already earns 0, so that no baseline is taken off by default.
        """
        credits: list[Credit] = []
        start = 0
        for key, ballot in cast.items():
            end = start + len(ballot.votes)
            own, start = values[start:end], end
            turn = debate.judges[key]
            if turn.failed:
                continue
            penalty = ballot.missing and self.format_penalty is not None
            value = self.format_penalty if penalty else known_mean(own)
            whole = Credit(
                *key, JUDGE, value, penalty=penalty, expected=ballot.owed > 0, centred=centred
            )
            credits.append(whole)
            if self.judge_credit == "block" or penalty or not ballot.votes:
                continue
            # A line or part without a value has a credit with None: its tokens take no signal
            # rather than the turn's mean, which would pay it for the lines that count.
            lines = list(zip(ballot.votes, own, strict=True))
            placed: list[tuple[Range, float | None]] = []
            if self.judge_credit == "segment":
                placed += _part_values(turn, lines)
            placed += [(vote.span, value) for vote, value in lines]
            placed += [(span, None) for span in ballot.failed]
            placed += [(span, self.format_penalty) for span in ballot.uncounted]
            if len({vote.pair for vote in ballot.votes}) < ballot.owed:
                # Ending here is what left pairs out; the mean of those made would pay for it.
                section = turn.parsed.sections["comparison"]
                placed.append(((section.span[1], section.outer[1]), self.format_penalty))
            credits += [
                Credit(*key, JUDGE, value, span, expected=False, centred=centred)
                for span, value in placed
            ]
        return credits
