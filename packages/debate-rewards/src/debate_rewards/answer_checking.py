"""Answer checking: is a prediction the question's answer, and are two answers the same?"""

import math
import reprlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from debate_protocol.plugins import did_you_mean
from debate_protocol.types import Question
from debate_rewards.final_answers import (
    KINDS,
    MAX_MATH_CHARS,
    FinalAnswer,
    Kind,
    canonical,
    compare_text,
    final_answer,
)
from debate_rewards.math_pool import TASK, Comparison, shared_pool, task_text

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
    comparison itself took.
    """

    verdict: Literal["right", "wrong", "unverifiable"]
    reason: str
    seconds: float = 0.0


# Results of comparisons; dropping all of them when there are too many needs no lock.
_cache: dict[tuple[str, str], Comparison] = {}


def check(question: Question, prediction: str | None, *, limit_s: float = LIMIT_S) -> Verdict:
    """Judge a prediction by the question's kind (`meta["kind"]`, default `math`).

    What is compared is the prediction's own final answer (see `final_answers.final_answer`), so a
    box quoted earlier does not matter. `meta["accept"]` may list further answers that are right.
    A task of reasoning-gym (`meta["reasoning_gym"]`) is judged by that library's verifier.

    Args:
        question: With `answer`, the gold answer.
        prediction: A response or its solution; None for no answer.
        limit_s: Hard limit for the comparison of a mathematical answer.

    Raises:
        ValueError: The question's kind is unknown, or `accept` is no list of texts.
        RuntimeError: A mathematical answer must be compared and Math-Verify cannot be started.
    """
    quick = _quick_check(question, prediction)
    if isinstance(quick, Verdict):
        return quick
    golds, given = quick
    reasons: list[str] = []
    seconds = 0.0
    for gold in golds:
        if seconds >= limit_s:
            break
        result = _compare(gold, given, limit_s - seconds)
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
    quick = [_quick_check(question, prediction) for question, prediction in asked]
    verdicts = {index: one for index, one in enumerate(quick) if isinstance(one, Verdict)}
    if slow := [index for index in range(len(asked)) if index not in verdicts]:
        threads = min(shared_pool().size, 1 + len(slow) // 8)
        with ThreadPoolExecutor(threads) as executor:
            results = executor.map(lambda index: check(*asked[index], limit_s=limit_s), slow)
            verdicts.update(zip(slow, results, strict=True))
    return [verdicts[index] for index in range(len(asked))]


def same_answer(
    question: Question, a: str | None, b: str | None, *, limit_s: float = LIMIT_S
) -> bool:
    """Return whether two responses give the same answer; no answer equals nothing."""
    kind = kind_of(question)
    first, second = (_form(question, kind, response) for response in (a, b))
    if first is None or second is None:
        return False
    known = _same_text(kind, first, second)
    return _equivalent(first, second, limit_s) if known is None else known


def answer_classes(
    question: Question, answers: Sequence[str | None], *, limit_s: float = LIMIT_S
) -> list[int | None]:
    """Return a class number per response, counted by first appearance; None without an answer.

    A response joins the first class whose first member gives the same answer. Once
    `MAX_COMPARED` pairs had to be compared as mathematics, answers differ unless their text
    decides otherwise.
    """
    kind = kind_of(question)
    known: dict[str, int] = {}
    members: list[str] = []
    classes: list[int | None] = []
    compared = 0
    for answer in answers:
        form = _form(question, kind, answer)
        if form is None:
            classes.append(None)
            continue
        for index, member in enumerate(members if form not in known and kind == "math" else ()):
            same = _same_text(kind, member, form)
            if same is None and compared < MAX_COMPARED:
                compared += 1
                same = _equivalent(member, form, limit_s)
            if same:
                known[form] = index
                break
        if form not in known:
            known[form] = len(members)
            members.append(form)
        classes.append(known[form])
    return classes


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


def _quick_check(question: Question, prediction: str | None) -> Verdict | tuple[list[str], str]:
    """Return a verdict where text decides, else the gold expressions and the given one."""
    kind = kind_of(question)
    accepted = accepted_answers(question)
    if question.answer is None:
        return Verdict("unverifiable", "no_gold")
    golds = [form for gold in accepted if (form := _gold_form(question, kind, gold)) is not None]
    if not golds:
        return Verdict("unverifiable", "gold_unparsable")
    answer = None if prediction is None else final_answer(prediction, kind)
    if answer is None:
        return Verdict("wrong", "no_answer")
    if TASK in question.meta:
        return [task_text(question.meta[TASK])], answer.text
    given = canonical(question, kind, answer)
    if given is None:
        return Verdict("wrong", "unparsable")
    if given in golds:
        return Verdict("right", "same_text")
    if kind != "math":
        return Verdict("wrong", "different")
    if len(given) > MAX_MATH_CHARS:
        return Verdict("wrong", "unparsable")
    if min(map(len, golds)) > MAX_MATH_CHARS:
        return Verdict("unverifiable", "gold_unparsable")
    golds = [gold for gold in golds if len(gold) <= MAX_MATH_CHARS]
    known = [compare_text(gold, given) for gold in golds]
    if True in known:
        return Verdict("right", "equivalent")
    if None not in known:
        return Verdict("wrong", "different")
    return [gold for gold, equal in zip(golds, known, strict=True) if equal is None], given


def _gold_form(question: Question, kind: Kind, gold: str) -> str | None:
    """Read a gold answer; one without a mark is taken whole rather than by its last line."""
    answer = final_answer(gold, kind)
    if answer is None:
        return None
    return canonical(question, kind, answer if answer.marked else FinalAnswer(gold.strip(), True))


def _form(question: Question, kind: Kind, response: str | None) -> str | None:
    answer = None if response is None else final_answer(response, kind)
    return None if answer is None else canonical(question, kind, answer)


def _same_text(kind: Kind, first: str, second: str) -> bool | None:
    """Return whether two forms are the same answer, None where text does not decide it."""
    if first == second:
        return True
    if kind != "math" or max(len(first), len(second)) > MAX_MATH_CHARS:
        return False
    return compare_text(first, second)


def _equivalent(first: str, second: str, limit_s: float) -> bool:
    """Math-Verify treats its two sides differently, an equivalence must not."""
    for gold, given in ((first, second), (second, first)):
        known = _cache.get((given, ""))
        # Else each good answer would wait in turn for the one that takes too long by itself.
        if known and known.outcome == "gold_timeout" and known.seconds >= limit_s:
            return False
        if _compare(gold, given, limit_s).outcome == "equal":
            return True
    return False


def _compare(gold: str, given: str, limit_s: float) -> Comparison:
    # A gold answer that cannot be used is so for every prediction.
    for key in ((gold, ""), (gold, given)):
        known = _cache.get(key)
        # What timed out within a shorter limit may be decided within this one.
        if known and not (known.outcome in _TIMEOUTS and known.seconds < limit_s):
            return Comparison(known.outcome, 0.0)
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
