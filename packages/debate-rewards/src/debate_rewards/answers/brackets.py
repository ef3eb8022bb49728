"""Where the outermost brackets of a formula open and close."""

import re

_BRACKET = re.compile(r"\\[{}]|\\.|[()\[\]{}]", re.DOTALL)
_OPENING = frozenset(("(", "[", "{", "\\{"))
_CLOSING = frozenset((")", "]", "}", "\\}"))


def enclosed(text: str, opening: str, closing: str) -> str | None:
    """Return what two brackets around a whole text enclose, None where they are not a pair."""
    if not (text.startswith(opening) and text.endswith(closing)):
        return None
    depth = 0
    for match in _BRACKET.finditer(text):
        depth += (match[0] in _OPENING) - (match[0] in _CLOSING)
        if depth == 0:
            is_last = match.end() == len(text)
            return text[len(opening) : match.start()].strip() if is_last else None
    return None


def split_outside(text: str, separator: str) -> list[str]:
    """Split at a separator outside of all brackets."""
    if separator not in text:
        return [text.strip()]
    pieces = []
    start = depth = 0
    for match in re.finditer(rf"{re.escape(separator)}|{_BRACKET.pattern}", text, re.DOTALL):
        if match[0] == separator and depth == 0:
            pieces.append(text[start : match.start()].strip())
            start = match.end()
        depth += (match[0] in _OPENING) - (match[0] in _CLOSING)
    pieces.append(text[start:].strip())
    return pieces
