"""The proposer's turn of a debate on an agent's own question."""

from dataclasses import replace

from debate_protocol.forms.rounds import first_view, new_turn_request
from debate_protocol.forms.settings import DebateStart, SampledSettings
from debate_protocol.parsing import Contract
from debate_protocol.prompts import View, chat, compact_opening, question_text, section_rules
from debate_protocol.types import QUESTION, Message, TurnRequest

PROPOSER = "proposer"
"""The role of the agent who writes the question."""
PROPOSAL = Contract(
    "proposal",
    (QUESTION,),
    instructions={QUESTION: "the whole question, as others are to read it."},
    answers=False,
)
"""The contract of a written question."""
_TASK = (
    "Write a question for other agents, who answer it each for itself. The question is best where "
    "half of them are right, and worth nothing where all are, or nobody is."
)


def proposal_request(
    form: SampledSettings, begin: DebateStart, agent: int, *, has_example: bool
) -> TurnRequest:
    """Build the request for a question.

    Args:
        form: The form.
        begin: Its question is the example.
        agent: The proposer.
        has_example: Whether the proposer reads the example.
    """
    view = replace(first_view(begin, PROPOSAL), agent=agent, answers=False)
    write = _compact if form.style == "compact" else _full
    return new_turn_request(form, begin.seed, view, write(view, has_example))


def _compact(view: View, has_example: bool) -> tuple[Message, ...]:
    cue = f"{QUESTION} :"
    if not has_example:
        return chat("", cue)
    (message,) = compact_opening(view)
    return chat("", f"{message['content']}\n{cue}")


def _full(view: View, has_example: bool) -> tuple[Message, ...]:
    rules = f"{_TASK}\n\n{section_rules(view, '')}"
    if not has_example:
        return chat(rules, "Write a question.")
    return chat(rules, f"An example:\n\n{question_text(view)}\n\nWrite another question.")
