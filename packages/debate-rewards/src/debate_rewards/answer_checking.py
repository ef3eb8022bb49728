"""Answer checking: is a prediction the question's answer, and are two answers the same?"""

import math
import reprlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from numbers import Number
from typing import Any, Literal

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Question
from debate_rewards.answers.questions import (
    answer_id,
    form_of,
    read_accepted,
    read_answer,
    stated_kind,
)
from debate_rewards.answers.reply import KINDS, Kind, Unreadable, final_answer
from debate_rewards.answers.types import Answer, List, Text
from debate_rewards.math_pool import TASK, AnswerComparison, TaskJob, shared_pool
from debate_rewards.puzzle_answers import judge_puzzle, plain_answer, puzzle_form

LIMIT_S = 5.0
# Most pairs of answers that one division into classes compares by more than their text.
MAX_COMPARED = 1000
_QUESTIONS_PER_THREAD = 8
_CACHE_SIZE = 1 << 16
_TIMEOUTS = ("timeout", "gold_timeout")
_CRASHES = ("crashed", "gold_crashed")
_NO_ANSWER = Unreadable("no answer")

Completion = str | Sequence[Mapping[str, Any]]
"""A response as text, or as chat messages, the last of them with the answer."""
Gold = str | int | float | None
_Compare = Callable[[float], AnswerComparison]
"""Compares with an accepted answer within a time limit."""

# Results of comparisons by gold and prediction. Too many are dropped all at once, which needs no
# lock.
_cache: dict[tuple[str, str], AnswerComparison] = {}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a prediction is right.

    `reason` is `same_text` or `equivalent` when right; `different`, `no_answer`, `unparsable`,
    `timeout` or `crashed` when wrong; `no_gold`, `gold_unparsable`, `gold_timeout` or
    `gold_crashed` when the question's own answer cannot be used. `seconds` is the time of the
    comparison itself. `detail` says why an answer is `unparsable`, such as "several numbers".
    """

    verdict: Literal["right", "wrong", "unverifiable"]
    reason: str
    seconds: float = 0.0
    detail: str = ""


def check(question: Question, prediction: str | None, *, limit_s: float = LIMIT_S) -> Verdict:
    """Judge a prediction by the question's kind (`meta["kind"]`, see `kind_of`).

    The prediction's own final answer is read once, against the question's answer, and their keys
    are compared (see `debate_rewards.answers`); Math-Verify compares only formulas without a key.
    `meta["accept"]` may list further right answers. A task of reasoning-gym
    (`meta["reasoning_gym"]`) is judged by `debate_rewards.puzzle_answers`.

    Args:
        question: With `answer`, the gold answer.
        prediction: A response or its solution; `None` for no answer.
        limit_s: Hard limit for the comparison of a mathematical answer.

    Raises:
        ValueError: The question's kind is unknown, or `accept` is no list of texts.
        RuntimeError: A mathematical answer must be compared and Math-Verify cannot be started.
    """
    verdict_or_comparisons = _judge_by_key(question, prediction)
    if isinstance(verdict_or_comparisons, Verdict):
        return verdict_or_comparisons

    outcomes: list[str] = []
    seconds = 0.0
    for compare in verdict_or_comparisons:
        if seconds >= limit_s:
            break
        comparison = compare(limit_s - seconds)
        seconds += comparison.seconds
        if comparison.outcome == "equal":
            return Verdict("right", "equivalent", seconds)
        outcomes.append(comparison.outcome)

    # One gold answer that can be used is enough to call the prediction wrong.
    outcomes_of_usable_golds = [outcome for outcome in outcomes if not outcome.startswith("gold_")]
    if outcomes_of_usable_golds:
        return Verdict("wrong", outcomes_of_usable_golds[0], seconds)
    return Verdict("unverifiable", outcomes[0], seconds)


def check_many(
    asked: Sequence[tuple[Question, str | None]], *, limit_s: float = LIMIT_S
) -> list[Verdict]:
    """Judge many predictions, using all workers; verdicts come in order."""
    verdicts: dict[int, Verdict] = {}
    undecided = []
    for index, (question, prediction) in enumerate(asked):
        verdict = _judge_by_key(question, prediction)
        if isinstance(verdict, Verdict):
            verdicts[index] = verdict
        else:
            undecided.append(index)

    if undecided:
        num_threads = min(shared_pool().size, 1 + len(undecided) // _QUESTIONS_PER_THREAD)
        with ThreadPoolExecutor(num_threads) as executor:
            results = executor.map(lambda index: check(*asked[index], limit_s=limit_s), undecided)
            verdicts.update(zip(undecided, results, strict=True))
    return [verdicts[index] for index in range(len(asked))]


def same_answer(
    question: Question, a: str | None, b: str | None, *, limit_s: float = LIMIT_S
) -> bool:
    """Compare the answers of two responses; no answer equals nothing."""
    kind_of(question)
    first = _read(question, a)
    second = _read(question, b)
    if first is None or second is None:
        return False
    same_key = _same_by_key(first, second)
    return _equivalent(first, second, limit_s) if same_key is None else same_key


def answer_classes(
    question: Question, answers: Sequence[str | None], *, limit_s: float = LIMIT_S
) -> list[int | None]:
    """Number the classes of responses, by first appearance; unread responses have no number.

    Responses with one key are one class. Formulas without a key join all their equals by
    Math-Verify, so classes are connected components and do not depend on the order. Once
    `MAX_COMPARED` pairs had to be compared, formulas differ unless their keys decide otherwise.
    """
    kind_of(question)
    read_answers = [_read(question, answer) for answer in answers]
    representatives: dict[Hashable, Answer] = {}
    for answer in read_answers:
        if answer is None:
            continue
        # The first text in order represents its key, whatever the order of the responses.
        representative = representatives.get(answer_id(answer))
        if representative is None or answer.text < representative.text:
            representatives[answer_id(answer)] = answer

    components = _components(representatives, limit_s)
    class_numbers: dict[Hashable, int] = {}
    classes: list[int | None] = []
    for answer in read_answers:
        if answer is None:
            classes.append(None)
        else:
            component = components[answer_id(answer)]
            classes.append(class_numbers.setdefault(component, len(class_numbers)))
    return classes


def _components(answers: Mapping[Hashable, Answer], limit_s: float) -> dict[Hashable, Hashable]:
    """Join equal answers; each answer's component is named by the id of an answer in it."""
    components = {identity: identity for identity in answers}
    if all(answer.key is not None for answer in answers.values()):
        return components
    num_compared = 0
    in_order = sorted(answers, key=lambda identity: answers[identity].text)
    for number, later in enumerate(in_order):
        for earlier in in_order[:number]:
            if components[earlier] == components[later]:
                continue
            same_key = _same_by_key(answers[earlier], answers[later])
            if same_key is not None or num_compared >= MAX_COMPARED:
                continue
            num_compared += 1
            if _equivalent(answers[earlier], answers[later], limit_s):
                absorbed = components[later]
                for identity, component in components.items():
                    if component == absorbed:
                        components[identity] = components[earlier]
    return components


