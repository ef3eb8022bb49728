"""Where the outermost brackets of a formula open and close."""

import re

_BRACKET = re.compile(r"\\[{}]|\\.|[()\[\]{}]", re.DOTALL)
_OPENING = frozenset(("(", "[", "{", "\\{"))
_CLOSING = frozenset((")", "]", "}", "\\}"))


def enclosed(text: str, opening: str, closing: str) -> str | None:
    """Take the inside of a pair of brackets around a whole text."""
    if not (text.startswith(opening) and text.endswith(closing)):
        return None
    depth = 0
    for match in _BRACKET.finditer(text):
        depth = _depth_behind(match[0], depth)
        if depth == 0:
            # In `(1,2)+(3,4)` the first bracket closes before the end.
            is_last = match.end() == len(text)
            return text[len(opening) : match.start()].strip() if is_last else None
    return None


def split_outside(text: str, separator: str) -> list[str]:
    """Split at a separator outside of all brackets."""
    if separator not in text:
        return [text.strip()]
    pieces = []
    piece_start = 0
    depth = 0
    for match in re.finditer(rf"{re.escape(separator)}|{_BRACKET.pattern}", text, re.DOTALL):
        if match[0] == separator and depth == 0:
            pieces.append(text[piece_start : match.start()].strip())
            piece_start = match.end()
        depth = _depth_behind(match[0], depth)
    pieces.append(text[piece_start:].strip())
    return pieces


def _depth_behind(token: str, depth: int) -> int:
    if token in _OPENING:
        return depth + 1
    # Interval ends such as `(2,5]` close with the other kind of bracket, so kinds do not count.
    return depth - 1 if token in _CLOSING else depth
