"""The actor-critic debate: one agent answers, another gives it feedback, in turn."""

import random
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from debate_protocol.forms.actor_critic.exchange import Exchange, ExchangeSettings
from debate_protocol.forms.actor_critic.guided import Beside, sampled_beside
from debate_protocol.forms.actor_critic.wrong_answers import wrong_answer
from debate_protocol.forms.settings import MOST
from debate_protocol.forms.table import SameAnswer, same_words
from debate_protocol.forms.turns import side_seed
from debate_protocol.roles import exchange_roles
from debate_protocol.types import (
    AgentRole,
    DebateRun,
    Gate,
    Protocol,
    Question,
    Schedule,
    Transcript,
    Turn,
    TurnKey,
)


class ActorCritic(ExchangeSettings):
    """Agent 0, the actor, answers; agent 1, the critic, gives feedback; the actor answers again.

    Each sees the question and the last exchange only: the actor its own last turn and the
    critic's, the critic the actor's of the same round. The debate ends with the actor's turn of
    the last round; a critic's turn after it would have no reader. With more agents all but the
    last are actors, who answer at once and are shown each other's last answers.

    With `continuations` every state is valued by that many next turns of the actor, sampled from
    it. With `guided` each turn gets two branches as well, sampled in its place with a request to
    speak for the right answer and for a wrong one (`wrong_answers.wrong_answer`), and valued in
    the same way. They follow the natural debate and do not change it. A question without a known
    answer, or without any wrong one, has none.

    Attributes:
        guided: Sample guided branches.
        guide_round_zero: Also in round 0; without it nothing of round 0 is valued under `guided`.
        continuations: Roll-outs of each state; 0 values none.
        continued: `all` states, or those after a `critic` alone: an actor's turn is then valued by
            whether it is right itself, as in the authors' published code.

    Source: ACC-Debate (paper), section 3 and Algorithm 1. Both replies of a critic's pair answer
    the same natural turn of the actor, where the algorithm guides whole rounds. The paper's team
    is of two; its prompts are written for the answers of several people.
    """

    type: Literal["actor_critic"] = "actor_critic"
    num_agents: int = Field(default=2, ge=2, le=MOST)
    """Actors, and a critic as the last."""
    max_rounds: int = Field(default=5, ge=1, le=MOST)
    """Rounds at most, the first answer included."""
    guided: bool = False
    guide_round_zero: bool = False
    continuations: int = Field(default=0, ge=0, le=MOST)
    continued: Literal["all", "critic"] = "all"

    sample_keys: ClassVar[tuple[str, ...]] = ("continuations",)

    @model_validator(mode="after")
    def _branches_are_valued(self) -> Self:
        if self.guided and not self.continuations:
            raise ValueError(
                "guided: found true with continuations 0, so that no branch has a value; "
                "expected continuations of at least 1"
            )
        return self

    @property
    def schedule(self) -> Schedule:
        """The critic speaks after the actor."""
        return "sequential"

    def sequence_count(self) -> int:
        """Return how many turns are trained on; those beside the debate are not."""
        critic = self.num_agents - 1
        return sum(self.max_rounds - (agent == critic) for agent in self.trained_agents())

    def turn_count(self) -> int:
        """Return how many turns are sampled, those beside the debate included."""
        actors = self.num_agents - 1
        natural = self.num_agents * self.max_rounds - 1
        if not self.continuations:
            return natural
        answers = self.max_rounds - self._first_sampled_round()
        if answers < 1:
            return natural
        guides = 2 if self.guided else 0
        # A roll-out is two turns after an answer, and an answer of each actor after feedback; none
        # ends the debate.
        turns = 3 * actors if self.continued == "all" else actors
        rollouts = turns * (answers - 1) * (1 + guides) * self.continuations
        return natural + guides * (self.num_agents * answers - 1) + rollouts

    def _first_sampled_round(self) -> int:
        return 1 if self.guided and not self.guide_round_zero else 0

    def own_roles(self) -> tuple[AgentRole, ...]:
        """Return the actors and the critic."""
        return exchange_roles(history_rounds=1, actors=self.num_agents - 1)

    def protocol(self) -> Protocol:
        """Return the rules as they are written into transcripts."""
        return Protocol(
            num_agents=self.num_agents,
            max_rounds=self.max_rounds,
            schedule="sequential",
            contract=self.recorded_contract(),
            topology="actor_critic",
            history_rounds=1,
            roles=self.agent_roles(),
            extra={
                "style": self.recorded_style(),
                "think": self.think,
                **({"continued": self.continued} if self.continued != "all" else {}),
            },
        )

    def start(
        self,
        question: Question,
        *,
        seed: int,
        debate_id: str | None = None,
        same_answer: SameAnswer = same_words,
    ) -> DebateRun:
        """Begin a debate; the arguments are those of `Simultaneous.start`.

        `same_answer` decides which answers are wrong ones to guide to.
        """

        def record(turns: list[Turn], ended: str) -> Transcript:
            return Transcript(
                id=question.id if debate_id is None else debate_id,
                question=question,
                protocol=self.protocol(),
                turns=tuple(turns),
                meta={"seed": seed, "ended": ended},
            )

        exchange = Exchange(self, question, seed)
        spoken: dict[TurnKey, Turn] = {}
        turns: list[Turn] = []
        for round in range(self.max_rounds):
            ends = round + 1 == self.max_rounds
            for agents in (exchange.actors, [] if ends else [exchange.critic]):
                asks = [exchange.ask(TurnKey(agent, round), spoken) for agent in agents]
                heard = exchange.hear(asks, (yield asks)) if asks else []
                spoken |= {turn.key: turn for turn in heard}
            turns = list(spoken.values())
            if round in self.gate_after:
                decision = yield Gate(record(turns, "gate"), f"round_{round}")
                if decision == "keep":
                    return record(turns, "gate")
        if self.continuations:
            guides = self._guides(exchange, turns, same_answer)
            first, count = self._first_sampled_round(), self.continuations
            wanted = Beside(guides, first, count, self.continued == "critic")
            turns = list((yield from sampled_beside(exchange, turns, wanted)))
        return record(turns, "max_rounds")

    def _guides(
        self, exchange: Exchange, turns: list[Turn], same_answer: SameAnswer
    ) -> tuple[str, ...]:
        """Return the right answer and a wrong one, nothing where one of them is not known."""
        question = exchange.question
        if not self.guided or not (question.answer or "").strip():
            return ()
        given = [exchange.answer_of(turn) for turn in turns if turn.agent in exchange.actors]
        own = [answer for answer in given if answer is not None]
        chance = random.Random(side_seed(exchange.seed, "wrong"))
        wrong = wrong_answer(question, own, same_answer, chance)
        return () if wrong is None or question.answer is None else (question.answer, wrong)
