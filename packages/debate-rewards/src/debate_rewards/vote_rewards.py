"""Rewards made of peer votes: v2, win rate, win minus loss and Bradley-Terry strength."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Transcript, TurnKey, role_of, roles_of
from debate_rewards.answer_rewards import truth_of
from debate_rewards.decisions import log_strengths
from debate_rewards.reward import (
    FAILURE_VALUE,
    Credit,
    Need,
    ReadDebate,
    ReadTurn,
    RewardConfig,
    Score,
    Use,
    mean_returns,
    read_debate,
)
from debate_rewards.vote_controls import VotesFrom, shuffled_credits, shuffled_verdicts
from debate_rewards.votes import (
    CENTRED,
    JUDGE,
    PARTS,
    Ballot,
    Consensus,
    Duplicates,
    JudgeCredit,
    Line,
    Share,
    Ties,
    Vote,
    all_votes,
    ballots,
    by_pair,
    consensus_values,
    judge_credits,
    judges_of_a_pair,
    margin,
    orient,
    peer_prediction_values,
    peer_score_values,
    points,
    settle,
    tally,
    verdicts_elsewhere,
)


def comparison_lines(turn: ReadTurn) -> int:
    """Return how many lines a turn's comparison section held, whatever they were worth."""
    parsed = turn.parsed
    return len(parsed.comparisons) + parsed.invalid_lines + parsed.self_dropped + parsed.malformed


def v2_metrics(
    debate: ReadDebate,
    cast: Mapping[TurnKey, Ballot],
    generator: Sequence[Credit],
    judge: Sequence[Credit],
) -> dict[str, float]:
    """Return the vote metrics of one debate; a mean or share over nothing is left out.

    Args:
        debate: The debate.
        cast: The ballot of each of its turns.
        generator: Its generator credits.
        judge: Its judge credits, those of lines included.
    """
    turns, judges_read = debate.turns.values(), debate.judges.values()
    votes = all_votes(cast)
    pairs = by_pair(votes)
    judges = [len({vote.judge.agent for vote in its_votes}) for its_votes in pairs.values()]
    wholes = [credit for credit in judge if credit.span is None]
    expected = sum(ballot.owed for ballot in cast.values())
    made = sum(len({vote.pair for vote in b.votes}) for b in cast.values() if b.owed)
    sums = {
        "v2/total_votes": len(votes),
        "v2/missing_comparisons": sum(ballot.missing for ballot in cast.values()),
        "v2/comparison_lines_total": sum(comparison_lines(turn) for turn in judges_read),
        "v2/comparison_lines_invalid": sum(turn.parsed.invalid_lines for turn in judges_read),
        "v2/comparison_lines_malformed": sum(turn.parsed.malformed for turn in judges_read),
        "v2/self_comparisons_dropped": sum(turn.parsed.self_dropped for turn in judges_read),
        "v2/unseen_dropped": sum(ballot.unseen for ballot in cast.values()),
        "v2/failed_dropped": sum(len(ballot.failed) for ballot in cast.values()),
        "v2/contradictory_dropped": sum(ballot.contradictory for ballot in cast.values()),
        "v2/comparison_pairs_tie": sum(margin(its_votes) == 0 for its_votes in pairs.values()),
        "v2/failed_turns": sum(turn.failed for turn in turns),
    }
    shares = {
        "v2/votes_per_step": _share(len(votes), len(debate.turns)),
        "v2/comparisons_made": _share(made, expected),
        "v2/judges_per_pair": _share(sum(judges), len(pairs)),
        "v2/self_consensus_fraction": _share(judges.count(1), len(pairs)),
        "reward/gen/mean": _mean(generator),
        "reward/judge/mean": _mean(wholes),
    }
    return {
        **{name: float(value) for name, value in sums.items()},
        **{name: value for name, value in shares.items() if value is not None},
    }


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(credits: Sequence[Credit]) -> float | None:
    values = [credit.value for credit in credits if credit.value is not None]
    return sum(values) / len(values) if values else None


