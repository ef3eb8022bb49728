"""From a row of data to a question with an answer, and a kind by which answers are compared."""

import json
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import regex

from debate_protocol.plugins import Config, did_you_mean
from debate_protocol.prompts import by_label
from debate_protocol.types import Question
from debate_rewards.answers.reply import KINDS
from debate_train.data.choice_golds import ChoiceGold, Way, usual_way
from debate_train.errors import DataError

LIMIT_S = 1.0
"""CPU seconds for one row; some patterns take exponential time on texts of 60 characters."""
QUESTION_KEYS = ("question", "problem", "prompt")
PLAIN_META = ("subject", "level", "length")
YES_NO = {"yes", "no", "true", "false"}
LETTER = re.compile(r"\(?[A-J]\)?[.:]?")
TEXT_ROLES = ("system", "developer", "user", "assistant")
TEXT_PARTS = (None, "text", "input_text", "output_text")
"""Types of the parts of a message that are text, as chat APIs name them."""
CALL_KEYS = ("tool_calls", "function_call")
KEYS_BESIDE_TEXT = ("images", "image", "videos", "tools")
"""Keys of a row, as TRL, verl and the hub have them, for what a question shows beside text."""


class Fields(Config):
    """Keys of a row by their meaning; `answer.value` is the key `value` inside of `answer`."""

    question: str | None = None
    """Key of the question; None takes the first of question, problem and prompt of a row. Of a list
    of messages the user's last is the question; those before it are shown as its passage. Tool
    calls, images and other parts that are not text are refused."""
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
    worked_checks: str | None = "worked_checks"
    """Key of an object from an answer, right or wrong, to the text of a check that shows which; a
    warm-start imitates it. Rows may lack it."""
    labelled: str | None = "labelled"
    """Key of whether the answer may be trained on, true or false; rows may lack it."""
    id: str = "id"
    """Key of a row's id; rows without one are numbered."""

    def named(self) -> dict[str, str]:
        """List the fields with another key than by default, and their keys."""
        default_keys = Fields().model_dump()
        keys = self.model_dump(exclude_none=True)
        return {name: key for name, key in keys.items() if key != default_keys[name]}


@dataclass(frozen=True, slots=True)
class Reading:
    """Settings for reading rows."""

    fields: Fields
    kind: str | None
    """Kind of answer of all rows; None leaves it to each."""
    answer_pattern: str | None
    choice_answers: Way | None = None
    """How answers name a choice; None leaves it to the rows."""


@dataclass(frozen=True, slots=True)
class RowQuestion:
    """A question with the file and number of the row."""

    question: Question
    where: str
    pattern_missed: bool = False
    """Whether the answer pattern did not match, so that the answer was taken whole."""
    has_earlier_messages: bool = False
    """Whether a system message or earlier turns come before the question."""
    number: int | None = None
    """The answer where the row holds an integer."""

    @property
    def choice_gold(self) -> ChoiceGold | None:
        """The name of a choice as the answer, `None` for a question without choices or answer."""
        question = self.question
        choices = question.meta.get("choices")
        if not choices or not question.answer or question.meta.get("kind", "choice") != "choice":
            return None
        answer = question.answer if self.number is None else self.number
        return ChoiceGold(answer=answer, choices=choices, where=self.where)


def check_pattern(pattern: str) -> str:
    """Refuse a pattern without a group, or not a regular expression.

    Raises:
        ValueError: It is no regular expression, or has no group.
    """
    try:
        num_groups = regex.compile(pattern).groups
    except (regex.error, RecursionError, OverflowError) as error:
        raise ValueError(f"found {pattern!r:.80}, no regular expression: {error}") from error
    if num_groups == 0:
        raise ValueError(f"found {pattern!r:.80}; expected a group (…) around the answer")
    return pattern


def answer_in(pattern: str, text: str, where: str) -> str | None:
    """Search for the pattern and take the first group, `None` without a match.

    Raises:
        DataError: The search exceeds the time limit.
    """
    try:
        match = regex.search(pattern, text, timeout=LIMIT_S)
    except TimeoutError as error:
        raise DataError(
            f"{where}: data.answer_pattern: {pattern!r:.80} takes more than {LIMIT_S:g} s on "
            f"{text!r:.60}; expected a pattern without repetitions inside of repetitions, such as "
            "(a+)+"
        ) from error
    if match is None or match.group(1) is None:
        return None
    return str(match.group(1)).strip()


