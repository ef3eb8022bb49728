"""A transcript as rewards read it: parsed turns, failures, and which turns a judge was shown."""

from collections.abc import Mapping
from dataclasses import dataclass

from debate_protocol.parsing.contract import get_contract
from debate_protocol.parsing.parsed import Parsed
from debate_protocol.parsing.replies import parse_turn, turn_failed
from debate_protocol.roles import gives_answers
from debate_protocol.types import Transcript, Turn, TurnKey


@dataclass(frozen=True, slots=True)
class ReadTurn:
    """A turn with what was parsed from it; `failed` turns have no solution to judge."""

    key: TurnKey
    turn: Turn
    parsed: Parsed
    failed: bool


@dataclass(frozen=True, slots=True)
class ReadDebate:
    """A transcript with its parsed turns in the order they were held.

    `turns` are those that owe an answer: feedback of a critic is none of them. `judges` are all
    that may compare answers: a judge need not owe one itself.
    `compares` is False for contracts without a comparison section, where none is ever expected.
    """

    transcript: Transcript
    turns: Mapping[TurnKey, ReadTurn]
    compares: bool
    judges: Mapping[TurnKey, ReadTurn]

    def shown_to(self, judge: ReadTurn) -> list[ReadTurn]:
        """Return the turns of other agents that `judge` was given."""
        return [
            self.turns[key]
            for key in judge.turn.shown
            if key.agent != judge.turn.agent and key in self.turns
        ]

    def judged_by(self, judge: ReadTurn) -> dict[int, ReadTurn]:
        """Return, for each other agent with a turn in `shown`, its latest turn there.

        Under topology `pair` prompts number the turns in the order in which they are shown.
        """
        if self.transcript.protocol.topology == "pair":
            return {
                place: self.turns[key]
                for place, key in enumerate(judge.turn.shown)
                if key in self.turns
            }
        latest: dict[int, ReadTurn] = {}
        for other in self.shown_to(judge):
            known = latest.get(other.key.agent)
            if known is None or known.key.round < other.key.round:
                latest[other.key.agent] = other
        return latest

    def expected_pairs(self, judge: ReadTurn) -> int:
        """Return how many pairs of agents `judge` was expected to compare.

        That is every pair of other agents with a valid turn in `shown`; 0 for a failed turn.
        """
        if judge.failed or not self.compares:
            return 0
        others = len({other.key.agent for other in self.shown_to(judge) if not other.failed})
        return others * (others - 1) // 2

    @property
    def last_round(self) -> int:
        """The last round with a turn, -1 when nobody spoke."""
        return max((key.round for key in self.turns), default=-1)


def read_debate(transcript: Transcript) -> ReadDebate:
    """Parse every turn of a transcript.

    Raises:
        ValueError: As `check_turns`, or the contract is unknown.
    """
    check_turns(transcript)
    judges: dict[TurnKey, ReadTurn] = {}
    for turn in transcript.turns:
        parsed = parse_turn(transcript, turn)
        if gives_answers(transcript.protocol, turn.agent):
            failed = turn.failure is not None or parsed.answer is None
        else:
            failed = turn_failed(transcript, turn)
        judges[turn.key] = ReadTurn(turn.key, turn, parsed, failed)
    # A critic's feedback is nothing that votes, truth or statistics are about.
    turns = {k: r for k, r in judges.items() if gives_answers(transcript.protocol, k.agent)}
    contract = get_contract(transcript.protocol.contract)
    return ReadDebate(transcript, turns, "comparison" in contract.sections, judges)


def check_turns(transcript: Transcript) -> None:
    """Refuse turns that cannot be.

    Raises:
        ValueError: An agent or round is out of range, a turn is there twice, or a branch is
            another turn than the one it stands beside.
    """
    rules = transcript.protocol
    seen: set[TurnKey] = set()
    for turn in transcript.turns:
        key = turn.key
        if not 0 <= key.agent < rules.num_agents:
            raise ValueError(
                f"{_where(transcript, key)}: expected agents 0 to {rules.num_agents - 1}"
            )
        if not 0 <= key.round < rules.max_rounds:
            raise ValueError(
                f"{_where(transcript, key)}: expected rounds 0 to {rules.max_rounds - 1}"
            )
        if key in seen:
            raise ValueError(f"{_where(transcript, key)}: found twice, expected once")
        seen.add(key)
        for branch in turn.branches:
            if branch.turn.key != key:
                other = f"agent {branch.turn.agent} in round {branch.turn.round}"
                raise ValueError(f"{_where(transcript, key)}: found a branch that is of {other}")


def _where(transcript: Transcript, key: TurnKey) -> str:
    return f"debate {transcript.id!r}, turn of agent {key.agent} in round {key.round}"
