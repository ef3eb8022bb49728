"""Reader of episodes of verifiers (0.4) and prime-rl: their traces are agents of a debate."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from debate_protocol.command_line import UsageError
from debate_protocol.transcripts.files import TranscriptError, from_json
from debate_protocol.types import Message, Protocol, Question, Transcript, Turn
from debate_report.imports.rollout import (
    VERDICTS,
    ReadSettings,
    counted,
    file_verdict,
    question_of,
)
from debate_report.imports.values import (
    Record,
    as_int,
    golds,
    mapping,
    number,
    numbers,
    read_messages,
    text_of,
)


class Episodes:
    """`traces.jsonl` of verifiers and prime-rl: an episode a line, or a trace by itself."""

    name = "verifiers, prime-rl"
    shape = "traces and task"

    def fits(self, row: Record) -> bool:
        """Whether a row has traces, or is a trace."""
        return isinstance(row.get("traces"), list) or isinstance(row.get("nodes"), list)

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield each episode as a debate."""
        for index, row in enumerate(rows):
            episode = row
            if isinstance(row.get("nodes"), list):
                # A trace by itself is an episode of one agent; prime-rl stamps its numbers in it.
                stamped = mapping(mapping(row.get("info")).get("prime_rl"))
                episode = {
                    "id": row.get("id", index),
                    "task": row.get("task"),
                    "traces": [row],
                    "advantage": row.get("advantage", stamped.get("advantage")),
                    "step": stamped.get("step"),
                }
            yield debate_of_episode(episode, f"{settings.path}, row {index + 1}", settings)


def debate_of_episode(episode: Record, where: str, settings: ReadSettings) -> Transcript:
    """Convert an episode to a debate.

    Traces count as agents in order of their beginnings. Rewards and metrics are in `meta`, as
    means over traces; `reward` is the mean of their weighted sums. Where a trace's `info` keeps a
    transcript as `debate`, it is taken as it is, with these numbers.

    Raises:
        UsageError: The row is no episode.
    """
    traces = [_object(trace, f"{where}: traces") for trace in _list(episode, "traces", where)]
    meta = _meta(episode, traces)

    # A debate that was recorded whole knows its rounds and agents; traces only suggest them.
    for trace in traces:
        recorded_debate = mapping(trace.get("info")).get("debate")
        if recorded_debate is None:
            continue
        try:
            debate = from_json(_object(recorded_debate, f"{where}: info.debate"))
        except TranscriptError as error:
            raise UsageError(f"{where}: info.debate: {error}") from error
        return replace(debate, meta={**debate.meta, **meta})

    traces.sort(key=_start)
    turns: list[Turn] = []
    for agent, trace in enumerate(traces):
        turns += _turns(trace, agent, f"{where}: trace {agent}")
    turns.sort(key=lambda turn: (turn.round, turn.agent))
    if "error" in meta:
        # The last turn says why the episode failed; an episode may have failed before any.
        last_turn = turns.pop() if turns else Turn(0, 0, "")
        turns.append(replace(last_turn, failure=str(meta["error"])))

    question = _question(episode, turns, where, settings)
    num_rounds = max((turn.round + 1 for turn in turns), default=1)
    return Transcript(
        id=str(episode.get("id", question.id)),
        question=question,
        protocol=Protocol(
            num_agents=max(len(traces), 1),
            max_rounds=num_rounds,
            contract=settings.contract,
        ),
        turns=tuple(turns),
        meta=meta,
    )


def _meta(episode: Record, traces: Sequence[Record]) -> dict[str, object]:
    """Collect rewards and metrics, and the step, group, advantage and failure of an episode."""
    work = mapping(mapping(episode.get("run")).get("work"))
    step = number(work.get("step"))
    if step is None:
        step = number(episode.get("step"))
    advantage = number(episode.get("advantage"))
    if advantage is None:
        advantage = _mean_advantage(traces)
    group = mapping(episode.get("group")).get("id") or mapping(episode.get("task")).get("key")
    calls = [mapping(call) for trace in traces for call in _items(trace.get("calls"))]
    is_cut = any(call.get("finish_reason") == "length" for call in calls)

    error_text = None
    has_failed = episode.get("ok") is False
    if has_failed:
        messages = []
        for error in _items(episode.get("errors")):
            messages.append(text_of(mapping(error).get("message")) or str(error))
        error_text = "; ".join(messages)[:300] or "failed"

    scores = _scores(traces)
    is_right, verdict_by = file_verdict(scores, scores.get("reward"))
    if has_failed or len(traces) != 1:
        is_right = None  # a mean over several agents is no verdict
    optional: dict[str, object | None] = {
        "step": None if step is None else int(step),
        "group": group if isinstance(group, str) else None,
        "advantage": advantage,
        "verdict": None if is_right is None else VERDICTS[is_right],
        "verdict_by": None if is_right is None else verdict_by,
        "version": as_int(mapping(work.get("policy")).get("start")),
        "finish": "length" if is_cut else None,
        "error": error_text,
    }
    meta: dict[str, object] = dict(scores)
    for key, value in optional.items():
        if value is not None:
            meta[key] = value
    return meta


