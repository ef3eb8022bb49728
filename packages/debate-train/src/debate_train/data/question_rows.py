"""What a row of data says: its question, its answer, and how answers are compared."""

import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import regex

from debate_protocol.plugins import Config, did_you_mean
from debate_protocol.types import Question
from debate_rewards.answers.reply import KINDS
from debate_train.data.choice_golds import ChoiceGold, Way, usual_way
from debate_train.interrupts import DataError

LIMIT_S = 1.0
"""CPU seconds for one row; some patterns take exponential time on texts of 60 characters."""


def checked(pattern: str) -> str:
    """Return a pattern that can be searched for and has a group.

    Raises:
        ValueError: It is no regular expression, or has no group.
    """
    try:
        groups = regex.compile(pattern).groups
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"found {pattern!r:.80}, no regular expression: {error}") from error
    if groups == 0:
        raise ValueError(f"found {pattern!r:.80}; expected a group (…) around the answer")
    return pattern


def answer_in(pattern: str, text: str, where: str) -> str | None:
    """Return what the pattern's first group holds, None where it holds nothing.

    Raises:
        DataError: The search takes too long.
    """
    try:
        found = regex.search(pattern, text, timeout=LIMIT_S)
    except TimeoutError as error:
        raise DataError(
            f"{where}: data.answer_pattern: {pattern!r:.80} takes more than {LIMIT_S:g} s on "
            f"{text!r:.60}; expected a pattern without repetitions inside of repetitions, such as "
            "(a+)+"
        ) from error
    answer = None if found is None else found.group(1)
    return None if answer is None else str(answer).strip()


QUESTION_KEYS = ("question", "problem", "prompt")
_PLAIN_META = ("subject", "level", "length")
_YES_NO = {"yes", "no", "true", "false"}
_LETTER = re.compile(r"\(?[A-J]\)?[.:]?")


class Fields(Config):
    """Which key of a row holds what; `answer.value` is the key `value` inside of `answer`."""

    question: str | None = None
    """Key of the question; None takes the first of question, problem and prompt of a row. Of a list
    of messages the user's last is the question; those before it are shown as its passage."""
    answer: str | None = "answer"
    """Key of the answer; None for open-ended questions."""
    solution: str | None = "solution"
    """Key of a worked solution, for supervised phases; rows may lack it."""
    kind: str | None = "kind"
    """Key of how the row's answer is compared; None where it means something else."""
    choices: str | None = "choices"
    """Key of a list of texts, or an object of label and text; None as for `kind`."""
    passage: str | None = "passage"
    """Key of a text that the question is about; None as for `kind`."""
    wrong_answers: str | None = "wrong_answers"
    """Key of a list of answers that are wrong and look right, to guide debates to (ACC-Debate)."""
    labelled: str | None = "labelled"
    """Key of whether the answer may be trained on, true or false; rows may lack it."""
    id: str = "id"
    """Key of a row's id; rows without one are numbered."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How rows are read."""

    fields: Fields
    kind: str | None
    """Holds for all rows; None leaves it to each."""
    answer_pattern: str | None
    choice_answers: Way | None = None
    """How answers that name a choice do it; None leaves it to the rows."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A question, and where its row stands."""

    question: Question
    where: str
    pattern_missed: bool = False
    """Whether the answer pattern was not found, so that the answer was taken whole."""
    has_earlier_messages: bool = False
    """Whether a system message or earlier turns come before the question."""
    number: int | None = None
    """The answer where the row holds an integer."""

    @property
    def choice_gold(self) -> ChoiceGold | None:
        """The answer that names a choice, None for a question without choices or answer."""
        question = self.question
        choices = question.meta.get("choices")
        if not choices or not question.answer or question.meta.get("kind", "choice") != "choice":
            return None
        answer = question.answer if self.number is None else self.number
        return ChoiceGold(answer, choices, self.where)


def read_question(row: Mapping[str, object], reading: Reading, where: str) -> Placed:
    """Return the question of a row; its kind may still be open.

    Raises:
        DataError: Something in the row cannot be what the recipe takes it for.
    """
    fields = reading.fields
    keys = QUESTION_KEYS if fields.question is None else (fields.question,)
    values = (_value(row, key) for key in keys)
    text, earlier_messages = split_dialogue(next(filter(None, values), None))
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"{where}: no text under {' or '.join(keys)} (found keys: "
            f"{', '.join(map(str, row)):.200}); expected a question, or set data.fields.question"
        )
    meta = _meta(row, reading, where)
    if earlier_messages:
        passages = (meta.get("passage"), earlier_messages)
        meta["passage"] = "\n\n".join(str(passage) for passage in passages if passage)
    answer, missed = None, False
    found = None if fields.answer is None else _value(row, fields.answer)
    if found is not None:
        answer = _answer_text(found, meta, fields.answer or "", where)
        if reading.answer_pattern is not None:
            inner = answer_in(reading.answer_pattern, answer, where)
            missed = inner is None
            answer = answer if inner is None else inner
    identity = _value(row, fields.id)
    if identity in (None, ""):
        identity = f"{zlib.crc32(text.encode(errors='replace')):08x}"
    _refuse_unless(_is_scalar(identity), identity, "a text or a number", fields.id, where)
    for key, value in {"question": text, "answer": answer, "id": identity, **meta}.items():
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"{where}: {key}: found {value!r:.60}, which JSON in UTF-8 cannot hold; expected "
                "texts without half characters (lone surrogates), and numbers"
            ) from error
    is_integer = isinstance(found, int) and reading.answer_pattern is None
    return Placed(
        question=Question(str(identity), text, answer, meta),
        where=where,
        pattern_missed=missed,
        has_earlier_messages=bool(earlier_messages),
        number=int(str(found)) if is_integer and not isinstance(found, bool) else None,
    )