def accepted_answers(question: Question) -> list[str]:
    """List the right answers: the question's own, then `meta["accept"]`.

    Raises:
        ValueError: `accept` is there and no list of texts or numbers.
    """
    accepted = [] if question.answer is None else [question.answer]
    more = question.meta.get("accept")
    if more is None:
        return accepted
    if not is_texts(more):
        raise ValueError(
            f"question {question.id!r}, meta.accept: found {reprlib.repr(more)}, "
            "expected a list of texts"
        )
    return [*accepted, *map(str, more)]


def is_texts(value: object) -> bool:
    """Check for a list of texts; finite numbers count as texts."""
    if not isinstance(value, list | tuple):
        return False
    for item in value:
        is_number = isinstance(item, int | float) and not isinstance(item, bool)
        if not (isinstance(item, str) or (is_number and math.isfinite(item))):
            return False
    return True


def kind_of(question: Question) -> Kind:
    """Look up the question's kind of answer, by default `choice` with choices, else `math`.

    Raises:
        ValueError: `meta["kind"]` is no known kind.
    """
    kind = stated_kind(question)
    for known_kind in KINDS:
        if kind == known_kind:
            return known_kind
    raise ValueError(
        f"question {question.id!r}, meta.kind: found {kind!r}, expected one of "
        f"{', '.join(KINDS)}{did_you_mean(str(kind), KINDS)}"
    )


