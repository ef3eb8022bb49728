"""Rewards made of peer votes: v2, win rate, win minus loss and Bradley-Terry strength."""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Transcript, TurnKey, role_of, roles_of
from debate_rewards.reward import (
    Credit,
    ReadDebate,
    ReadTurn,
    RewardContext,
    Score,
    known_mean,
    read_debate,
    scored,
    turn_credits,
)
from debate_rewards.strengths import log_strengths, wins_of
from debate_rewards.votes import (
    JUDGE,
    Ballot,
    Consensus,
    JudgeSettings,
    Line,
    PeerReward,
    Share,
    Vote,
    all_votes,
    ballots,
    by_pair,
    consensus_values,
    judges_of_a_pair,
    margin,
    orient,
    peer_prediction_values,
    points,
    tally,
    verdicts_elsewhere,
    without_repetitions,
)


def _comparison_lines(turn: ReadTurn) -> int:
    """Return how many lines a turn's comparison section held, whatever they were worth."""
    parsed = turn.parsed
    return len(parsed.comparisons) + parsed.invalid_lines + parsed.self_dropped + parsed.malformed


def v2_metrics(
    debate: ReadDebate,
    cast: Mapping[TurnKey, Ballot],
    generator: Sequence[Credit],
    judge: Sequence[Credit],
) -> dict[str, float | None]:
    """Return the vote metrics of one debate; a mean or share over nothing is None.

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
    expected = sum(ballot.owed for ballot in cast.values())
    made = sum(len({vote.pair for vote in b.votes}) for b in cast.values() if b.owed)
    sums = {
        "v2/total_votes": len(votes),
        "v2/missing_comparisons": sum(ballot.missing for ballot in cast.values()),
        "v2/comparison_lines_total": sum(map(_comparison_lines, judges_read)),
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
        "reward/gen/mean": known_mean(credit.value for credit in generator),
        "reward/judge/mean": known_mean(c.value for c in judge if c.span is None),
    }
    return {name: float(value) for name, value in sums.items()} | shares


def _share(part: float, whole: float) -> float | None:
    return part / whole if whole else None


class V2(JudgeSettings, PeerReward):
    """Peer votes as two streams, `generator` and `judge`.

    `generator`, per judged turn: 2·for/(for+against) − 1. `judge`, per comparison: agreement with
    the other judges of that pair of turns; per turn: the mean over its valued comparisons, or
    `format_penalty` (None: no penalty) where comparisons were expected and none counted. A failed
    turn carries −1 on `generator` and nothing else.

    `unvoted` says what a valid turn without votes gets: no signal, 0, or the literal formula's −1.
    `judge_credit` says where judge values go: one for the `block`, one per `line`, or per `segment`
    (lines, and each part of the evaluation about one agent). Under the last two a line that does
    not count, and the end of a section that leaves out owed pairs, are worth `format_penalty`.
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
        """The streams that get values."""
        return ("generator",) if self.consensus == "none" else ("generator", JUDGE)

    def __call__(self, transcripts: Sequence[Transcript]) -> list[Score]:
        """Return one score a transcript, in order."""
        return self.score_read([read_debate(transcript) for transcript in transcripts])

    def score_read(self, debates: Sequence[ReadDebate]) -> list[Score]:
        """Return one score a debate that has been read already, in order."""
        cast = [ballots(debate, self.duplicates) for debate in debates]
        votes = [all_votes(its_ballots) for its_ballots in cast]
        values = self.verdict_values(debates, votes)
        booked = self.booked_votes(debates, votes)
        return [self._score(*one) for one in zip(debates, cast, booked, values, strict=True)]

    def verdict_values(
        self, debates: Sequence[ReadDebate], votes: Sequence[list[Vote]]
    ) -> list[list[float | None]]:
        """Return what each vote earns its judge, per debate."""
        questions = [debate.transcript.question.id for debate in debates]
        match self.consensus:
            case "none":
                return [[None] * len(its_votes) for its_votes in votes]
            case "peer_prediction":
                elsewhere = verdicts_elsewhere(questions, votes)
                return [peer_prediction_values(v, e) for v, e in zip(votes, elsewhere, strict=True)]
            case kind:
                return [consensus_values(its_votes, kind) for its_votes in votes]

    def booked_votes(
        self, debates: Sequence[ReadDebate], votes: Sequence[list[Vote]]
    ) -> Sequence[list[Vote] | None]:
        """Return the votes that value the turns of each debate, None where there is no signal."""
        if self.votes_of is None:
            return votes
        rules = [debate.transcript.protocol for debate in debates]
        return [
            [vote for vote in its if role_of(own, vote.judge.agent).name == self.votes_of]
            for own, its in zip(rules, votes, strict=True)
        ]

    def generator_credits(self, debate: ReadDebate, votes: Sequence[Vote] | None) -> list[Credit]:
        """Return what the turns of a debate earn by the votes on them."""
        if votes is None:
            return [Credit(*key, "generator", None, expected=False) for key in debate.turns]
        unvoted = {"mask": None, "zero": 0.0, "literal": -1.0}[self.unvoted]
        shares = tally(votes, self.ties)
        voted = {key: share.balance for key, share in shares.items()}
        return turn_credits(debate, {key: voted.get(key, unvoted) for key in debate.turns})

    def _score(
        self,
        debate: ReadDebate,
        cast: Mapping[TurnKey, Ballot],
        votes: Sequence[Vote] | None,
        values: Sequence[float | None],
    ) -> Score:
        generator = self.generator_credits(debate, votes)
        judge: list[Credit] = []
        if self.consensus != "none":
            judge = self.judge_credits(debate, cast, values, centred=self.centred)
        metrics = v2_metrics(debate, cast, generator, judge)
        score = scored(debate.transcript, generator, metrics)
        return replace(score, credits=(*generator, *judge))

    @property
    def least_questions(self) -> int:
        """Two where verdicts are compared with those on other questions."""
        return 2 if self.consensus == "peer_prediction" else 1

    @property
    def centred(self) -> bool:
        """Whether a verdict that does not depend on the turns already earns 0 on average."""
        return self.consensus == "peer_prediction"

    def why_no_signal(self, stream: str, context: RewardContext) -> str | None:
        """Return why no turn has a vote that counts, or no judge a value."""
        if stream != JUDGE:
            names = [role.name for role in roles_of(context.rules)]
            if self.votes_of is None or self.votes_of in names:
                return None
            return (
                f"votes_of: found {self.votes_of!r}, expected a role of the debate, one of "
                f"{', '.join(names)}{did_you_mean(self.votes_of, names)}"
            )
        if context.questions < self.least_questions:
            found = "one question" if context.questions == 1 else f"{context.questions} questions"
            return (
                f"{self.consensus} compares verdicts with those on other questions of the step, "
                f"and a step has {found}; expected data.batch_size above {self.least_questions - 1}"
            )
        return self.few_judges(context)

    def few_judges(self, context: RewardContext) -> str | None:
        """Return why the judge stream teaches little, where each pair has some judge but few."""
        rules, weight = context.rules, context.judge_weight
        if weight <= 0 or self.consensus == "none":
            return None
        fewest, most = judges_of_a_pair(rules)
        if fewest < rules.num_agents - 2:
            found = (
                f"debate.topology: under {rules.topology} at most {most} agents see both of a pair"
            )
            return None if most >= 3 else f"{found}; expected topology all or judge weight 0"
        if most not in (1, 2):
            return None
        judges = ("one judge", "two judges")[most - 1]
        values = ("nobody to agree with", "only each other to copy")[most - 1]
        if self.consensus == "inclusive":
            values = ("the value +1 whatever it says", "never the value -1")[most - 1]
        return (
            f"v2 with {rules.num_agents} agents and judge weight {weight:g}: each pair has "
            f"{judges} a round, with {values}. Use 5 or more agents, or judge weight 0."
        )

    def warnings(self, context: RewardContext) -> list[str]:
        """Return what should be looked at."""
        found = []
        if self.unvoted == "literal":
            found.append(
                "reward.unvoted: literal gives -1 to turns that nobody could vote on; mask does not"
            )
        if context.baseline == "debate" and context.rules.max_rounds > 1:
            found.append(
                "advantage.baseline: debate compares turns of different rounds, which were judged "
                "by different votes; question_round was safer where it was measured"
            )
        return found


