"""What of a recipe and its texts may leave this machine: no secret, and no place on a disk."""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_SHORTEST_SECRET = 8
_PATH = re.compile(r"(?:\bfile://|(?<![\w:/.~-]))(?:/[^\s/:\"']+)+/(?P<name>[^\s/:\"']+)")
"""A path from the root with at least two parts; of addresses those of files alone."""


def shareable(value: object, environment: Mapping[str, str]) -> object:
    """Return `value` with secrets as `[secret]`, and of absolute paths the last part alone.

    A secret is the value of a variable whose name speaks of a key, token, password or the like.
    """
    return _shared(value, _secrets(environment))


def _secrets(environment: Mapping[str, str]) -> list[str]:
    """Return them, the longest first."""
    found = [
        text
        for name, text in environment.items()
        if _SECRET_NAME.search(name) and len(text) >= _SHORTEST_SECRET
    ]
    return sorted(found, key=len, reverse=True)


def _shared(value: object, found: list[str]) -> object:
    if isinstance(value, Mapping):
        return {key: _shared(item, found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_shared(item, found) for item in value]
    if isinstance(value, str):
        for secret in found:
            value = value.replace(secret, "[secret]")
        return _PATH.sub(r"…/\g<name>", value)
    return value


def shareable_page(text: str, resolved: Mapping[str, object], folder: Path) -> str:
    """Return a page of a run without secrets, paths that its recipe names, its own, the user's."""
    home = os.path.expanduser("~")
    for secret in _secrets(os.environ):
        text = text.replace(secret, "[secret]")
    named = {path: "…/" + path.rsplit("/", 1)[1] for path in _paths(resolved)}
    named |= {str(folder.resolve()): "…"} | ({home: "~"} if home.count("/") > 1 else {})
    for path in sorted(named, key=len, reverse=True):
        text = text.replace(path, named[path])
    return text


def _paths(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for item in value:
            yield from _paths(item)
    elif isinstance(value, str):
        yield from (match[0] for match in _PATH.finditer(value))