def _judge_by_key(question: Question, prediction: str | None) -> Verdict | list[_Compare]:
    """Judge where keys decide, or list the comparisons to be made with each gold answer."""
    kind = kind_of(question)
    accepted = accepted_answers(question)
    if question.answer is None:
        return Verdict("unverifiable", "no_gold")
    if TASK in question.meta:
        return _judge_task(question, kind, prediction)

    golds = []
    for text in accepted:
        gold = read_accepted(question, text)
        if isinstance(gold, Answer):
            golds.append(gold)
    if not golds:
        return Verdict("unverifiable", "gold_unparsable")
    answer = _NO_ANSWER if prediction is None else read_answer(question, prediction)
    if isinstance(answer, Unreadable):
        reason = "no_answer" if answer == _NO_ANSWER else "unparsable"
        return Verdict("wrong", reason, detail=answer.reason)

    same_keys = [_same_by_key(gold, answer) for gold in golds]
    if True in same_keys:
        is_same_text = any(gold.text == answer.text for gold in golds)
        return Verdict("right", "same_text" if is_same_text else "equivalent")
    undecided = [gold for gold, same_key in zip(golds, same_keys, strict=True) if same_key is None]
    if not undecided:
        return Verdict("wrong", "different")
    return [partial(_compare_answers, gold, answer) for gold in undecided]


def _judge_task(question: Question, kind: Kind, prediction: str | None) -> Verdict | list[_Compare]:
    """Judge an answer to a task of reasoning-gym."""
    answer = None if prediction is None else _task_answer(question, kind, prediction)
    if answer is None:
        return Verdict("wrong", "no_answer")
    judgment = judge_puzzle(question, accepted_answers(question), answer)
    if isinstance(judgment, TaskJob):
        return [lambda limit_s: _compare_formulas(judgment, plain_answer(answer), limit_s)]
    if judgment == "right":
        return Verdict("right", "equivalent")
    if judgment == "gold_unparsable":
        return Verdict("unverifiable", judgment)
    return Verdict("wrong", "different" if judgment == "wrong" else judgment)


def _task_answer(question: Question, kind: Kind, reply: str) -> str | None:
    statement = final_answer(reply, kind, holds_braces=form_of(question).holds_braces)
    return None if statement is None else statement.text


def _read(question: Question, reply: str | None) -> Answer | None:
    if reply is None:
        return None
    if TASK in question.meta:
        text = _task_answer(question, kind_of(question), reply)
        form = None if text is None else puzzle_form(question, text)
        return None if form is None else Text(form)
    answer = read_answer(question, reply)
    return answer if isinstance(answer, Answer) else None


def _same_by_key(first: Answer, second: Answer) -> bool | None:
    """Compare two answers by key; `None` where only Math-Verify can decide."""
    if first.key is not None and second.key is not None:
        return first.key == second.key
    if first.shape != second.shape:
        return False
    return True if first.text == second.text else None


def _equivalent(first: Answer, second: Answer, limit_s: float) -> bool:
    # Math-Verify treats its two sides differently; an equivalence must not.
    for gold, prediction in ((first, second), (second, first)):
        earlier = _cache.get((prediction.formula, ""))
        # Else each good answer would wait in turn for the one that takes too long by itself.
        if earlier and earlier.outcome == "gold_timeout" and earlier.seconds >= limit_s:
            return False
        if _compare_answers(gold, prediction, limit_s).outcome == "equal":
            return True
    return False


def _compare_answers(gold: Answer, prediction: Answer, limit_s: float) -> AnswerComparison:
    """Compare two answers of the same shape part by part; a list in any order."""
    if len(gold.parts) != len(prediction.parts) or gold.shape != prediction.shape:
        return AnswerComparison("different", 0.0)
    if gold.parts == (gold,):
        return _compare_formulas(gold.formula, prediction.formula, limit_s)

    unmatched = list(prediction.parts)
    seconds = 0.0
    for gold_part in gold.parts:
        candidates = list(unmatched) if isinstance(gold, List) else unmatched[:1]
        comparison = AnswerComparison("different", 0.0)
        for candidate in candidates:
            same_key = _same_by_key(gold_part, candidate)
            if same_key is None:
                comparison = _compare_answers(gold_part, candidate, limit_s - seconds)
            else:
                comparison = AnswerComparison("equal" if same_key else "different", 0.0)
            seconds += comparison.seconds
            if comparison.outcome == "equal":
                unmatched.remove(candidate)
                break
            if seconds >= limit_s:
                return AnswerComparison(comparison.outcome, seconds)
        if comparison.outcome != "equal":
            return AnswerComparison(comparison.outcome, seconds)
    return AnswerComparison("equal", seconds)


