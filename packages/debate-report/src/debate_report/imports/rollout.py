"""A reply of another program's file, and how it becomes a transcript."""

import hashlib
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from debate_protocol.command_line import UsageError
from debate_protocol.contracts import Contract
from debate_protocol.parsing import answer_line, final_box, hash_line
from debate_protocol.types import TOKENS, Message, Protocol, Question, Transcript, Turn
from debate_report.imports.values import Record, golds

# Scores that say whether a reply is right, in the order in which they are believed.
VERDICT_SCORES = ("acc", "accuracy", "accuracy_reward", "correct", "is_correct", "exact_match")
VERDICTS = {True: "right", False: "wrong"}
BOXED = "boxed"
ANSWER_LINE = "answer_line"
HASH_LINE = Contract("hash_line", kind="hash_line")
# `<think>…</think><answer>…</answer>`, as many trainers ask for; `parse` unwraps the thinking.
ANSWER_SECTION = Contract("answer", ("answer",), stop=None)
# Keys of a transcript's `meta` that are no scores.
DESCRIBING_KEYS = frozenset(
    {
        *("reward", "step", "group", "advantage", "verdict", "verdict_by", "finish", "error"),
        *("replies", "version", "logprob_gap", "tokens", "advantages", "caveats"),
    }
)


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How a file is read.

    Attributes:
        path: The file; some formats have the step in its name.
        contract: How replies mark their answers.
        kind: How answers are compared; `None` for mathematics.
        answer: The column with the right answer; `None` for the format's own.
        tokenizer: `tokenizer.json` of the model, or its folder, for files of ids without text.
        allow_no_text: Whether replies without text are read, for their figures.
    """

    path: Path
    contract: str
    kind: str | None
    answer: str | None
    tokenizer: Path | None = None
    allow_no_text: bool = False

    def golds(self, row: Record, *columns: str, where: str) -> list[str]:
        """Read the right answers of a row from the first column with any.

        Raises:
            UsageError: The caller's column is missing.
        """
        if self.answer is not None:
            if self.answer not in row:
                raise UsageError(
                    f"{where}: found no column {self.answer!r}; expected one of "
                    f"{', '.join(sorted(map(str, row)))}"
                )
            columns = (self.answer,)
        answers = (golds(row.get(column)) for column in columns)
        return next(filter(None, answers), [])


@dataclass(frozen=True, slots=True)
class ImportedReply:
    """One reply, with what its file says of it; `None` is not known, and never zero.

    Attributes:
        prompt: Messages of the question.
        between: Messages after these and before the reply, in a conversation of several replies.
        reply: The reply; `None` where sampling failed.
        golds: Answers that are right.
        task: Environment or data set of the question, where a file has several.
        question_id: The question's id in the file; different questions may share one.
        group: Replies of one group are compared with each other; the question where empty.
        step: Training step.
        reward: What the trainer used.
        is_right: The file's own verdict.
        verdict_by: The score that gives the verdict.
        numbers: All scores, rewards and metrics by name.
        advantage: Advantage of the whole reply.
        tokens: Text of each token of the reply, and `advantages` one number each.
        num_tokens: Sampled tokens of the reply.
        version: Version of the weights that sampled it.
        logprob_gap: Mean distance of the trainer's and the sampler's log-probabilities of a token.
        is_cut: Whether the reply ended at its token limit.
        error: Why sampling failed.
        num_replies: Replies of a conversation; this is the last.
        caveats: What a reader of the figures has to know of the file, in sentences.
    """

    prompt: Sequence[Message]
    reply: str | None
    golds: Sequence[str] = ()
    task: str = ""
    question_id: str = ""
    group: str = ""
    step: int | None = None
    reward: float | None = None
    is_right: bool | None = None
    verdict_by: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    advantage: float | None = None
    tokens: Sequence[str] = ()
    advantages: Sequence[float] = ()
    num_tokens: int | None = None
    version: int | None = None
    logprob_gap: float | None = None
    is_cut: bool = False
    error: str = ""
    num_replies: int = 1
    between: Sequence[Message] = ()
    caveats: Sequence[str] = ()


class NoRepliesError(UsageError):
    """A readable file in no format of replies."""


class Reader(typing.Protocol):
    """Reads the files of one program; packages add theirs as entry points `debate_report.readers`.

    Attributes:
        name: The program.
        shape: The columns of rows, for messages.
    """

    name: str
    shape: str

    def fits(self, row: Record) -> bool:
        """Whether the first row of a file is of this format."""
        ...

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield the transcripts of a file's rows, in order.

        Raises:
            UsageError: A row cannot be read.
        """
        ...


