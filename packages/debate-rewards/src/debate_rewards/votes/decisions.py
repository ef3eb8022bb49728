r"""What a debate as a whole answers: by majority, by votes or their strengths, or by its center.

Ties are drawn by `random.Random(f"{seed}\n{transcript.id}")`, so that the same seed always gives
the same decision on a debate and different debates draw apart.
"""

import math
import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import ClassVar, Literal, TypeVar

from pydantic import Field

from debate_protocol.transcripts.records import mean_logp
from debate_protocol.types import Transcript, TurnKey
from debate_rewards.answers.checking import answer_classes, kind_of
from debate_rewards.answers.final_answers import final_answer
from debate_rewards.reward import (
    FAILURE_VALUE,
    Credit,
    Need,
    ReadDebate,
    ReadTurn,
    RewardConfig,
    Score,
    mean_returns,
    read_debate,
)
from debate_rewards.votes.ballots import (
    Duplicates,
    Share,
    Ties,
    Vote,
    all_votes,
    ballots,
    points,
    tally,
)

TOLERANCE = 1e-10
"""Largest change of a log strength at which the fit has converged."""
MAX_SWEEPS = 10_000

Item = TypeVar("Item", bound=Hashable)
Results = Mapping[tuple[Item, Item], float]
"""Wins of the first over the second; a tie is half a win for each."""


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


def log_strengths(wins: Results[Item], prior: float) -> dict[Item, float]:
    """Return the log strength of each item that maximises likelihood times prior.

    Args:
        wins: Wins of the first of a pair over the second, in both orders.
        prior: Wins, and losses, of each item against a fictitious item of log strength 0.

    Source: Newman (2023), the iteration for its logistic prior; here each sweep uses new values
    at once, and `prior` may differ from 1.
    """
    rivals: dict[Item, list[tuple[Item, float, float]]] = {}
    for (a, b), won in wins.items():
        rivals.setdefault(a, []).append((b, won, wins.get((b, a), 0.0)))
    strength = dict.fromkeys(rivals, 1.0)
    for _ in range(MAX_SWEEPS):
        change = 0.0
        for item, played in rivals.items():
            own = strength[item]
            gained = lost = prior / (own + 1)
            for rival, won, conceded in played:
                other = strength[rival]
                gained += won * other / (own + other)
                lost += conceded / (own + other)
            strength[item] = gained / lost
            change = max(change, abs(math.log(gained / lost / own)))
        if change < TOLERANCE:
            break
    return {item: math.log(own) for item, own in strength.items()}


def majority(transcript: Transcript, seed: int) -> str | None:
    """Return the answer that most agents gave in the last round, None when nobody answered.

    Answers are counted by equivalence. Among equally large classes one is drawn, repeatably by
    seed and transcript id.
    """
    return majority_of(read_debate(transcript), seed)


def majority_of(debate: ReadDebate, seed: int) -> str | None:
    """Return the majority's answer of a debate that has been read; see `majority`."""
    return _weightiest(debate, seed, lambda turn: 1.0)


def confidence(transcript: Transcript, seed: int) -> str | None:
    """Return the answer of the last round whose agents were the most confident together.

    As `majority`, but a vote weighs as much as the geometric mean of the probabilities of its
    reply's tokens, exp(mean log-probability). None when nobody answered, or when an answer's
    log-probabilities are not known.
    """
    debate = read_debate(transcript)
    return confidence_of(debate, seed) if knows_confidence(debate) else None


def confidence_of(debate: ReadDebate, seed: int) -> str | None:
    """Return the weighted majority's answer of a debate that has been read; see `confidence`."""
    return _weightiest(debate, seed, lambda turn: math.exp(mean_logp(turn.turn) or 0.0))


def knows_confidence(debate: ReadDebate) -> bool:
    """Return whether the log-probabilities of the last round's answers are known."""
    answered = [turn.turn for turn in last_turns(debate).values() if not turn.failed]
    return bool(answered) and all(mean_logp(turn) is not None for turn in answered)


def peer_vote(transcript: Transcript, seed: int) -> str | None:
    """Return the answer of the agent whom the others voted up most, None when nobody answered.

    The votes are those of the last round in which any were cast; an agent's standing is its votes
    for minus its votes against, ties half each way, and the answer is that of the turn that was
    judged. Equal standings are drawn from, repeatably by seed and transcript id; without any votes
    that is every agent with an answer in the last round.
    """
    return peer_vote_of(read_debate(transcript), seed)


def peer_vote_of(debate: ReadDebate, seed: int) -> str | None:
    """Return the peers' choice of a debate that has been read; see `peer_vote`."""
    candidates = standings(debate) or [
        (turn, 0.0) for turn in last_turns(debate).values() if not turn.failed
    ]
    if not candidates:
        return None
    best = max(standing for _, standing in candidates)
    top = [turn for turn, standing in candidates if standing == best]
    return answer_text(debate, top[_draw(debate.transcript, seed, range(len(top)))])


def bradley_terry(transcript: Transcript, seed: int) -> str | None:
    """Return the answer of the agent whose Bradley-Terry strength is the greatest.

    The strengths are those of the agents over the votes of all rounds, ties half a win for each,
    under the prior of one win and one loss against an agent of strength 1 (`BradleyTerry`); a win
    against a strong agent counts for more than one against a weak one. The answer is the agent's
    last one. Equals are drawn from; without votes that is every agent that answered last.
    """
    return bradley_terry_of(read_debate(transcript), seed)


