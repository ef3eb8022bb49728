"""A few readable debates of a run, always the same ones for the same files."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from debate_protocol.parsing.comparisons import Comparison
from debate_protocol.parsing.contract import get_contract
from debate_protocol.parsing.replies import parse_turn
from debate_protocol.types import Transcript, TurnKey
from debate_rewards.answers.checking import check
from debate_rewards.reading import ReadTurn, read_debate
from debate_train.report.render import render
from debate_train.report.run_files import ReadFile, read_debates

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

    @property
    def left_out(self) -> int:
        """How many turns are not shown."""
        return len(self.read.turns) - len(self.turns)

    def sections_of(self, turn: ReadTurn) -> Iterator[dict[str, object]]:
        """Yield the sections of a turn; a text is None where its votes say all of it."""
        for name in self.sections:
            if (section := turn.parsed.sections.get(name)) is None:
                continue
            votes = turn.parsed.comparisons[:MAX_VOTES] if name == "comparison" else ()
            only_votes = bool(votes) and len(votes) == len(section.text.splitlines())
            judged = self.read.judged_by(turn) if votes else {}
            verdicts = {agent: self.verdicts.get(of.key) for agent, of in judged.items()}
            yield {
                "name": name.replace("_", " "),
                "truncated": section.truncated,
                "votes": [(vote, _verdict(vote, verdicts)) for vote in votes],
                "text": None if only_votes else section.text,
            }


def without_scripts(files: Sequence[Path]) -> Markup:
    """Return the debates that can be read where a browser runs no scripts."""
    return Markup("\n").join(_shown(picked) for picked in pick(files))


def _shown(picked: Pick) -> Markup:
    try:
        return show(picked)
    except (ValueError, RuntimeError) as problem:
        text = f"{picked.why}, {picked.source}: cannot be shown: {problem}"
        return render("failed.html", text=text, limit=200)


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


def show(picked: Pick) -> Markup:
    """Return a debate as a person reads it: question, then round by round, agent by agent."""
    return render("debate.html", picked=picked, debate=ShownDebate(picked.transcript), marks=_MARKS)


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


def _verdict(vote: Comparison, verdicts: Mapping[int, str | None]) -> str | None:
    """Say whether a vote ranks a right and a wrong answer, rightly or not; else None."""
    left, right = verdicts.get(vote.left), verdicts.get(vote.right)
    return left if vote.op == ">" and {left, right} == {"right", "wrong"} else None