def read_question(row: Mapping[str, object], reading: Reading, where: str) -> RowQuestion:
    """Read the question of a row; the kind of answer may still be open.

    Raises:
        DataError: A value of the row does not fit the recipe.
    """
    fields = reading.fields
    for key in KEYS_BESIDE_TEXT:
        if row.get(key):
            raise DataError(
                f"{where}: {key}: found {row[key]!r:.80}; expected questions of text alone, as "
                "agents are shown nothing else: leave the row out, or the key where the text "
                "does without it"
            )
    question_keys = QUESTION_KEYS if fields.question is None else (fields.question,)
    prompt_by_key = {key: value_of(row, key) for key in question_keys}
    question_key = next((key for key, prompt in prompt_by_key.items() if prompt), question_keys[0])
    text, earlier_messages = split_dialogue(prompt_by_key[question_key], f"{where}: {question_key}")
    if not isinstance(text, str) or not text.strip():
        raise DataError(
            f"{where}: no text under {' or '.join(question_keys)} (found keys: "
            f"{', '.join(map(str, row)):.200}); expected a question, or set data.fields.question"
        )
    meta = _read_meta(row, reading, where)
    # A dialogue's context belongs to the question: without it, dialogues with the same last message
    # would be one question.
    if earlier_messages:
        passage = meta.get("passage")
        meta["passage"] = f"{passage}\n\n{earlier_messages}" if passage else earlier_messages

    answer = None
    pattern_missed = False
    raw_answer = _optional_value(row, fields.answer)
    if raw_answer is not None:
        answer = _answer_text(raw_answer, meta, fields.answer or "", where)
        if reading.answer_pattern is not None:
            matched_answer = answer_in(reading.answer_pattern, answer, where)
            pattern_missed = matched_answer is None
            answer = answer if matched_answer is None else matched_answer
    question_id = value_of(row, fields.id)
    # The text decides the id, so that it stays the same in a reordered file.
    if question_id in (None, ""):
        question_id = f"{zlib.crc32(text.encode(errors='replace')):08x}"
    _refuse_unless(_is_scalar(question_id), question_id, "a text or a number", fields.id, where)
    _refuse_unwritable({"question": text, "answer": answer, "id": question_id, **meta}, where)

    is_integer = isinstance(raw_answer, int) and not isinstance(raw_answer, bool)
    return RowQuestion(
        question=Question(id=str(question_id), text=text, answer=answer, meta=meta),
        where=where,
        pattern_missed=pattern_missed,
        has_earlier_messages=bool(earlier_messages),
        number=int(str(raw_answer)) if is_integer and reading.answer_pattern is None else None,
    )


def split_dialogue(prompt: object, where: str) -> tuple[object, str]:
    """Split a prompt of messages, as TRL and verl have them, at the user's last message.

    Messages after it answer the question, so they are left out.

    Returns:
        The user's last message, and the messages before it as one text, each after
        the role. Any prompt but a list with a message of a user is returned unchanged.

    Raises:
        DataError: A message holds more than a role and text.
    """
    if not isinstance(prompt, list | tuple):
        return prompt, ""
    roles = [message.get("role") if isinstance(message, Mapping) else None for message in prompt]
    if "user" not in roles:
        return prompt, ""
    texts = [_message_text(message, f"{where}.{index}") for index, message in enumerate(prompt)]
    last = max(index for index, role in enumerate(roles) if role == "user")
    earlier = [f"{role}: {text}" for role, text in zip(roles[:last], texts[:last], strict=True)]
    return texts[last], "\n\n".join(earlier)


def _message_text(message: object, where: str) -> str:
    """Take the text of a message, of all parts of its content.

    Raises:
        DataError: The message holds more than a role and text.
    """
    if not isinstance(message, Mapping):
        raise _message_error(message, where)
    if message.get("role") not in TEXT_ROLES:
        raise _message_error(message.get("role"), f"{where}.role")
    for key in CALL_KEYS:
        if message.get(key):
            raise _message_error(message[key], f"{where}.{key}")
    content = message.get("content")
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple) or not content:
        raise _message_error(content, f"{where}.content")
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) else part
        part_type = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(text, str) or part_type not in TEXT_PARTS:
            raise _message_error(part, f"{where}.content.{index}")
        texts.append(text)
    return "".join(texts)


