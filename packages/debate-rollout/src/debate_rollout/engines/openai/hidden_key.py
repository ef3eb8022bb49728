"""An endpoint's key is blanked in what the endpoint says, which is kept, printed and shared.

Hidden are the whole key and long parts of it, also in other cases, with characters in between,
backwards, as base64, hexadecimal, decimal or escaped characters, and starred as services show it.
What hides a key on purpose in yet another way is not found.
"""

import base64
import re
from collections.abc import Iterable, Iterator

SHORTEST = 8
"""A shorter key, such as the EMPTY of servers that want none, is no secret: it is left in texts."""
_PART, _SPELLED = 8, 12
"""Characters in a row that are taken for a part of the key: as it is, and in another spelling."""
_OTHER = re.compile("[^0-9A-Za-z]+")
_SAME = re.compile("[0-9A-Za-z]")
_STARS = r"[*•·…●▪█#]"


class HiddenKey:
    """Blanks one key in texts; None blanks nothing. Takes time linear in the text."""

    def __init__(self, key: str | None) -> None:
        self._key = key if key is not None and len(key) >= SHORTEST else ""
        spelled = {_skeleton(one) for one in _spellings(self._key)}
        self._parts = _Windows([self._key], _PART)
        self._spelled = _Windows(spelled, _SPELLED)
        self._starred = re.compile(_starred(self._key)) if len(self._key) >= 2 * _PART else None

    def __call__(self, text: str) -> str:
        """Return the text with `[key]` in place of the key and of its parts."""
        if not self._key:
            return text
        text = text.replace(self._key, "[key]")
        if self._starred is not None:
            text = self._starred.sub("[key]", text)
        text = _blanked(text, self._parts.found_in(text))
        skeleton = _skeleton(text)
        if not self._spelled.may_be_in(skeleton):
            return text
        places = [found.start() for found in _SAME.finditer(text)]
        spans = self._spelled.found_in(skeleton)
        return _blanked(text, [(places[start], places[end - 1] + 1) for start, end in spans])

    def __repr__(self) -> str:
        """Show nothing of it."""
        return "HiddenKey()"


class _Windows:
    """All runs of `size` characters of some texts."""

    def __init__(self, texts: Iterable[str], size: int) -> None:
        texts = list(texts)
        self._size = size
        self._whole = {one for text in texts for one in _runs(text, size)}
        self._half = {one for text in texts for one in _runs(text, size // 2)}

    def may_be_in(self, text: str) -> bool:
        """Return False where none is in the text: a run holds one of the halves looked at."""
        half = self._size // 2
        places = range(0, len(text), self._size - half + 1)
        return any(text[k : k + half] in self._half for k in places)

    def found_in(self, text: str) -> list[tuple[int, int]]:
        """Return where they are, as starts and ends in order; they may overlap."""
        if not self.may_be_in(text):
            return []
        size = self._size
        starts = (k for k in range(len(text) - size + 1) if text[k : k + size] in self._whole)
        return [(k, k + size) for k in starts]


def _runs(text: str, size: int) -> Iterator[str]:
    return (text[k : k + size] for k in range(len(text) - size + 1))


def _skeleton(text: str) -> str:
    """Return the letters and digits alone, small."""
    return _OTHER.sub("", text).lower()


def _spellings(key: str) -> Iterator[str]:
    """Yield the key as other programs write it; neighbours change the ends of base64 only."""
    yield key
    yield key[::-1]
    codes = [ord(character) for character in key]
    yield "".join(f"{code:02x}" for code in codes)  # %6b%33 has the same letters
    yield "".join(f"x{code:02x}" for code in codes)
    yield "".join(f"u{code:04x}" for code in codes)
    yield "".join(str(code) for code in codes)  # &#107;&#51; and lists of codes
    for before in range(3):
        encoded = base64.b64encode(b"\0" * before + key.encode()).decode().rstrip("=")
        yield encoded[(0, 2, 3)[before] : -1]


def _starred(key: str) -> str:
    """Return a pattern of the key's first or last characters beside stars."""
    first, last = re.escape(key[:5]), re.escape(key[-4:])
    rest, stars = r"[\w-]{0,200}", rf"{_STARS}{{3,200}}"
    return f"{first}{rest}{stars}(?:{rest}{last})?|(?<!{_STARS}){stars}{rest}{last}"


def _blanked(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return the text with each group of overlapping spans replaced; they come in order."""
    pieces: list[str] = []
    done = 0
    for start, end in spans:
        if not pieces or start > done:
            pieces += (text[done:start], "[key]")
        done = max(done, end)
    return "".join((*pieces, text[done:]))
