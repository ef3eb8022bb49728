"""Debate between language models: contract, parsing, prompts, forms and transcripts."""

from debate_protocol.contract import CONTRACTS, Contract, get_contract
from debate_protocol.parsing import Parsed, ParseError, parse, parse_turn, turn_failed

__version__ = "0.1.0"
__all__ = [
    "CONTRACTS",
    "Contract",
    "ParseError",
    "Parsed",
    "get_contract",
    "parse",
    "parse_turn",
    "turn_failed",
]
