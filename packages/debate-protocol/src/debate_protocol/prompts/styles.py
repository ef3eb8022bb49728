"""The prompt styles: two built-in ones by name, and templates of the user's."""

from collections.abc import Callable, Mapping

from debate_protocol.prompts import compact, full
from debate_protocol.prompts.templates import PromptTemplates
from debate_protocol.prompts.view import StyleName, View
from debate_protocol.types import Message

Style = StyleName | PromptTemplates

_OPENINGS: Mapping[StyleName, Callable[[View], tuple[Message, ...]]] = {
    "full": full.opening,
    "compact": compact.opening,
}
_NEWS: Mapping[StyleName, Callable[[View], str]] = {"full": full.news, "compact": compact.news}


def opening(style: Style, view: View) -> tuple[Message, ...]:
    """Return the messages that begin an agent's conversation, or that restate the whole debate."""
    if isinstance(style, PromptTemplates):
        return style.opening_messages(view)
    return _OPENINGS[style](view)


def news(style: Style, view: View) -> str:
    """Return the user message with what was said since the agent last spoke."""
    return style.news_text(view) if isinstance(style, PromptTemplates) else _NEWS[style](view)