def _message_error(value: object, where: str) -> DataError:
    return DataError(
        f"{where}: found {value!r:.80}; expected messages with a role ({', '.join(TEXT_ROLES)}) "
        "and text alone, as agents are shown nothing else: write the rest as text, or leave the "
        "row out"
    )


def value_of(row: Mapping[str, object], key: str) -> object:
    """Look up a key of a row, `None` where it is missing; a dot steps inside."""
    # A key with a dot in its own name goes before a path.
    if key in row:
        return row[key]
    value: object = row
    for part in key.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif isinstance(value, list | tuple) and part.isdecimal() and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


def _optional_value(row: Mapping[str, object], key: str | None) -> object:
    return None if key is None else value_of(row, key)


def _read_meta(row: Mapping[str, object], reading: Reading, where: str) -> dict[str, object]:
    """Read the fields beside question and answer, each refused if the type does not fit."""
    fields = reading.fields
    meta = {key: row[key] for key in PLAIN_META if row.get(key) is not None}
    kind = _optional_value(row, fields.kind)
    if reading.kind is not None:
        meta["kind"] = reading.kind
    elif kind is not None:
        meta["kind"] = _known_kind(kind, where)
    choices = _optional_value(row, fields.choices)
    if choices:
        meta["choices"] = _read_choices(choices, fields.choices or "", where)
    # False is a value of the wrong type here, and not a missing value, so it is refused.
    passage = _optional_value(row, fields.passage)
    if passage or passage is False:
        _refuse_unless(isinstance(passage, str), passage, "a text", fields.passage, where)
        meta["passage"] = passage
    solution = _optional_value(row, fields.solution)
    if solution or solution is False:
        _refuse_unless(_is_scalar(solution), solution, "a text", fields.solution, where)
        meta["solution"] = str(solution)
    wrong = _optional_value(row, fields.wrong_answers)
    if wrong or wrong is False:
        _refuse_unless(_are_scalars(wrong), wrong, "a list of texts", fields.wrong_answers, where)
        meta["wrong_answers"] = list(map(str, wrong))  # type: ignore[call-overload]
    checks = _optional_value(row, fields.worked_checks)
    if checks or checks is False:
        is_object = isinstance(checks, Mapping) and _are_scalars(list(checks.values()))
        expected = "an object from answers to texts"
        _refuse_unless(is_object, checks, expected, fields.worked_checks, where)
        meta["worked_checks"] = {str(key): str(checks[key]) for key in checks}  # type: ignore[attr-defined, index]
    labelled = _optional_value(row, fields.labelled)
    if labelled or labelled is False:
        is_boolean = isinstance(labelled, bool)
        _refuse_unless(is_boolean, labelled, "true or false", fields.labelled, where)
        meta["labelled"] = labelled
    return meta


def _known_kind(kind: object, where: str) -> str:
    if isinstance(kind, str) and kind in KINDS:
        return kind
    hint = did_you_mean(str(kind), KINDS)
    raise DataError(
        f"{where}: kind: found {kind!r:.60}, expected one of {', '.join(KINDS)}{hint}; data.kind "
        "sets it for all rows, and data.fields.kind=null leaves this key unread"
    )


def _read_choices(choices: object, key: str, where: str) -> list[object] | dict[str, object]:
    choices = by_label(choices)
    expected = "a list of texts, or an object of label and text"
    if isinstance(choices, Mapping):
        texts = list(choices.values())
        _refuse_unless(_are_scalars(texts), choices, expected, key, where)
        return dict(choices)
    _refuse_unless(_are_scalars(choices), choices, expected, key, where)
    return list(choices)  # type: ignore[call-overload, no-any-return]


def _answer_text(value: object, meta: Mapping[str, object], key: str, where: str) -> str:
    """Write an answer as text; an ambiguous value is refused."""
    # Some data sets wrap each answer in a list.
    if isinstance(value, list | tuple) and len(value) == 1:
        value = value[0]
    if isinstance(value, bool):
        if meta.get("kind") == "yes_no":
            return "yes" if value else "no"
        raise DataError(
            f"{where}: {key}: found {json.dumps(value)}; expected a text or a number, or "
            "data.kind=yes_no, which reads true as yes and false as no"
        )
    _refuse_unless(_is_scalar(value), value, "one text or one number", key, where)
    return str(value)


def _is_scalar(value: object) -> bool:
    # NaN and infinity are no JSON, and bool is an int in Python.
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, str | int) and not isinstance(value, bool)


def _are_scalars(values: object) -> bool:
    return isinstance(values, list | tuple) and all(map(_is_scalar, values))