# Step reward of a failed turn, a part of its agent's total return.
FAILED_STEP = -1.0


class _Pairwise(PeerReward):
    @property
    def streams(self) -> tuple[str, ...]:
        """The streams that get values."""
        return ("return",)

    @abstractmethod
    def value(self, share: Share) -> float:
        """Return what an agent with these votes for and against it is worth."""

    def score(self, debate: ReadDebate) -> Score:
        """Return the score of one debate."""
        shares = [Share(0.0, 0.0)] * debate.transcript.protocol.num_agents
        counted = {"total_votes": 0, "malformed": 0, "contradictory": 0, "failed_dropped": 0}
        for judge in debate.judges.values():
            counted["malformed"] += judge.parsed.malformed
            if judge.failed:
                continue
            about_valid = _about_valid(debate, judge)
            kept, clashes = without_repetitions(about_valid, self.duplicates)
            counted["failed_dropped"] += len(judge.parsed.comparisons) - len(about_valid)
            counted["contradictory"] += clashes
            counted["total_votes"] += len(kept)
            for line in kept:
                given = points(line.verdict, self.ties)
                if given is not None:
                    low, high = shares[line.low], shares[line.high]
                    shares[line.low] = Share(low.up + given.up, low.down + given.down)
                    shares[line.high] = Share(high.up + given.down, high.down + given.up)
        values = [self.value(share) if share.up + share.down else 0.0 for share in shares]
        returns = list(values)
        for key, turn in debate.turns.items():
            returns[key.agent] += FAILED_STEP * turn.failed
        credits = tuple(
            Credit(*key, "return", returns[key.agent], penalty=turn.failed)
            for key, turn in debate.turns.items()
        )
        metrics = {f"pairwise_{name}": float(count) for name, count in counted.items()}
        metrics |= {
            "pairwise_reward": known_mean(values) or 0.0,
            "pairwise_reward_is_win_rate": 0.0,
            "pairwise_reward_is_win_minus_loss": 0.0,
            f"pairwise_reward_is_{self.type}": 1.0,
            "pairwise_any_votes": float(counted["total_votes"] > 0),
        }
        return Score(credits, tuple(returns), metrics)


