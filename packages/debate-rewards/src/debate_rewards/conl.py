"""What CoNL pays: solutions by final rankings, critiques by what became of their targets."""

from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from debate_protocol.types import TurnKey
from debate_rewards.reward import (
    ReadDebate,
    RewardContext,
    Score,
    known_mean,
    scored,
    turn_credits,
)
from debate_rewards.strengths import log_strengths, wins_of
from debate_rewards.turn_rewards import CRITIC, critique_credits, critique_targets
from debate_rewards.votes import (
    JUDGE,
    Ballot,
    JudgeSettings,
    PeerReward,
    Vote,
    all_votes,
    ballots,
    consensus_values,
    tally,
)


class ConlReward(JudgeSettings, PeerReward):
    """The rewards of CoNL, streams `generator`, `critic` and `judge`.

    The value V of an agent's solution in one ranking is in [0, 1]: the share of votes that it won,
    ties half, or its Bradley-Terry strength, scaled so that the weakest has 0 and the strongest 1.
    With V0 of the first ranking (blind: before any critique) and Vf of the last:

        generator   an agent's solutions: Vf, the first one `acceptance` more where Vf > V0
        critic      a critique: max(0, Vf − V0) of its target (`rises`), max(0, V0 − Vf) (`falls`)
        judge       a vote of the last ranking: +1 with the majority on its pair, −1 against it

    The blind ranking itself earns nothing. `leave_one_out` takes a critic's own votes out of the
    values that it is paid by, and a judge's out of the majority; `inclusive` leaves them in, as
    printed. A solution's own agent has no vote on it in any case. None where V0 or Vf has no vote.

    Source: "Conversation for Non-verifiable Learning" (Sui and Hooi, arXiv 2601.21464):
    `rises` is its text, `falls` its published code and the document that it came with. Both pay
    agreement of a whole ranking. The document and the code's `rewards.py` scale critiques by 5, its
    `train.py` by 2. What streams weigh is set with the advantage.
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
        """The streams that get values."""
        return ("generator", CRITIC, JUDGE)

    def why_no_signal(self, stream: str, context: RewardContext) -> str | None:
        """Return why a stream has no value."""
        if context.rules.num_agents == 2 and context.rules.contracts:
            why = "of two agents a critic alone votes on the other; expected consensus: inclusive"
            return why if stream == CRITIC else None
        return (
            "conl compares two rankings with critiques between them: found "
            f"{context.rules.max_rounds} rounds; expected debate.type: conl"
        )

    def score(self, debate: ReadDebate) -> Score:
        """Return the score of one debate."""
        cast = ballots(debate, self.duplicates)
        rounds = sorted({key.round for key, its in cast.items() if its.owed})
        blind, last = (_of_round(cast, rounds[n]) if len(rounds) > 1 else {} for n in (0, -1))
        before, after = self._values(all_votes(blind)), self._values(all_votes(last))
        # A fit of strengths ends within a tolerance.
        rose = {a: after[a] - before[a] > 1e-6 for a in before.keys() & after.keys()}
        first = min((key.round for key in debate.turns), default=0)
        firsts = before if self.first_solutions == "blind" else after
        worth: dict[TurnKey, float | None] = {}
        for key in debate.turns:
            value = (firsts if key.round == first else after).get(key.agent)
            accepted = value is not None and key.round == first and rose.get(key.agent)
            worth[key] = value + self.acceptance if value is not None and accepted else value
        credits = turn_credits(debate, worth)
        critiques: list[float | None] = []
        for critic in debate.judges.values():
            parts, targets = critique_targets(debate, critic)
            if critic.failed or critic.key not in blind:
                continue
            changes = self._changes(critic.key.agent, all_votes(blind), all_votes(last))
            paid = {target: self._paid(changes.get(target)) for target in targets}
            critiques += paid.values()
            credits += critique_credits(critic, parts, paid)
        agreement = consensus_values(all_votes(last), self.consensus)
        credits += self.judge_credits(debate, last, agreement)
        metrics = {
            "conl/critiques": float(len(critiques)),
            "conl/diagnostic": known_mean(critiques),
            "conl/accepted": known_mean(rose.values()),
            "conl/agreement_before": known_mean(consensus_values(all_votes(blind), self.consensus)),
            "conl/agreement_after": known_mean(agreement),
        }
        return scored(debate.transcript, credits, metrics)

    def _values(self, votes: Sequence[Vote]) -> dict[int, float]:
        """Return the value of each agent that a ranking has votes on."""
        if self.values == "win_fraction":
            shares = tally(votes, self.ties)
            return {key.agent: share.up / (share.up + share.down) for key, share in shares.items()}
        found = self._strengths(votes)
        for agent in {vote.judge.agent for vote in votes}:
            # What an agent says of its own solution counts for others alone.
            others = [v for v in votes if agent != v.judge.agent or not v.is_own]
            if len(others) < len(votes):
                own = self._strengths(others)
                found = {a: one for a, one in found.items() if a != agent or a in own}
                found |= {a: one for a, one in own.items() if a == agent}
        return found

    def _strengths(self, votes: Sequence[Vote]) -> dict[int, float]:
        """Return Bradley-Terry strengths, scaled from 0 to 1."""
        found = log_strengths(wins_of(votes, self.ties, lambda key: key.agent), 1.0)
        low, high = min(found.values(), default=0.0), max(found.values(), default=0.0)
        # The fit ends within its tolerance: what is closer than that is equally strong.
        if high - low < 1e-8:
            return dict.fromkeys(found, 0.5)
        return {agent: (one - low) / (high - low) for agent, one in found.items()}

    def _changes(
        self, critic: int, blind: Sequence[Vote], last: Sequence[Vote]
    ) -> dict[int, float]:
        """Return by how much the value of each agent rose, as a critic is paid for it."""
        if self.consensus == "leave_one_out":
            blind, last = ([v for v in one if v.judge.agent != critic] for one in (blind, last))
        before, after = self._values(blind), self._values(last)
        return {agent: after[agent] - before[agent] for agent in before.keys() & after.keys()}

    def _paid(self, change: float | None) -> float | None:
        sign = 1 if self.diagnostic == "rises" else -1
        return None if change is None else max(0.0, sign * change)


def _of_round(cast: Mapping[TurnKey, Ballot], round: int) -> dict[TurnKey, Ballot]:
    return {key: ballot for key, ballot in cast.items() if key.round == round}
