"""The v2 reward: turns are valued by the votes on them, judges by agreement with each other."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from pydantic import Field

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Transcript, TurnKey, role_of, roles_of
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
from debate_rewards.rewards.spans import JudgeCredit
from debate_rewards.rewards.truth import truth_of
from debate_rewards.votes.ballots import (
    Ballot,
    Duplicates,
    Share,
    Ties,
    Vote,
    all_votes,
    ballots,
    by_pair,
    judges_of_a_pair,
    tally,
)
from debate_rewards.votes.controls import VotesFrom, shuffled_credits, shuffled_verdicts
from debate_rewards.votes.judging import (
    CENTRED,
    JUDGE,
    PARTS,
    Consensus,
    consensus_values,
    judge_credits,
    margin,
    peer_prediction_values,
    peer_score_values,
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
