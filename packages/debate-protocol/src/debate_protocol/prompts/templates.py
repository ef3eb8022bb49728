"""A prompt style of the user's own: three templates with named places."""

import difflib
import re
from collections.abc import Mapping
from string import Template
from typing import Self

from pydantic import field_validator, model_validator

from debate_protocol.config import Config
from debate_protocol.prompts import full
from debate_protocol.prompts.questions import QUESTION_PLACES, question_values
from debate_protocol.prompts.view import View
from debate_protocol.types import Message

PLACEHOLDERS = ("agent", "round", "persona", *QUESTION_PLACES, "debate", "rules", "task")
_BLANK_LINES = re.compile(r"\n[^\S\n]*\n\s*")


class PromptTemplates(Config):
    """Templates of the three messages a form writes; places stand as `$name`, a dollar as `$$`.

    | place | what stands there |
    |---|---|
    | `$agent`, `$round` | the agent's number, from 0, and the round's, from 1 |
    | `$persona` | `You are the …` and the persona's style; empty without personas |
    | `$question` | passage, question and choices; `$passage`, `$text`, `$choices` one by one |
    | `$debate` | the turns to be shown, as `<turn>` blocks; empty when there are none |
    | `$rules`, `$answer_form` | what `full` says of the sections, and of the final answer alone |
    | `$task` | what `full` asks of this turn: what to evaluate, to compare, or to leave out |

    A paragraph whose places are all empty is left out. Texts of questions and agents are inserted
    with their tags made plain, and are not read as templates.

    Attributes:
        system: The system message; no such message when it is empty.
        opening: Begins a conversation, or restates the whole debate.
        news: What was said since the agent last spoke.
    """

    system: str = "$rules"
    opening: str = (
        "$question\n\nThe debate so far:\n$debate\n\nYou are Agent $agent. $persona\n\n$task"
    )
    news: str = "Round $round. Responses of other agents:\n$debate\n\n$task"

    @field_validator("system", "opening", "news")
    @classmethod
    def _places_are_known(cls, text: str) -> str:
        return with_known_places(text, PLACEHOLDERS)

    @model_validator(mode="after")
    def _agents_are_shown_the_debate(self) -> Self:
        first = {*places(self.system), *places(self.opening)}
        for name, other in (("question", "text"), ("debate", "debate")):
            if not {name, other} & first:
                raise ValueError(f"opening: expected ${name} in it, or no agent would see it")
        if "debate" not in places(self.news):
            raise ValueError("news: expected $debate in it, or no agent would see the debate")
        return self

    def opening_messages(self, view: View) -> tuple[Message, ...]:
        """Return the messages that begin an agent's conversation."""
        values = _values(view)
        user = Message(role="user", content=filled(self.opening, values))
        system = filled(self.system, values)
        return (Message(role="system", content=system), user) if system else (user,)

    def news_text(self, view: View) -> str:
        """Return the user message with what was said since the agent last spoke."""
        return filled(self.news, _values(view))


def _values(view: View) -> dict[str, str]:
    persona = view.persona
    return {
        "agent": str(view.agent),
        "round": str(view.round + 1),
        "persona": f"You are the {persona.name}. {persona.style}".rstrip() if persona else "",
        **question_values(view),
        "debate": full.turn_blocks(view.turns),
        "rules": full.rules(view),
        "task": full.task(view),
    }


def with_known_places(text: str, known: tuple[str, ...]) -> str:
    """Return a template whose places are all known.

    Raises:
        ValueError: It has another one, or a dollar without a name.
    """
    template = Template(text)
    for name in template.get_identifiers():
        if name not in known:
            near = difflib.get_close_matches(name.lower(), known, n=1)
            hint = f"; did you mean ${near[0]}?" if near else ""
            raise ValueError(
                f"found ${name}, expected one of {_listed(known)}; write $$ for a dollar sign{hint}"
            )
    if not template.is_valid():
        raise ValueError(
            f"found a $ without a name, expected one of {_listed(known)}; "
            "write $$ for a dollar sign"
        )
    return text


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a template with its places filled, without paragraphs whose places are all empty."""
    paragraphs = []
    for paragraph in _BLANK_LINES.split(text.strip()):
        names = places(paragraph)
        if not names or any(values[name] for name in names):
            paragraphs.append(Template(paragraph).substitute(values).rstrip())
    return "\n\n".join(paragraphs)


def places(text: str) -> list[str]:
    """Return the names of a template's places."""
    return Template(text).get_identifiers()


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"${name}" for name in names)
