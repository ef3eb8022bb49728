"""Readers of tinker-cookbook's files: summaries of training and trajectories of evaluations."""

from collections.abc import Iterator, Mapping, Sequence

from debate_protocol.types import Message, Transcript
from debate_report.imports.replies import transcripts
from debate_report.imports.rollout import (
    ImportedReply,
    NoRepliesError,
    ReadSettings,
    file_verdict,
)
from debate_report.imports.values import (
    Record,
    as_int,
    golds,
    mapping,
    number,
    numbers,
    template_messages,
    text_of,
    without_markers,
)

NO_TEXT = "(The file has no text of this reply.)"
TEXT_CAVEAT = "The file has no text but what environments log: lengths, rewards and metrics."


class TinkerTraining:
    """`iteration_N/train_rollout_summaries.jsonl` of tinker-cookbook (0.6), N from 0.

    `total_reward` is the whole; `final_reward` is the group's part of it. Texts are only in a
    step's logs, where an environment puts them there.
    """

    name = "tinker-cookbook, training"
    shape = "group_idx, traj_idx and total_reward"

    def fits(self, row: Record) -> bool:
        """Whether a row has its columns."""
        return {"group_idx", "traj_idx", "total_reward"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield each trajectory, with numbers where the text is missing."""
        if not settings.allow_no_text:
            raise NoRepliesError(
                f"{settings.path}: found tinker-cookbook's summaries, numbers without text; "
                "expected a file with replies"
            )
        return transcripts((self._rollout(row) for row in rows), settings)

    def _rollout(self, row: Record) -> ImportedReply:
        steps = [mapping(step) for step in _list(row.get("steps"))]
        scores = numbers(row.get("trajectory_metrics"))
        texts = []
        for step in steps:
            # Environments say in the last step whether the trajectory is right.
            scores |= numbers(step.get("metrics"))
            texts += [value for value in mapping(step.get("logs")).values() if value]
        lengths = [as_int(step.get("ac_len")) for step in steps]
        num_tokens = sum(length or 0 for length in lengths)
        reward = number(row.get("total_reward"))
        is_right, verdict_by = file_verdict(scores, reward)
        iteration = as_int(row.get("iteration"))
        tags = ", ".join(str(tag) for tag in _list(row.get("tags")))
        group = f"iteration {iteration}, group {row.get('group_idx')}"
        logged = "\n\n".join(text for text in texts if isinstance(text, str))
        return ImportedReply(
            prompt=[Message(role="user", content=f"(no question in the file) {group} of {tags}")],
            reply=logged or NO_TEXT,
            task=tags,
            group=group,
            step=iteration,
            reward=reward,
            is_right=is_right,
            verdict_by=verdict_by,
            numbers=scores | numbers({"final_reward": row.get("final_reward")}),
            num_tokens=num_tokens if lengths and None not in lengths else None,
            version=as_int(row.get("sampling_client_step")),
            num_replies=max(1, len(steps)),
            caveats=[TEXT_CAVEAT],
        )


class TinkerEvaluation:
    """`runs/RUN/BENCHMARK/trajectories.jsonl` of tinker-cookbook's evaluations (0.6).

    Texts keep the markers of their template, and a failed example has reward 0 and no turns.
    """

    name = "tinker-cookbook, evaluation"
    shape = "benchmark, turns and example_id"

    def fits(self, row: Record) -> bool:
        """Whether a row has its columns."""
        return {"benchmark", "turns", "example_id"} <= row.keys()

    def read(self, rows: Sequence[Record], settings: ReadSettings) -> Iterator[Transcript]:
        """Yield the last reply of each example."""
        return transcripts((self._rollout(row, settings) for row in rows), settings)

    def _rollout(self, row: Record, settings: ReadSettings) -> ImportedReply:
        turns = [mapping(turn) for turn in _list(row.get("turns"))]
        replies = [i for i, turn in enumerate(turns) if turn.get("role") == "assistant"]
        first = replies[0] if replies else len(turns)
        last = replies[-1] if replies else len(turns)
        error = text_of(row.get("error"))
        scores = numbers(row.get("metrics"))
        # A failed example has reward 0, which nobody earned.
        reward = None if error else number(row.get("reward"))
        is_right, verdict_by = file_verdict(scores, reward)
        logs = mapping(row.get("logs"))
        answer = "expected" if settings.answer is None else settings.answer
        counts = [as_int(turns[i].get("token_count")) for i in replies]
        return ImportedReply(
            prompt=_messages(turns[:first]),
            between=_messages(turns[first:last]),
            reply=without_markers(text_of(turns[last].get("content"))) if replies else None,
            golds=golds(logs.get(answer)),
            task=str(row.get("benchmark") or ""),
            question_id=str(row.get("example_id") or ""),
            group=str(row.get("example_id") or ""),
            reward=reward,
            is_right=is_right,
            verdict_by=verdict_by,
            numbers=scores,
            num_tokens=sum(count or 0 for count in counts) if None not in counts else None,
            is_cut=scores.get("max_tokens_reached") == 1.0,
            error=error,
            num_replies=len(replies),
        )


def _messages(turns: Sequence[Mapping[str, object]]) -> list[Message]:
    messages: list[Message] = []
    for turn in turns:
        content = text_of(turn.get("content"))
        if turn.get("role") == "assistant":
            messages.append(Message(role="assistant", content=without_markers(content)))
        else:
            messages += template_messages(content)
    return messages


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
