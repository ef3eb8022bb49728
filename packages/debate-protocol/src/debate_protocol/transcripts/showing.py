"""One debate as text for a terminal."""

import re
from collections.abc import Iterator

from debate_protocol.types import Transcript, Turn, parse_turn, turn_failed

# From escape sequences to changes of writing direction; tabs and line feeds are layout.
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def escaped(text: str) -> str:
    """Return a text with control characters as Python would write them."""
    return CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)


def escaped_json(document: str) -> str:
    """Return a JSON document that says the same without control characters in its strings."""
    return CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", document)


def escaped_xml(document: bytes) -> bytes:
    """Return a UTF-8 XML document that says the same without control characters in its texts."""
    text = document.decode()
    return CONTROL.sub(lambda match: f"&#{ord(match.group())};", text).encode()


def shown_debate(transcript: Transcript, *, emphasis: bool = False) -> str:
    """Return a debate to read: question, then each turn by round.

    Control characters of the texts are shown as escapes, so that no text acts on the terminal.

    Args:
        transcript: The debate.
        emphasis: Print headings in bold by escape sequences.
    """
    question, rules = transcript.question, transcript.protocol
    topology = escaped(rules.topology)
    topology += "" if rules.degree is None else f" of degree {rules.degree}"
    topology += "" if rules.center is None else f" around agent {rules.center}"
    rows = [
        _heading(f"Debate {transcript.id or '(no id)'}", emphasis),
        f"{rules.num_agents} agents, {rules.max_rounds} rounds, {rules.schedule}, "
        f"{escaped(str(rules.contract))}, topology {topology}",
        "",
        *_lines(question.text),
    ]
    if question.answer is not None:
        rows += ["", *_lines(f"Known answer: {question.answer}")]
    shown_round = -1
    for turn in sorted(transcript.turns, key=lambda one: one.round):
        if turn.round != shown_round:
            shown_round = turn.round
            rows += ["", _heading(f"── Round {turn.round + 1} ──", emphasis)]
        rows += ["", *_shown_turn(transcript, turn, emphasis)]
    ended = transcript.meta.get("ended")
    if ended is not None:
        rows += ["", f"Ended: {escaped(str(ended))}"]
    return "\n".join(rows) + "\n"


def _shown_turn(transcript: Transcript, turn: Turn, emphasis: bool) -> Iterator[str]:
    saw = ", ".join(f"{key.agent} (round {key.round + 1})" for key in turn.shown) or "nobody"
    yield f"{_heading(f'Agent {turn.agent}', emphasis)}, who saw {saw}"
    if turn.branches or turn.continuations:
        counts = f"{len(turn.branches)} branches, {len(turn.continuations)} continuations"
        yield f"  beside it: {counts}"
    try:
        failed = turn_failed(transcript, turn)
        sections = {} if failed else parse_turn(transcript, turn).sections
    except ValueError:  # a contract that is not known here
        failed, sections = False, {}
    if failed:
        yield f"  failed: {escaped(turn.failure or 'no answer can be read')}"
    for section, said in sections.items():
        yield f"  {_heading(section, emphasis)}"
        yield from _lines(said.text, "    ")
    if not sections:
        yield from _lines(turn.text.strip(), "    ")


def _heading(text: str, emphasis: bool) -> str:
    return f"\x1b[1m{escaped(text)}\x1b[0m" if emphasis else escaped(text)


def _lines(text: str, indent: str = "") -> list[str]:
    """Return the lines of a text, made safe and indented."""
    return [f"{indent}{line}".rstrip() for line in escaped(text).split("\n")]
