r"""Reading the final answer of free text: the last `\boxed{…}` or the last line `Answer: …`."""

import re

Range = tuple[int, int]
_BRACES = re.compile(r"\\boxed\s*+\{|\\.|[{}]", re.DOTALL)
_SPACE = re.compile(r"\s*+")
_ANSWER_LINE = re.compile(
    r"^[^\S\n]*+[*_#>-]*+[^\S\n]*+(?ai:(?:final )?answer)[^\S\n]*+[*_]*+[^\S\n]*+[:：]",
    re.MULTILINE,
)


def final_box(text: str) -> Range | None:
    r"""Return the range of the content of the last complete `\boxed{…}`, or None.

    One pass with a stack, so that a million openings cost linear time. A box that holds nothing
    but another box counts as the inner one.
    """
    if "\\boxed" not in text:
        return None
    stack: list[Range | None] = []  # (outer start, content start) of a box; None for other braces
    content: Range | None = None
    outer = (-1, -1)
    for match in _BRACES.finditer(text):
        found = match.group()
        if found.startswith("\\boxed"):
            stack.append(match.span())
        elif found == "{":
            stack.append(None)
        elif found == "}" and stack:
            opened = stack.pop()
            if opened is None:
                continue
            start, end = opened[1], match.start()
            holds_box = _skip_space(text, start) == outer[0] and _skip_space(text, outer[1]) == end
            if not holds_box:
                content = (start, end)
            outer = (opened[0], match.end())
    return content and _stripped(text, *content)


def answer_line(text: str) -> Range | None:
    """Return the range of what follows `Answer:` in the last line that begins so, or None."""
    last: re.Match[str] | None = None
    for match in _ANSWER_LINE.finditer(text):
        last = match
    if last is None:
        return None
    line_end = text.find("\n", last.end())
    start, end = _stripped(text, last.end(), len(text) if line_end < 0 else line_end)
    while start < end and text[start] == "*":
        start += 1
    while start < end and text[end - 1] == "*":
        end -= 1
    return _stripped(text, start, end)


def _skip_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start) if start >= 0 else None
    return match.end() if match else start


def _stripped(text: str, start: int, end: int) -> Range:
    inner = text[start:end]
    left = start + len(inner) - len(inner.lstrip())
    return left, max(left, start + len(inner.rstrip()))
