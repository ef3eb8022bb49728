"""Texts as they are compared: without differences of case, white space, quotes and full stops."""

import re
import unicodedata
from functools import lru_cache

MAX_FOLDED_CHARS = 4096
"""Longest text with folding of compatible characters: combining marks take quadratic time."""

TEXT_COMMAND = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|emph|mbox)\s*+\{([^{}]*+)\}")
# Behind one letter or a digit it is a factorial.
_EXCLAMATION = re.compile(r"(?<=[^\W\d_][^\W\d_])!+$")
_EDGES = "\"'`.“”‘’*_ "


def plain_text(text: str) -> str:
    r"""Strip font commands, math dollars at both ends and escapes of braces."""
    if "\\" in text:
        text = TEXT_COMMAND.sub(r"\1", text).replace("\\{", "{").replace("\\}", "}")
    stripped = text.strip()
    if len(stripped) > 2 and stripped[0] == stripped[-1] == "$":
        stripped = stripped.strip("$")
    return stripped


@lru_cache(maxsize=1024)
def text_form(text: str) -> str:
    """Fold a text into the common form of equal texts.

    Braces may be escaped, as unbalanced braces in a box must be. Compatible characters such as `ﬁ`
    and `fi` are equal (NFKC).
    """
    plain = plain_text(text)
    if not plain.isascii() and len(plain) <= MAX_FOLDED_CHARS:
        plain = unicodedata.normalize("NFKC", plain)
    folded = " ".join(plain.casefold().split()).strip(_EDGES)
    return _EXCLAMATION.sub("", folded)
