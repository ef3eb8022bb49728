"""Votes of judges on the turns they were shown, and the points of a verdict."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import ClassVar, Literal, NamedTuple

from debate_protocol.parsing import Comparison, Range
from debate_protocol.types import (
    VERDICT,
    TurnKey,
    decided,
    judging_agents,
    reads_backwards,
)
from debate_rewards.reward import ReadDebate, ReadTurn, RewardConfig, RewardNeeds

Ties = Literal["half", "ignore"]
Duplicates = Literal["one", "count"]
Verdict = Literal[">", "=", "<"]
# Two judged turns, the agent with the lower id first.
TurnPair = tuple[TurnKey, TurnKey]

# The stream of what turns are worth as judges.
JUDGE = "judge"


class Line(NamedTuple):
    """A comparison, oriented with the lower agent id first."""

    low: int
    high: int
    verdict: Verdict
    span: Range


class Vote(NamedTuple):
    """A judge's verdict on a pair of turns, and the line in the judge's text."""

    judge: TurnKey
    pair: TurnPair
    verdict: Verdict
    span: Range

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
        """Whether the judge wrote either turn."""
        return self.judge.agent in (self.left.agent, self.right.agent)


class Share(NamedTuple):
    """Votes for and against one turn or agent."""

    up: float
    down: float

    @property
    def balance(self) -> float:
        """2·up/(up + down) − 1, from −1 (all against) to 1 (all for)."""
        return 2 * self.up / (self.up + self.down) - 1


_POINTS = {">": Share(1.0, 0.0), "=": Share(0.5, 0.5), "<": Share(0.0, 1.0)}


@dataclass(frozen=True, slots=True)
class Ballot:
    """The votes of a judge turn, and the rejected lines of the comparison section.

    Attributes:
        votes: Counted votes, in the order of the text.
        num_unseen: Lines about agents without a turn shown to the judge.
        num_contradictory: Pairs dropped because the judge gave two verdicts on them.
        num_expected: Pairs expected from the judge.
        failed_turn_spans: Where the lines about failed turns are in the judge's text.
        rejected_spans: Where all other rejected lines are.
    """

    votes: tuple[Vote, ...] = ()
    num_unseen: int = 0
    num_contradictory: int = 0
    num_expected: int = 0
    failed_turn_spans: tuple[Range, ...] = ()
    rejected_spans: tuple[Range, ...] = ()

    @property
    def lacks_comparisons(self) -> bool:
        """Whether comparisons were expected and none counted.

        A judge is not at fault for lines dropped because the judged turn had failed.
        """
        return self.num_expected > 0 and not self.votes and not self.failed_turn_spans


@dataclass(frozen=True, slots=True)
class Judgment:
    """A judge's turn and the agent it decides for: 0 or 1, `None` where it says neither."""

    turn: ReadTurn
    decision: int | None
    order_reversed: bool


def judgments(debate: ReadDebate) -> list[Judgment]:
    """List all judgments of a debate, by judge and then in order of the turns."""
    protocol = debate.transcript.protocol
    debate_judgments = []
    for agent in judging_agents(protocol):
        judge_turns = [turn for key, turn in debate.judges.items() if key.agent == agent]
        for turn in judge_turns:
            decision_text = None
            if not turn.failed and "decision" in turn.parsed.sections:
                decision_text = turn.parsed.sections["decision"].text
            judgment = Judgment(
                turn=turn,
                decision=decided(protocol, decision_text),
                order_reversed=reads_backwards(protocol, agent),
            )
            debate_judgments.append(judgment)
    return debate_judgments


def orient(comparison: Comparison) -> Line:
    """Put the agent with the lower id on the left of a comparison."""
    if comparison.left < comparison.right:
        return Line(comparison.left, comparison.right, comparison.op, comparison.span)
    # Comparisons hold > and = alone: only > turns around with its sides.
    verdict: Verdict = "=" if comparison.op == "=" else "<"
    return Line(comparison.right, comparison.left, verdict, comparison.span)


def without_repetitions(lines: Sequence[Line], duplicates: Duplicates) -> tuple[list[Line], int]:
    """Select the valid lines, and count the dropped contradictory pairs.

    With `one`, the last of several equal lines about a pair counts and a pair with different
    verdicts is dropped; with `count` every line counts.
    """
    if duplicates == "count":
        return list(lines), 0
    last_line: dict[tuple[int, int], Line] = {}
    contradictory_pairs = set()
    for line in lines:
        pair = (line.low, line.high)
        if pair in last_line and last_line[pair].verdict != line.verdict:
            contradictory_pairs.add(pair)
        last_line[pair] = line
    counted_lines = [line for pair, line in last_line.items() if pair not in contradictory_pairs]
    return counted_lines, len(contradictory_pairs)


