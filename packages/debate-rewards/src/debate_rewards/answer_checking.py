"""Answer checking: is a prediction the question's answer, and are two answers the same?"""

import math
import reprlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Question
from debate_rewards.answers.questions import answer_id, form_of, read_accepted, read_answer
from debate_rewards.answers.reply import KINDS, Kind, Unreadable, final_answer
from debate_rewards.answers.types import Answer, List, Text
from debate_rewards.math_pool import TASK, AnswerComparison, TaskJob, shared_pool
from debate_rewards.puzzle_answers import judge_puzzle, plain_answer, puzzle_form

LIMIT_S = 5.0
# Most pairs of answers that one division into classes compares by more than their text.
MAX_COMPARED = 1000
_CACHE_SIZE = 1 << 16
_TIMEOUTS = ("timeout", "gold_timeout")


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a prediction is right.

    `reason` is `same_text` or `equivalent` when right; `different`, `no_answer`, `unparsable`,
    `timeout` or `crashed` when wrong; `no_gold`, `gold_unparsable`, `gold_timeout` or
    `gold_crashed` when the question's own answer cannot be used. `seconds` is the time that the
    comparison itself took. `detail` says why an answer is `unparsable`, such as "several numbers".
    """

    verdict: Literal["right", "wrong", "unverifiable"]
    reason: str
    seconds: float = 0.0
    detail: str = ""


# Results of comparisons; dropping all of them when there are too many needs no lock.
_cache: dict[tuple[str, str], AnswerComparison] = {}


def check(question: Question, prediction: str | None, *, limit_s: float = LIMIT_S) -> Verdict:
    """Judge a prediction by the question's kind (`meta["kind"]`, default `math`).

    The prediction's own final answer is read once, against the question's answer, and their keys
    are compared (see `debate_rewards.answers`); Math-Verify compares only formulas without a key.
    `meta["accept"]` may list further answers that are right. A task of reasoning-gym
    (`meta["reasoning_gym"]`) is judged as `debate_rewards.puzzle_answers` has it.

    Args:
        question: With `answer`, the gold answer.
        prediction: A response or its solution; None for no answer.
        limit_s: Hard limit for the comparison of a mathematical answer.

    Raises:
        ValueError: The question's kind is unknown, or `accept` is no list of texts.
        RuntimeError: A mathematical answer must be compared and Math-Verify cannot be started.
    """
    decided = _decide(question, prediction)
    if isinstance(decided, Verdict):
        return decided
    reasons: list[str] = []
    seconds = 0.0
    for compare in decided:
        if seconds >= limit_s:
            break
        result = compare(limit_s - seconds)
        seconds += result.seconds
        if result.outcome == "equal":
            return Verdict("right", "equivalent", seconds)
        reasons.append(result.outcome)
    usable = [reason for reason in reasons if not reason.startswith("gold_")]
    verdict: Literal["wrong", "unverifiable"] = "wrong" if usable else "unverifiable"
    return Verdict(verdict, (usable or reasons)[0], seconds)


def check_many(
    asked: Sequence[tuple[Question, str | None]], *, limit_s: float = LIMIT_S
) -> list[Verdict]:
    """Judge many predictions, using all workers; verdicts come in order."""
    decided = [_decide(question, prediction) for question, prediction in asked]
    verdicts = {index: one for index, one in enumerate(decided) if isinstance(one, Verdict)}
    if open_ones := [index for index in range(len(asked)) if index not in verdicts]:
        threads = min(shared_pool().size, 1 + len(open_ones) // 8)
        with ThreadPoolExecutor(threads) as executor:
            results = executor.map(lambda index: check(*asked[index], limit_s=limit_s), open_ones)
            verdicts.update(zip(open_ones, results, strict=True))
    return [verdicts[index] for index in range(len(asked))]


def same_answer(
    question: Question, a: str | None, b: str | None, *, limit_s: float = LIMIT_S
) -> bool:
    """Return whether two responses give the same answer; no answer equals nothing."""
    kind_of(question)
    first, second = _read(question, a), _read(question, b)
    if first is None or second is None:
        return False
    known = _same_by_key(first, second)
    return _equivalent(first, second, limit_s) if known is None else known


def answer_classes(
    question: Question, answers: Sequence[str | None], *, limit_s: float = LIMIT_S
) -> list[int | None]:
    """Return a class number per response, counted by first appearance; None without an answer.

    Responses with one key are one class. Formulas without a key join all that Math-Verify finds
    equal to them, so that classes are connected components and do not depend on the order. Once
    `MAX_COMPARED` pairs had to be compared, formulas differ unless their keys decide otherwise.
    """
    kind_of(question)
    read = [_read(question, answer) for answer in answers]
    members: dict[Hashable, Answer] = {}
    for answer in read:
        if answer is not None:
            identity = answer_id(answer)
            known = members.get(identity)
            if known is None or answer.text < known.text:
                members[identity] = answer
    component = _components(members, limit_s)
    numbers: dict[Hashable, int] = {}
    return [
        None if answer is None else numbers.setdefault(component[answer_id(answer)], len(numbers))
        for answer in read
    ]


def _components(members: Mapping[Hashable, Answer], limit_s: float) -> dict[Hashable, Hashable]:
    """Return the component of each answer, by an answer of it."""
    component = {identity: identity for identity in members}
    if all(answer.key is not None for answer in members.values()):
        return component
    num_compared = 0
    in_order = sorted(members, key=lambda identity: members[identity].text)
    for number, later in enumerate(in_order):
        for earlier in in_order[:number]:
            if component[earlier] == component[later]:
                continue
            known = _same_by_key(members[earlier], members[later])
            if known is not None or num_compared >= MAX_COMPARED:
                continue
            num_compared += 1
            if _equivalent(members[earlier], members[later], limit_s):
                merged, kept = component[later], component[earlier]
                component = {one: kept if c == merged else c for one, c in component.items()}
    return component


def accepted_answers(question: Question) -> list[str]:
    """Return the answers that are right: the question's own, then those of `meta["accept"]`.

    Raises:
        ValueError: `accept` is there and no list of texts or numbers.
    """
    own = [] if question.answer is None else [question.answer]
    more = question.meta.get("accept")
    if more is None:
        return own
    if not is_texts(more):
        raise ValueError(
            f"question {question.id!r}, meta.accept: found {reprlib.repr(more)}, "
            "expected a list of texts"
        )
    return [*own, *map(str, more)]


def is_texts(value: object) -> bool:
    """Return whether a value is a list of texts, for which finite numbers may stand."""
    return isinstance(value, list | tuple) and all(
        isinstance(one, str)
        or (isinstance(one, int | float) and not isinstance(one, bool) and math.isfinite(one))
        for one in value
    )


def kind_of(question: Question) -> Kind:
    """Return the question's kind of answer, `math` by default.

    Raises:
        ValueError: `meta["kind"]` is no known kind.
    """
    kind = question.meta.get("kind", "math")
    for known in KINDS:
        if kind == known:
            return known
    raise ValueError(
        f"question {question.id!r}, meta.kind: found {kind!r}, expected one of "
        f"{', '.join(KINDS)}{did_you_mean(str(kind), KINDS)}"
    )


_Compare = Callable[[float], AnswerComparison]
"""Compares with one accepted answer within a time limit."""


def _decide(question: Question, prediction: str | None) -> Verdict | list[_Compare]:
    """Return a verdict where keys decide, else the comparisons that are left, one for each gold."""
    kind = kind_of(question)
    accepted = accepted_answers(question)
    if question.answer is None:
        return Verdict("unverifiable", "no_gold")
    if TASK in question.meta:
        return _by_task(question, kind, prediction)
    read_golds = [read_accepted(question, gold) for gold in accepted]
    golds = [gold for gold in read_golds if isinstance(gold, Answer)]
    if not golds:
        return Verdict("unverifiable", "gold_unparsable")
    answer = _NO_ANSWER if prediction is None else read_answer(question, prediction)
    if isinstance(answer, Unreadable):
        reason = "no_answer" if answer == _NO_ANSWER else "unparsable"
        return Verdict("wrong", reason, detail=answer.reason)
    known = [_same_by_key(gold, answer) for gold in golds]
    if True in known:
        same_text = any(gold.text == answer.text for gold in golds)
        return Verdict("right", "same_text" if same_text else "equivalent")
    left = [gold for gold, same in zip(golds, known, strict=True) if same is None]
    if not left:
        return Verdict("wrong", "different")
    return [partial(_compare_answers, gold, answer) for gold in left]


_NO_ANSWER = Unreadable("no answer")


def _by_task(question: Question, kind: Kind, prediction: str | None) -> Verdict | list[_Compare]:
    """Judge an answer to a task of reasoning-gym."""
    answer = None if prediction is None else _task_answer(question, kind, prediction)
    if answer is None:
        return Verdict("wrong", "no_answer")
    judgment = judge_puzzle(question, accepted_answers(question), answer)
    if isinstance(judgment, TaskJob):
        return [lambda limit_s: _compare(judgment, plain_answer(answer), limit_s)]
    if judgment == "right":
        return Verdict("right", "equivalent")
    if judgment == "gold_unparsable":
        return Verdict("unverifiable", judgment)
    return Verdict("wrong", "different" if judgment == "wrong" else judgment)


def _task_answer(question: Question, kind: Kind, reply: str) -> str | None:
    statement = final_answer(reply, kind, holds_braces=form_of(question).holds_braces)
    return None if statement is None else statement.text


def _read(question: Question, reply: str | None) -> Answer | None:
    if reply is not None and TASK in question.meta:
        text = _task_answer(question, kind_of(question), reply)
        form = None if text is None else puzzle_form(question, text)
        return None if form is None else Text(form)
    answer = None if reply is None else read_answer(question, reply)
    return answer if isinstance(answer, Answer) else None


def _same_by_key(first: Answer, second: Answer) -> bool | None:
    """Return whether two answers are the same, None where only Math-Verify can decide."""
    keys = first.key, second.key
    if None not in keys:
        return keys[0] == keys[1]
    if first.shape != second.shape:
        return False
    return True if first.text == second.text else None


def _equivalent(first: Answer, second: Answer, limit_s: float) -> bool:
    """Math-Verify treats its two sides differently, an equivalence must not."""
    for gold, given in ((first, second), (second, first)):
        known = _cache.get((given.formula, ""))
        # Else each good answer would wait in turn for the one that takes too long by itself.
        if known and known.outcome == "gold_timeout" and known.seconds >= limit_s:
            return False
        if _compare_answers(gold, given, limit_s).outcome == "equal":
            return True
    return False


def _compare_answers(gold: Answer, given: Answer, limit_s: float) -> AnswerComparison:
    """Compare two answers of one shape part by part; a list in any order."""
    if len(gold.parts) != len(given.parts) or gold.shape != given.shape:
        return AnswerComparison("different", 0.0)
    if gold.parts == (gold,):
        return _compare(gold.formula, given.formula, limit_s)
    left = list(given.parts)
    seconds = 0.0
    for part in gold.parts:
        candidates = list(left) if isinstance(gold, List) else left[:1]
        result = AnswerComparison("different", 0.0)
        for candidate in candidates:
            result = _compare_parts(part, candidate, limit_s - seconds)
            seconds += result.seconds
            if result.outcome == "equal":
                left.remove(candidate)
                break
            if seconds >= limit_s:
                return AnswerComparison(result.outcome, seconds)
        if result.outcome != "equal":
            return AnswerComparison(result.outcome, seconds)
    return AnswerComparison("equal", seconds)


def _compare_parts(gold: Answer, given: Answer, limit_s: float) -> AnswerComparison:
    known = _same_by_key(gold, given)
    if known is not None:
        return AnswerComparison("equal" if known else "different", 0.0)
    return _compare_answers(gold, given, limit_s)


def _compare(gold: str, given: str, limit_s: float) -> AnswerComparison:
    # A gold answer that cannot be used is so for every prediction.
    for key in ((gold, ""), (gold, given)):
        known = _cache.get(key)
        # What timed out within a shorter limit may be decided within this one.
        if known and not (known.outcome in _TIMEOUTS and known.seconds < limit_s):
            return AnswerComparison(known.outcome, 0.0)
    result = shared_pool().compare(gold, given, limit_s)
    if result.outcome not in ("crashed", "gold_crashed"):
        if len(_cache) >= _CACHE_SIZE:
            _cache.clear()
        _cache[gold, "" if result.outcome.startswith("gold_") else given] = result
    return result


# A response as text, or as chat messages of which the last one answers.
Completion = str | Sequence[Mapping[str, Any]]


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
