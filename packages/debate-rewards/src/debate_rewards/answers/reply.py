r"""Where a reply's final answer is.

Only the solution section counts where there are sections, and only the text behind the end
of the thinking. There the latest of `<answer>…</answer>`, `\boxed{…}` and the line `Answer: …`
counts. Without any it is the text behind `####` or "the answer is", else the last line, or all of
a text. So no earlier box, quoted or not, matters.
"""

import re
from dataclasses import dataclass
from typing import Literal

from debate_protocol.parsing import DISPLAYED, answer_line, final_box, parse

Kind = Literal["math", "choice", "yes_no", "number", "text"]
KINDS: tuple[Kind, ...] = ("math", "choice", "yes_no", "number", "text")

MAX_LINE_CHARS = 4096
"""Of an unmarked last line only the end is read."""
_MAX_BOX_COMMAND_CHARS = 40

_SOLUTION = re.compile(r"<\s*solution\s*>", re.IGNORECASE)
_THINKING_ENDS = re.compile(r"</\s*think\s*>", re.IGNORECASE)
# A stop string may have cut the closing tag.
_ANSWER_SECTION = re.compile(
    r"<\s*answer\s*>(.*?)(?:<\s*/\s*answer\s*>|\Z)", re.IGNORECASE | re.DOTALL
)
_ANSWER_IS = re.compile(
    r"\b(?:answer|result|option|choice)\s++(?:is|would\s++be|must\s++be|should\s++be)\b:?",
    re.IGNORECASE,
)
_ONLY_CLOSING = re.compile(r"[\s}]*\}")
_BOX = re.compile(r"\\boxed\s*\{\s*\Z")


@dataclass(frozen=True, slots=True)
class FinalAnswer:
    """The text of an answer, and whether the reply marked it as the answer."""

    text: str
    marked: bool
    in_box: bool = False


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A reply without an answer of the question's type, and why."""

    reason: str


def final_answer(reply: str, kind: Kind, *, holds_braces: bool = False) -> FinalAnswer | None:
    """Find a reply's own final answer, if any.

    Args:
        reply: A whole reply, or its solution.
        kind: How the question's answers are compared.
        holds_braces: Whether answers to this question may have unbalanced braces. A box then
            ends with the last brace of the line.
    """
    text: str | None = reply
    # The plain search is fast, and most replies have no sections.
    if "olution" in reply.lower() and _SOLUTION.search(reply):
        text = parse(reply, "three_section").answer
    text = _after_thinking(text or "")
    section = _answer_section(text)
    text = text if section is None else section
    if not text.strip():
        return None
    # Lines are read, and a displayed formula takes three.
    text = DISPLAYED.sub(r"\g<opening>\g<inner>\g<closing>", text)

    span = _marked_span(text)
    if span is not None:
        start, end = span
        command_start = max(0, start - _MAX_BOX_COMMAND_CHARS)
        in_box = _BOX.search(text[command_start:start]) is not None
        if in_box and holds_braces:
            end = _end_of_braces(text, end)
        answer = text[start:end].strip()
        return FinalAnswer(answer, marked=True, in_box=in_box) if answer else None

    stated = _after_hashes(text) or _after_answer_is(text, kind)
    if stated:
        return FinalAnswer(stated, marked=True)
    if kind == "text":
        return FinalAnswer(text.strip(), marked=section is not None)
    last_line = text.rstrip().rpartition("\n")[2].strip()
    return FinalAnswer(last_line[-MAX_LINE_CHARS:], marked=section is not None)


def _after_thinking(text: str) -> str:
    if "think" not in text.lower():
        return text
    ends = [match.end() for match in _THINKING_ENDS.finditer(text)]
    behind = text[ends[-1] :] if ends else ""
    return behind if behind.strip() else text


def _answer_section(text: str) -> str | None:
    """Find the text of the last `<answer>`, unless a box or a line behind it is the answer."""
    sections = list(_ANSWER_SECTION.finditer(text))
    if not sections or _marked_span(text[sections[-1].end() :]) is not None:
        return None
    return sections[-1][1]


def _marked_span(text: str) -> tuple[int, int] | None:
    box = final_box(text)
    line = answer_line(text)
    if line is None or line[0] == line[1]:
        return box
    # The later one counts; a box inside of the line `Answer: \boxed{5}` is later than its start.
    if box is not None and box[1] > line[0]:
        return box
    return line


def _end_of_braces(text: str, end: int) -> int:
    """Find the end of a box with unbalanced closing braces."""
    closing_brace = text.find("}", end)
    line_end = (text + "\n").find("\n", closing_brace)
    more_braces = _ONLY_CLOSING.match(text, closing_brace + 1, line_end)
    return end if more_braces is None else more_braces.end() - 1


def _after_hashes(text: str) -> str | None:
    if "####" not in text:
        return None
    lines = [line.strip() for line in text.splitlines()]
    marked = [line.removeprefix("####").strip() for line in lines if line.startswith("####")]
    return marked[-1] if marked else None


def _after_answer_is(text: str, kind: Kind) -> str | None:
    # An answer in words may say "the answer is" itself, so only its last line is searched.
    search_start = text.rstrip().rfind("\n") + 1 if kind == "text" else 0
    last_match = None
    for match in _ANSWER_IS.finditer(text, search_start):
        last_match = match
    if last_match is None:
        return None
    line_end = text.find("\n", last_match.end())
    stated = text[last_match.end() : len(text) if line_end < 0 else line_end].strip()
    return stated.removesuffix(".").strip()
