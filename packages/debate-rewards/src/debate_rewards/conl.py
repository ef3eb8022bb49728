"""Reward of CoNL: solutions by final rankings, critiques by the later value of their targets."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from pydantic import Field

from debate_protocol.types import TurnKey
from debate_rewards.reward import (
    ReadDebate,
    RewardContext,
    RewardNote,
    Score,
    build_score,
    known_mean,
    turn_credits,
)
from debate_rewards.strengths import log_strengths, wins_of
from debate_rewards.turn_rewards import CRITIC, critique_credits, critique_targets
from debate_rewards.v2 import JudgeSettings, consensus_values
from debate_rewards.votes import (
    JUDGE,
    Ballot,
    Ties,
    Vote,
    VoteReward,
    all_votes,
    ballots,
    points,
)

# Two agents; wins of the first over the second are counted.
Contest = tuple[int, int]
_PRIOR_WINS = 1.0


class ConlReward(JudgeSettings, VoteReward):
    """The rewards of CoNL, streams `generator`, `critic` and `judge`.

    The value V of an agent's solution in one ranking is in [0, 1]: the share of votes won, ties
    half, or the Bradley-Terry strength, scaled from 0 for the weakest to 1 for the strongest.
    With V0 of the first ranking (blind: before any critique) and Vf of the last:

        generator   an agent's solutions: Vf, the first one `acceptance` more where Vf > V0
        critic      a critique: max(0, Vf − V0) of its target (`rises`), max(0, V0 − Vf) (`falls`)
        judge       a vote of the last ranking: +1 with the majority on its pair, −1 against it

    The blind ranking itself earns nothing. `leave_one_out` takes a critic's own votes out of its
    targets' values, and a judge's out of the majority; `inclusive` leaves them in, as printed. A
    solution's own agent has no vote on it in any case. `None` where V0 or Vf has no vote.

    Source: "Conversation for Non-verifiable Learning" (Sui and Hooi, arXiv 2601.21464):
    `rises` is its text, `falls` its published code and the document that it came with. Both pay
    agreement of a whole ranking. The document and the code's `rewards.py` scale critiques by 5, its
    `train.py` by 2. Weights of streams are set with the advantage.
    """

    type: Literal["conl"] = "conl"
    values: Literal["win_fraction", "bradley_terry"] = "win_fraction"
    """What a ranking makes of votes."""
    diagnostic: Literal["rises", "falls"] = "rises"
    """Whether a critique is paid when its target's value rises, or when it falls."""
    acceptance: float = Field(0.0, ge=0)
    """What a first solution earns more where its agent's value has risen.

    The authors' document pays .5 times .5 beside a reward scaled to standard deviation 1. V has a
    deviation of about .37, so 0.1 is as much here. The study had 0.5: a wrong solution that is
    mended then earns more than one that was right."""
    first_solutions: Literal["last", "blind"] = "last"
    """Which ranking values first solutions: the last, as printed, or their own, the blind one."""
    consensus: Literal["leave_one_out", "inclusive"] = "leave_one_out"
    """Whether votes of one's own count for what one is paid."""

    @property
    def streams(self) -> tuple[str, ...]:
        """Streams with values."""
        return ("generator", CRITIC, JUDGE)

    def notes(self, context: RewardContext) -> Iterator[RewardNote]:
        """Explain why a stream has no value."""
        if context.rules.num_agents == 2 and context.rules.contracts:
            text = "of two agents a critic alone votes on the other; expected consensus: inclusive"
            yield RewardNote(kind="no_signal", text=text, stream=CRITIC)
            return
        text = (
            "conl compares two rankings with critiques between them: found "
            f"{context.rules.max_rounds} rounds; expected debate.type: conl"
        )
        yield RewardNote(kind="no_signal", text=text)

    def score(self, debate: ReadDebate) -> Score:
        """Score a debate by the first and last ranking."""
        turn_ballots = ballots(debate)
        rounds = ranking_rounds(debate)
        blind: dict[TurnKey, Ballot] = {}
        last: dict[TurnKey, Ballot] = {}
        if len(rounds) > 1:
            blind = _of_round(turn_ballots, rounds[0])
            last = _of_round(turn_ballots, rounds[-1])
        first_ranking = Ranking(all_votes(blind), "half", self.values)
        last_ranking = Ranking(all_votes(last), "half", self.values)
        before = first_ranking.agent_values()
        after = last_ranking.agent_values()
        # A fit of strengths ends within a tolerance: smaller changes are none.
        has_risen = {a: after[a] - before[a] > 1e-6 for a in before.keys() & after.keys()}
        # Only an agent's first solution is written without a critique.
        first_round = min((key.round for key in debate.turns), default=0)
        first_values = before if self.first_solutions == "blind" else after
        solution_values: dict[TurnKey, float | None] = {}
        for key in debate.turns:
            is_first = key.round == first_round
            value = first_values.get(key.agent) if is_first else after.get(key.agent)
            if value is not None and is_first and has_risen.get(key.agent):
                value += self.acceptance
            solution_values[key] = value
        credits = turn_credits(debate, solution_values)
        critique_values: list[float | None] = []
        for critic in debate.judges.values():
            parts, targets = critique_targets(debate, critic)
            if critic.failed or critic.key not in blind:
                continue
            # A critic could else raise its pay by its own votes on the target.
            left_out = critic.key.agent if self.consensus == "leave_one_out" else None
            target_values: dict[int, float | None] = {}
            for target in targets:
                value_before = first_ranking.value_of(target, left_out)
                value_after = last_ranking.value_of(target, left_out)
                target_values[target] = self._critique_value(value_before, value_after)
            critique_values += target_values.values()
            credits += critique_credits(critic, parts, target_values)
        agreement = consensus_values(all_votes(last), self.consensus)
        credits += self.judge_credits(debate, last, agreement)
        metrics = {
            "conl/critiques": float(len(critique_values)),
            "conl/diagnostic": known_mean(critique_values),
            "conl/accepted": known_mean(has_risen.values()),
            "conl/agreement_before": known_mean(consensus_values(all_votes(blind), self.consensus)),
            "conl/agreement_after": known_mean(agreement),
        }
        return build_score(debate.transcript, credits, metrics)

    def _critique_value(
        self, value_before: float | None, value_after: float | None
    ) -> float | None:
        if value_before is None or value_after is None:
            return None
        change = value_after - value_before
        return max(0.0, change if self.diagnostic == "rises" else -change)


