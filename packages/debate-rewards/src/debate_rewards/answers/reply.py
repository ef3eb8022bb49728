r"""Where a reply's final answer stands.

Read are the solution section where there are sections, and what follows the thinking where it ends.
There the later of the last `\boxed{…}` and the last line `Answer: …` counts. Without either it is
what follows `####` or "the answer is", else the last line, or all of a text. So no earlier box,
quoted or not, matters.
"""

import re
from dataclasses import dataclass
from typing import Literal

from debate_protocol.parsing import answer_line, final_box, parse

Kind = Literal["math", "choice", "yes_no", "number", "text"]
KINDS: tuple[Kind, ...] = ("math", "choice", "yes_no", "number", "text")

MAX_LINE_CHARS = 4096
"""Of an unmarked last line only its end is read."""

_SOLUTION = re.compile(r"<\s*solution\s*>", re.IGNORECASE)
_THINKING_ENDS = re.compile(r"</\s*think\s*>", re.IGNORECASE)
_ANSWER_IS = re.compile(
    r"\b(?:answer|result|option|choice)\s++(?:is|would\s++be|must\s++be|should\s++be)\b:?",
    re.IGNORECASE,
)
_ONLY_CLOSING = re.compile(r"[\s}]*\}")
_BOX = re.compile(r"\\boxed\s*\{\s*\Z")


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The text of an answer, and whether the reply marked it as its answer."""

    text: str
    marked: bool
    in_box: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A reply without an answer of the question's type, and why."""

    reason: str


def final_answer(reply: str, kind: Kind, *, holds_braces: bool = False) -> FinalAnswer | None:
    """Return a reply's own final answer, or None where there is none.

    Args:
        reply: A whole reply, or its solution.
        kind: How the question's answers are compared.
        holds_braces: Whether answers to this question may hold braces that close nothing. A box
            then ends with the last brace of its line.
    """
    text: str | None = reply
    if "olution" in reply.lower() and _SOLUTION.search(reply):
        text = parse(reply, "three_section").answer
    text = _after_thinking(text or "")
    if not text.strip():
        return None
    span = _marked_span(text)
    if span is not None:
        start, end = span
        in_box = _BOX.search(text[max(0, start - 40) : start]) is not None
        if in_box and holds_braces:
            end = _end_of_braces(text, end)
        inner = text[start:end].strip()
        return FinalAnswer(inner, marked=True, in_box=in_box) if inner else None
    stated = _after_hashes(text) or _after_answer_is(text, kind)
    if stated:
        return FinalAnswer(stated, marked=True)
    if kind == "text":
        return FinalAnswer(text.strip(), marked=False)
    last_line = text.rstrip().rpartition("\n")[2].strip()
    return FinalAnswer(last_line[-MAX_LINE_CHARS:], marked=False)


def _after_thinking(text: str) -> str:
    if "think" not in text.lower():
        return text
    ends = [match.end() for match in _THINKING_ENDS.finditer(text)]
    after = text[ends[-1] :] if ends else ""
    return after if after.strip() else text


def _marked_span(text: str) -> tuple[int, int] | None:
    box = final_box(text)
    line = answer_line(text)
    if line is None or line[0] == line[1]:
        return box
    if box is not None and box[1] > line[0]:
        return box
    return line


def _end_of_braces(text: str, end: int) -> int:
    """Return where a box ends that may hold closing braces of its own."""
    closes_box = text.find("}", end)
    more = _ONLY_CLOSING.match(text, closes_box + 1, (text + "\n").find("\n", closes_box))
    return end if more is None else more.end() - 1


def _after_hashes(text: str) -> str | None:
    if "####" not in text:
        return None
    marked = [line.strip()[4:].strip() for line in text.splitlines() if line.strip()[:4] == "####"]
    return marked[-1] if marked else None


def _after_answer_is(text: str, kind: Kind) -> str | None:
    """Return what follows the last "answer is", for a text only where the last line says it."""
    last = None
    start = text.rstrip().rfind("\n") + 1 if kind == "text" else 0
    for match in _ANSWER_IS.finditer(text, start):
        last = match
    if last is None:
        return None
    line_end = text.find("\n", last.end())
    stated = text[last.end() : len(text) if line_end < 0 else line_end].strip()
    return stated.removesuffix(".").strip()
