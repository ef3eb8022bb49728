"""Rollouts of TRL, verl, verifiers and prime-rl, and debates of any file, as transcripts."""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean
from typing import cast, get_args

from debate_protocol.command_line import UsageError, transcripts_in
from debate_protocol.parsing import get_contract
from debate_protocol.plugins import install_command
from debate_protocol.transcripts.files import TranscriptError, from_json, json_lines, json_value
from debate_protocol.types import Message, Protocol, Question, Role, Transcript, Turn

__all__ = ["import_rollouts"]


def read_messages(value: object, role: Role, where: str) -> list[Message]:
    """Return messages; a text is one. Roles that a transcript does not have are the user's."""
    if isinstance(value, str):
        return [Message(role=role, content=value)]
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise UsageError(f"{where}: found {type(value).__name__}; expected a text or messages")
    found = []
    for one in value:
        own = one.get("role")
        known = cast(Role, own) if own in get_args(Role) else "user"
        found.append(Message(role=known, content=text_of(one.get("content"))))
    return found


def text_of(content: object) -> str:
    """Return the text of a message's content, which may come in parts."""
    if isinstance(content, list):
        parts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""


_WHOLE, _SAMPLES = "transcripts.jsonl", "transcripts/*.jsonl"


def debates_in(
    path: Path, key: str, *, contract: str = "boxed", kind: str | None = None, answer: str | None
) -> list[Transcript]:
    """Return the debates of a file, in order; rows with completions or traces are of others.

    Args:
        path: The file.
        key: Names it in messages.
        contract: How replies of rollouts mark their answers.
        kind: How answers of rollouts are compared.
        answer: The column of rollouts with the right answer.

    Raises:
        UsageError: There is no such file, or it cannot be read.
    """
    if not path.is_file():
        raise UsageError(f"{key}: found no file {str(path)!r}; expected one of debates")
    if path.suffix == ".parquet" or _holds_completions(path):
        return import_rollouts(path, contract=contract, kind=kind, answer=answer)
    return list(transcripts_in("debate-report", str(path)))


def files_of(path: Path, key: str) -> list[Path]:
    """Return the files of debates that a path names: itself, or those of a folder.

    Raises:
        UsageError: There is none.
    """
    if not path.is_dir():
        if path.is_file():
            return [path]
        raise UsageError(
            f"{key}: found nothing at {str(path)!r}; expected a file of transcripts or rollouts, a "
            "run directory, or a folder of debate-rollout"
        )
    whole = path / _WHOLE
    found = [whole] if whole.is_file() else sorted(path.glob(_SAMPLES))
    if not found:
        raise UsageError(
            f"{key}: found neither {_WHOLE} nor {_SAMPLES} in {str(path)!r}; expected a run "
            "directory that keeps debates (recording.debates), or a folder of debate-rollout"
        )
    return found


