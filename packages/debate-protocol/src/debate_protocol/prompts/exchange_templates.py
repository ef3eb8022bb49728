"""Prompts of the user's own for actors and their critic: templates with named places."""

from typing import Self

from pydantic import ValidationInfo, field_validator, model_validator

from debate_protocol.config import Config
from debate_protocol.prompts.questions import QUESTION_PLACES, question_values
from debate_protocol.prompts.templates import PromptTemplates, filled, places, with_known_places
from debate_protocol.prompts.view import NO_RESPONSE, SeenTurn, View
from debate_protocol.types import Message

_SAID = ("responses", "response", "feedback")


class ExchangeTemplates(Config):
    """Templates of what an actor and a critic are asked; places stand as `$name`, a dollar as `$$`.

    | place | what stands there |
    |---|---|
    | `$question` | passage, question and choices; `$passage`, `$text` and `$choices` one by one |
    | `$responses` | all last turns as `Person 1 said: …`, the actors' and then the critic's |
    | `$response` | an actor's own last answer; for a critic the answers of its round |
    | `$feedback` | the critic's last turn |
    | `$answer_form` | what `full` says of the form of the final answer |
    | `$target` | the answer that a guided reply is to support |

    A paragraph whose places are all empty is left out. Texts of questions and agents are inserted
    with their tags made plain, and are not read as templates.

    Attributes:
        system: The system message of all; none where it is empty.
        first: Asks an actor for its first answer.
        actor: Asks an actor for each later one.
        critic: Asks the critic for its feedback.
        guided_first: Asks for a first answer that supports `$target`; null adds the request of
            `full` to `first`.
        guided_actor: The same of a later answer.
        guided_critic: The same of feedback.

    Source: ACC-Debate (paper), appendix C.1, prints such prompts for questions about a passage.
    """

    system: str = ""
    first: str
    actor: str
    critic: str
    guided_first: str | None = None
    guided_actor: str | None = None
    guided_critic: str | None = None

    @field_validator("*")
    @classmethod
    def _places_are_known(cls, text: str | None, info: ValidationInfo) -> str | None:
        said = () if info.field_name in ("system", "first", "guided_first") else _SAID
        target = ("target",) if str(info.field_name).startswith("guided_") else ()
        known = (*QUESTION_PLACES, *said, *target)
        return text if text is None else with_known_places(text, known)

    @model_validator(mode="after")
    def _agents_are_shown_what_they_need(self) -> Self:
        question, own = ("question", "text"), ("responses", "response")
        needs = {
            "first": (question,),
            "actor": (question, own, ("responses", "feedback")),
            "critic": (question, own),
        }
        for name, needed in needs.items():
            for key in (name, f"guided_{name}"):
                text = getattr(self, key)
                wanted = (*needed, ("target",)) if key != name else needed
                for either in wanted if text is not None else ():
                    if not set(either) & {*places(text), *places(self.system)}:
                        raise ValueError(
                            f"{key}: expected {' or '.join(f'${one}' for one in either)} in it"
                        )
        return self

    def single(self) -> PromptTemplates:
        """Return the templates of a reply without debate: what an actor is first asked."""
        return PromptTemplates(system=self.system, opening=f"{self.first}\n\n$debate")

    def messages(self, view: View, target: str | None) -> tuple[tuple[Message, ...], bool]:
        """Return the messages of a turn, and whether they ask for the target."""
        name = ("first", "actor")[bool(view.turns)] if view.answers else "critic"
        guided = None if target is None else getattr(self, f"guided_{name}")
        text: str = getattr(self, name) if guided is None else guided
        values = _values(view, target or "")
        user = Message(role="user", content=filled(text, values))
        system = filled(self.system, values)
        found = (Message(role="system", content=system), user) if system else (user,)
        return found, guided is not None


def _values(view: View, target: str) -> dict[str, str]:
    feedback = view.turns[-1:] if view.answers else ()
    own = [t for t in view.turns if t.agent == view.agent] if view.answers else view.turns
    return {
        **question_values(view),
        "responses": _people(view.turns),
        "response": _said(own[0]) if len(own) == 1 else _people(own),
        "feedback": "".join(map(_said, feedback)),
        "target": target,
    }


def _people(turns: tuple[SeenTurn, ...] | list[SeenTurn]) -> str:
    return "\n".join(f"Person {n} said: {_said(turn)}" for n, turn in enumerate(turns, 1))


def _said(turn: SeenTurn) -> str:
    return NO_RESPONSE if turn.fields is None else "\n\n".join(turn.fields.values())