def verdict_of(score: float | None) -> bool | None:
    """Read a score as right (1) or wrong (0 or -1); partial scores are no verdict."""
    if score == 1:
        return True
    return False if score in (0, -1) else None


def file_verdict(scores: Mapping[str, float], reward: float | None) -> tuple[bool | None, str]:
    """Find the file's own verdict: a score of this name, else an all-or-nothing reward."""
    for name in VERDICT_SCORES:
        if name in scores and verdict_of(scores[name]) is not None:
            return verdict_of(scores[name]), name
    return verdict_of(reward), "reward"


def question_of(
    prompt: Sequence[Message], right_answers: Sequence[str], names: Sequence[str], kind: str | None
) -> Question:
    """Build the question of a prompt.

    The id names environment and id as far as there are any, and ends with a hash of the prompt:
    several environments number their questions from 0, and some rows have no id.
    """
    user_texts = [message["content"] for message in prompt if message["role"] == "user"]
    all_text = "\n".join(message["content"] for message in prompt)
    text = user_texts[-1] if user_texts else all_text
    digest = hashlib.sha256(all_text.encode("utf-8", "surrogatepass")).hexdigest()
    known_names = [name for name in names if name]
    question_id = "-".join([*known_names, digest[:8]]) if known_names else digest[:16]
    meta: dict[str, object] = {} if kind is None else {"kind": kind}
    if len(right_answers) > 1:
        meta["accept"] = list(right_answers[1:])
    return Question(question_id, text, right_answers[0] if right_answers else None, meta)


def transcript_of(rollout: ImportedReply, settings: ReadSettings, row_number: int) -> Transcript:
    """Convert a rollout to a debate of a single turn, failed where sampling failed."""
    question = question_of(
        rollout.prompt, rollout.golds, (rollout.task, rollout.question_id), settings.kind
    )
    failure = (rollout.error or "no reply") if rollout.reply is None else None
    turn = Turn(
        0,
        0,
        rollout.reply or "",
        failure=failure,
        prompt=(*rollout.prompt, *rollout.between),
        extra=counted(rollout.num_tokens),
    )
    step = row_number if rollout.step is None else rollout.step
    return Transcript(
        id=f"{question.id}/{step}/{row_number}",
        question=question,
        protocol=Protocol(1, contract=_contract_of(turn.text, settings)),
        turns=(turn,),
        meta=meta_of(rollout),
    )


def _contract_of(reply: str, settings: ReadSettings) -> str | Contract:
    """Choose how a reply is read: where boxes are expected and there is none, by its own mark.

    Trainers ask for `<answer>…</answer>`, for a line `Answer: …` (DAPO), or for `#### …` (GSM8K).
    """
    if settings.contract != BOXED or final_box(reply) is not None:
        return settings.contract
    if "<answer>" in reply.lower():
        return ANSWER_SECTION
    if answer_line(reply) is not None:
        return ANSWER_LINE
    return HASH_LINE if hash_line(reply) is not None else settings.contract


def counted(num_tokens: int | None) -> dict[str, object]:
    """Build a turn's `extra` with the sampled tokens; the file does not count the prompt's."""
    return {} if num_tokens is None else {TOKENS: [0, num_tokens]}


def meta_of(rollout: ImportedReply) -> dict[str, object]:
    """Collect a file's statements about a reply, without unknown values."""
    meta: dict[str, object] = dict(rollout.numbers)
    known: dict[str, object | None] = {
        "reward": rollout.reward,
        "step": rollout.step,
        "group": rollout.group or None,
        "advantage": rollout.advantage,
        "verdict": None if rollout.is_right is None else VERDICTS[rollout.is_right],
        "verdict_by": None if rollout.is_right is None else rollout.verdict_by,
        "version": rollout.version,
        "logprob_gap": rollout.logprob_gap,
        "finish": "length" if rollout.is_cut else None,
        "error": rollout.error or None,
        "replies": rollout.num_replies if rollout.num_replies > 1 else None,
        "caveats": list(rollout.caveats) or None,
    }
    meta |= {name: value for name, value in known.items() if value is not None}
    if rollout.tokens and len(rollout.tokens) == len(rollout.advantages):
        meta["tokens"] = list(rollout.tokens)
        meta["advantages"] = list(rollout.advantages)
    return meta
