"""Puzzles typed by a reader: their limits, and their words as recorded questions have them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from debate_protocol.types import Question
from debate_report.playing.small_weights import NotPlayableError

NUMBER = re.compile(r"-?\d{1,4}")
TOTAL_PLACE = "{total}"
DIGIT_PLACE = "{digit}"


@dataclass(frozen=True, slots=True)
class Puzzle:
    """Signs between digits to make a total; `words` is a question with places for both."""

    words: tuple[str, ...]
    num_digits: int
    largest_digit: int


def read_puzzle(data: Mapping[str, object], questions: Iterable[Question]) -> Puzzle:
    """Read the limits of a recipe's puzzles, and the words of a question off recorded ones.

    Raises:
        NotPlayableError: The run has other questions.
    """
    if data.get("type") != "signs_puzzle":
        raise NotPlayableError(f"data: found {data.get('type')!r}, expected 'signs_puzzle'")
    num_digits = data.get("num_digits")
    largest_digit = data.get("largest_digit")
    if not isinstance(num_digits, int) or not isinstance(largest_digit, int):
        raise NotPlayableError("data: num_digits and largest_digit are missing")
    wordings = {_words_of(question) for question in questions}
    if len(wordings) != 1:
        raise NotPlayableError(f"questions: found {len(wordings)} wordings, expected 1")
    (words,) = wordings
    if words.count(TOTAL_PLACE) != 1 or words.count(DIGIT_PLACE) != num_digits:
        raise NotPlayableError("questions: expected a total, and then digits")
    return Puzzle(words, num_digits, largest_digit)


def _words_of(question: Question) -> tuple[str, ...]:
    """Replace the total, which comes first, and the digits of a question by places.

    Raises:
        NotPlayableError: The recorded answer does not make the first number from the others.
    """
    words = question.text.split()
    numbers = [int(word) for word in words if NUMBER.fullmatch(word)]
    signs = (question.answer or "").split()
    if len(numbers) < 2 or len(signs) != len(numbers) - 2:
        raise NotPlayableError(f"question {question.text[:80]!r}: expected a signs puzzle")
    total, reached, *digits = numbers
    for sign, digit in zip(signs, digits, strict=True):
        reached += digit if sign == "+" else -digit
    if reached != total:
        raise NotPlayableError(f"question {question.text[:80]!r}: its answer makes {reached}")
    has_total = False
    places = []
    for word in words:
        if NUMBER.fullmatch(word):
            places.append(DIGIT_PLACE if has_total else TOTAL_PLACE)
            has_total = True
        else:
            places.append(word)
    return tuple(places)
