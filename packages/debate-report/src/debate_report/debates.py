"""Recorded debates read once: answers and verdicts of turns, and the credit of their tokens."""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

from debate_protocol.types import Question, Transcript, TurnKey
from debate_report.json_values import finite
from debate_report.run_files import read_debates
from debate_rewards.answer_checking import Verdict, check
from debate_rewards.decisions import answer_text, judged, majority, peer_vote
from debate_rewards.reward import ReadDebate, read_debate
from debate_rewards.votes import judgments

CREDIT_SCHEMA = "debate-credit/1"
# Time to check answers of one page; later ones count as not checked.
CHECKING_S = 60.0
# One hard answer must not use up the time of all others.
ANSWER_LIMIT_S = 4.0
# Debates of each mode of an evaluation on a page.
MOST_EVALUATED = 128
TRANSCRIPT_NAME = re.compile(r"(.*)-(\d+)")

# Decides imported replies beside the verdict of their file.
CHECKED_HERE = "checked here"

Decisions = dict[str, tuple[str, str | None]]
"""By rule: the answer of the debate as a whole, and its verdict."""


def read_credit(path: Path) -> dict[str, Any]:
    """Read a file of `credit_of`; empty for a missing file, or another schema."""
    try:
        credit = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    is_credit = isinstance(credit, dict) and credit.get("schema") == CREDIT_SCHEMA
    return credit if is_credit else {}


@dataclass(slots=True)
class Checking:
    """Judges each answer to a question once, until the time for it is used up."""

    left_s: float = CHECKING_S
    skipped: int = 0
    _verdicts: dict[tuple[str, str | None], Verdict] = field(default_factory=dict)

    def __call__(self, question: Question, answer: str | None) -> str | None:
        """Judge an answer: `right`, `wrong` or `unverifiable`; `None` where it is not known."""
        verdict = self.verdict(question, answer)
        return None if verdict is None else verdict.verdict

    def verdict(self, question: Question, answer: str | None) -> Verdict | None:
        """Judge an answer, with the reason why it could not be read."""
        if question.answer is None or answer is None:
            return None
        question_key = f"{question.id}\n{question.text}\n{question.answer}"
        if (question_key, answer) not in self._verdicts:
            if self.left_s <= 0:
                self.skipped += 1
                return None
            started = time.perf_counter()
            limit_s = min(ANSWER_LIMIT_S, self.left_s)
            self._verdicts[question_key, answer] = check(question, answer, limit_s=limit_s)
            self.left_s -= time.perf_counter() - started
        return self._verdicts[question_key, answer]


@dataclass(frozen=True, slots=True)
class Recorded:
    """A recorded debate of a run with verdicts, decisions and credit."""

    phase: str
    step: int
    read: ReadDebate
    answers: Mapping[TurnKey, str | None]
    verdicts: Mapping[TurnKey, str | None]
    decisions: Mapping[str, tuple[str, str | None]]
    """By rule: the answer of the debate as a whole, and its verdict."""
    credit: Mapping[TurnKey, Mapping[str, Any]]
    returns: Sequence[float | None]
    streams: Sequence[str]
    demonstrated: bool
    evaluated: bool
    """Whether it was played for an evaluation."""
    imported: bool = False
    """Whether another program wrote it."""
    unread: Mapping[TurnKey, str] = field(default_factory=dict)
    """Reasons of unreadable answers, by turn."""

    @property
    def transcript(self) -> Transcript:
        """The debate itself."""
        return self.read.transcript

    @property
    def has_token_credit(self) -> bool:
        """Whether advantages of tokens, or of the whole imported reply, are known."""
        if self.imported:
            meta = self.transcript.meta
            is_by_token = isinstance(meta.get("advantages"), list)
            return is_by_token or finite(meta.get("advantage")) is not None
        return any(turn.get("tokens") for turn in self.credit.values())

    def credit_of(self, key: TurnKey) -> Mapping[str, Any]:
        """Collect the credit of a turn: token starts, and runs of tokens with their advantages.

        Credit of imported replies is made here, since a large file shows only some.
        """
        return _imported_credit(self.transcript) if self.imported else self.credit.get(key, {})


