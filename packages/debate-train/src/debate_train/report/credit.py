"""Recorded debates read once: what each turn says, is worth, and what its tokens earned.

`tokens/step-N.json` holds it for the debates of that step's transcripts, in their order, so that a
reader needs no tokenizer.
"""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debate_protocol.types import Question, Transcript, Turn, TurnKey
from debate_rewards.answer_checking import check
from debate_rewards.decisions import answer_text, majority_of, peer_vote_of
from debate_rewards.reward import ReadDebate, Score, read_debate
from debate_train.batches.row_types import Batch, Row
from debate_train.batches.rows import reply_text
from debate_train.checkpointing.directory_layout import file_name, plain, written
from debate_train.checkpointing.whole_files import write_whole
from debate_train.report.run_files import read_debates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from debate_train.checkpointing.run_directory import RunDirectory


SCHEMA = "debate-credit/1"


def credit_of(
    transcripts: Sequence[Transcript],
    scores: Sequence[Score],
    batch: Batch,
    tokenizer: "PreTrainedTokenizerFast",
    *,
    demonstrated: bool,
) -> dict[str, object]:
    """Return what the tokens and turns of a step's first debates earned.

    Args:
        transcripts: The first of the step, whose turns hold their replies.
        scores: Theirs.
        batch: The rows of the whole step.
        tokenizer: The one that replies were sampled with.
        demonstrated: Whether a script wrote them in the place of the policy.

    Returns:
        `streams`, their names, and `debates`, each with `id`, `returns` of its agents and `turns`.
        A turn has `agent`, `round`, `values` (by stream, of mixed rewards by `stream/component`),
        `starts` (where in the text of the turn each token begins) and `tokens`, runs of [how many
        tokens, their advantage, bits of the streams that cover them]; of a turn without a row
        both are empty.
    """
    rows: dict[int, list[Row]] = {}
    for row in batch.rows:
        rows.setdefault(row.debate, []).append(row)
    debates = [
        {
            "id": transcript.id,
            "returns": [_short(value) for value in score.agents],
            "turns": [
                _turn(turn, score, rows.get(place, ()), tokenizer)
                for turn in transcript.turns
                if turn.reply is not None
            ],
        }
        for place, (transcript, score) in enumerate(zip(transcripts, scores, strict=True))
    ]
    return {
        "schema": SCHEMA,
        "demonstrated": demonstrated,
        "streams": list(batch.streams),
        "debates": debates,
    }


def write_credit(directory: "RunDirectory", step: int, credit: Mapping[str, object]) -> Path:
    """Write what `credit_of` found to `tokens/step-<step>.json` of a run."""
    path = directory.tokens_path / f"step-{step}.json"
    with written(path):
        write_whole(path, json.dumps(plain(credit), separators=(",", ":")).encode())
        directory.note_record(path)
    return path


