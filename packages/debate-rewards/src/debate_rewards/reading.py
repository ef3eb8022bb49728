"""A transcript as rewards read it: parsed turns, failures, and which turns a judge was shown."""

from collections.abc import Mapping
from dataclasses import dataclass

from debate_protocol.contract import get_contract
from debate_protocol.parsing import Parsed, parse_turn
from debate_protocol.types import Transcript, Turn, TurnKey


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A turn with what was parsed from it; `failed` turns have no solution to judge."""

    turn: Turn
    parsed: Parsed
    failed: bool

    @property
    def key(self) -> TurnKey:
        """The (agent, round) of this turn."""
        return self.turn.key


@dataclass(frozen=True, slots=True)
class ReadDebate:
    """A transcript with its parsed turns in the order they were held.

    `compares` is False for contracts without a comparison section, where none is ever expected.
    """

    transcript: Transcript
    turns: Mapping[TurnKey, ReadTurn]
    compares: bool

    def shown_to(self, judge: ReadTurn) -> list[ReadTurn]:
        """Return the turns of other agents that `judge` was given."""
        return [
            self.turns[key]
            for key in judge.turn.shown
            if key.agent != judge.turn.agent and key in self.turns
        ]

    def judged_by(self, judge: ReadTurn) -> dict[int, ReadTurn]:
        """Return, for each other agent with a turn in `shown`, its latest turn there."""
        latest: dict[int, ReadTurn] = {}
        for other in self.shown_to(judge):
            known = latest.get(other.turn.agent)
            if known is None or known.turn.round < other.turn.round:
                latest[other.turn.agent] = other
        return latest

    def expected_pairs(self, judge: ReadTurn) -> int:
        """Return how many pairs of agents `judge` was expected to compare.

        That is every pair of other agents with a valid turn in `shown`; 0 for a failed turn.
        """
        if judge.failed or not self.compares:
            return 0
        others = len({other.turn.agent for other in self.shown_to(judge) if not other.failed})
        return others * (others - 1) // 2

    @property
    def last_round(self) -> int:
        """The last round with a turn, -1 when nobody spoke."""
        return max((key.round for key in self.turns), default=-1)


def read_debate(transcript: Transcript) -> ReadDebate:
    """Parse every turn of a transcript.

    Raises:
        ValueError: The contract is unknown, an agent is out of range, or a turn is there twice.
    """
    turns: dict[TurnKey, ReadTurn] = {}
    num_agents = transcript.protocol.num_agents
    for turn in transcript.turns:
        where = f"debate {transcript.id!r}, turn of agent {turn.agent} in round {turn.round}"
        if not 0 <= turn.agent < num_agents:
            raise ValueError(f"{where}: expected agents 0 to {num_agents - 1}")
        if turn.key in turns:
            raise ValueError(f"{where}: found twice, expected once")
        parsed = parse_turn(transcript, turn)
        failed = turn.failure is not None or parsed.answer is None
        turns[turn.key] = ReadTurn(turn, parsed, failed)
    contract = get_contract(transcript.protocol.contract)
    return ReadDebate(transcript, turns, "comparison" in contract.sections)