def split_dialogue(prompt: object) -> tuple[object, str]:
    """Split a prompt of messages, as TRL and verl have them, at the user's last message.

    Messages after it answer the question, so they are left out.

    Returns:
        The user's last message, and the messages before it as one text, each after its role. A
        prompt that is no list of messages comes back as it is.
    """
    if not isinstance(prompt, list | tuple):
        return prompt, ""
    messages = [message for message in prompt if isinstance(message, Mapping)]
    user_indices = [i for i, message in enumerate(messages) if message.get("role") == "user"]
    if not user_indices:
        return prompt, ""
    last = user_indices[-1]
    earlier = [
        f"{message.get('role', 'user')}: {message_text(message.get('content'))}"
        for message in messages[:last]
    ]
    content = messages[last].get("content")
    return (message_text(content) if isinstance(content, list) else content), "\n\n".join(earlier)


def message_text(content: object) -> str:
    """Join the texts of a message's content, which may come in parts."""
    if isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


def with_kinds(placed: Sequence[Placed], choice_answers: Way | None = None) -> list[Question]:
    """Return the questions of one file; where neither recipe nor row says a kind, it is inferred.

    A question with choices is of kind `choice`. Where all answers of the others are yes, no, true
    or false they are of kind `yes_no`; other answers are left to mathematics, the default.

    Raises:
        DataError: More than one kind fits, or an answer could mean two choices.
    """
    placed = _with_chosen_labels(placed, choice_answers)
    unnamed = [p for p in placed if "kind" not in p.question.meta]
    with_choices = [p for p in unnamed if "choices" in p.question.meta]
    plain = [p for p in unnamed if "choices" not in p.question.meta and p.question.answer]
    is_yes_no = _all_yes_no(plain)
    _refuse_letters(plain)
    inferred = {id(p): "choice" for p in with_choices}
    if is_yes_no:
        inferred |= {id(p): "yes_no" for p in plain}
    return [
        replace(p.question, meta={**p.question.meta, "kind": inferred[id(p)]})
        if id(p) in inferred
        else p.question
        for p in placed
    ]


def _value(row: Mapping[str, object], key: str) -> object:
    """Return what a key names, None where there is nothing; a dot steps inside."""
    if key in row:
        return row[key]
    found: object = row
    for part in key.split("."):
        if isinstance(found, Mapping):
            found = found.get(part)
        elif isinstance(found, list | tuple) and part.isdecimal() and int(part) < len(found):
            found = found[int(part)]
        else:
            return None
    return found


def _meta(row: Mapping[str, object], reading: Reading, where: str) -> dict[str, object]:
    fields = reading.fields
    meta = {key: row[key] for key in _PLAIN_META if row.get(key) is not None}
    kind = None if fields.kind is None else _value(row, fields.kind)
    if reading.kind is not None:
        meta["kind"] = reading.kind
    elif kind is not None:
        meta["kind"] = _known_kind(kind, where)
    choices = None if fields.choices is None else _value(row, fields.choices)
    if choices:
        meta["choices"] = _choices(choices, fields.choices or "", where)
    for name, (fits, expected, read) in _META.items():
        key = getattr(fields, name)
        found = None if key is None else _value(row, key)
        if found or found is False:
            _refuse_unless(fits(found), found, expected, key, where)
            meta[name] = read(found)
    return meta


def _are_scalars(found: object) -> bool:
    return isinstance(found, list | tuple) and all(map(_is_scalar, found))


_META: Mapping[str, tuple[Callable[[object], bool], str, Callable[[Any], object]]] = {
    "passage": (lambda found: isinstance(found, str), "a text", str),
    "solution": (lambda found: _is_scalar(found), "a text", str),
    "wrong_answers": (_are_scalars, "a list of texts", lambda found: list(map(str, found))),
    "labelled": (lambda found: isinstance(found, bool), "true or false", bool),
}
"""What may stand beside a question: whether a value fits, what is expected, and how it is read."""


