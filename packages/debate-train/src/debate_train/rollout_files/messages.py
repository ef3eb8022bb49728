"""Messages as other programs write them."""

from collections.abc import Mapping
from typing import cast, get_args

from debate_protocol.types import Message, Role
from debate_train.errors import UsageError


def read_messages(value: object, role: Role, where: str) -> list[Message]:
    """Return messages; a text is one. Roles that a transcript does not have are the user's."""
    if isinstance(value, str):
        return [Message(role=role, content=value)]
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise UsageError(f"{where}: found {type(value).__name__}; expected a text or messages")
    found = []
    for one in value:
        own = one.get("role")
        known = cast(Role, own) if own in get_args(Role) else "user"
        found.append(Message(role=known, content=text_of(one.get("content"))))
    return found


def text_of(content: object) -> str:
    """Return the text of a message's content, which may come in parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""