def _holds_completions(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            first = json.loads(next((line for line in file if line.strip()), "null"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(first, dict) and not first.keys().isdisjoint(
        {"completion", "output", "traces", "nodes"}
    )


Record = Mapping[str, object]


def debate_of_episode(
    episode: Record, where: str, contract: str, kind: str | None, answer: str | None
) -> Transcript:
    """Return an episode as a debate.

    Traces count as agents in the order in which they began. Rewards and metrics are in `meta`, as
    means over traces; `reward` is that of their weighted sums. Where a trace's `info` keeps a
    transcript as `debate`, it is taken as it is, with these numbers.

    Args:
        episode: A row of `traces.jsonl`.
        where: Names it in messages.
        contract: How answers are read.
        kind: How they are compared; None is mathematics.
        answer: The field of the task with the right answer; None takes `answer`, then `solution`.

    Raises:
        UsageError: It is no episode.
    """
    traces = [_object(one, f"{where}: traces") for one in _list(episode, "traces", where)]
    numbers = _numbers(traces) | _beside({key: episode.get(key) for key in ("advantage", "step")})
    for trace in traces:
        info = trace.get("info")
        kept = info.get("debate") if isinstance(info, Mapping) else None
        if isinstance(kept, Mapping):
            try:
                debate = from_json(kept)
            except TranscriptError as error:
                raise UsageError(f"{where}: info.debate: {error}") from error
            meta = {**debate.meta, **numbers}
            return Transcript(
                debate.id, debate.question, debate.protocol, debate.turns, meta, debate.extra
            )
    traces.sort(key=_start)
    turns = [
        turn
        for agent, trace in enumerate(traces)
        for turn in _turns(trace, agent, f"{where}: trace {agent}")
    ]
    turns.sort(key=lambda turn: (turn.round, turn.agent))
    rounds = max((turn.round + 1 for turn in turns), default=1)
    question = _question_of_episode(episode, turns, where, kind, answer)
    protocol = Protocol(max(len(traces), 1), max_rounds=rounds, contract=contract)
    name = str(episode.get("id", question.id))
    return Transcript(name, question, protocol, tuple(turns), numbers)


def _question_of_episode(
    episode: Record, turns: list[Turn], where: str, kind: str | None, answer: str | None
) -> Question:
    task = _object(episode.get("task"), f"{where}: task")
    data = _object(task.get("data"), f"{where}: task.data")
    if answer is not None and answer not in data:
        raise UsageError(
            f"{where}: found no field {answer!r}; expected one of {', '.join(sorted(data))}"
        )
    asked = data.get("prompt") or data.get("question")
    if asked is None:
        shown = [one for turn in turns[:1] for one in turn.prompt or () if one["role"] == "user"]
    else:
        shown = read_messages(asked, "user", f"{where}: prompt")
    text = "\n\n".join(message["content"] for message in shown if message["role"] == "user")
    golds = [data.get(name) for name in (("answer", "solution") if answer is None else (answer,))]
    gold = next((str(one) for one in golds if one not in (None, "")), None)
    names = (data.get("id"), data.get("idx"), task.get("key"))
    number = next((one for one in names if one is not None), 0)
    return Question(str(number), text, gold, {} if kind is None else {"kind": kind})


def _turns(trace: Record, agent: int, where: str) -> Iterator[Turn]:
    nodes = [_object(one, f"{where}: nodes") for one in _list(trace, "nodes", where)]
    read = [node.get("message") for node in nodes]
    messages = read_messages(read, "user", f"{where}: nodes")
    replies = (number for number, node in enumerate(nodes) if node.get("sampled") is True)
    for round, number in enumerate(replies):
        prompt = tuple(_before(nodes, messages, number, where))
        yield Turn(agent, round, messages[number]["content"], prompt=prompt)


def _before(nodes: list[Record], messages: list[Message], number: int, where: str) -> list[Message]:
    """Return the messages on the way from the root to a node."""
    found: list[Message] = []
    parent = nodes[number].get("parent")
    while parent is not None:
        if not isinstance(parent, int) or not 0 <= parent < number:
            raise UsageError(
                f"{where}: node {number}: found parent {parent!r}; expected an earlier"
            )
        found.append(messages[parent])
        number, parent = parent, nodes[parent].get("parent")
    return found[::-1]


def _numbers(traces: list[Record]) -> dict[str, float]:
    """Return rewards and metrics by name, as means over the traces that have them."""
    found: dict[str, list[float]] = {}
    for trace in traces:
        rewards, metrics = trace.get("rewards"), trace.get("metrics")
        total = 0.0
        for name, one in (rewards if isinstance(rewards, Mapping) else {}).items():
            score, weight = (one.get("score"), one.get("weight", 1.0)) if one else (None, 1.0)
            if isinstance(score, int | float) and isinstance(weight, int | float):
                total += score * weight
                found.setdefault(str(name), []).append(score)
        for name, value in (metrics if isinstance(metrics, Mapping) else {}).items():
            if isinstance(value, int | float):
                found.setdefault(str(name), []).append(value)
        if isinstance(rewards, Mapping) and rewards and "reward" not in rewards:
            found.setdefault("reward", []).append(total)
    return {name: fmean(values) for name, values in found.items()}


def _start(trace: Record) -> float:
    timing = trace.get("timing")
    start = timing.get("start") if isinstance(timing, Mapping) else None
    return start if isinstance(start, int | float) else 0.0


def _mapping(value: object) -> Record:
    return value if isinstance(value, Mapping) else {}


def _list(record: Record, key: str, where: str) -> list[object]:
    value = record.get(key)
    if not isinstance(value, list):
        raise UsageError(f"{where}: {key}: found {type(value).__name__}; expected a list")
    return value


def _object(value: object, where: str) -> Record:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: found {type(value).__name__}; expected an object")
    return value


Row = Mapping[str, object]

_NAMES = {"example_id", "id", "idx", "ok"}
_EXPECTED = "expected traces.jsonl or results.jsonl of verifiers, or rollouts of TRL or verl"


def rows_of(path: Path) -> list[Row]:
    """Return the rows of a .jsonl, .json or .parquet file.

    Raises:
        UsageError: It cannot be read, or a row of it is no object.
    """
    if not path.is_file():
        raise UsageError(
            f"rollouts: there is no file {str(path)!r:.300}; expected .jsonl or .parquet"
        )
    try:
        if path.suffix == ".parquet":
            from pyarrow import parquet

            found = list(enumerate(parquet.read_table(path).to_pylist(), 1))
        elif path.suffix == ".json":
            found = list(enumerate(cast(list[object], json_value(path.read_bytes())), 1))
        else:
            with path.open("rb") as file:
                found = [line[:2] for line in json_lines(file, str(path))]
    except ImportError as error:
        needed = install_command("debate-report[parquet]")
        raise UsageError(f"rollouts: {path}: to read it, install pyarrow: {needed}") from error
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"rollouts: {path}: cannot be read ({error})") from error
    for number, row in found:
        if isinstance(row, ValueError):
            raise UsageError(f"rollouts: {row}") from row
        if not isinstance(row, Mapping):
            raise UsageError(f"rollouts: {path}:{number}: expected an object, found {row!r:.40}")
    return [cast(Row, row) for _, row in found]


def import_rollouts(
    path: Path, *, contract: str = "boxed", kind: str | None = None, answer: str | None = None
) -> list[Transcript]:
    """Return the rows of a file as transcripts, in order: of one turn each, but for episodes.

    Replies to one question have its id: the `example_id` of verifiers; of TRL and verl, whose rows
    name none, a number made of the prompt. What rows say beside is in `meta`: numbers such as
    `reward` under their own names. A conversation of several replies counts as one; its last reply
    has the answer.

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
    for number, row in enumerate(rows_of(path)):
        where = f"{path}, row {number + 1}"
        if isinstance(row.get("nodes"), list):  # prime-rl writes each trace by itself.
            stamped = _mapping(_mapping(row.get("info")).get("prime_rl"))
            advantage = row.get("advantage", stamped.get("advantage"))
            row = {"id": row.get("id", number), "task": row.get("task"), "traces": [row]}
            row |= {"advantage": advantage, "step": stamped.get("step")}
        if isinstance(row.get("traces"), list):
            found.append(debate_of_episode(row, where, rules.name, kind, answer))
            continue
        if {"input", "output", "score"} <= row.keys():  # verl: trainer.rollout_data_dir.
            ours = {"prompt": "input", "completion": "output", "reward": "score", "answer": "gts"}
            row = {**{name: row.get(theirs) for name, theirs in ours.items()}, **row}
        if not {"prompt", "completion"} <= row.keys():
            names = ", ".join(sorted(row)[:8]) or "nothing"
            raise UsageError(f"{where}: found {names}; {_EXPECTED}, with prompt and completion")
        question = _question(row, where, kind, answer)
        text, prompt, sampled = _said(row, where)
        turn = Turn(0, 0, text, prompt=prompt)
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


def _beside(row: Row) -> dict[str, object]:
    """Return the numbers that a row holds, such as rewards."""
    metrics = row.get("metrics")
    numbers = {**(metrics if isinstance(metrics, Mapping) else {}), **row}
    found: dict[str, object] = {
        str(name): value
        for name, value in numbers.items()
        if isinstance(value, int | float) and math.isfinite(value) and name not in _NAMES
    }
    tokens, advantages = row.get("tokens"), row.get("advantages")
    if isinstance(tokens, list) and isinstance(advantages, list) and len(tokens) == len(advantages):
        found |= {"tokens": tokens, "advantages": advantages}
    return found