def _known_kind(kind: object, where: str) -> str:
    if isinstance(kind, str) and kind in KINDS:
        return kind
    hint = did_you_mean(str(kind), KINDS)
    raise DataError(
        f"{where}: kind: found {kind!r:.60}, expected one of {', '.join(KINDS)}{hint}; data.kind "
        "sets it for all rows, and data.fields.kind=null leaves this key unread"
    )


def _choices(found: object, key: str, where: str) -> list[object] | dict[str, object]:
    if isinstance(found, Mapping) and set(found) == {"text", "label"}:
        # Two lists side by side, as AI2 ARC has them.
        texts, labels = found["text"], found["label"]
        if isinstance(texts, list) and isinstance(labels, list) and len(texts) == len(labels):
            found = dict(zip(map(str, labels), texts, strict=True))
    each = list(found.values()) if isinstance(found, Mapping) else found
    _refuse_unless(
        _are_scalars(each), found, "a list of texts, or an object of label and text", key, where
    )
    return dict(found) if isinstance(found, Mapping) else list(each)  # type: ignore[call-overload]


def _answer_text(found: object, meta: Mapping[str, object], key: str, where: str) -> str:
    """Return an answer as text; what could be meant in more than one way is refused."""
    if isinstance(found, list | tuple) and len(found) == 1:
        found = found[0]
    if isinstance(found, bool):
        if meta.get("kind") == "yes_no":
            return "yes" if found else "no"
        raise DataError(
            f"{where}: {key}: found {json.dumps(found)}; expected a text or a number, or "
            "data.kind=yes_no, which reads true as yes and false as no"
        )
    _refuse_unless(_is_scalar(found), found, "one text or one number", key, where)
    return str(found)


def _is_scalar(found: object) -> bool:
    if isinstance(found, float):
        return math.isfinite(found)
    return isinstance(found, str | int) and not isinstance(found, bool)


def _refuse_unless(fits: bool, found: object, expected: str, key: str, where: str) -> None:
    if fits:
        return
    inside: Iterable[object] = ()
    if isinstance(found, Mapping):
        inside = found
    elif isinstance(found, list | tuple):
        inside = range(len(found))
    names = [f"{key}.{one}" for one in inside][:2]
    hint = f"; data.fields can name what is inside, such as {' or '.join(names)}" if names else ""
    raise DataError(f"{where}: {key}: found {found!r:.80}; expected {expected}{hint}")


def _with_chosen_labels(placed: Sequence[Placed], usual: Way | None) -> list[Placed]:
    """Return the rows with the label of the choice that each answer means.

    Raises:
        DataError: An answer means two choices, or none.
    """
    golds = {id(row): gold for row in placed if (gold := row.choice_gold) is not None}
    numbers = [gold for gold in golds.values() if isinstance(gold.answer, int)]
    texts = [gold for gold in golds.values() if isinstance(gold.answer, str)]
    ways = {int: usual or usual_way(numbers), str: usual or usual_way(texts)}
    return [
        _with_label(row, golds[id(row)], ways[type(golds[id(row)].answer)])
        if id(row) in golds
        else row
        for row in placed
    ]


def _with_label(row: Placed, gold: ChoiceGold, usual: Way | None) -> Placed:
    question = row.question
    label = gold.label(usual)
    if label is not None:
        return replace(row, question=replace(question, answer=label))
    if row.number is not None:
        raise DataError(
            f"{row.where}: answer: found {row.number} with {len(gold.choices)} choices; expected "  # type: ignore[arg-type]
            "the number of a choice, counted from 0, or its letter or text"
        )
    if "kind" in question.meta:
        return row
    raise DataError(
        f"{row.where}: the row has choices, but its answer {question.answer!r:.60} is neither "
        "the letter nor the text of one; expected one of them, or data.kind to say how answers "
        f"are compared ({', '.join(KINDS)})"
    )


def _all_yes_no(plain: Sequence[Placed]) -> bool:
    """Return whether all answers are yes or no; refuse rows of which only some are."""
    is_one = [(p.question.answer or "").strip().lower() in _YES_NO for p in plain]
    if not any(is_one) or all(is_one):
        return any(is_one)
    one, other = plain[is_one.index(True)], plain[is_one.index(False)]
    raise DataError(
        f"{one.where}: the answer is {one.question.answer!r} and that of {_row(other.where)} is "
        f"{other.question.answer!r:.60}, so how answers are compared is not clear; expected "
        "data.kind (math, or yes_no where all are), or a kind in each row"
    )


def _refuse_letters(plain: Sequence[Placed]) -> None:
    answers = [(p.question.answer or "").strip() for p in plain]
    if len(set(answers)) > 1 and all(map(_LETTER.fullmatch, answers)):
        raise DataError(
            f"{plain[0].where}: all answers are single letters, such as {answers[0]!r}, and the "
            "rows hold no choices; expected data.kind=choice where they are letters of choices, "
            "else data.kind=math or text"
        )


def _row(where: str) -> str:
    return where[where.rindex("row ") :]
