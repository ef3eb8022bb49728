"""HTML built from Python values; every text is escaped unless it is already `Html`."""

import html
import re
from collections.abc import Iterable
from typing import Union

Child = Union["Html", str, int, float, None, Iterable["Child"]]
EMPTY = frozenset({"meta", "line", "path", "rect", "circle"})
# Characters that HTML forbids or that would let a text reorder its surroundings.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_BIDI = re.compile("[\u202a-\u202e\u2066-\u2069]")


class Html(str):
    """Text that is HTML already and is not escaped again."""

    __slots__ = ()


def escape(text: str) -> Html:
    """Return any text, also one written by a model, as harmless HTML."""
    text = _BIDI.sub(lambda found: f"[U+{ord(found[0]):04X}]", text.replace("\r\n", "\n"))
    return Html(html.escape(_FORBIDDEN.sub("\ufffd", text), quote=True))


def join(children: Iterable[Child]) -> Html:
    """Return children one after the other; None leaves nothing."""
    return Html("".join(_render(child) for child in children))


def tag(name: str, /, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """Return an element.

    In attribute names `_` stands for `-` and a last `_` is dropped (`class_`); None and False
    leave an attribute out, True gives it without a value.
    """
    start = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        start.append(key if value is True else f'{key}="{escape(_text(value))}"')
    if name in EMPTY and not children:
        return Html(f"<{' '.join(start)}/>")
    return Html(f"<{' '.join(start)}>{join(children)}</{name}>")


def table(head: Iterable[Child], rows: Iterable[Iterable[Child]], caption: str = "") -> Html:
    """Return a table whose first column holds row headings; it scrolls on narrow screens."""
    body = []
    for row in rows:
        first, *rest = row
        body.append(tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest)))
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption) if caption else None,
            tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in head))),
            tag("tbody", *body),
        ),
        class_="scroll",
    )


def fold(summary: Child, *children: Child, open_: bool = False) -> Html:
    """Return content that is folded away under its summary."""
    return tag("details", tag("summary", summary), *children, open=open_)


def _render(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Html):
        return child
    if isinstance(child, str | int | float):
        return escape(_text(child))
    return join(child)


def _text(value: str | int | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
