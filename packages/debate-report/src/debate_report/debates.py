"""Recorded debates read once: what each turn says, is worth, and what its tokens earned."""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from debate_protocol.types import Question, Transcript, Turn, TurnKey
from debate_report.json_values import finite
from debate_report.run_files import read_debates
from debate_rewards.answer_checking import Verdict, check
from debate_rewards.decisions import answer_text, judged, majority, peer_vote
from debate_rewards.reward import ReadDebate, read_debate
from debate_rewards.votes import judgments

CREDIT_SCHEMA = "debate-credit/1"


def read_credit(path: Path) -> dict[str, Any]:
    """Return what `credit_of` found; nothing where there is no such file, or another one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("schema") == CREDIT_SCHEMA else {}


CHECKING_S = 60.0
"""How long answers of one page are checked for; later ones count as not checked."""
MOST_EVALUATED = 128
"""Debates of each mode of an evaluation that a page has."""
_NAME = re.compile(r"(.*)-(\d+)")


@dataclass(slots=True)
class Checking:
    """Judges each answer to a question once, until the time for it is used up."""

    left_s: float = CHECKING_S
    skipped: int = 0
    _known: dict[tuple[str, str | None], Verdict] = field(default_factory=dict)

    def __call__(self, question: Question, answer: str | None) -> str | None:
        """Return `right`, `wrong` or `unverifiable`; None where it is not known."""
        verdict = self.verdict(question, answer)
        return None if verdict is None else verdict.verdict

    def verdict(self, question: Question, answer: str | None) -> Verdict | None:
        """Return the whole verdict, which says why an answer could not be read."""
        if question.answer is None or answer is None:
            return None
        asked = f"{question.id}\n{question.text}\n{question.answer}", answer
        if asked not in self._known:
            if self.left_s <= 0:
                self.skipped += 1
                return None
            began = time.perf_counter()
            limit = min(4.0, self.left_s)
            self._known[asked] = check(question, answer, limit_s=limit)
            self.left_s -= time.perf_counter() - began
        return self._known[asked]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded debate of a run with what is known of it."""

    phase: str
    step: int
    read: ReadDebate
    answers: Mapping[TurnKey, str | None]
    verdicts: Mapping[TurnKey, str | None]
    decisions: Mapping[str, tuple[str, str | None]]
    """By rule: the answer of the debate as a whole, and whether it is right."""
    credit: Mapping[TurnKey, Mapping[str, Any]]
    returns: Sequence[float | None]
    streams: Sequence[str]
    demonstrated: bool
    evaluated: bool
    """Whether an evaluation held it."""
    imported: bool = False
    """Whether another program wrote it."""
    unread: Mapping[TurnKey, str] = field(default_factory=dict)
    """Why answers could not be read, of turns where that is so."""

    @property
    def transcript(self) -> Transcript:
        """The debate itself."""
        return self.read.transcript


