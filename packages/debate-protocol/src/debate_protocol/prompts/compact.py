"""The compact style: a few fixed words a line, for tiny models with a word-level vocabulary.

No system message, no instructions and no persona text; the model learns the contract from
training. Each inserted text is put on one line, so that no text can begin another's line.
"""

from debate_protocol.prompts.view import NO_RESPONSE, SeenTurn, View, labelled_choices
from debate_protocol.types import Message

_LEFT_OUT = ("consensus", "consensus_reason")


def opening(view: View) -> tuple[Message, ...]:
    """Return the messages that begin an agent's conversation."""
    lines = [f"Agent {view.agent}", *_question_lines(view), *_turn_lines(view)]
    return (Message(role="user", content="\n".join(lines)),)


def news(view: View) -> str:
    """Return the user message with what was said since the agent last spoke."""
    return "\n".join(_turn_lines(view))


def _question_lines(view: View) -> list[str]:
    question = view.question
    lines = [view.inserted(_question_line(question.text))]
    if passage := question.meta.get("passage"):
        lines.insert(0, f"passage : {view.inserted(_question_line(str(passage)))}")
    if choices := labelled_choices(question):
        listed = " ".join(f"{label}. {choice}" for label, choice in choices)
        lines.append(f"choices : {view.inserted(_question_line(listed))}")
    return lines


def _turn_lines(view: View) -> list[str]:
    lines: list[str] = []
    for turn in view.turns:
        lines += _lines_of(turn, view)
    return lines


def _lines_of(turn: SeenTurn, view: View) -> list[str]:
    if turn.fields is None:
        return [f"Agent {turn.agent} : {NO_RESPONSE}"]
    fields = {name: view.inserted(_one_line(text)) for name, text in turn.fields.items()}
    answer = fields.pop(view.contract.answer_section or "answer", "")
    others = [f"{name} : {text}" for name, text in fields.items() if name not in _LEFT_OUT]
    return [f"Agent {turn.agent} : {answer}".rstrip(), *others]


def _one_line(text: str) -> str:
    # A lone colon is what marks the speaker.
    return " ".join(word for word in text.split() if word != ":")


def _question_line(text: str) -> str:
    # The same, but a ratio such as 3 : 4 keeps its colon, joined to the word before.
    words: list[str] = []
    for word in text.split():
        if word == ":":
            words[-1:] = [f"{last}:" for last in words[-1:]]
        else:
            words.append(word)
    return " ".join(words)
