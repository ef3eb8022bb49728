"""The conversation of CoNL: proposals, blind ranking and critiques, revisions, final ranking."""

from typing import Literal, Self

from pydantic import Field, model_validator

from debate_protocol.forms.rounds import DebateState, RoundForm, parsed_of
from debate_protocol.forms.settings import MOST, ContractChoice, DebateStart, OwnContract
from debate_protocol.parsing import Contract, blanked, evaluation_parts
from debate_protocol.prompts import SeenTurn, insertable
from debate_protocol.types import DEBATER, AgentRole, TurnKey

PROPOSAL, CRITIQUE, REVISION, VERDICT = range(4)
# Rounds with turns that an agent reads, by the round in which it reads them.
_READ = {PROPOSAL: (), CRITIQUE: (PROPOSAL,), REVISION: (PROPOSAL, CRITIQUE), VERDICT: (REVISION,)}
_PROPOSAL = Contract("proposal", ("solution",))
_INSTRUCTIONS = {
    "analysis": "which solutions hold and which do not, and why, before you rank them.",
    "evaluation": (
        "for each solution with a mistake, or with something to improve, a line that begins with "
        "Agent and its number and a colon, and then says what is wrong and how to find out."
    ),
}
_OWN_RANKING = {
    "comparison": (
        "one line per pair: `Agent A > Agent B` if A's response is better, `Agent A = Agent B` if "
        "they are equally good, with the agents' numbers for A and B, your own among them."
    )
}


class Conl(RoundForm):
    """A debate of four rounds with a contract for each round.

    | round | reads | says |
    |---|---|---|
    | 0 | the question | `solution` |
    | 1 | all first solutions | `comparison`, before any critique, and `evaluation`: critiques |
    | 2 | all first solutions, and the critiques that name it | `solution` |
    | 3 | all revised solutions | `comparison` |

    The text of an `evaluation` from the name of an agent to the next name criticizes this agent.

    Source: "Conversation for Non-verifiable Learning" (Sui and Hooi, arXiv 2601.21464).
    """

    type: Literal["conl"] = "conl"
    num_agents: int = Field(default=4, ge=2, le=MOST)
    """Agents, each with a persona of its own."""
    ranks_own: bool = False
    """Whether rankings have an agent's own solution, too, as in the paper; two agents need it. Its
    own vote counts for others alone."""
    blind_ranking: bool = True
    """Whether agents rank first solutions before they criticize any, and not after it."""
    reasons: bool = False
    """Whether a ranking follows an `analysis`: for models that do not think before they answer."""
    max_rounds: Literal[4] = 4
    """Proposals, critiques, revisions and verdicts."""
    topology: Literal["all"] = "all"
    history_rounds: Literal[-1] = -1
    own_rounds: Literal[-1] = -1
    blind_review: Literal[True] = True
    conversation: Literal["rebuild"] = "rebuild"
    """Each prompt states what its agent reads in that round, which no setting changes."""

    contract: ContractChoice = OwnContract(name="proposal", sections=("solution",))
    """That of the first round, which no setting changes; single replies have it, too."""

    @model_validator(mode="after")
    def _contracts_are_its_own(self) -> Self:
        if self.num_agents == 2 and not self.ranks_own:
            raise ValueError("num_agents: 2 rank each other's solution and their own: ranks_own")
        if self.contract_rules() != _PROPOSAL:
            raise ValueError(
                f"contract: found {str(self.contract_rules())!r}, but each round of this form has "
                "its own"
            )
        return self

    def contracts(self) -> tuple[Contract, ...]:
        """List the contract of each round."""
        ranking_sections = ("analysis", "comparison") if self.reasons else ("comparison",)
        # A blind ranking comes first, so that no critique can be written to support it.
        critique_sections = ("evaluation", *ranking_sections)
        if self.blind_ranking:
            critique_sections = (*ranking_sections, "evaluation")
        instructions = _INSTRUCTIONS | (_OWN_RANKING if self.ranks_own else {})
        critique = Contract(
            "critique",
            critique_sections,
            instructions={n: instructions[n] for n in critique_sections if n in instructions},
            answers=False,
            ranks_own=self.ranks_own,
        )
        verdict = Contract(
            "verdict",
            ranking_sections,
            instructions={n: instructions[n] for n in ranking_sections if n in instructions},
            answers=False,
            ranks_own=self.ranks_own,
        )
        return (_PROPOSAL, critique, Contract("revision", ("solution",)), verdict)

    def own_roles(self) -> tuple[AgentRole, ...]:
        """List equal roles, perhaps under several names; turns record what they were shown."""
        if set(self.roles) <= {DEBATER}:
            return (AgentRole(DEBATER, self.num_agents, sees="drawn"),)
        return tuple(
            AgentRole(name, role.count or 1, sees="drawn") for name, role in self.roles.items()
        )

    def opened(self, begin: DebateStart) -> "_Conversation":
        """Build the state of a debate before its first turn."""
        return _Conversation(self, begin)


class _Conversation(DebateState):
    def shown_to(self, key: TurnKey) -> tuple[TurnKey, ...]:
        """List the others' solutions of the last round, or the first ones and critiques."""
        shown = []
        for other in sorted(self.turns, key=_in_order):
            if other.agent == key.agent or other.round not in _READ[key.round]:
                continue
            # A critique without a word about this agent is not for it.
            if other.round != CRITIQUE or self._critique(other, key.agent):
                shown.append(other)
        return tuple(shown)

    def own_turns(self, key: TurnKey) -> list[TurnKey]:
        """List the agent's own solution among those that it reads."""
        return [TurnKey(key.agent, round) for round in _READ[key.round] if round != CRITIQUE]

    def _critique(self, key: TurnKey, target: int) -> str:
        """Collect the parts of a turn's evaluation about one agent."""
        turn = self.turns[key]
        if turn.failure is not None:
            return ""
        parsed = parsed_of(turn)
        critiques = []
        for agent, (start, end) in evaluation_parts(turn.text, parsed):
            if agent == target:
                critiques.append(blanked(turn.text, start, end, parsed.holes).strip())
        return "\n".join(critiques)

    def _seen(self, key: TurnKey, reader: int) -> SeenTurn:
        if key.round != CRITIQUE:
            return super()._seen(key, reader)
        text = self._critique(key, reader)
        limit = self.form.max_chars_per_field
        return SeenTurn(key.agent, key.round, {"evaluation": insertable(text, self._tags, limit)})


def _in_order(key: TurnKey) -> tuple[int, int]:
    return key.round, key.agent
