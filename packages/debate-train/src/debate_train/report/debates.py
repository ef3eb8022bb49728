"""A few readable debates of a run, always the same ones for the same files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from debate_protocol.comparisons import Comparison
from debate_protocol.contract import get_contract
from debate_protocol.parsing import parse_turn
from debate_protocol.types import Transcript, TurnKey
from debate_rewards.answers import check
from debate_rewards.reading import ReadTurn, read_debate
from debate_train.report.html import Html, escape, fold, join, tag
from debate_train.report.run_files import read_debates

MAX_CHARS = 5000
_SEARCHED_FILES = 4
_MARKS = {"right": "✓", "wrong": "✗", "unverifiable": "?"}


@dataclass(frozen=True, slots=True)
class Pick:
    """A debate to show and why it was chosen."""

    why: str
    source: str
    transcript: Transcript


class Told:
    """A debate ready to be shown: parsed turns, and verdicts where the truth is known."""

    def __init__(self, debate: Transcript) -> None:
        self.read = read_debate(debate)
        self.sections = get_contract(debate.protocol.contract).sections
        self.verdicts: dict[TurnKey, str] = {}
        if debate.question.answer is not None:
            self.verdicts = {
                key: check(debate.question, turn.parsed.answer).verdict
                for key, turn in self.read.turns.items()
                if not turn.failed
            }


def pick(files: Sequence[Path]) -> list[Pick]:
    """Choose one debate of the first steps, one of the last, and the last disagreement.

    When the first and the last file share a question, both show that one. A disagreement is the
    first debate with two different answers in one round, searched from the last file back.
    """
    if not files:
        return []
    first = read_debates(files[0])
    if len(files) == 1:
        last, early, late = first, next(iter(first), None), next(iter(first[1:]), None)
    else:
        last = read_debates(files[-1])
        shared = {debate.question.id for debate in first} & {debate.question.id for debate in last}
        early, late = _first_about(first, shared), _first_about(last, shared)
    picks = [
        Pick(why, path.stem, debate)
        for why, path, debate in (("First steps", files[0], early), ("Last steps", files[-1], late))
        if debate is not None
    ]
    used = {id(picked.transcript) for picked in picks}
    for path in files[: -_SEARCHED_FILES - 1 : -1]:
        debates = last if path == files[-1] else first if path == files[0] else read_debates(path)
        for debate in debates:
            if id(debate) not in used and _disagreed(debate):
                return [*picks, Pick("A disagreement", path.stem, debate)]
    return picks


def show(picked: Pick) -> Html:
    """Return a debate as a person reads it: question, then round by round, agent by agent."""
    debate = picked.transcript
    told = Told(debate)
    protocol = debate.protocol
    return tag(
        "article",
        tag(
            "header",
            tag("h3", picked.why),
            tag(
                "p",
                f"{picked.source} · {protocol.num_agents} agents · {protocol.schedule} · "
                f"{protocol.contract}",
                class_="note",
            ),
        ),
        _question(debate),
        *(_round(number, told) for number in range(told.read.last_round + 1)),
        class_="debate",
    )


def _first_about(debates: Sequence[Transcript], shared: set[str]) -> Transcript | None:
    wanted = [debate for debate in debates if debate.question.id in shared]
    return (
        min(wanted, key=lambda debate: debate.question.id) if wanted else next(iter(debates), None)
    )


def _disagreed(debate: Transcript) -> bool:
    answers: dict[int, set[str]] = {}
    for turn in debate.turns:
        answer = parse_turn(debate, turn).answer if turn.failure is None else None
        if answer is not None:
            answers.setdefault(turn.round, set()).add(" ".join(answer.split()))
    return any(len(said) > 1 for said in answers.values())


def _question(debate: Transcript) -> Html:
    answer = debate.question.answer
    passage = debate.question.meta.get("passage")
    return tag(
        "div",
        fold("Passage", _text(str(passage))) if passage else None,
        _text(debate.question.text),
        tag("p", "Answer: ", tag("b", _clip(answer), dir="auto")) if answer is not None else None,
        class_="question",
    )


def _round(number: int, told: Told) -> Html:
    turns = [turn for key, turn in sorted(told.read.turns.items()) if key.round == number]
    return tag(
        "section",
        tag("h4", f"Round {number + 1}"),
        tag("div", *(_turn(turn, told) for turn in turns), class_="turns"),
    )


def _turn(read: ReadTurn, told: Told) -> Html:
    parts = [_section(name, read, told) for name in told.sections if name in read.parsed.sections]
    return tag(
        "div",
        tag("h5", f"Agent {read.turn.agent} ", _badge(read, told)),
        *(parts or [_text(read.turn.text)]),
        fold("As sampled", _text(read.turn.text)) if parts else None,
        class_="turn failed" if read.failed else "turn",
    )


def _badge(read: ReadTurn, told: Told) -> Html | None:
    if read.failed:
        why = f": {read.turn.failure}" if read.turn.failure else ""
        return tag("span", f"failed{why}", class_="badge wrong")
    verdict = told.verdicts.get(read.key)
    return (
        tag("span", f"{_MARKS[verdict]} {verdict}", class_=f"badge {verdict}") if verdict else None
    )


def _section(name: str, read: ReadTurn, told: Told) -> Html:
    section = read.parsed.sections[name]
    votes = read.parsed.comparisons if name == "comparison" else ()
    only_votes = bool(votes) and len(votes) == len(section.text.splitlines())
    judged = told.read.judged_by(read) if votes else {}
    verdicts = {agent: told.verdicts.get(turn.key) for agent, turn in judged.items()}
    return tag(
        "div",
        tag("h6", name.replace("_", " "), " (cut off)" if section.truncated else None),
        tag("ul", *(_vote(vote, verdicts) for vote in votes), class_="votes") if votes else None,
        None if only_votes else _text(section.text),
    )


def _vote(vote: Comparison, verdicts: Mapping[int, str | None]) -> Html:
    """Return a vote, marked where it tells a right answer from a wrong one, or fails to."""
    left, right = verdicts.get(vote.left), verdicts.get(vote.right)
    mark = None
    if vote.op == ">" and {left, right} == {"right", "wrong"}:
        kind, meaning = ("right", "picks") if left == "right" else ("wrong", "misses")
        mark = tag("span", f" {_MARKS[kind]}", class_=kind, title=f"{meaning} the right answer")
    return tag("li", f"Agent {vote.left} {vote.op} Agent {vote.right}", mark)


def _text(text: str) -> Html:
    return tag("p", _clip(text), class_="text", dir="auto")


def _clip(text: str) -> Html:
    if len(text) <= MAX_CHARS:
        return escape(text)
    left_out = f"… {len(text) - MAX_CHARS:,} more characters in the transcript file"
    return join([escape(text[:MAX_CHARS]), tag("em", left_out)])
