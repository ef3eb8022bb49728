"""Reward `v2`: peer votes as two streams, `generator` and `judge`.

For a judged turn t, and a vote v of judge j on a pair of turns:

    generator(t)  = 2·for(t) / (for(t) + against(t)) − 1, a tie half a vote for each side
    judge(v)      = +1 if v agrees with the majority of the other judges of the pair, −1 if not
    judge turn    = mean of judge(v) over its votes, or the format penalty without any

The functions below follow this order. `votes.ballots` selects the lines counted as votes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from debate_protocol.parsing import Range, evaluation_parts
from debate_protocol.plugins import Config
from debate_protocol.types import Transcript, TurnKey, role_of
from debate_rewards.answer_pools import PooledReward, pooled_answers, pooled_shares
from debate_rewards.reward import (
    FAILURE_VALUE,
    Credit,
    ReadDebate,
    ReadTurn,
    RewardContext,
    RewardNeeds,
    RewardNote,
    Score,
    build_score,
    known_mean,
    read_debate,
)
from debate_rewards.v2_metrics import v2_metrics
from debate_rewards.vote_advice import (
    v2_warnings,
    why_few_judges,
    why_few_questions,
    why_nobody_votes,
)
from debate_rewards.votes import (
    JUDGE,
    Ballot,
    Ties,
    Verdict,
    Vote,
    all_votes,
    ballots,
    judged_ballots,
)

JudgeCredit = Literal["line", "block", "segment"]
Consensus = Literal["leave_one_out", "inclusive", "peer_prediction", "none"]

_UNVOTED_VALUES = {"mask": None, "zero": 0.0, "literal": -1.0}
_POINTS_OF_LEFT = {">": 1.0, "=": 0.5, "<": 0.0}
_LEAD_OF_LEFT = {">": 1, "=": 0, "<": -1}


def generator_values(votes: Sequence[Vote], ties: Ties) -> dict[TurnKey, float]:
    """Compute 2·for / (for + against) − 1 of each judged turn.

    Args:
        votes: Counted votes of one debate.
        ties: `half` gives each side of `=` half a vote; `ignore` drops it.

    Source: multi-agent debate overview, section 2.2.1.
    """
    votes_for: dict[TurnKey, float] = {}
    num_votes: dict[TurnKey, int] = {}
    for vote in votes:
        if vote.verdict == "=" and ties == "ignore":
            continue
        points_left = _POINTS_OF_LEFT[vote.verdict]
        for turn, points in ((vote.left, points_left), (vote.right, 1 - points_left)):
            # A judge that ranks its own turn, too, has no say in the worth of this turn.
            if turn.agent == vote.judge.agent:
                continue
            votes_for[turn] = votes_for.get(turn, 0.0) + points
            num_votes[turn] = num_votes.get(turn, 0) + 1
    return {turn: 2 * votes_for[turn] / num_votes[turn] - 1 for turn in num_votes}


def consensus_values(
    votes: Sequence[Vote], consensus: Literal["leave_one_out", "inclusive"]
) -> list[float | None]:
    """Compute +1 for a vote with the consensus on its pair and −1 against it, in order.

    `None` for a vote `=`, a level consensus, or a pair without other judges.

    Source: multi-agent debate overview, section 2.2.2; `leave_one_out` takes this judge's own
    votes out of the consensus, without which a lone judge always agrees with itself.
    """
    values: list[float | None] = [None] * len(votes)
    for indices in _indices_by_pair(votes):
        lead = 0
        # Counted by judge: reading all votes of a pair again for each of them takes N⁴ steps for
        # N agents, who cast N³ votes.
        lead_by_judge: Counter[int] = Counter()
        for index in indices:
            vote = votes[index]
            lead += _LEAD_OF_LEFT[vote.verdict]
            lead_by_judge[vote.judge.agent] += _LEAD_OF_LEFT[vote.verdict]
        for index in indices:
            vote = votes[index]
            consensus_lead = lead
            # All votes of this judge leave, not only this one: a repeated line would else be its
            # own consensus.
            if consensus == "leave_one_out":
                consensus_lead -= lead_by_judge[vote.judge.agent]
            # A tie is neither with a consensus nor against it.
            if vote.verdict != "=" and consensus_lead != 0:
                agrees = (vote.verdict == ">") == (consensus_lead > 0)
                values[index] = 1.0 if agrees else -1.0
    return values


def peer_prediction_values(
    votes: Sequence[Vote], elsewhere: Mapping[Verdict, int]
) -> list[float | None]:
    """Compute agreement with the other judges beyond the usual one on other questions.

    The value of a vote is the share of the other judges of its pair with the same verdict, minus
    the frequency of the verdict on the other questions. A habit shared by all judges on every
    question earns 0 on average. A habit that changes with the question is paid: where all judges
    say `>` on half of the questions and `<` on the others, each vote earns 1 − 1/2. `None` where
    no other judge compared the pair or there are no votes elsewhere.

    Args:
        votes: All counted votes of one debate.
        elsewhere: How often each verdict was given on the other questions of the batch.

    Source: Dasgupta and Ghosh (2013); Shnayder et al. (2016), multi-task peer prediction.
    """
    num_elsewhere = sum(elsewhere.values())
    values: list[float | None] = [None] * len(votes)
    if not num_elsewhere:
        return values
    for indices in _indices_by_pair(votes):
        num_by_verdict = Counter(votes[index].verdict for index in indices)
        num_by_judge = Counter(votes[index].judge.agent for index in indices)
        # Where repeated lines count, a judge has several votes on a pair: none is its peer.
        num_equal_by_judge = Counter(
            (votes[index].judge.agent, votes[index].verdict) for index in indices
        )
        for index in indices:
            judge = votes[index].judge.agent
            verdict = votes[index].verdict
            num_others = len(indices) - num_by_judge[judge]
            if num_others:
                num_agreeing = num_by_verdict[verdict] - num_equal_by_judge[judge, verdict]
                chance = elsewhere.get(verdict, 0) / num_elsewhere
                values[index] = num_agreeing / num_others - chance
    return values


def _indices_by_pair(votes: Sequence[Vote]) -> list[list[int]]:
    indices: dict[tuple[TurnKey, TurnKey], list[int]] = {}
    for index, vote in enumerate(votes):
        indices.setdefault(vote.pair, []).append(index)
    return list(indices.values())


def verdicts_elsewhere(
    questions: Sequence[str], votes: Sequence[Sequence[Vote]]
) -> list[Counter[Verdict]]:
    """Count, per debate, how often each verdict was given on the other questions of the batch.

    Args:
        questions: Question id per debate; debates on one question do not count for each other.
        votes: Counted votes per debate.
    """
    batch_verdicts: Counter[Verdict] = Counter()
    question_verdicts: dict[str, Counter[Verdict]] = {}
    for question, debate_votes in zip(questions, votes, strict=True):
        debate_verdicts = Counter(vote.verdict for vote in debate_votes)
        batch_verdicts.update(debate_verdicts)
        question_verdicts.setdefault(question, Counter()).update(debate_verdicts)
    # The batch without one question, not a sum over the others: that takes the square of the batch.
    return [batch_verdicts - question_verdicts[question] for question in questions]


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
        turn_ballots: Mapping[TurnKey, Ballot],
        values: Sequence[float | None],
        *,
        centred: bool = False,
    ) -> list[Credit]:
        """Build the credits of each valid judge turn: the whole turn, then lines and parts.

        A turn's value is the mean over its valued votes, or the format penalty where comparisons
        were expected and none counted. A failed turn has none.

        Args:
            debate: The debate.
            turn_ballots: The ballot of each turn.
            values: The value of each vote, in the order of the ballots.
            centred: Whether a habit already earns 0, so that no baseline is taken off by default.

        Source: multi-agent debate overview, section 2.2.3, for the penalty.
        """
        credits: list[Credit] = []
        next_value = iter(values)
        for key, ballot in turn_ballots.items():
            vote_values = [next(next_value) for _ in ballot.votes]
            turn = debate.judges[key]
            if turn.failed:
                continue
            is_penalized = ballot.lacks_comparisons and self.format_penalty is not None
            credits.append(
                Credit(
                    *key,
                    stream=JUDGE,
                    value=self.format_penalty if is_penalized else known_mean(vote_values),
                    penalty=is_penalized,
                    expected=ballot.num_expected > 0,
                    centred=centred,
                )
            )
            if self.judge_credit == "block" or is_penalized or not ballot.votes:
                continue
            for span, value in self._span_values(turn, ballot, vote_values):
                credits.append(
                    Credit(*key, JUDGE, value, span=span, expected=False, centred=centred)
                )
        return credits

    def _span_values(
        self, turn: ReadTurn, ballot: Ballot, vote_values: Sequence[float | None]
    ) -> list[tuple[Range, float | None]]:
        # A line or part without a value has a credit with None: its tokens take no signal rather
        # than the turn's mean, which would pay it for the lines that count.
        span_values: list[tuple[Range, float | None]] = []
        if self.judge_credit == "segment":
            values_by_agent: dict[int, list[float | None]] = {}
            for vote, value in zip(ballot.votes, vote_values, strict=True):
                values_by_agent.setdefault(vote.left.agent, []).append(value)
                values_by_agent.setdefault(vote.right.agent, []).append(value)
            for agent, span in evaluation_parts(turn.turn.text, turn.parsed):
                span_values.append((span, known_mean(values_by_agent.get(agent, []))))
        for vote, value in zip(ballot.votes, vote_values, strict=True):
            span_values.append((vote.span, value))
        span_values += [(span, None) for span in ballot.failed_turn_spans]
        span_values += [(span, self.format_penalty) for span in ballot.rejected_spans]
        if len({vote.pair for vote in ballot.votes}) < ballot.num_expected:
            # The section's end is the choice that left pairs out; the mean of the pairs compared
            # would pay for it.
            section = turn.parsed.sections["comparison"]
            end_span = (section.span[1], section.outer[1])
            span_values.append((end_span, self.format_penalty))
        return span_values


class V2(JudgeSettings, PooledReward):
    """Peer votes as two streams, `generator` and `judge`.

    `generator`, per judged turn: 2·for/(for+against) − 1. `judge`, per comparison: agreement with
    the other judges of that pair of turns; per turn: the mean over its valued comparisons, or
    `format_penalty` (`None`: no penalty) where comparisons were expected and none counted. A failed
    turn carries −1 on `generator` and nothing else.

    `pool: answer` lets a vote value all turns with the judged answer, those of other agents and of
    the last round too, except turns of the voter.

    `unvoted` says what a valid turn without votes gets: no signal, 0, or the literal formula's −1.
    `judge_credit` says where judge values go: one for the `block`, one per `line`, or per `segment`
    (lines, and each part of the evaluation about one agent). Under the last two a line that does
    not count, and the end of a section that leaves out expected pairs, are worth `format_penalty`.
    `consensus: peer_prediction` compares across questions, so it needs batches with more than one;
    `none` leaves the judge stream to another component of a mixed reward, such as `truth_judge`.
    `votes_of` names the one role whose votes value turns, such as judges that stay as they are.

    Source: multi-agent debate overview, section 2.2. Deviations: `unvoted: mask`,
    `duplicates: one`, `ties: half` and `consensus: leave_one_out` are defaults that the text does
    not have; `literal`, `count`, `ignore` and `inclusive` are the text's.
    """

    type: Literal["v2"] = "v2"
    unvoted: Literal["mask", "zero", "literal"] = "mask"
    """A valid turn that nobody voted on: no signal (`mask`), 0 (`zero`), or -1 (`literal`)."""
    consensus: Consensus = "leave_one_out"
    """What a judge's verdicts are held against; `none` leaves the stream `judge` out."""
    votes_of: str | None = None
    """The role whose votes alone value turns; null is all roles."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams with values."""
        return ("generator",) if self.consensus == "none" else ("generator", JUDGE)

    def needs(self) -> RewardNeeds:
        """Describe needs: comparisons, and two questions where verdicts are compared across."""
        num_questions = 2 if self.consensus == "peer_prediction" else 1
        return RewardNeeds(votes=True, num_questions=num_questions, policy=False)

    @property
    def centred(self) -> bool:
        """Whether a verdict that does not depend on the turns already earns 0 on average."""
        return self.consensus == "peer_prediction"

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Score a batch of debates, in order."""
        return self.score_read([read_debate(transcript) for transcript in transcripts])

    def score_read(self, debates: Sequence[ReadDebate]) -> list[Score]:
        """Score parsed debates, in order."""
        # Turns are valued by the votes on them, judges by their own verdicts: the two differ for a
        # judge who was shown one answer alone, and makes a vote only with another such judge.
        turn_ballots = [ballots(debate, self.duplicates) for debate in debates]
        judge_ballots = list(map(judged_ballots, debates, turn_ballots))
        # Of all debates at once: peer prediction compares a verdict with other questions'.
        generator_votes = self.booked_votes(debates, list(map(all_votes, turn_ballots)))
        judge_values = self.verdict_values(debates, list(map(all_votes, judge_ballots)))
        scores = []
        for index, debate in enumerate(debates):
            generator_credits = self.generator_credits(debate, generator_votes[index])
            judge_credits: list[Credit] = []
            if self.consensus != "none":
                judge_credits = self.judge_credits(
                    debate, judge_ballots[index], judge_values[index], centred=self.centred
                )
            metrics = v2_metrics(
                debate, turn_ballots[index], judge_ballots[index], generator_credits, judge_credits
            )
            # An agent's return is the mean over its generator credits.
            score = build_score(debate.transcript, generator_credits, metrics)
            scores.append(replace(score, credits=(*generator_credits, *judge_credits)))
        return scores

    def booked_votes(
        self, debates: Sequence[ReadDebate], votes: Sequence[list[Vote]]
    ) -> Sequence[list[Vote] | None]:
        """Select the votes on turns of each debate by role, `None` for no signal."""
        if self.votes_of is None:
            return votes
        booked: list[list[Vote]] = []
        for debate, debate_votes in zip(debates, votes, strict=True):
            protocol = debate.transcript.protocol
            role_votes = []
            for vote in debate_votes:
                if role_of(protocol, vote.judge.agent).name == self.votes_of:
                    role_votes.append(vote)
            booked.append(role_votes)
        return booked

    def generator_credits(self, debate: ReadDebate, votes: Sequence[Vote] | None) -> list[Credit]:
        """Build the credits of a debate's turns by the votes on them."""
        if votes is None:
            return [Credit(*key, "generator", None, expected=False) for key in debate.turns]
        if self.pool == "answer":
            shares = pooled_shares(votes, self.ties, pooled_answers(debate))
            values = {key: share.balance for key, share in shares.items()}
        else:
            values = generator_values(votes, self.ties)
        unvoted_value = _UNVOTED_VALUES[self.unvoted]
        credits = []
        for key, turn in debate.turns.items():
            if turn.failed:
                credits.append(Credit(*key, "generator", FAILURE_VALUE, penalty=True))
            else:
                credits.append(Credit(*key, "generator", values.get(key, unvoted_value)))
        return credits

    def verdict_values(
        self, debates: Sequence[ReadDebate], votes: Sequence[list[Vote]]
    ) -> list[list[float | None]]:
        """Compute the value of each vote for the judge, per debate."""
        if self.consensus == "none":
            return [[None] * len(debate_votes) for debate_votes in votes]
        if self.consensus != "peer_prediction":
            return [consensus_values(debate_votes, self.consensus) for debate_votes in votes]
        question_ids = [debate.transcript.question.id for debate in debates]
        elsewhere = verdicts_elsewhere(question_ids, votes)
        return list(map(peer_prediction_values, votes, elsewhere))

    def notes(self, context: RewardContext) -> Iterator[RewardNote]:
        """Yield causes without votes or judges, and settings that were worse when measured."""
        yield from super().notes(context)
        unknown_voter = why_nobody_votes(self.votes_of, context)
        if unknown_voter is not None:
            yield RewardNote(kind="no_signal", text=unknown_voter, stream="generator")
        if self.consensus == "none":
            for key in ("judge_credit", "format_penalty"):
                if getattr(self, key) != V2.model_fields[key].default:
                    text = f"reward.{key}: changes nothing: consensus is none, which pays no judge"
                    yield RewardNote(kind="doubt", text=text)
        num_questions = self.needs().num_questions
        if context.questions < num_questions:
            text = why_few_questions(self.consensus, num_questions, context)
            yield RewardNote(kind="no_signal", text=text, stream=JUDGE)
        if context.judge_weight > 0 and self.consensus != "none":
            few_judges = why_few_judges(context, is_inclusive=self.consensus == "inclusive")
            if few_judges is not None:
                yield RewardNote(kind="few_judges", text=few_judges, stream=JUDGE)
        for text in v2_warnings(context, is_literal=self.unvoted == "literal"):
            yield RewardNote(kind="doubt", text=text)
