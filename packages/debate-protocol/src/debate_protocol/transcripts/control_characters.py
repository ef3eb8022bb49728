"""Characters that a terminal would act on, written so that it does not."""

import re

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