@dataclass(slots=True)
class Debates:
    """All readable debates of a page, and the first problem of unreadable debates."""

    found: list[Recorded] = field(default_factory=list)
    unreadable: int = 0
    problem: str = ""
    checking: Checking = field(default_factory=Checking)

    def add(self, files: Sequence[Path], tokens: Path | None, phases: Sequence[str]) -> None:
        """Read the transcript files of a run.

        Args:
            files: The transcript files.
            tokens: The folder of the credit of recorded tokens; `None` for debates of evaluations,
                limited to the first `MOST_EVALUATED` of a file.
            phases: Names of the phases.
        """
        is_evaluation = tokens is None
        # Names of files have no other characters.
        phase_of_file_name = {re.sub(r"[^A-Za-z0-9_.-]+", "_", phase): phase for phase in phases}
        for path in files:
            match = TRANSCRIPT_NAME.fullmatch(path.stem)
            phase, step = (match[1], int(match[2])) if match else (path.stem, 0)
            if is_evaluation:
                when, _, mode = phase.partition("-")
                phase = f"test questions {when} the run, {mode}"
            file = read_debates(path)
            self.note_unreadable(file.num_unreadable, file.problem)
            credit = {} if tokens is None else read_credit(tokens / f"step-{step}.json")
            credit_by_id = {debate.get("id"): debate for debate in _dicts(credit.get("debates"))}
            for debate in file.debates[: MOST_EVALUATED if is_evaluation else None]:
                try:
                    details = self._details(debate, credit_by_id.get(debate.id, {}), credit)
                except Exception as error:
                    # A damaged debate must not cost the others their place on the page.
                    self.note_unreadable(1, f"{path.name}: {debate.id}: {error}")
                    continue
                self.found.append(
                    Recorded(
                        phase=phase_of_file_name.get(phase, phase),
                        step=step,
                        **details,
                        evaluated=is_evaluation,
                    )
                )

    def add_imported(self, debates: Sequence[Transcript]) -> None:
        """Read rollouts of a file."""
        for debate in debates:
            reward = finite(debate.meta.get("reward"))
            debate_credit = {"returns": [] if reward is None else [reward]}
            step = finite(debate.meta.get("step"))
            try:
                details = self._details(debate, debate_credit, {"streams": ["reply"]})
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

    def note_unreadable(self, lines: int, problem: str) -> None:
        """Count unreadable lines; the page names the first."""
        self.unreadable += lines
        self.problem = self.problem or problem

    def _details(
        self, debate: Transcript, debate_credit: Mapping[str, Any], credit: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Compute the fields of `Recorded` independent of the debate's file."""
        read = read_debate(debate)
        answers = {}
        verdicts = {}
        unread = {}
        for key, turn in read.turns.items():
            answers[key] = answer_text(read, turn)
            answer = None if turn.failed else turn.parsed.answer
            verdict = self.checking.verdict(debate.question, answer)
            verdicts[key] = None if verdict is None else verdict.verdict
            if verdict is not None and verdict.detail:
                unread[key] = verdict.detail
        turn_credit = {}
        for turn_values in _dicts(debate_credit.get("turns")):
            turn_credit[TurnKey(turn_values["agent"], turn_values["round"])] = turn_values
        returns = debate_credit.get("returns")
        return {
            "read": read,
            "answers": answers,
            "verdicts": verdicts,
            "unread": unread,
            "decisions": self._decisions(read),
            "credit": turn_credit,
            "returns": returns if isinstance(returns, list) else [],
            "streams": [str(name) for name in credit.get("streams") or ()],
            "demonstrated": bool(credit.get("demonstrated")),
        }

    def _decisions(self, read: ReadDebate) -> Decisions:
        """Judge the answer of the debate as a whole by each applicable rule."""
        answers = {"majority": majority(read, 0)}
        has_votes = any(turn.parsed.comparisons for turn in read.judges.values())
        if judgments(read):
            answers = {"judges": judged(read, 0)}
        elif has_votes:
            answers["votes"] = peer_vote(read, 0)
        decisions: Decisions = {}
        for rule, answer in answers.items():
            if answer is not None:
                decisions[rule] = (answer, self.checking(read.transcript.question, answer))
        return decisions


def _with_file_verdict(
    debate: Transcript, verdicts: Mapping[TurnKey, str | None], decisions: Decisions
) -> dict[str, Any]:
    """Put the file's own verdict on the last reply before ours.

    A reply with an answer unreadable here is not wrong: the file may know better.
    """
    checked_here = next(iter(decisions.values()), None)
    all_decisions: Decisions = {}
    verdict = debate.meta.get("verdict")
    if verdict in ("right", "wrong") and debate.turns:
        last = debate.turns[-1]
        verdicts = {**verdicts, TurnKey(last.agent, last.round): verdict}
        answer = "" if checked_here is None else checked_here[0]
        rule = f"the file's {debate.meta.get('verdict_by', 'verdict')}"
        all_decisions[rule] = (answer, verdict)
    if checked_here is not None:
        all_decisions[CHECKED_HERE] = checked_here
    return {"verdicts": verdicts, "decisions": all_decisions}


def states(debate: Recorded) -> Iterator[tuple[TurnKey, str | None, str | None]]:
    """Yield each turn in order of rounds: key, answer and verdict."""
    for key in sorted(debate.read.turns, key=lambda key: (key.round, key.agent)):
        yield key, debate.answers[key], debate.verdicts.get(key)


def _imported_credit(debate: Transcript) -> dict[str, Any]:
    """Collect token starts and advantages of a reply; without them the whole reply's advantage."""
    advantages = debate.meta.get("advantages")
    if isinstance(advantages, list) and len(debate.turns) == 1:
        tokens = debate.meta.get("tokens")
        if not isinstance(tokens, list) or not all(isinstance(token, str) for token in tokens):
            return {}
        lengths = [len(token) for token in tokens]
        starts = [0, *accumulate(lengths)][: len(advantages)]
        # Most methods give every token of a reply the same.
        runs = [[len(list(run)), advantage, 1] for advantage, run in groupby(advantages)]
        return {"starts": starts, "tokens": runs}
    advantage = debate.meta.get("advantage")
    if not isinstance(advantage, int | float):
        return {}
    return {"starts": [0], "tokens": [[1, advantage, 1]]}


def _dicts(values: object) -> list[dict[str, Any]]:
    if not isinstance(values, list):
        return []
    return [value for value in values if isinstance(value, dict)]