def _compare_formulas(gold: str, prediction: str, limit_s: float) -> AnswerComparison:
    # A gold answer that cannot be used is so for every prediction, so it is stored under "".
    for cache_key in ((gold, ""), (gold, prediction)):
        earlier = _cache.get(cache_key)
        if earlier is None:
            continue
        # What timed out within a shorter limit may be decided within this one.
        is_too_early = earlier.outcome in _TIMEOUTS and earlier.seconds < limit_s
        if not is_too_early:
            return AnswerComparison(earlier.outcome, 0.0)

    comparison = shared_pool().compare(gold, prediction, limit_s)
    # A crash may have another cause than the answer, so it is tried again.
    if comparison.outcome not in _CRASHES:
        if len(_cache) >= _CACHE_SIZE:
            _cache.clear()
        is_about_gold = comparison.outcome.startswith("gold_")
        _cache[gold, "" if is_about_gold else prediction] = comparison
    return comparison


def verify(
    golds: Sequence[Gold],
    predictions: Sequence[str | None],
    kind: Kind = "math",
    *,
    limit_s: float = LIMIT_S,
) -> list[Verdict]:
    """Judge whole responses against gold answers of one kind; verdicts come in order.

    Raises:
        ValueError: There are not as many golds as predictions, a gold is no text or number, or the
            kind is unknown.
        RuntimeError: A mathematical answer must be compared and Math-Verify cannot be started.
    """
    if len(golds) != len(predictions):
        raise ValueError(
            f"verify: found {len(golds)} golds and {len(predictions)} predictions, expected as many"
        )
    questions = [
        Question(str(index), "", _gold_text(gold), {"kind": kind})
        for index, gold in enumerate(golds)
    ]
    return check_many(list(zip(questions, predictions, strict=True)), limit_s=limit_s)


def answer_reward(
    prompts: Sequence[object] = (),
    completions: Sequence[Completion] = (),
    *,
    answer: Sequence[Gold],
    kind: Kind | Sequence[Kind | None] | None = None,
    choices: Sequence[object] | None = None,
    accept: Sequence[object] | None = None,
    **columns: object,
) -> list[float | None]:
    """Reward a right completion by 1, a wrong one by 0; `None` where the gold cannot be used.

    A reward function for `GRPOTrainer(reward_funcs=…)` of TRL, which leaves `None` out. `answer`,
    and `kind`, `choices` and `accept` where there are such columns, come from the data set.

    Args:
        prompts: Not read.
        completions: Responses, as text or as chat messages.
        answer: The gold answer of each completion.
        kind: The kind of all answers, or of each; by default as `kind_of` says.
        choices: The choices of each question.
        accept: Further right answers to each question.
        columns: Not read.

    Raises:
        ValueError: The lists are not of one length, a gold is no text or number, or a kind is
            unknown.
        RuntimeError: A mathematical answer must be compared and Math-Verify cannot be started.
    """
    nothing = [None] * len(completions)
    columns_used = {
        "answer": answer,
        "kind": [kind] * len(completions) if kind is None or isinstance(kind, str) else kind,
        "choices": nothing if choices is None else choices,
        "accept": nothing if accept is None else accept,
    }
    for name, values in columns_used.items():
        if len(values) != len(completions):
            raise ValueError(
                f"answer_reward: found {len(completions)} completions and {len(values)} of "
                f"{name}, expected as many"
            )
    questions_and_texts = []
    for index, completion in enumerate(completions):
        meta = {name: values[index] for name, values in columns_used.items() if name != "answer"}
        question = Question(str(index), "", _gold_text(answer[index]), meta)
        questions_and_texts.append((question, _completion_text(completion)))
    reward_of_verdict = {"right": 1.0, "wrong": 0.0, "unverifiable": None}
    return [reward_of_verdict[verdict.verdict] for verdict in check_many(questions_and_texts)]


def _gold_text(gold: Gold) -> str | None:
    """Write a gold answer as text; NaN, which tables hold for a missing number, is none.

    Raises:
        ValueError: It is no text or number; a list, for example, is no single answer.
    """
    is_nan = isinstance(gold, float) and math.isnan(gold)
    if gold is None or is_nan:
        return None
    if not isinstance(gold, str | Number):
        raise ValueError(
            f"answer: found {reprlib.repr(gold)}; expected a text, a number or None (further right "
            "answers are in accept)"
        )
    return str(gold)


def _completion_text(completion: Completion) -> str:
    if isinstance(completion, str):
        return completion
    # Behind the last reply may stand what a tool or an environment said to it.
    replies = [message for message in completion if message.get("role") == "assistant"]
    content = replies[-1].get("content") if replies else None
    if isinstance(content, Sequence) and not isinstance(content, str):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    return content or ""