class V2(RewardConfig):
    """Peer votes as two streams, `generator` and `judge`.

    `generator`, per judged turn: 2·for/(for+against) − 1. `judge`, per comparison: agreement with
    the other judges of that pair of turns; per turn: the mean over its valued comparisons, or
    `format_penalty` (None: no penalty) where comparisons were expected and none counted. A failed
    turn carries −1 on `generator` and nothing else.

    `unvoted` says what a valid turn without votes gets: no signal, 0, or the literal formula's −1.
    `judge_credit` says where judge values go: one for the `block`, one per `line`, or per `segment`
    (lines, and each part of the evaluation about one agent). Under the last two a line that does
    not count, and the end of a section that leaves out owed pairs, are worth `format_penalty`.
    `consensus: peer_prediction`, `correlated_agreement` and `determinant_mutual_information`
    compare across questions, so they need batches with more than one, two and three; `none` leaves
    the judge stream to another component of a mixed reward, such as `truth_judge`.

    `shuffle_votes` is a control for experiments, not a way to train: it permutes the generator
    values of each (question, round) among the agents that have one, uniformly, so that credit
    keeps its distribution but says nothing about which agent won. `shuffle_verdicts` does the same
    with the judge values of each (question, round) among its verdicts. `votes_from`: the
    generator values come from verdicts that are drawn from the truth with given error rates, on
    the pairs that the judges compared. The judge stream keeps the judges' own verdicts.
    `votes_of` names the one role whose votes value turns, such as judges that stay as they are.

    Source: multi-agent debate overview, section 2.2. Deviations: `unvoted: mask`,
    `duplicates: one`, `ties: half` and `consensus: leave_one_out` are defaults that the text does
    not have; `literal`, `count`, `ignore` and `inclusive` are the text's.
    """

    needs: ClassVar[frozenset[Need]] = frozenset(("votes",))
    can_be_tried: ClassVar[bool] = True

    type: Literal["v2"] = "v2"
    ties: Ties = "half"
    """What `=` is worth: `half` a win for each side, or nothing (`ignore`)."""
    duplicates: Duplicates = "one"
    """Whether a voter's repeated verdict on a pair counts as `one` or each time (`count`)."""
    unvoted: Literal["mask", "zero", "literal"] = "mask"
    """A valid turn that nobody voted on: no signal (`mask`), 0 (`zero`), or -1 (`literal`)."""
    consensus: Consensus = "leave_one_out"
    """What a judge's verdicts are held against; `none` leaves the stream `judge` out."""
    judge_credit: JudgeCredit = "block"
    """Where a judge's values go: one for the `block`, one per `line`, or per `segment` (lines,
    and each part of the evaluation about one agent)."""
    format_penalty: float | None = Field(default=-0.5, le=0)
    """What a turn is worth as a judge where comparisons were expected and none counted; under
    `line` and `segment` also a line that does not count, and ending with pairs left out. Null is no
    penalty."""
    shuffle_votes: bool = False
    """Deal the votes of each round out at random among agents: a control."""
    shuffle_verdicts: bool = False
    """Deal what judges are paid in each round out at random among their verdicts: a control."""
    votes_from: VotesFrom | None = None
    """Draw the votes from error rates in the place of what agents said: a control."""
    votes_of: str | None = None
    """The role whose votes alone value turns; null is all roles."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",) if self.consensus == "none" else ("generator", JUDGE)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return self.score_read([read_debate(transcript) for transcript in transcripts])

    def score_read(self, debates: Sequence[ReadDebate]) -> list[Score]:
        """Return one score a debate that has been read already, in order."""
        cast = [ballots(debate, self.duplicates) for debate in debates]
        votes = [all_votes(its_ballots) for its_ballots in cast]
        values = self._vote_values([d.transcript.question.id for d in debates], votes)
        if self.shuffle_verdicts:
            values = [
                shuffled_verdicts(its_values, its_votes, debate.transcript.id)
                for its_values, its_votes, debate in zip(values, votes, debates, strict=True)
            ]
        return [
            self._score(debate, its_ballots, its_votes, its_values)
            for debate, its_ballots, its_votes, its_values in zip(
                debates, cast, self._booked(debates, votes), values, strict=True
            )
        ]

    def needed(self) -> frozenset[Need]:
        """Return votes, and answers where verdicts are drawn from the truth."""
        return self.needs if self.votes_from is None else self.needs | {"answers"}

    @property
    def least_questions(self) -> int:
        """Two in one part, and one in each other part."""
        if self.consensus == "peer_prediction":
            return 2
        return PARTS.get(self.consensus, 0) + 1

    def silence(self, stream: str, use: Use) -> str | None:
        """Return why no turn has a vote that counts, or no judge a value."""
        names = [role.name for role in roles_of(use.rules)]
        if stream != JUDGE and self.votes_of is not None and self.votes_of not in names:
            return (
                f"votes_of: found {self.votes_of!r}, expected a role of the debate, one of "
                f"{', '.join(names)}{did_you_mean(self.votes_of, names)}"
            )
        if stream != JUDGE:
            return None
        if use.questions < self.least_questions:
            found = "one question" if use.questions == 1 else f"{use.questions} questions"
            return (
                f"{self.consensus} compares verdicts with those on other questions of the step, "
                f"and a step has {found}; expected data.batch_size above {self.least_questions - 1}"
            )
        return self.few_judges(use)

    def few_judges(self, use: Use) -> str | None:
        """Return why the judge stream teaches little, where each pair has some judge but few."""
        if use.judge_weight <= 0 or self.consensus == "none":
            return None
        fewest, most = judges_of_a_pair(use.rules)
        if fewest == use.rules.num_agents - 2:
            return self.warning(use.rules.num_agents, use.judge_weight) if most > 0 else None
        if most >= 3:
            return None
        return (
            f"debate.topology: under {use.rules.topology} at most {most} agents see both of a pair "
            "and can judge it, so the judge stream teaches little; expected topology all, a higher "
            "degree, or judge weight 0"
        )

    def warnings(self, use: Use) -> list[str]:
        """Return what should be looked at."""
        found = []
        if self.unvoted == "literal":
            found.append(
                "reward.unvoted: literal gives -1 to turns that nobody could vote on, such as all "
                "of the last parallel round; mask leaves them out"
            )
        if use.baseline == "debate" and use.rules.max_rounds > 1:
            found.append(
                "advantage.baseline: debate compares turns of different rounds, which were judged "
                "by different votes; question_round was safer where it was measured"
            )
        return found

    def warning(self, num_agents: int, judge_weight: float) -> str | None:
        """Return why a judge stream of this weight teaches little with so few agents, or None."""
        if judge_weight <= 0 or num_agents >= 5 or self.consensus == "none":
            return None
        if self.consensus == "inclusive":
            found = (
                "each pair has one judge a round, whose value is always +1"
                if num_agents <= 3
                else "a judge is never outvoted, so no value is ever -1"
            )
        else:
            found = (
                "each pair has one judge a round, so no comparison gets a value and only the "
                "format penalty acts"
                if num_agents <= 3
                else "each pair has two judges a round, who can only copy each other"
            )
        return (
            f"v2 with {num_agents} agents and judge weight {judge_weight:g} "
            f"(consensus {self.consensus}): {found}. Use 5 or more agents, or judge weight 0."
        )

    def _vote_values(
        self, questions: Sequence[str], votes: Sequence[Sequence[Vote]]
    ) -> list[list[float | None]]:
        """Return the judge value of each vote, per debate."""
        if self.consensus == "none":
            return [[None] * len(its_votes) for its_votes in votes]
        if self.consensus == "peer_prediction":
            elsewhere = verdicts_elsewhere(questions, votes)
            return [peer_prediction_values(v, e) for v, e in zip(votes, elsewhere, strict=True)]
        if (
            self.consensus == "correlated_agreement"
            or self.consensus == "determinant_mutual_information"
        ):
            return peer_score_values(questions, votes, self.consensus)
        return [consensus_values(its_votes, self.consensus) for its_votes in votes]

    def _booked(
        self, debates: Sequence[ReadDebate], votes: Sequence[list[Vote]]
    ) -> Sequence[list[Vote] | None]:
        """Return the votes that the generator is valued by, None where they cannot be drawn."""
        if (only := self.votes_of) is not None:
            rules = [debate.transcript.protocol for debate in debates]
            votes = [
                [vote for vote in its if role_of(own, vote.judge.agent).name == only]
                for own, its in zip(rules, votes, strict=True)
            ]
        if self.votes_from is None:
            return votes
        return [
            None if right is None else self.votes_from.draw(debate, its_votes, right)
            for debate, its_votes, right in zip(debates, votes, truth_of(debates), strict=True)
        ]

    def _score(
        self,
        debate: ReadDebate,
        cast: Mapping[TurnKey, Ballot],
        votes: Sequence[Vote] | None,
        values: Sequence[float | None],
    ) -> Score:
        generator = self._generator_credits(debate, votes)
        judge: list[Credit] = []
        if self.consensus != "none":
            judge = judge_credits(
                debate,
                cast,
                values,
                judge_credit=self.judge_credit,
                format_penalty=self.format_penalty,
                centred=self.consensus in CENTRED,
            )
        return Score(
            credits=(*generator, *judge),
            agents=mean_returns(generator, debate.transcript.protocol.num_agents),
            metrics=v2_metrics(debate, cast, generator, judge),
        )

    def _generator_credits(self, debate: ReadDebate, votes: Sequence[Vote] | None) -> list[Credit]:
        if votes is None:
            return [Credit(*key, "generator", None, expected=False) for key in debate.turns]
        shares = tally(votes, self.ties)
        credits = []
        for key, turn in debate.turns.items():
            if turn.failed:
                credits.append(Credit(*key, "generator", FAILURE_VALUE, penalty=True))
            else:
                credits.append(Credit(*key, "generator", self._generator_value(shares.get(key))))
        return shuffled_credits(credits, debate.transcript.id) if self.shuffle_votes else credits

    def _generator_value(self, share: Share | None) -> float | None:
        if share is None:
            return {"mask": None, "zero": 0.0, "literal": -1.0}[self.unvoted]
        return share.balance


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


class BradleyTerry(RewardConfig):
    """The Bradley-Terry strength of each judged turn, scaled to (−1, 1), stream `generator`.

    The strengths w > 0 of the turns (`unit: turn`), or of the agents over all rounds
    (`unit: agent`, the same value on each of an agent's turns), maximise the likelihood of the
    votes, P(a beats b) = w_a / (w_a + w_b), times the prior. A win against a strong turn counts
    for more than one against a weak turn, which a share of votes does not see.

    The prior is a fictitious opponent of strength 1 against whom everyone has `prior` wins and as
    many losses: undefeated turns stay finite, turns of different rounds share one scale, and few
    votes say little. The value (w − 1) / (w + 1) is twice the chance to beat that opponent,
    minus 1.

    Turns (agents) without a vote have no signal; a failed turn carries −1. Which votes count, and
    `ties` and `duplicates`, are as in `v2`.

    Source: Bradley and Terry (1952); Newman (2023), Efficient computation of rankings from
    pairwise comparisons: its iteration and, at `prior: 1`, its logistic prior.
    """

    needs: ClassVar[frozenset[Need]] = frozenset(("votes",))
    can_be_tried: ClassVar[bool] = True

    type: Literal["bradley_terry"] = "bradley_terry"
    unit: Literal["turn", "agent"] = "turn"
    """What has a strength: each `turn`, or each `agent` over all its turns."""
    prior: float = Field(default=1.0, ge=1e-3)
    """Wins, and as many losses, of everyone against a fictitious opponent of strength 1."""
    ties: Ties = "half"
    """What `=` is worth: `half` a win for each side, or nothing (`ignore`)."""
    duplicates: Duplicates = "one"
    """Whether a voter's repeated verdict on a pair counts as `one` or each time (`count`)."""

    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("generator",)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return [self._score(read_debate(transcript)) for transcript in transcripts]

    def _score(self, debate: ReadDebate) -> Score:
        votes = all_votes(ballots(debate, self.duplicates))
        values = self._values(votes)
        credits = tuple(
            Credit(*key, "generator", FAILURE_VALUE, penalty=True)
            if turn.failed
            else Credit(*key, "generator", values.get(key.agent if self.unit == "agent" else key))
            for key, turn in debate.turns.items()
        )
        metrics = {
            "bradley_terry/votes": float(len(votes)),
            "bradley_terry/unvoted_turns": float(sum(c.value is None for c in credits)),
        }
        known = [c.value for c in credits if c.value is not None]
        if known:
            metrics["reward/gen/mean"] = sum(known) / len(known)
        num_agents = debate.transcript.protocol.num_agents
        return Score(credits, mean_returns(credits, num_agents), metrics)

    def _values(self, votes: Sequence[Vote]) -> dict[TurnKey | int, float]:
        wins: dict[tuple[TurnKey | int, TurnKey | int], float] = {}
        for vote in votes:
            given = points(vote.verdict, self.ties)
            if given is not None:
                left, right = vote.pair
                a: TurnKey | int = left.agent if self.unit == "agent" else left
                b: TurnKey | int = right.agent if self.unit == "agent" else right
                wins[a, b] = wins.get((a, b), 0.0) + given.up
                wins[b, a] = wins.get((b, a), 0.0) + given.down
        return {item: math.tanh(log / 2) for item, log in log_strengths(wins, self.prior).items()}