def ranking_rounds(debate: ReadDebate) -> list[int]:
    """List the rounds in which agents were asked to rank turns of at least two agents.

    A round counts even where all of these turns failed, so that no comparison was expected: without
    it the last ranking would be taken for the blind one.
    """
    rules = debate.transcript.protocol
    rounds = {
        key.round
        for key, judge in debate.judges.items()
        if "comparison" in rules.contract_of(key.round).sections
        and len(debate.judged_by(judge)) > 1
    }
    return sorted(rounds)


class Ranking:
    """The votes of one ranking, counted by judge, and the value of each agent by them.

    A critic is paid by values without its own votes. Votes are counted once here and a critic's
    are then subtracted: counting all N³ votes again for each of N critics takes N⁴ steps.

    Args:
        votes: The votes of one ranking.
        ties: The worth of `=`.
        values: How an agent's value comes from the votes.
    """

    def __init__(
        self, votes: Sequence[Vote], ties: Ties, values: Literal["win_fraction", "bradley_terry"]
    ) -> None:
        self._values = values
        # Votes that an agent won and got, in all and from each judge. None is its own.
        self._won: defaultdict[int, float] = defaultdict(float)
        self._received: defaultdict[int, int] = defaultdict(int)
        self._won_from: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._received_from: defaultdict[tuple[int, int], int] = defaultdict(int)
        # Wins of the first agent of a pair over the second, in all and by judge.
        self._wins: dict[Contest, float] = {}
        self._wins_by_judge: dict[int, dict[Contest, float]] = {}
        self._count_shares(votes, ties)
        self._strengths: dict[tuple[int | None, int | None], dict[int, float]] = {}
        self._start: dict[int, float] = {}
        if values == "bradley_terry":
            self._count_contests(votes, ties)
            self._start = log_strengths(self._wins, _PRIOR_WINS)

    def _count_shares(self, votes: Sequence[Vote], ties: Ties) -> None:
        for vote in votes:
            share = points(vote.verdict, ties)
            if share is None:
                continue
            judge = vote.judge.agent
            for turn, won in zip(vote.pair, share, strict=True):
                agent = turn.agent
                if agent != judge:
                    self._won[agent] += won
                    self._received[agent] += 1
                    self._won_from[agent, judge] += won
                    self._received_from[agent, judge] += 1

    def _count_contests(self, votes: Sequence[Vote], ties: Ties) -> None:
        votes_by_judge: dict[int, list[Vote]] = {}
        for vote in votes:
            votes_by_judge.setdefault(vote.judge.agent, []).append(vote)
        for judge, own_votes in votes_by_judge.items():
            own_wins = wins_of(own_votes, ties, lambda key: key.agent)
            self._wins_by_judge[judge] = own_wins
            for contest, won in own_wins.items():
                self._wins[contest] = self._wins.get(contest, 0.0) + won

    def agent_values(self) -> dict[int, float]:
        """Compute the value of each agent that the ranking has votes on."""
        values = {agent: self.value_of(agent) for agent in self._received}
        return {agent: value for agent, value in values.items() if value is not None}

    def value_of(self, agent: int, left_out: int | None = None) -> float | None:
        """Compute the value of an agent, from 0 to 1; `None` without a vote on it.

        Args:
            agent: The agent. Votes on the own solution count for others only.
            left_out: A judge whose votes do not count.
        """
        received = self._received.get(agent, 0)
        won = self._won.get(agent, 0.0)
        if left_out is not None:
            received -= self._received_from.get((agent, left_out), 0)
            won -= self._won_from.get((agent, left_out), 0.0)
        # Without a vote of others the value is not known, and 0 would say that all voted against
        # it.
        if received == 0:
            return None
        if self._values == "win_fraction":
            return won / received
        has_own_votes = any(agent in contest for contest in self._wins_by_judge.get(agent, ()))
        return self._scaled_strengths(left_out, agent if has_own_votes else None)[agent]

    def _scaled_strengths(self, left_out: int | None, own_of: int | None) -> dict[int, float]:
        """Compute Bradley-Terry strengths, scaled from 0 to 1.

        Args:
            left_out: A judge whose votes do not count.
            own_of: An agent whose votes on its own solution do not count.
        """
        # All critics of an agent ask for the same fit.
        known = self._strengths.get((left_out, own_of))
        if known is not None:
            return known
        logs = log_strengths(self._wins_without(left_out, own_of), _PRIOR_WINS, self._start)
        low = min(logs.values(), default=0.0)
        high = max(logs.values(), default=0.0)
        # The fit ends within its tolerance: what is closer than that is equally strong.
        if high - low < 1e-8:
            scaled = dict.fromkeys(logs, 0.5)
        else:
            scaled = {agent: (log - low) / (high - low) for agent, log in logs.items()}
        self._strengths[left_out, own_of] = scaled
        return scaled

    def _wins_without(self, left_out: int | None, own_of: int | None) -> dict[Contest, float]:
        wins = dict(self._wins)
        if left_out is not None:
            for contest, won in self._wins_by_judge.get(left_out, {}).items():
                wins[contest] -= won
        if own_of is not None and own_of != left_out:
            for contest, won in self._wins_by_judge[own_of].items():
                if own_of in contest:
                    wins[contest] -= won
        # Each vote is worth one win in all: a pair without any has no votes left.
        return {(a, b): won for (a, b), won in wins.items() if won + wins[b, a] > 0}


def _of_round(turn_ballots: Mapping[TurnKey, Ballot], round: int) -> dict[TurnKey, Ballot]:
    return {key: ballot for key, ballot in turn_ballots.items() if key.round == round}
