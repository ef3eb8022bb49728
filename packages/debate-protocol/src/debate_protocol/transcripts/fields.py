"""Taking typed values out of parsed JSON, with errors that say where."""

from collections.abc import Collection, Mapping
from typing import Self, TypeVar

T = TypeVar("T")
D = TypeVar("D")
_MISSING = object()
_NAMES = {str: "text", int: "an integer", dict: "an object", list: "a list"}


class TranscriptError(ValueError):
    """A file does not hold what it should: where, what was found, what was expected."""

    def __init__(self, where: str, found: object, expected: str) -> None:
        shown = "nothing" if found is _MISSING else _short(found)
        super().__init__(f"{where}: found {shown}, expected {expected}")

    @classmethod
    def at(cls, where: str, message: str) -> Self:
        """Return an error with a message of its own behind the place."""
        error = cls(where, None, "")
        error.args = (f"{where}: {message}",)
        return error


def required(data: Mapping[str, object], key: str, kind: type[T], where: str) -> T:
    """Return `data[key]`, checked to be of this type.

    Raises:
        TranscriptError: It is missing or of another type.
    """
    return _checked(data.get(key, _MISSING), kind, f"{where}{key}")


def optional(
    data: Mapping[str, object],
    key: str,
    kind: type[T] | tuple[type[T], ...],
    where: str,
    default: D,
) -> T | D:
    """Return `data[key]`, checked to be of this type, or the default if it is missing or null.

    Raises:
        TranscriptError: It is of another type.
    """
    value = data.get(key)
    return default if value is None else _checked(value, kind, f"{where}{key}")


def at_most(value: int, limit: int, where: str) -> int:
    """Return a number that is not above a limit.

    Raises:
        TranscriptError: It is.
    """
    if value > limit:
        raise TranscriptError(where, value, f"at most {limit}")
    return value


def unknown_keys(data: Mapping[str, object], known: Collection[str]) -> dict[str, object]:
    """Return what stands under other keys."""
    return {key: value for key, value in data.items() if key not in known}


def _checked(value: object, kind: type[T] | tuple[type[T], ...], where: str) -> T:
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    kinds = kind if isinstance(kind, tuple) else (kind,)
    raise TranscriptError(where, value, " or ".join(_NAMES[one] for one in kinds))


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
