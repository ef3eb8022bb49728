"""Rows of files and of hub data sets, and the distinct questions in them."""

import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from debate_protocol.plugins import did_you_mean, install_command
from debate_protocol.types import Question
from debate_rewards.answer_checking import check
from debate_train.data.question_rows import (
    Reading,
    RowQuestion,
    read_question,
    value_of,
    with_kinds,
)
from debate_train.data.splits import identity
from debate_train.errors import DataError, errors_only


def rows_of(
    path: str, config: str | None, split: str, key: str, count: int | None
) -> Iterator[Mapping[str, object]]:
    """Read the rows of a file, or of a split of a hub data set.

    Args:
        path: The file, or the id of the data set.
        config: Configuration of a hub data set.
        split: Of a hub data set.
        key: Key of the path in the recipe.
        count: The most rows to read; `None` reads all.

    Raises:
        DataError: It cannot be read.
    """
    if path.endswith((".jsonl", ".json")):
        rows = _json_rows(path, key)
    else:
        rows = _data_set_rows(path, config, split, key, streaming=count is not None)
    return islice(rows, count)


def _json_rows(path: str, key: str) -> Iterator[Mapping[str, object]]:
    """Yield the objects of a file: an object a line, or all in the list of a .json file."""
    is_list = path.endswith(".json")
    number = 0
    try:
        with open(path, encoding="utf-8-sig") as file:
            # A .json file is one text with all rows; a .jsonl file is read line by line.
            for text in [file.read()] if is_list else file:
                number += 1
                if not text.strip():
                    continue
                value = json.loads(text)
                rows = value if is_list and isinstance(value, list) else [value]
                for row in rows:
                    if not isinstance(row, dict):
                        raise ValueError(f"found {row!r:.40}")
                    yield row
    except FileNotFoundError as error:
        raise DataError(
            f"{key}: found no file {path!r:.300}; expected one that exists, or the id of a hub "
            "data set such as openai/gsm8k"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        expected = "a list of objects" if is_list else "one object a line"
        line = f", line {number}" if number else ""
        raise DataError(
            f"{key}: {path!r:.300}{line}: {_first_line(error)}; expected {expected} as JSON in "
            "UTF-8, or the id of a hub data set such as openai/gsm8k"
        ) from error


def _data_set_rows(
    path: str, config: str | None, split: str, key: str, *, streaming: bool
) -> Iterator[Mapping[str, object]]:
    """Yield the rows of a .parquet file, or of a hub data set, downloaded as they come."""
    try:
        import datasets
    except ImportError as error:
        raise DataError(
            f"{key}: hub data sets and parquet files need the datasets package; "
            f"install it with: {install_command('debate-train[hub]')}"
        ) from error
    try:
        if path.endswith(".parquet"):
            yield from datasets.Dataset.from_parquet(path)
        else:
            with errors_only("huggingface_hub"):
                rows = datasets.load_dataset(path, config, split=split, streaming=streaming)
            yield from rows
    # The library raises errors of many kinds, for missing sets, networks and formats.
    except Exception as error:
        raise DataError(
            f"{key}: {path!r:.300} could not be read ({_first_line(error)}); expected the id of a "
            "hub data set, or a file that ends in .jsonl, .json or .parquet"
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0]


def read_questions(
    rows: Iterable[Mapping[str, object]], reading: Reading, key: str, path: str
) -> tuple[list[Question], list[str]]:
    """Read the distinct questions of rows, and describe how they were read.

    Args:
        rows: In order.
        reading: How they are read.
        key: Key of the path in the recipe.
        path: File or data set of the rows, for messages.

    Returns:
        The questions, and the notes of `--check`.

    Raises:
        DataError: There is no question, or a row cannot be read.
    """
    row_by_identity: dict[str, RowQuestion] = {}
    num_rows = num_missed = num_dialogues = 0
    keys_of_rows: dict[str, None] = {}
    unread_fields = reading.fields.named()
    for row in rows:
        num_rows += 1
        keys_of_rows |= dict.fromkeys(map(str, row))
        unread_fields = {
            name: row_key
            for name, row_key in unread_fields.items()
            if value_of(row, row_key) is None
        }
        row_question = read_question(row, reading, f"{key}: {path!r}, row {num_rows}")
        num_missed += row_question.pattern_missed
        num_dialogues += row_question.has_earlier_messages
        # Of equal questions the first row counts.
        row_by_identity.setdefault(identity(row_question.question), row_question)
    if not row_by_identity:
        raise DataError(f"{key}: {path!r} is empty; expected one question a line")
    # Test rows may lack what only training needs, such as worked solutions.
    if unread_fields and not key.endswith("test_path"):
        name, row_key = next(iter(unread_fields.items()))
        raise DataError(
            f"data.fields.{name}: found {row_key!r:.60}, and no row of {path!r:.300} has a value "
            f"there; expected one of the keys {', '.join(keys_of_rows):.300}, or null"
            f"{did_you_mean(row_key, keys_of_rows)}"
        )

    questions = with_kinds(list(row_by_identity.values()), reading.choice_answers)
    questions = _with_wrong_answers(questions)
    notes = [f"{key}: {_describe_kinds(questions)}"]
    num_repeats = num_rows - len(row_by_identity)
    if num_repeats:
        notes.append(
            f"{key}: {num_repeats:,} of {num_rows:,} rows repeat a question and are left out"
        )
    if num_dialogues:
        notes.append(
            f"{key}: {num_dialogues:,} of {num_rows:,} rows have a system message or earlier "
            "turns, which agents are shown before the question"
        )
    if num_missed:
        notes.append(
            f"{key}: data.answer_pattern holds nothing in {num_missed:,} of {num_rows:,} rows, "
            "whose answers are taken whole"
        )
    return _with_distinct_ids(questions), notes


def _describe_kinds(questions: Sequence[Question]) -> str:
    """Describe how the answers of questions are compared, for `--check`."""
    answered = [question for question in questions if question.answer is not None]
    count_by_kind = Counter(question.meta.get("kind", "math") for question in answered)
    counts = [f"{kind} {count:,}" for kind, count in count_by_kind.most_common()]
    num_unanswered = len(questions) - len(answered)
    if num_unanswered:
        counts.append(f"no answer {num_unanswered:,}")
    return f"answers are compared as: {', '.join(counts)}"


def _with_wrong_answers(questions: Sequence[Question]) -> list[Question]:
    """Give free-text questions without wrong answers the answer of another question.

    The answer is of the same subject and wrong by the checker; without such an answer, as when
    all questions have the same, the question stays as it is.
    """
    pool_by_subject: dict[object, dict[str, None]] = {}
    for question in questions:
        if _has_free_text_answer(question):
            pool = pool_by_subject.setdefault(question.meta.get("subject"), {})
            pool[str(question.answer)] = None
    # Lists keep the order in which answers first appear, each once.
    answers_by_subject = {subject: list(pool) for subject, pool in pool_by_subject.items()}

    completed = []
    for question in questions:
        if _has_free_text_answer(question) and "wrong_answers" not in question.meta:
            answers = answers_by_subject[question.meta.get("subject")]
            # The search begins where the question's text says: the order of the file may change.
            start = zlib.crc32(identity(question).encode()) % len(answers)
            for answer in answers[start:] + answers[:start]:
                if check(question, answer).verdict == "wrong":
                    meta = {**question.meta, "wrong_answers": [answer]}
                    question = replace(question, meta=meta)
                    break
        completed.append(question)
    return completed


def _has_free_text_answer(question: Question) -> bool:
    return bool(question.answer) and question.meta.get("kind") == "text"


def _with_distinct_ids(questions: Iterable[Question]) -> list[Question]:
    """Add a checksum of the question to an id of an earlier question."""
    distinct = []
    ids: set[str] = set()
    for question in questions:
        if question.id in ids:
            checksum = f"{zlib.crc32(identity(question).encode()):08x}"
            question = replace(question, id=f"{question.id}-{checksum}")
        ids.add(question.id)
        distinct.append(question)
    return distinct
