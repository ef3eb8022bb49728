"""Files of verifiers and of TRL: which one it is, and its rows as transcripts.

verifiers 0.4 writes `traces.jsonl` (`vf-eval`), an episode in each row: `episodes.py`. All other
rows are one reply to one prompt. Before 0.4 it wrote `results.jsonl` (`vf-eval --save-results`):
`example_id`, `prompt` and `completion` as messages or text, `answer`, `reward`, and
`token_usage` with `input_tokens` and `output_tokens`. TRL's trainers write
`completions/completions_STEP.parquet` (`log_completions=True`): `step`, `prompt`, `completion`, a
column for each reward function, those of `log_extra`, and `advantage`.
"""

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from debate_protocol.parsing.contract import get_contract
from debate_protocol.types import (
    TOKENS,
    Message,
    Protocol,
    Question,
    Transcript,
    Turn,
)
from debate_train.data.row_files import read_rows
from debate_train.errors import UsageError
from debate_train.rollout_files.episodes import debate_of_episode
from debate_train.rollout_files.messages import read_messages

Row = Mapping[str, object]

_EXPECTED = "expected traces.jsonl or results.jsonl of verifiers, or completions of TRL"


def import_rollouts(
    path: Path, *, contract: str = "boxed", kind: str | None = None, answer: str | None = None
) -> list[Transcript]:
    """Return the rows of a file as transcripts, in order: of one turn each, but for episodes.

    Replies to one question have its id: the `example_id` of verifiers; of TRL, whose rows name
    none, a number made of the prompt. What rows say beside is in `meta`: numbers such as `reward`
    under their own names. A conversation of several replies counts as one, whose answer is that of
    the last; where tokens are counted, they are those of all.

    Args:
        path: The file.
        contract: How answers are read: `boxed` or `answer_line`.
        kind: Of the questions, as in `Question.meta`; None is mathematics.
        answer: The column with the right answer; None takes `answer`, then `solution`. Rows without
            one have no right answer, and only figures that need none.

    Raises:
        UsageError: The file cannot be read, or is of neither program (`DataError`, a kind of it).
    """
    try:
        rules = get_contract(contract)
    except ValueError as error:
        raise UsageError(f"contract: {error}") from error
    found = []
    for number, row in enumerate(read_rows(str(path), "rollouts")):
        where = f"{path}, row {number + 1}"
        if isinstance(row.get("traces"), list):
            found.append(debate_of_episode(row, where, rules.name, kind, answer))
            continue
        if not {"prompt", "completion"} <= row.keys():
            names = ", ".join(sorted(row)[:8]) or "nothing"
            raise UsageError(f"{where}: found {names}; {_EXPECTED}, with prompt and completion")
        question = _question(row, where, kind, answer)
        text, prompt, sampled = _said(row, where)
        tokens = _tokens(row)
        turn = Turn(0, 0, text, prompt=prompt, extra={} if tokens is None else {TOKENS: tokens})
        meta = _beside(row)
        protocol = Protocol(1, contract=rules.name)
        debate_id = f"{question.id}/{row.get('step', number)}/{number}"
        meta |= {"replies": sampled} if sampled > 1 else {}
        found.append(Transcript(debate_id, question, protocol, (turn,), meta))
    if not found:
        raise UsageError(f"{path}: found no rows; {_EXPECTED}")
    return found


def _question(row: Row, where: str, kind: str | None, answer: str | None) -> Question:
    messages = read_messages(row["prompt"], "user", f"{where}: prompt")
    asked = [message["content"] for message in messages if message["role"] == "user"]
    text = asked[-1] if asked else "\n\n".join(message["content"] for message in messages)
    if answer is not None and answer not in row:
        raise UsageError(
            f"{where}: found no column {answer!r}; expected one of {', '.join(sorted(row))}"
        )
    columns = ("answer", "solution") if answer is None else (answer,)
    golds = [row[column] for column in columns if row.get(column) not in (None, "")]
    whole = "\n".join(message["content"] for message in messages)
    known = row.get("example_id", row.get("id"))
    number = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    meta = {} if kind is None else {"kind": kind}
    return Question(
        number if known is None else str(known), text, str(golds[0]) if golds else None, meta
    )


def _said(row: Row, where: str) -> tuple[str, tuple[Message, ...], int]:
    """Return the last reply, all messages before it, and how many replies there are."""
    prompt = read_messages(row["prompt"], "user", f"{where}: prompt")
    if row["completion"] is None:  # verifiers keeps rollouts that failed.
        return "", tuple(prompt), 0
    completion = read_messages(row["completion"], "assistant", f"{where}: completion")
    replies = [n for n, message in enumerate(completion) if message["role"] == "assistant"]
    if not replies:
        return "", (*prompt, *completion), 0
    before = (*prompt, *completion[: replies[-1]])
    return completion[replies[-1]]["content"], before, len(replies)


def _tokens(row: Row) -> list[int] | None:
    usage = row.get("token_usage")
    if not isinstance(usage, Mapping):
        return None
    counts = [usage.get(name) for name in ("input_tokens", "output_tokens")]
    if not all(isinstance(count, int | float) and math.isfinite(count) for count in counts):
        return None
    return [int(cast(float, count)) for count in counts]


def _beside(row: Row) -> dict[str, object]:
    """Return the numbers that a row holds, such as rewards."""
    metrics = row.get("metrics")
    numbers = {**(metrics if isinstance(metrics, Mapping) else {}), **row}
    return {
        str(name): value
        for name, value in numbers.items()
        if isinstance(value, int | float) and math.isfinite(value) and name != "example_id"
    }