@dataclass(slots=True)
class Debates:
    """All readable debates of a page, and what could not be read."""

    found: list[Recorded] = field(default_factory=list)
    unreadable: int = 0
    problem: str = ""
    checking: Checking = field(default_factory=Checking)

    def add(self, files: Sequence[Path], tokens: Path | None, phases: Sequence[str]) -> None:
        """Read the transcript files of a run.

        Args:
            files: Its transcript files.
            tokens: The folder of what recorded tokens earned; None for debates of evaluations, of
                which the first `MOST_EVALUATED` of a file are taken.
            phases: Its phases as they are called.
        """
        names = {re.sub(r"[^A-Za-z0-9_.-]+", "_", phase): phase for phase in phases}
        for path in files:
            match = _NAME.fullmatch(path.stem)
            phase, step = (match[1], int(match[2])) if match else (path.stem, 0)
            if tokens is None:
                when, _, mode = phase.partition("-")
                phase = f"test questions {when} the run, {mode}"
            content = read_debates(path)
            self.note_unreadable(content.num_unreadable, content.problem)
            credit = {} if tokens is None else read_credit(tokens / f"step-{step}.json")
            earned = {debate.get("id"): debate for debate in _dicts(credit.get("debates"))}
            for debate in content.debates[: MOST_EVALUATED if tokens is None else None]:
                try:
                    own = self._known(debate, earned.get(debate.id, {}), credit)
                except Exception as error:  # Files that others have changed cost no more than them.
                    self.note_unreadable(1, f"{path.name}: {debate.id}: {error}")
                else:
                    where = names.get(phase, phase), step
                    self.found.append(Recorded(*where, **own, evaluated=tokens is None))

    def add_imported(self, debates: Sequence[Transcript]) -> None:
        """Read rollouts of a file, whose rows say what their tokens or replies earned."""
        for debate in debates:
            turns = [{"agent": turn.agent, "round": turn.round, **_earned(debate, turn)}
                     for turn in debate.turns]  # fmt: skip
            reward = finite(debate.meta.get("reward"))
            returns = [] if reward is None else [reward]
            step = finite(debate.meta.get("step"))
            try:
                details = self._known(
                    debate, {"turns": turns, "returns": returns}, {"streams": ["reply"]}
                )
            except Exception as error:
                self.note_unreadable(1, f"{debate.id}: {error}")
                continue
            details |= _with_file_verdict(debate, details["verdicts"], details["decisions"])
            self.found.append(
                Recorded(
                    phase="rollouts",
                    step=0 if step is None else int(step),
                    **details,
                    evaluated=False,
                    imported=True,
                )
            )

    def _known(
        self, debate: Transcript, earned: Mapping[str, Any], credit: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return what `Recorded` holds of a debate."""
        read = read_debate(debate)
        verdicts, decisions = self._judged(read)
        returns = earned.get("returns")
        return {
            "read": read,
            "answers": {key: answer_text(read, turn) for key, turn in read.turns.items()},
            "verdicts": verdicts,
            "unread": self._unread(read),
            "decisions": decisions,
            "credit": {
                TurnKey(turn["agent"], turn["round"]): turn for turn in _dicts(earned.get("turns"))
            },
            "returns": returns if isinstance(returns, list) else [],
            "streams": [str(name) for name in credit.get("streams") or ()],
            "demonstrated": bool(credit.get("demonstrated")),
        }

    def _unread(self, read: ReadDebate) -> dict[TurnKey, str]:
        reasons: dict[TurnKey, str] = {}
        for key, turn in read.turns.items():
            answer = None if turn.failed else turn.parsed.answer
            verdict = self.checking.verdict(read.transcript.question, answer)
            if verdict is not None and verdict.detail:
                reasons[key] = verdict.detail
        return reasons

    def note_unreadable(self, lines: int, problem: str) -> None:
        """Count what cannot be read; the page names the first."""
        self.unreadable += lines
        self.problem = self.problem or problem

    def _judged(
        self, read: ReadDebate
    ) -> tuple[dict[TurnKey, str | None], dict[str, tuple[str, str | None]]]:
        """Return what is known of each turn's answer, and of the debate's by each rule."""
        question = read.transcript.question
        verdicts = {
            key: None if turn.failed else self.checking(question, turn.parsed.answer)
            for key, turn in read.turns.items()
        }
        decided = {"majority": majority(read, 0)}
        if judgments(read):
            decided = {"judges": judged(read, 0)}
        elif any(turn.parsed.comparisons for turn in read.judges.values()):
            decided["votes"] = peer_vote(read, 0)
        decisions = {
            rule: (answer, self.checking(question, answer))
            for rule, answer in decided.items()
            if answer is not None
        }
        return verdicts, decisions


def _with_file_verdict(
    debate: Transcript,
    verdicts: Mapping[TurnKey, str | None],
    decisions: Mapping[str, tuple[str, str | None]],
) -> dict[str, Any]:
    """Let the file's own verdict on its last reply go before ours, which stays beside it.

    A reply whose answer cannot be read here is not wrong: its file may know better.
    """
    checked_here = next(iter(decisions.values()), None)
    both: dict[str, tuple[str, str | None]] = {}
    verdict = debate.meta.get("verdict")
    if verdict in ("right", "wrong") and debate.turns:
        last = debate.turns[-1]
        verdicts = {**verdicts, TurnKey(last.agent, last.round): verdict}
        answer = "" if checked_here is None else checked_here[0]
        both[f"the file's {debate.meta.get('verdict_by', 'verdict')}"] = (answer, verdict)
    if checked_here is not None:
        both["checked here"] = checked_here
    return {"verdicts": verdicts, "decisions": both}


def states(one: Recorded) -> Iterator[tuple[TurnKey, str | None, str | None]]:
    """Yield each turn in order of rounds: its key, its answer, and whether that is right."""
    for key in sorted(one.read.turns, key=lambda key: (key.round, key.agent)):
        yield key, one.answers[key], one.verdicts.get(key)


def _earned(debate: Transcript, turn: Turn) -> dict[str, Any]:
    """Return where tokens of a reply begin and the advantage of each; else of the whole reply."""
    advantages = debate.meta.get("advantages")
    if isinstance(advantages, list) and len(debate.turns) == 1:
        tokens = debate.meta.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            return {}
        starts = [0, *accumulate(map(len, tokens))][: len(advantages)]
        return {"starts": starts, "tokens": [[1, advantage, 1] for advantage in advantages]}
    advantage = debate.meta.get("advantage")
    known = isinstance(advantage, int | float)
    return {"starts": [0], "tokens": [[1, advantage, 1]]} if known else {}


def _dicts(values: object) -> list[dict[str, Any]]:
    return (
        [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
    )