def _scores(traces: Sequence[Record]) -> dict[str, float]:
    """Average rewards and metrics over traces with values, and the weighted sum."""
    values: dict[str, list[float]] = {}
    for trace in traces:
        weighted_scores = []
        for name, part in mapping(trace.get("rewards")).items():
            # A part is a number of weight 1, or an object of score and weight.
            settings = mapping(part)
            score = number(settings.get("score")) if settings else number(part)
            weight = number(settings.get("weight", 1.0))
            if score is None or weight is None:
                continue
            # A part named `reward` must not take the place of the sum.
            label = "reward (part)" if name == "reward" else str(name)
            values.setdefault(label, []).append(score)
            weighted_scores.append(score * weight)
        for name, value in numbers(trace.get("metrics")).items():
            label = "reward (metric)" if name == "reward" else name
            values.setdefault(label, []).append(value)
        if weighted_scores:
            values.setdefault("reward", []).append(sum(weighted_scores))

    part_named_reward = values.get("reward (part)")
    if part_named_reward is not None and part_named_reward == values.get("reward"):
        del values["reward (part)"]
    return {name: fmean(of_traces) for name, of_traces in values.items()}


def _mean_advantage(traces: Sequence[Record]) -> float | None:
    """Average the advantages of sampled tokens; prime-rl keeps one for each in the nodes."""
    advantages: list[float] = []
    for trace in traces:
        for node in _items(trace.get("nodes")):
            values = map(number, _items(mapping(node).get("advantages")))
            advantages += [value for value in values if value is not None]
    return fmean(advantages) if advantages else None


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list) else ()


def _question(
    episode: Record, turns: Sequence[Turn], where: str, settings: ReadSettings
) -> Question:
    task = _object(episode.get("task"), f"{where}: task")
    data = _object(task.get("data"), f"{where}: task.data")
    answer_columns = ["answer", "solution"]
    if settings.answer is not None:
        if settings.answer not in data:
            raise UsageError(
                f"{where}: found no field {settings.answer!r}; expected one of "
                f"{', '.join(sorted(data))}"
            )
        answer_columns = [settings.answer]
    right_answers: list[str] = []
    for column in answer_columns:
        # The first column with any answer has them all.
        right_answers = right_answers or golds(data.get(column))

    prompt: list[Message] = []
    task_prompt = data.get("prompt") or data.get("question")
    if task_prompt is not None:
        prompt = read_messages(task_prompt, "user", f"{where}: prompt")
    elif turns:
        prompt = list(turns[0].prompt or ())

    identities = [data.get("id"), data.get("idx"), task.get("key")]
    known_identities = [str(identity) for identity in identities if identity is not None]
    question = question_of(prompt, right_answers, known_identities[:1], settings.kind)
    # A task's prompt may be several messages of the user, where a rollout's last one is asked.
    user_texts = [message["content"] for message in prompt if message["role"] == "user"]
    return replace(question, text="\n\n".join(user_texts) or question.text)


def _turns(trace: Record, agent: int, where: str) -> Iterator[Turn]:
    nodes = [_object(node, f"{where}: nodes") for node in _list(trace, "nodes", where)]
    messages = read_messages([node.get("message") for node in nodes], "user", f"{where}: nodes")
    num_tokens_by_node = _num_tokens_by_node(trace, nodes)
    round_ = 0
    for index, node in enumerate(nodes):
        if node.get("sampled") is not True:
            continue
        yield Turn(
            agent=agent,
            round=round_,
            text=messages[index]["content"],
            prompt=tuple(_messages_before(nodes, messages, index, where)),
            extra=counted(num_tokens_by_node.get(index)),
        )
        round_ += 1


def _num_tokens_by_node(trace: Record, nodes: Sequence[Record]) -> dict[int, int]:
    """Count the sampled tokens of nodes: of the call, else of the mask."""
    counts = {}
    for index, node in enumerate(nodes):
        mask = _items(node.get("mask"))
        if mask:
            counts[index] = sum(map(bool, mask))
    # The usage of a call is the engine's own count, so it replaces the mask's.
    for call in map(mapping, _items(trace.get("calls"))):
        index_of_call = as_int(call.get("node"))
        num_tokens = as_int(mapping(call.get("usage")).get("completion_tokens"))
        if index_of_call is not None and num_tokens is not None:
            counts[index_of_call] = num_tokens
    return counts


def _messages_before(
    nodes: Sequence[Record], messages: Sequence[Message], index: int, where: str
) -> list[Message]:
    """Collect the messages on the way from the root to a node."""
    path: list[Message] = []
    parent = nodes[index].get("parent")
    while parent is not None:
        if not isinstance(parent, int) or not 0 <= parent < index:
            raise UsageError(f"{where}: node {index}: found parent {parent!r}; expected an earlier")
        path.append(messages[parent])
        index = parent
        parent = nodes[index].get("parent")
    return path[::-1]


def _start(trace: Record) -> float:
    return number(mapping(trace.get("timing")).get("start")) or 0.0


def _list(record: Record, key: str, where: str) -> list[object]:
    value = record.get(key)
    if not isinstance(value, list):
        raise UsageError(f"{where}: {key}: found {type(value).__name__}; expected a list")
    return value


def _object(value: object, where: str) -> Record:
    if not isinstance(value, dict):
        raise UsageError(f"{where}: found {type(value).__name__}; expected an object")
    return value