def ballots(debate: ReadDebate, duplicates: Duplicates = "one") -> dict[TurnKey, Ballot]:
    """Read the ballot of every turn that may compare others, of judges without answers too."""
    # The parts of a mixed reward and all metrics read the same ballots.
    cached: dict[TurnKey, Ballot] | None = debate.ballot_cache.get(duplicates)
    if cached is not None:
        return cached
    turn_ballots = {
        key: _read_ballot(debate, judge, duplicates) for key, judge in debate.judges.items()
    }
    for vote in check_votes(debate):
        ballot = turn_ballots[vote.judge]
        turn_ballots[vote.judge] = replace(ballot, votes=(*ballot.votes, vote))
    debate.ballot_cache[duplicates] = turn_ballots
    return turn_ballots


def _read_ballot(debate: ReadDebate, judge: ReadTurn, duplicates: Duplicates) -> Ballot:
    # A failed turn casts no votes, and no comparisons are expected of it.
    if judge.failed:
        return Ballot()
    # Three fates of a line: an unseen turn is the judge's fault and may cost a penalty, a failed
    # turn is not, and the rest are votes.
    judged = debate.judged_by(judge)
    readable_lines = []
    unseen_lines = []
    failed_turn_spans = []
    for comparison in judge.parsed.comparisons:
        line = orient(comparison)
        if line.low not in judged or line.high not in judged:
            unseen_lines.append(line)
        elif judged[line.low].failed or judged[line.high].failed:
            failed_turn_spans.append(line.span)
        else:
            readable_lines.append(line)
    counted_lines, num_contradictory = without_repetitions(readable_lines, duplicates)

    # A vote is about the turns that the judge was shown, which in parallel rounds are those of the
    # round before its own.
    votes = []
    for line in counted_lines:
        pair = (judged[line.low].key, judged[line.high].key)
        votes.append(Vote(judge=judge.key, pair=pair, verdict=line.verdict, span=line.span))

    counted_spans = {line.span for line in counted_lines}
    line_spans = {line.span for line in unseen_lines + readable_lines}
    rejected_spans = (line_spans - counted_spans).union(judge.parsed.dropped_lines)
    return Ballot(
        votes=tuple(votes),
        num_unseen=len(unseen_lines),
        num_contradictory=num_contradictory,
        num_expected=debate.expected_pairs(judge),
        failed_turn_spans=tuple(failed_turn_spans),
        rejected_spans=tuple(sorted(rejected_spans)),
    )


class AnswerCheck(NamedTuple):
    """A judge's verdict on the one turn shown to it, and the range of the verdict."""

    judge: TurnKey
    is_right: bool
    span: Range


def checks_by_turn(debate: ReadDebate) -> dict[TurnKey, list[AnswerCheck]]:
    """Collect the readable verdicts on each valid turn from judges who were shown it alone."""
    checks: dict[TurnKey, list[AnswerCheck]] = {}
    for key, judge in debate.judges.items():
        section = judge.parsed.sections.get(VERDICT)
        if section is None or judge.failed or not reads_one_answer(debate, key):
            continue
        (checked_turn,) = debate.shown_to(judge)
        decision = decided(debate.transcript.protocol, section.text)
        if decision is not None and not checked_turn.failed:
            check = AnswerCheck(judge=key, is_right=decision == 0, span=section.span)
            checks.setdefault(checked_turn.key, []).append(check)
    return checks


def reads_one_answer(debate: ReadDebate, judge: TurnKey) -> bool:
    """Whether a turn is to say if the one answer that it was shown is right."""
    contract = debate.transcript.protocol.contract_of(judge.round)
    if contract.answers or VERDICT not in contract.sections:
        return False
    return len(debate.shown_to(debate.judges[judge])) == 1


