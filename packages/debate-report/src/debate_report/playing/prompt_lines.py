"""The prompts of a debate as lines with places, read off the form itself.

The form is played twice with marks instead of texts: once all replies are read, once none is. So
who sees what, in which round and in which words, is the form's own; the page's script only fills
the marked places.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from debate_protocol.forms import Simultaneous
from debate_protocol.prompts import NO_RESPONSE
from debate_protocol.types import Question, Reply, TurnRequest
from debate_report.playing.small_weights import NotPlayableError

QUESTION_MARK = "{question}"
_MARK = re.compile(r"\{(?P<agent>\d+)\.(?P<round>\d+)\.(?P<section>\w+)\}|\{question\}")
MAX_TURNS = 64

PromptLine = dict[str, str | int | bool]
"""`text` alone, or `before` and the place after it: `question`, or `section` of a turn.

With `answers` the line represents its turn, and reads `failed` where no answer could be read.
"""


@dataclass(frozen=True, slots=True)
class TurnPrompt:
    """What one agent is shown before one turn: the lines, which may go on from its last reply."""

    agent: int
    round: int
    continues: bool
    lines: list[PromptLine]


def check_form(form: Simultaneous) -> None:
    """Refuse a form that the page's script does not play.

    Raises:
        NotPlayableError: The form may end early, has other prompts, or several policies.
    """
    contract = form.contract_rules()
    problems = {
        "style": form.style != "compact",
        "contract": contract.kind != "xml" or contract.stop is None or contract.ranks_own,
        "contract, a consensus": "consensus" in contract.sections,
        "stop_when_agreed": form.stop_when_agreed,
        "gate_after": bool(form.gate_after),
        "on_failure": form.on_failure != "continue",
        "roles": bool(form.roles),
        "presentation": form.presentation == "drawn",
        "think": form.think != "unwrap",
        "max_chars_per_field": form.max_chars_per_field is not None,
        "num_agents and max_rounds": form.turn_count() > MAX_TURNS,
    }
    for key, is_refused in problems.items():
        if is_refused:
            raise NotPlayableError(f"debate: the page does not play this setting of {key}")


def read_prompts(form: Simultaneous) -> list[list[TurnPrompt]]:
    """Read the prompts of all turns, by round and then by agent.

    Raises:
        NotPlayableError: A prompt has marks where the page's script cannot fill them.
    """
    rounds_with_answers = list(_requests_by_round(form, are_read=True))
    rounds_without_answers = list(_requests_by_round(form, are_read=False))
    prompts = []
    for requests, failed_requests in zip(rounds_with_answers, rounds_without_answers, strict=True):
        prompts.append(list(map(_turn_prompt, requests, failed_requests)))
    return prompts


def _requests_by_round(form: Simultaneous, *, are_read: bool) -> Iterator[Sequence[TurnRequest]]:
    """Play the form with marks as replies, or with replies that cannot be read."""
    contract = form.contract_rules()
    debate = form.start(Question(QUESTION_MARK, QUESTION_MARK), seed=0)
    requests = next(debate)
    while isinstance(requests, list | tuple):
        yield requests
        replies = []
        for request in requests:
            turn = f"{request.agent}.{request.round}"
            texts = {name: f"{{{turn}.{name}}}" for name in contract.sections}
            answer = texts[contract.answer_section or ""]
            replies.append(Reply(contract.reply(answer, texts) if are_read else ""))
        try:
            requests = debate.send(replies)
        except StopIteration:
            return


def _turn_prompt(request: TurnRequest, failed_request: TurnRequest) -> TurnPrompt:
    newest = request.messages[-1]["content"]
    if any(message["role"] == "system" for message in request.messages):
        raise NotPlayableError("debate: its prompts have a system message")
    failed_lines = [
        line
        for line in failed_request.messages[-1]["content"].split("\n")
        if line.endswith(NO_RESPONSE)
    ]
    contract = request.contract
    answer_section = None if contract is None else contract.answer_section
    lines = [_prompt_line(line, answer_section) for line in newest.split("\n")]
    answer_lines = [line for line in lines if line.get("section") == answer_section]
    if len(answer_lines) != len(failed_lines):
        raise NotPlayableError("debate: prompts of failed turns have other lines")
    for line, failed_line in zip(answer_lines, failed_lines, strict=True):
        line["failed"] = failed_line
    return TurnPrompt(request.agent, request.round, request.previous is not None, lines)


def _prompt_line(line: str, answer_section: str | None) -> PromptLine:
    marks = list(_MARK.finditer(line))
    if not marks:
        return {"text": line}
    (mark, *others) = marks
    if others or mark.end() != len(line):
        raise NotPlayableError("debate: a line of its prompts has text after its place")
    before = line[: mark.start()]
    if mark["section"] is None:
        return {"before": before, "question": True}
    return {
        "before": before,
        "agent": int(mark["agent"]),
        "round": int(mark["round"]),
        "section": mark["section"],
        "answers": mark["section"] == answer_section,
    }
