"""The compact style: a few fixed words a line, for tiny models with a word-level vocabulary.

No system message, no instructions and no persona text; the model learns the contract from
training. Each inserted field is put on one line, so that no text can begin another's line.
"""

from debate_protocol.prompts.view import NO_RESPONSE, SeenTurn, View
from debate_protocol.types import Message

_HIDDEN = ("comparison", "consensus", "consensus_reason")


def opening(view: View) -> tuple[Message, ...]:
    """Return the messages that begin an agent's conversation."""
    lines = [f"Agent {view.agent}", view.inserted(view.question.text), *_turn_lines(view)]
    return (Message(role="user", content="\n".join(lines)),)


def news(view: View) -> str:
    """Return the user message that tells what was said since the agent last spoke."""
    return "\n".join(_turn_lines(view))


def _turn_lines(view: View) -> list[str]:
    lines: list[str] = []
    for turn in view.turns:
        lines += _lines_of(turn)
    return lines


def _lines_of(turn: SeenTurn) -> list[str]:
    if turn.fields is None:
        return [f"Agent {turn.agent} : {NO_RESPONSE}"]
    fields = {name: _one_line(text) for name, text in turn.fields.items() if name not in _HIDDEN}
    evaluation = fields.pop("evaluation", None)
    answer = next(iter(fields.values()), "")
    lines = [f"Agent {turn.agent} : {answer}"]
    return lines if evaluation is None else [*lines, f"evaluation : {evaluation}"]


def _one_line(text: str) -> str:
    # A lone colon is what marks the speaker.
    return " ".join(word for word in text.split() if word != ":")
