"""A few readable debates of a run, always the same ones for the same files."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from debate_protocol.parsing.comparisons import Comparison
from debate_protocol.parsing.contract import get_contract
from debate_protocol.parsing.replies import parse_turn
from debate_protocol.types import Transcript, TurnKey
from debate_rewards.answers.checking import check
from debate_rewards.reading import ReadTurn, read_debate
from debate_train.report.html import Html, escape, fold, join, tag
from debate_train.report.run_files import ReadFile, read_debates

MAX_CHARS = 5000
MAX_FAILURE_CHARS = 200
MAX_TURNS = 100
MAX_VOTES = 100
CHECKING_S = 4.0
"""How long the answers of one debate are checked for."""
_SEARCHED_FILES = 4
_MARKS = {"right": "✓", "wrong": "✗", "unverifiable": "?"}


@dataclass(frozen=True, slots=True)
class Pick:
    """A debate to show and why it was chosen."""

    why: str
    source: str
    transcript: Transcript


class ShownDebate:
    """A debate ready to be shown: its first turns, and verdicts where the truth is known."""

    def __init__(self, debate: Transcript) -> None:
        self.read = read_debate(debate)
        self.sections = get_contract(debate.protocol.contract).sections
        in_order = sorted(self.read.turns.items(), key=lambda item: (item[0].round, item[0]))
        self.turns = [turn for _, turn in in_order[:MAX_TURNS]]
        self.verdicts: dict[TurnKey, str] = {}
        if debate.question.answer is None:
            return
        spent = 0.0
        for turn in self.turns:
            # What training has judged is remembered; a report alone does not wait for long.
            if not turn.failed and spent < CHECKING_S:
                verdict = check(debate.question, turn.parsed.answer, limit_s=CHECKING_S)
                spent += verdict.seconds
                self.verdicts[turn.key] = verdict.verdict


def debates(files: Sequence[Path]) -> Html:
    """Return the debates to read, with what could not be read of the files they are from."""
    if not files:
        return tag("p", "No transcripts yet.")
    read = Reader()
    shown = [_shown(picked) for picked in pick(files, read)]
    bad = [one for one in read.files.values() if one.unreadable]
    unreadable = sum(one.unreadable for one in bad)
    lines = "1 line" if unreadable == 1 else f"{unreadable:,} lines"
    note = f"{lines} of transcripts could not be read, the first: {bad[0].problem}" if bad else ""
    return join(
        [
            tag("p", _clip(note, MAX_FAILURE_CHARS), class_="badge wrong") if bad else None,
            *shown,
            None if shown else tag("p", "No debate can be shown."),
        ]
    )


def _shown(picked: Pick) -> Html:
    try:
        return show(picked)
    except (ValueError, RuntimeError) as problem:
        why = f"{picked.why}, {picked.source}: cannot be shown: {problem}"
        return tag("p", _clip(why, MAX_FAILURE_CHARS), class_="badge wrong")


class Reader:
    """Reads each file of transcripts once."""

    def __init__(self) -> None:
        self.files: dict[Path, ReadFile] = {}

    def __call__(self, path: Path) -> tuple[Transcript, ...]:
        """Return the debates of a file."""
        if path not in self.files:
            self.files[path] = read_debates(path)
        return self.files[path].debates


def pick(files: Sequence[Path], read: Reader | None = None) -> list[Pick]:
    """Choose one debate of the first steps, one of the last, and the last disagreement.

    When the first and the last file share a question, both show that one. A disagreement is the
    first debate with two different answers in one round, searched from the last file back.
    """
    if not files:
        return []
    read = read or Reader()
    first = read(files[0])
    if len(files) == 1:
        early, late = next(iter(first), None), next(iter(first[1:]), None)
    else:
        last = read(files[-1])
        shared = {debate.question.id for debate in first} & {debate.question.id for debate in last}
        early, late = _first_about(first, shared), _first_about(last, shared)
    picks = [
        Pick(why, path.stem, debate)
        for why, path, debate in (("First steps", files[0], early), ("Last steps", files[-1], late))
        if debate is not None
    ]
    used = {id(picked.transcript) for picked in picks}
    for path in files[: -_SEARCHED_FILES - 1 : -1]:
        for debate in read(path):
            if id(debate) not in used and _disagreed(debate):
                return [*picks, Pick("A disagreement", path.stem, debate)]
    return picks


def show(picked: Pick) -> Html:
    """Return a debate as a person reads it: question, then round by round, agent by agent."""
    debate = picked.transcript
    shown = ShownDebate(debate)
    protocol = debate.protocol
    left_out = len(shown.read.turns) - len(shown.turns)
    rounds = groupby(shown.turns, key=lambda turn: turn.key.round)
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
        *(_round(number, turns, shown) for number, turns in rounds),
        tag("p", f"… {left_out:,} more turns in the transcript file") if left_out > 0 else None,
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


def _round(number: int, turns: Iterable[ReadTurn], shown: ShownDebate) -> Html:
    return tag(
        "section",
        tag("h4", f"Round {number + 1}"),
        tag("div", *(_turn(turn, shown) for turn in turns), class_="turns"),
    )


def _turn(read: ReadTurn, shown: ShownDebate) -> Html:
    parts = [_section(name, read, shown) for name in shown.sections if name in read.parsed.sections]
    return tag(
        "div",
        tag("h5", f"Agent {read.turn.agent} ", _badge(read, shown)),
        *(parts or [_text(read.turn.text)]),
        fold("As sampled", _text(read.turn.text)) if parts else None,
        class_="turn failed" if read.failed else "turn",
    )


def _badge(read: ReadTurn, shown: ShownDebate) -> Html | None:
    if read.failed:
        why = f": {read.turn.failure}" if read.turn.failure else ""
        return tag("span", _clip(f"failed{why}", MAX_FAILURE_CHARS), class_="badge wrong")
    verdict = shown.verdicts.get(read.key)
    return (
        tag("span", f"{_MARKS[verdict]} {verdict}", class_=f"badge {verdict}") if verdict else None
    )


def _section(name: str, read: ReadTurn, shown: ShownDebate) -> Html:
    section = read.parsed.sections[name]
    votes = read.parsed.comparisons[:MAX_VOTES] if name == "comparison" else ()
    only_votes = bool(votes) and len(votes) == len(section.text.splitlines())
    judged = shown.read.judged_by(read) if votes else {}
    verdicts = {agent: shown.verdicts.get(turn.key) for agent, turn in judged.items()}
    return tag(
        "div",
        tag("h6", name.replace("_", " "), " (cut off)" if section.truncated else None),
        tag("ul", *(_vote(vote, verdicts) for vote in votes), class_="votes") if votes else None,
        None if only_votes else _text(section.text),
    )


def _vote(vote: Comparison, verdicts: Mapping[int, str | None]) -> Html:
    """Return a vote, marked where it ranks a right and a wrong answer, rightly or not."""
    left, right = verdicts.get(vote.left), verdicts.get(vote.right)
    mark = None
    if vote.op == ">" and {left, right} == {"right", "wrong"}:
        kind, meaning = ("right", "picks") if left == "right" else ("wrong", "misses")
        mark = tag("span", f" {_MARKS[kind]}", class_=kind, title=f"{meaning} the right answer")
    return tag("li", f"Agent {vote.left} {vote.op} Agent {vote.right}", mark)


def _text(text: str) -> Html:
    return tag("p", _clip(text), class_="text", dir="auto")


def _clip(text: str, limit: int = MAX_CHARS) -> Html:
    if len(text) <= limit:
        return escape(text)
    left_out = f"… {len(text) - limit:,} more characters in the transcript file"
    return join([escape(text[:limit]), tag("em", left_out)])
