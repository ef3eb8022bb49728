"""One debate as text for a terminal."""

import re
import textwrap

from debate_protocol.contract import CONTRACTS
from debate_protocol.parsing import parse_turn, turn_failed
from debate_protocol.types import Transcript, Turn

# What a terminal would act on, from escape sequences to changes of writing direction.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown_debate(transcript: Transcript, *, emphasis: bool = False) -> str:
    """Return a debate to read: question, then each turn by round.

    Control characters of the texts are shown as escapes, so that no text acts on the terminal.

    Args:
        transcript: The debate.
        emphasis: Print headings in bold by escape sequences.
    """
    question, rules = transcript.question, transcript.protocol
    parts = [
        _heading(f"Debate {transcript.id or '(no id)'}", emphasis),
        f"{rules.num_agents} agents, {rules.max_rounds} rounds, {rules.schedule}, "
        f"{rules.contract}, topology {rules.topology}",
        "",
        _safe(question.text),
    ]
    if question.answer is not None:
        parts += ["", f"Known answer: {_safe(question.answer)}"]
    shown_round = -1
    for turn in sorted(transcript.turns, key=lambda one: one.round):
        if turn.round != shown_round:
            shown_round = turn.round
            parts += ["", _heading(f"── Round {turn.round + 1} ──", emphasis)]
        parts += ["", *_shown_turn(transcript, turn, emphasis)]
    ended = transcript.meta.get("ended")
    if ended is not None:
        parts += ["", f"Ended: {_safe(str(ended))}"]
    return "\n".join(parts) + "\n"


def _shown_turn(transcript: Transcript, turn: Turn, emphasis: bool) -> list[str]:
    saw = ", ".join(f"{key.agent} (round {key.round + 1})" for key in turn.shown) or "nobody"
    lines = [f"{_heading(f'Agent {turn.agent}', emphasis)}, who saw {saw}"]
    if transcript.protocol.contract not in CONTRACTS:
        return [*lines, _indented(turn.text)]
    if turn_failed(transcript, turn):
        lines.append(f"  failed: {turn.failure or 'no solution can be read'}")
        return [*lines, _indented(turn.text)]
    parsed = parse_turn(transcript, turn)
    for name, section in parsed.sections.items():
        lines += [f"  {_heading(name, emphasis)}", _indented(section.text)]
    if not parsed.sections:
        lines.append(_indented(turn.text))
    return lines


def _heading(text: str, emphasis: bool) -> str:
    return f"\x1b[1m{_safe(text)}\x1b[0m" if emphasis else _safe(text)


def _indented(text: str) -> str:
    return textwrap.indent(_safe(text.strip()), "    ")


def _safe(text: str) -> str:
    return _CONTROL.sub(lambda match: match.group().encode("unicode_escape").decode(), text)