def check_votes(debate: ReadDebate) -> list[Vote]:
    """Compare turns by checks of each alone: a turn called right beats a turn called wrong.

    The j-th check of a turn meets the j-th of each other turn, so that k checks each make k votes
    on a pair; two equal verdicts are `=`. Of a turn with fewer checks the first ones meet again.
    The vote belongs to the judge of the agent with the lower id.
    """
    checks = sorted(checks_by_turn(debate).items())
    votes = []
    for (left, left_checks), (right, right_checks) in combinations(checks, 2):
        # One by one and not each with each: k checks are k judgments of a turn, not k².
        for number in range(max(len(left_checks), len(right_checks))):
            left_check = left_checks[number % len(left_checks)]
            right_check = right_checks[number % len(right_checks)]
            verdict: Verdict = "="
            if left_check.is_right != right_check.is_right:
                verdict = ">" if left_check.is_right else "<"
            pair = (left, right)
            votes.append(Vote(left_check.judge, pair, verdict, left_check.span))
    return votes


def judged_ballots(
    debate: ReadDebate, turn_ballots: Mapping[TurnKey, Ballot]
) -> dict[TurnKey, Ballot]:
    """Replace the votes of judges who read one answer alone by their own verdicts.

    Each casts one vote, on the answer beside itself, `>` for right: judges of one answer are
    then judges of one pair, and agree or not.
    """
    judge_ballots = dict(turn_ballots)
    # First the judges without a readable verdict, from whom one was expected.
    for key in debate.judges:
        if reads_one_answer(debate, key):
            judge_ballots[key] = Ballot(num_expected=int(not debate.judges[key].failed))
    for turn, checks in checks_by_turn(debate).items():
        for check in checks:
            verdict: Verdict = ">" if check.is_right else "<"
            vote = Vote(check.judge, (turn, turn), verdict, check.span)
            judge_ballots[check.judge] = Ballot(votes=(vote,), num_expected=1)
    return judge_ballots


def all_votes(turn_ballots: Mapping[TurnKey, Ballot]) -> list[Vote]:
    """Join the votes of all ballots, in order."""
    votes: list[Vote] = []
    for ballot in turn_ballots.values():
        votes += ballot.votes
    return votes


def expected_verdicts(
    debate: ReadDebate, judge: ReadTurn
) -> Iterator[tuple[TurnPair, Verdict | None]]:
    """Yield each pair of valid turns shown to a judge, with the judge's verdict.

    The verdict is `None` for a pair left out, as for all pairs of a failed turn.
    """
    if not debate.compares:
        return
    verdicts = {vote.pair: vote.verdict for vote in ballots(debate)[judge.key].votes}
    judged = debate.judged_by(judge)
    # By the number under which the judge was shown them, as its lines name them.
    valid_turns = [turn.key for _, turn in sorted(judged.items()) if not turn.failed]
    for pair in combinations(valid_turns, 2):
        yield pair, verdicts.get(pair)


def points(verdict: Verdict, ties: Ties) -> Share | None:
    """Look up the points of the left and the right side; `None` for an ignored tie.

    `half` gives each side of a tie half a vote; `ignore` drops ties.
    """
    if verdict == "=" and ties == "ignore":
        return None
    return _POINTS[verdict]


def tally(votes: Iterable[Vote], ties: Ties = "half") -> dict[TurnKey, Share]:
    """Count votes for and against each judged turn, without votes on the judge's own turn."""
    num_won: dict[TurnKey, float] = {}
    num_votes: dict[TurnKey, int] = {}
    for vote in votes:
        # An ignored tie is in no count, not even as a game without a winner.
        share = points(vote.verdict, ties)
        if share is None:
            continue
        for turn, won in zip(vote.pair, share, strict=True):
            # A judge that ranks its own turn, too, has no say in the worth of this turn.
            if turn.agent == vote.judge.agent:
                continue
            num_won[turn] = num_won.get(turn, 0.0) + won
            num_votes[turn] = num_votes.get(turn, 0) + 1
    return {turn: Share(won, num_votes[turn] - won) for turn, won in num_won.items()}


def by_pair(votes: Iterable[Vote]) -> dict[TurnPair, list[Vote]]:
    """Group votes by their pair of turns."""
    pairs: dict[TurnPair, list[Vote]] = {}
    for vote in votes:
        pairs.setdefault(vote.pair, []).append(vote)
    return pairs


class VoteReward(RewardConfig):
    """A reward made of votes."""

    removed_keys: ClassVar[Mapping[str, str]] = {
        "duplicates": "no such key: repeated votes of an agent on a pair count once here",
        "ties": "no such key: `=` is half a vote for each side here",
    }

    def needs(self) -> RewardNeeds:
        """Describe needs: comparisons."""
        return RewardNeeds(votes=True, policy=False)