def _refuse_unless(fits: bool, value: object, expected: str, key: str | None, where: str) -> None:
    if fits:
        return
    inner_keys: Iterable[object] = ()
    if isinstance(value, Mapping):
        inner_keys = value
    elif isinstance(value, list | tuple):
        inner_keys = range(len(value))
    names = [f"{key}.{inner_key}" for inner_key in inner_keys][:2]
    hint = f"; data.fields can name what is inside, such as {' or '.join(names)}" if names else ""
    raise DataError(f"{where}: {key}: found {value!r:.80}; expected {expected}{hint}")


def _refuse_unwritable(values: Mapping[str, object], where: str) -> None:
    # Transcripts are JSON in UTF-8: better refused here than at the end of the first step.
    for key, value in values.items():
        try:
            json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(
                f"{where}: {key}: found {value!r:.60}, which JSON in UTF-8 cannot hold; expected "
                "texts without half characters (lone surrogates), and numbers"
            ) from error


def with_kinds(rows: Sequence[RowQuestion], choice_answers: Way | None = None) -> list[Question]:
    """Name the kind of a file's questions; without a kind in recipe and row it is inferred.

    A question with choices is of kind `choice`. Where all answers of the others are yes, no, true
    or false they are of kind `yes_no`; other answers are left to mathematics, the default.

    Raises:
        DataError: Several kinds fit, or an answer could mean two choices.
    """
    rows = _with_chosen_labels(rows, choice_answers)
    without_choices = [
        row
        for row in rows
        if row.question.answer
        and "kind" not in row.question.meta
        and "choices" not in row.question.meta
    ]
    are_yes_no = _are_all_yes_no(without_choices)
    _refuse_letters(without_choices)
    questions = []
    for row in rows:
        question = row.question
        kind = None
        if "choices" in question.meta:
            kind = "choice"
        elif are_yes_no and question.answer:
            kind = "yes_no"
        if kind is not None and "kind" not in question.meta:
            question = replace(question, meta={**question.meta, "kind": kind})
        questions.append(question)
    return questions


def _with_chosen_labels(rows: Sequence[RowQuestion], usual: Way | None) -> list[RowQuestion]:
    """Replace each name of a choice by the label of the choice.

    Raises:
        DataError: An answer means two choices, or no choice.
    """
    golds = [row.choice_gold for row in rows]
    # Integers and texts are read each in their own usual way: 1 may be an index beside "B".
    numbers = [gold for gold in golds if gold and isinstance(gold.answer, int)]
    texts = [gold for gold in golds if gold and isinstance(gold.answer, str)]
    usual_of_numbers = usual or usual_way(numbers)
    usual_of_texts = usual or usual_way(texts)
    labeled = []
    for row, gold in zip(rows, golds, strict=True):
        if gold is not None:
            is_number = isinstance(gold.answer, int)
            row = _with_label(row, gold, usual_of_numbers if is_number else usual_of_texts)
        labeled.append(row)
    return labeled


def _with_label(row: RowQuestion, gold: ChoiceGold, usual: Way | None) -> RowQuestion:
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


def _are_all_yes_no(rows: Sequence[RowQuestion]) -> bool:
    """Say whether all answers are yes or no; refuse rows where only some are."""
    yes_no: list[RowQuestion] = []
    others: list[RowQuestion] = []
    for row in rows:
        answer = (row.question.answer or "").strip().lower()
        (yes_no if answer in YES_NO else others).append(row)
    if yes_no and others:
        first = yes_no[0]
        other = others[0]
        other_row = other.where[other.where.rindex("row ") :]
        raise DataError(
            f"{first.where}: the answer is {first.question.answer!r} and that of {other_row} is "
            f"{other.question.answer!r:.60}, so how answers are compared is not clear; expected "
            "data.kind (math, or yes_no where all are), or a kind in each row"
        )
    return bool(yes_no)


def _refuse_letters(rows: Sequence[RowQuestion]) -> None:
    answers = [(row.question.answer or "").strip() for row in rows]
    # One letter alone may be an unknown of mathematics; several are choices that were left out.
    if len(set(answers)) > 1 and all(map(LETTER.fullmatch, answers)):
        raise DataError(
            f"{rows[0].where}: all answers are single letters, such as {answers[0]!r}, and the "
            "rows hold no choices; expected data.kind=choice where they are letters of choices, "
            "else data.kind=math or text"
        )