def read_credit(path: Path) -> dict[str, Any]:
    """Return what `credit_of` found; nothing where there is no such file, or another one."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else {}


def _turn(
    turn: Turn, score: Score, rows: Sequence[Row], tokenizer: "PreTrainedTokenizerFast"
) -> dict[str, object]:
    assert turn.reply is not None
    values: dict[str, float | None] = {}
    for credit in score.credits:
        if (credit.agent, credit.round) == turn.key and credit.span is None:
            values["/".join(filter(None, (credit.stream, credit.component)))] = _short(credit.value)
    runs = next(_runs(turn, rows), [])
    starts = list(reply_text(turn.reply, tokenizer).starts) if runs else []
    return {
        "agent": turn.agent,
        "round": turn.round,
        "values": {name: value for name, value in values.items() if value is not None},
        "starts": starts,
        "tokens": runs,
    }


def _runs(turn: Turn, rows: Sequence[Row]) -> Iterator[list[list[float | int | None]]]:
    """Yield the runs of equal credit of the row whose segment holds the tokens of this turn."""
    assert turn.reply is not None
    sampled = list(turn.reply.token_ids)
    for row in rows:
        for segment in range(1, int(row.segments.max(initial=0)) + 1) if sampled else ():
            own = row.segments == segment
            if row.agent == turn.agent and row.tokens[own].tolist() == sampled:
                pairs = zip(row.advantages[own].tolist(), row.streams[own].tolist(), strict=True)
                yield [
                    [len(list(run)), _short(advantage), bits]
                    for (advantage, bits), run in groupby(pairs)
                ]


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


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
    _known: dict[tuple[str, str | None], str] = field(default_factory=dict)

    def __call__(self, question: Question, answer: str | None) -> str | None:
        """Return `right`, `wrong` or `unverifiable`; None where it is not known."""
        if question.answer is None or answer is None:
            return None
        asked = f"{question.id}\n{question.text}\n{question.answer}", answer
        if asked not in self._known:
            if self.left_s <= 0:
                self.skipped += 1
                return None
            began = time.perf_counter()
            limit = min(4.0, self.left_s)
            self._known[asked] = check(question, answer, limit_s=limit).verdict
            self.left_s -= time.perf_counter() - began
        return self._known[asked]


@dataclass(frozen=True, slots=True)
class Recorded:
    """One recorded debate of a run with what is known of it."""

    run: int
    """Place of the run among those of the page."""
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

    def add(
        self, run: int, files: Sequence[Path], tokens: Path | None, phases: Sequence[str]
    ) -> None:
        """Read the transcript files of a run.

        Args:
            run: Its place on the page.
            files: Its transcript files.
            tokens: The folder of what recorded tokens earned; None for debates of evaluations, of
                which the first `MOST_EVALUATED` of a file are taken.
            phases: Its phases as they are called.
        """
        names = {file_name(phase): phase for phase in phases}
        for path in files:
            match = _NAME.fullmatch(path.stem)
            phase, step = (match[1], int(match[2])) if match else (path.stem, 0)
            if tokens is None:
                when, _, mode = phase.partition("-")
                phase = f"test questions {when} the run, {mode}"
            content = read_debates(path)
            self._note(content.unreadable, content.problem)
            credit = {} if tokens is None else read_credit(tokens / f"step-{step}.json")
            earned = {debate.get("id"): debate for debate in _dicts(credit.get("debates"))}
            for debate in content.debates[: MOST_EVALUATED if tokens is None else None]:
                try:
                    own = self._known(debate, earned.get(debate.id, {}), credit)
                except Exception as error:  # Files that others have changed cost no more than them.
                    self._note(1, f"{path.name}: {debate.id}: {error}")
                else:
                    where = run, names.get(phase, phase), step
                    self.found.append(Recorded(*where, **own, evaluated=tokens is None))

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
            "decisions": decisions,
            "credit": {
                TurnKey(turn["agent"], turn["round"]): turn for turn in _dicts(earned.get("turns"))
            },
            "returns": returns if isinstance(returns, list) else [],
            "streams": [str(name) for name in credit.get("streams") or ()],
            "demonstrated": bool(credit.get("demonstrated")),
        }

    def _note(self, lines: int, problem: str) -> None:
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
        decided = {"majority": majority_of(read, 0)}
        if any(turn.parsed.comparisons for turn in read.judges.values()):
            decided["votes"] = peer_vote_of(read, 0)
        decisions = {
            rule: (answer, self.checking(question, answer))
            for rule, answer in decided.items()
            if answer is not None
        }
        return verdicts, decisions


def states(one: Recorded) -> Iterator[tuple[TurnKey, str | None, str | None]]:
    """Yield each turn in order of rounds: its key, its answer, and whether that is right."""
    for key in sorted(one.read.turns, key=lambda key: (key.round, key.agent)):
        yield key, one.answers[key], one.verdicts.get(key)


def _dicts(values: object) -> list[dict[str, Any]]:
    return (
        [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []
    )
