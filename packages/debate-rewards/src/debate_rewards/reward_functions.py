"""Right or wrong for lists of responses, as trainers of single agents call a reward."""

from collections.abc import Mapping, Sequence
from typing import Any

from debate_protocol.types import Question
from debate_rewards.answers.checking import LIMIT_S, Verdict, check_many
from debate_rewards.answers.final_answers import Kind

Completion = str | Sequence[Mapping[str, Any]]
"""A response as text, or as chat messages of which the last one answers."""


def verify(
    golds: Sequence[str | None],
    predictions: Sequence[str | None],
    kind: Kind = "math",
    *,
    limit_s: float = LIMIT_S,
) -> list[Verdict]:
    """Judge whole responses against gold answers of one kind; verdicts come in order.

    Raises:
        ValueError: There are not as many golds as predictions, or the kind is unknown.
        RuntimeError: A mathematical answer must be compared and Math-Verify cannot be started.
    """
    if len(golds) != len(predictions):
        raise ValueError(
            f"verify: found {len(golds)} golds and {len(predictions)} predictions, expected as many"
        )
    questions = [Question(str(i), "", gold, {"kind": kind}) for i, gold in enumerate(golds)]
    return check_many(list(zip(questions, predictions, strict=True)), limit_s=limit_s)


def answer_reward(
    prompts: Sequence[object] = (),
    completions: Sequence[Completion] = (),
    *,
    answer: Sequence[str | int | float | None],
    kind: Kind | Sequence[Kind] = "math",
    **columns: object,
) -> list[float | None]:
    """Return 1 for a right completion, 0 for a wrong one, None where the gold cannot be used.

    A reward function for `GRPOTrainer(reward_funcs=…)` of TRL, which leaves None out. The columns
    `answer` and, where answers are of several kinds, `kind` come from the data set.

    Args:
        prompts: Not read.
        completions: Responses, as text or as chat messages.
        answer: The gold answer of each completion.
        kind: The kind of all answers, or of each.
        columns: Not read.

    Raises:
        ValueError: The lists are not of one length, or a kind is unknown.
        RuntimeError: A mathematical answer must be compared and Math-Verify cannot be started.
    """
    kinds = [kind] * len(completions) if isinstance(kind, str) else list(kind)
    if not len(completions) == len(answer) == len(kinds):
        raise ValueError(
            f"answer_reward: found {len(completions)} completions, {len(answer)} answers and "
            f"{len(kinds)} kinds, expected as many of each"
        )
    asked = [
        (Question(str(i), "", None if gold is None else str(gold), {"kind": its_kind}), text)
        for i, (gold, its_kind, text) in enumerate(
            zip(answer, kinds, map(_text, completions), strict=True)
        )
    ]
    value = {"right": 1.0, "wrong": 0.0, "unverifiable": None}
    return [value[verdict.verdict] for verdict in check_many(asked)]


def _text(completion: Completion) -> str:
    if isinstance(completion, str):
        return completion
    content = completion[-1].get("content") if completion else None
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content or ""
