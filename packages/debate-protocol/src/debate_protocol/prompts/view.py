"""What one agent is given to read before it speaks."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from debate_protocol.parsing.contract import Contract
from debate_protocol.parsing.tags import neutralised
from debate_protocol.personas import Persona
from debate_protocol.types import Question

StyleName = Literal["full", "compact"]
NO_RESPONSE = "no valid response"
_MISSPELT_COMPARISON = re.compile(r"<\s*+(?ai:comparison)(?![A-Za-z0-9_])")


@dataclass(frozen=True, slots=True)
class SeenTurn:
    """A turn as its readers see it: fields ready for insertion, None for a failed turn."""

    agent: int
    round: int
    fields: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class View:
    """All that goes into one agent's prompt.

    `turns` are the turns to insert now, by round and agent; the reader's own earlier turns are
    among them when the whole debate is restated. `peers` are the other agents of whom the
    reader has been given a valid turn, now or before. `central` says that the others read only
    the reader's turns. Who does not `answers` says what it thinks of the others' turns.
    """

    question: Question
    contract: Contract
    agent: int
    round: int
    persona: Persona | None
    turns: tuple[SeenTurn, ...]
    peers: tuple[int, ...]
    own_turn_failed: bool = False
    central: bool = False
    answers: bool = True

    def inserted(self, text: str) -> str:
        """Return foreign text with every tag disarmed."""
        return neutralised(text.strip(), self.contract)


def clipped(text: str, max_chars: int | None) -> str:
    """Cut a text to `max_chars` characters; a marker says how much is missing."""
    if max_chars is None or len(text) <= max_chars:
        return text
    return f"{text[:max_chars]} [… {len(text) - max_chars} characters cut]"


def insertable(text: str, contract: Contract, max_chars: int | None) -> str:
    """Return foreign text cut to `max_chars` characters and with every tag disarmed.

    A cut can make a known name of a longer one and half a mark of a whole one, so that tags are
    disarmed before it and after it.
    """
    return neutralised(clipped(neutralised(text, contract), max_chars), contract)


def without_comparison(text: str) -> str:
    """Cut a text where a comparison begins under a tag that no parser knows, as in `< comparison>`.

    What follows was meant for the section that a blind review hides.
    """
    found = _MISSPELT_COMPARISON.search(text)
    return text if found is None else text[: found.start()].rstrip()