def bradley_terry_of(debate: ReadDebate, seed: int) -> str | None:
    """Return the strongest agent's answer of a debate that was read; see `bradley_terry`."""
    wins: dict[tuple[int, int], float] = {}
    for vote in all_votes(ballots(debate)):
        given = points(vote.verdict, "half")
        assert given is not None
        left, right = vote.left.agent, vote.right.agent
        wins[left, right] = wins.get((left, right), 0.0) + given.up
        wins[right, left] = wins.get((right, left), 0.0) + given.down
    # The fit ends within its tolerance: what is closer than that is equally strong.
    strengths = {agent: round(log, 8) for agent, log in log_strengths(wins, 1.0).items()}
    answered = {turn.key.agent: turn for turn in debate.turns.values() if not turn.failed}
    judged = sorted(strengths.keys() & answered.keys())
    if not judged:
        turns = [turn for turn in last_turns(debate).values() if not turn.failed]
    else:
        best = max(strengths[agent] for agent in judged)
        turns = [answered[agent] for agent in judged if strengths[agent] == best]
    if not turns:
        return None
    return answer_text(debate, turns[_draw(debate.transcript, seed, range(len(turns)))])


def central(transcript: Transcript) -> str | None:
    """Return the last answer of the agent that aggregates under topology `central`.

    None when it never spoke or its last turn has no answer.

    Raises:
        ValueError: The topology is another one.
    """
    return central_of(read_debate(transcript))


def central_of(debate: ReadDebate) -> str | None:
    """Return the center's answer of a debate that has been read; see `central`."""
    rules = debate.transcript.protocol
    if rules.topology != "central":
        raise ValueError(
            f"debate {debate.transcript.id!r}, decision central: found topology "
            f"{rules.topology!r}, expected 'central'"
        )
    spoken = [turn for key, turn in debate.turns.items() if key.agent == (rules.center or 0)]
    return answer_text(debate, max(spoken, key=lambda turn: turn.key.round)) if spoken else None


def decisions_of(debate: ReadDebate, seed: int) -> dict[str, str | None]:
    """Return the answer of every decision rule that applies to the debate, by name."""
    decided = {"majority": majority_of(debate, seed)}
    if debate.compares:
        decided["peer_vote"] = peer_vote_of(debate, seed)
        decided["bradley_terry"] = bradley_terry_of(debate, seed)
    if knows_confidence(debate):
        decided["confidence"] = confidence_of(debate, seed)
    if debate.transcript.protocol.topology == "central":
        decided["central"] = central_of(debate)
    return decided


def last_turns(debate: ReadDebate) -> dict[int, ReadTurn]:
    """Return the turns of the last round, by agent."""
    last = debate.last_round
    return {key.agent: turn for key, turn in debate.turns.items() if key.round == last}


def answer_text(debate: ReadDebate, turn: ReadTurn) -> str | None:
    """Return a turn's own final answer as text, None for a failed turn."""
    if turn.failed or turn.parsed.answer is None:
        return None
    answer = final_answer(turn.parsed.answer, kind_of(debate.transcript.question))
    return None if answer is None else answer.text


def standings(debate: ReadDebate) -> list[tuple[ReadTurn, float]]:
    """Return each judged agent's latest judged turn with its votes for minus against.

    The votes are those of the last round in which any were cast; without votes there is none.
    """
    cast = ballots(debate)
    voted = [key.round for key, ballot in cast.items() if ballot.votes]
    if not voted:
        return []
    judges = [key for key in cast if key.round == max(voted)]
    shares = tally(vote for key in judges for vote in cast[key].votes)
    latest: dict[int, ReadTurn] = {}
    net: dict[int, float] = {}
    for turn in _judged(debate, judges):
        agent = turn.key.agent
        share = shares.get(turn.key, Share(0.0, 0.0))
        net[agent] = net.get(agent, 0.0) + share.up - share.down
        if agent not in latest or latest[agent].key.round < turn.key.round:
            latest[agent] = turn
    return [(latest[agent], net[agent]) for agent in sorted(latest)]


def _weightiest(debate: ReadDebate, seed: int, weight: Callable[[ReadTurn], float]) -> str | None:
    """Return the answer of the last round whose turns weigh the most together."""
    turns = list(last_turns(debate).values())
    answers = [answer_text(debate, turn) for turn in turns]
    classes = answer_classes(debate.transcript.question, answers)
    weights: dict[int, float] = {}
    for number, turn in zip(classes, turns, strict=True):
        if number is not None:
            weights[number] = weights.get(number, 0.0) + weight(turn)
    if not weights:
        return None
    largest = max(weights.values())
    chosen = _draw(debate.transcript, seed, [n for n, own in weights.items() if own == largest])
    return answers[classes.index(chosen)]


def _judged(debate: ReadDebate, judges: list[TurnKey]) -> list[ReadTurn]:
    """Return the valid turns that these judges were to judge, each once."""
    found = {
        turn.key: turn
        for key in judges
        for turn in debate.judged_by(debate.judges[key]).values()
        if not turn.failed
    }
    return [found[key] for key in sorted(found)]


def _draw(transcript: Transcript, seed: int, among: Sequence[int]) -> int:
    # The bytes that Python itself would take, but for ids with lone surrogates.
    drawn_by = f"{seed}\n{transcript.id}".encode("utf-8", "surrogatepass")
    return random.Random(drawn_by).choice(among)