def _about_valid(debate: ReadDebate, judge: ReadTurn) -> list[Line]:
    """Return the lines whose agents were not last shown to the judge with a failed turn."""
    broken = {agent for agent, turn in debate.judged_by(judge).items() if turn.failed}
    lines = map(orient, judge.parsed.comparisons)
    return [line for line in lines if not broken.intersection((line.low, line.high))]


class WinRate(_Pairwise):
    """The share of peer votes that an agent won, W/V in [0, 1], 0 without votes.

    Stream `return`: the same value on each of an agent's turns, with −1 added for each of its
    failed turns. Every comparison of two other agents counts, shown or not, except lines about a
    failed turn.

    Source: multi-agent debate implementation note, reward function 1. Deviation: repeated lines of
    a turn count once (`duplicates: count` is the note's rule).
    """

    type: Literal["win_rate"] = "win_rate"

    def value(self, share: Share) -> float:
        """Return the share of votes won."""
        return share.up / (share.up + share.down)


class WinMinusLoss(_Pairwise):
    """The mean signed result of an agent's matchups, S/M in [−1, 1], 0 without votes.

    Ties count as matchups with result 0 (`ties: ignore` leaves them out). All else is as in
    `WinRate`.

    Source: multi-agent debate implementation note, reward function 2.
    """

    type: Literal["win_minus_loss"] = "win_minus_loss"

    def value(self, share: Share) -> float:
        """Return votes for minus votes against, by votes."""
        return (share.up - share.down) / (share.up + share.down)


class BradleyTerry(PeerReward):
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

    Source: Bradley and Terry (1952); the prior, at 1, is the logistic one of Newman (2023),
    Efficient computation of rankings from pairwise comparisons.
    """

    type: Literal["bradley_terry"] = "bradley_terry"
    unit: Literal["turn", "agent"] = "turn"
    """What has a strength: each `turn`, or each `agent` over all its turns."""
    prior: float = Field(default=1.0, ge=1e-3)
    """Wins, and as many losses, of everyone against a fictitious opponent of strength 1."""

    def score(self, debate: ReadDebate) -> Score:
        """Return the score of one debate."""
        votes = all_votes(ballots(debate, self.duplicates))

        def item(key: TurnKey) -> TurnKey | int:
            return key.agent if self.unit == "agent" else key

        strengths = log_strengths(wins_of(votes, self.ties, item), self.prior)
        values = {item: math.tanh(log / 2) for item, log in strengths.items()}
        credits = turn_credits(debate, {key: values.get(item(key)) for key in debate.turns})
        metrics = {
            "bradley_terry/votes": float(len(votes)),
            "bradley_terry/unvoted_turns": float(sum(c.value is None for c in credits)),
            "reward/gen/mean": known_mean(credit.value for credit in credits),
        }
        return scored(debate.transcript, credits, metrics)
