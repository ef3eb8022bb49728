"""Episodes of verifiers 0.4 as debates: a trace is an agent, each of its replies a turn."""

from collections.abc import Iterator, Mapping
from statistics import fmean

from debate_protocol.transcripts.fields import TranscriptError
from debate_protocol.transcripts.files import from_json
from debate_protocol.types import TOKENS, Message, Protocol, Question, Transcript, Turn
from debate_train.errors import UsageError
from debate_train.rollout_files.messages import read_messages

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
    numbers = _numbers(traces)
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
    question = _question(episode, turns, where, kind, answer)
    protocol = Protocol(max(len(traces), 1), max_rounds=rounds, contract=contract)
    name = str(episode.get("id", question.id))
    return Transcript(name, question, protocol, tuple(turns), numbers)


def _question(
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
    used = _usage(trace)
    replies = (number for number, node in enumerate(nodes) if node.get("sampled") is True)
    for round, number in enumerate(replies):
        prompt = tuple(_before(nodes, messages, number, where))
        extra = {TOKENS: used[number]} if number in used else {}
        yield Turn(agent, round, messages[number]["content"], prompt=prompt, extra=extra)


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


def _usage(trace: Record) -> dict[int, list[int]]:
    """Return what each reply read and said, in tokens, where a call says it."""
    found: dict[int, list[int]] = {}
    calls = trace.get("calls")
    for call in calls if isinstance(calls, list) else []:
        node, usage = (call.get("node"), call.get("usage")) if isinstance(call, Mapping) else (0, 0)
        if isinstance(node, int) and isinstance(usage, Mapping):
            names = ("prompt_tokens", "cached_input_tokens", "completion_tokens")
            read, cached, said = (_whole(usage.get(name)) for name in names)
            found[node] = [read + cached, said]
    return found


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


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def _list(record: Record, key: str, where: str) -> list[object]:
    value = record.get(key)
    if not isinstance(value, list):
        raise UsageError(f"{where}: {key}: found {type(value).__name__}; expected a list")
    return value


def _object(value: object, where: str) -> Record:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: found {type(value).__name__}; expected an object")
    return value
