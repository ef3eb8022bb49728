"""How answers to the tasks of reasoning-gym are judged, a row a task.

- *Exact*: one answer is right. Gold and reply are read into one key, as words, a number, a list, a
  grid or another form; the key decides the verdict and the classes of replies.
- *Checked here*: several answers are right, and the gold answer is enough to check them, as by the
  numbers and the value of a countdown. Nothing is evaluated: `_Arithmetic` reads sums.
- *The library's verifier*: several answers are right, and only the library can check them. The text
  goes to a confined worker, after a check of its length and characters, and only if the process
  has opened the task itself (`open_task`): a file's word about a task is not believed.
- *Refused*: see `REFUSED`.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from debate_protocol.types import Question
from debate_rewards.answers.amounts import number_in_words
from debate_rewards.answers.folding import text_form
from debate_rewards.answers.sentences import settled_number
from debate_rewards.math_pool import TASK, TaskJob

MAX_CHARS = 20_000
MAX_DIGITS = 200
MAX_NESTING = 50

_NO_ANSWER = "its questions have no answer of their own"
_UNSTABLE = "its questions differ between processes"
_EVALUATED = "its verifier evaluates the reply as code, and no key fits all right answers"
REFUSED: dict[str, str] = {
    "boxnet": _NO_ANSWER,
    "graph_color": _NO_ANSWER,
    "propositional_logic": _NO_ANSWER,
    "rubiks_cube": _NO_ANSWER,
    "rush_hour": _NO_ANSWER,
    "isomorphic_strings": _UNSTABLE,
    "polynomial_multiplication": _UNSTABLE,
    "ransom_note": _UNSTABLE,
    "intermediate_integration": _EVALUATED,
    "simple_integration": _EVALUATED,
    "composite": "it is itself several tasks",
    # 5 of the 11 golds No among its first 60 questions (reasoning-gym 0.1.25): each comes of a move
    # that the library takes from the board without showing it.
    "knight_swap": "where its answer is No, moves that the question allows may swap the knights",
    "game_of_life_halting": "its verifier takes any text for True",
}
"""Tasks without a way to debate and judge them again, and why."""

Form = Callable[[str], str | None]
"""Reads an answer into the common form of equal answers; None for any other text."""
Check = Callable[[str, str], bool]
"""Checks an answer, the second text, against the gold, the first."""
Judgment = Literal["right", "wrong", "unparsable", "gold_unparsable"] | TaskJob
"""A verdict, or a job for a worker."""

_opened_tasks: set[str] = set()

_PLAIN_NUMBER = re.compile(r"([-+]?)(\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(\.\d*)?([eE][-+]?\d{1,3})?")
_RATIO = re.compile(r"([-+]?)(?:\\[dtc]?frac\{(\d+)\}\{(\d+)\}|(\d+)\s*/\s*(\d+))")
_HEXADECIMAL = re.compile(r"(-?)0x([0-9a-f]{1,200})")
# The lookahead leaves the digits of a lone imaginary part to the second group.
_COMPLEX = re.compile(r"([-+]?[\d.]++(?![\d.]*i))?(?:([-+]?)([\d.]*)i)?")
_HAS_SENTENCE = re.compile(r"=|[a-zA-Z]{2}")
_YES_OR_NO = re.compile(r"(yes|no)[,.;:!]")
_LAST_WORD = re.compile(r".*(?:\b(?:is|was|be)|:) (?:an? |the )?[\"'`*]*([^\s\"'`*]+?)[\"'`*.]*")
_BEHIND_VERB = re.compile(r".*(?:\b(?:is|are|be|equals)\b:?|[=:])\s*", re.DOTALL)
_OPEN = re.compile(
    r"\b(?:not|never|or|either|than|might|may|could|cannot)\b|n['’]t\b", re.IGNORECASE
)
_BETWEEN_ROOTS = re.compile(r"\b(?:and|or)\b|\b[a-z](?:_?\d)?\s*=")
_TIME_IN_WORDS = re.compile(
    r"(?:(\d{1,9}) days?,? (?:and )?)?(\d{1,4}) hours?,? (?:and )?(\d{1,2}) minutes?"
    r"(?:,? (?:and )?(\d{1,2}(?:\.\d{1,9})?) seconds?)?"
)
_CLAUSE = re.compile(r"(\w+) is (?:an? )?(\w+)")
_DURATION = re.compile(
    r"(?=.)(?:(-?\d{1,9}) days?)?(?:(?:(?<=day)|(?<=days))(?:, ?| )|)"
    r"(-?\d{1,4}:\d{1,2}(?::\d{1,2}(?:\.\d{1,9})?)?)?"
)
_ARITHMETIC_SIGNS = str.maketrans({"×": "*", "÷": "/", "·": "*", "−": "-", "[": "(", "]": ")"})


def _read_words(text: str) -> str | None:
    return text_form(text) or None


def _read_tokens(text: str) -> str | None:
    # Case counts, unlike in words: these answers are strings of symbols.
    return " ".join(text.strip(" \n\t.\"'`").split()) or None


def _read_number(text: str) -> str | None:
    value = _exact_value(text)
    return None if value is None else str(value)


def _read_number_or_word(text: str) -> str | None:
    return _read_number(text) or _read_word(text)


def _read_count(text: str) -> str | None:
    """Read a number, also in a sentence: `The letter appears 3 times`. Sums are not computed."""
    number = _read_number(text)
    if number is not None or not _HAS_SENTENCE.search(text):
        return number
    written = number_in_words(text) or settled_number(text)
    return _read_number(written) if isinstance(written, str) else None


def _read_word(text: str) -> str | None:
    """Read a single word, also at the end of a sentence: `It was a Friday.`"""
    form = text_form(text)
    answer = _YES_OR_NO.match(form) or _LAST_WORD.fullmatch(form)
    if answer is None or _OPEN.search(form):
        return form or None
    return answer[1]


def _unquoted(text: str) -> str:
    # The full stop may be behind the quotes or within them.
    plain = text.strip().removesuffix(".").strip("$\"'`* \u00b0")
    return plain.removesuffix(".").replace("−", "-")


def _exact_value(text: str) -> Fraction | None:
    """Compute the value of a number without rounding, also with a final full stop."""
    text = _unquoted(text)
    if len(text) > MAX_DIGITS:
        return None
    match = _PLAIN_NUMBER.fullmatch(text)
    if match is not None:
        sign, whole_digits, decimals, power = match.groups()
        digits = (
            (whole_digits.replace(",", "") or "0") + (decimals or "").rstrip(".") + (power or "")
        )
        return Fraction(Decimal(sign + digits))
    match = _RATIO.fullmatch(text.rstrip("."))
    if match is None:
        return None
    numerator = int(match[2] or match[4])
    denominator = int(match[3] or match[5])
    if denominator == 0:
        return None
    value = Fraction(numerator, denominator)
    return -value if match[1] == "-" else value


def _exact_values(pieces: Sequence[str]) -> list[Fraction] | None:
    values = []
    for piece in pieces:
        value = _exact_value(piece)
        if value is None:
            return None
        values.append(value)
    return values


def _read_fraction(text: str) -> str | None:
    # Numerator and denominator stay as they are written: whether they are simple is the task.
    match = _RATIO.fullmatch(_unquoted(text).rstrip(". $"))
    if match is None:
        return None
    numerator = int(match[2] or match[4])
    denominator = int(match[3] or match[5])
    sign = "-" if match[1] == "-" else ""
    return f"{sign}{numerator}/{denominator}"


def _read_rounded(text: str, num_digits: int) -> str | None:
    """Round a number to the significant digits of golds, or of the question's request."""
    value = _exact_value(text)
    if value is None:
        return None
    return f"{Decimal(value.numerator) / Decimal(value.denominator):.{num_digits - 1}e}"


def _read_hexadecimal(text: str) -> str | None:
    match = _HEXADECIMAL.fullmatch(_unquoted(text).rstrip(".").lower())
    return None if match is None else match[1] + hex(int(match[2], 16))


def _read_complex(text: str) -> str | None:
    spaceless = "".join(_unquoted(text).rstrip(".").split()).replace("j", "i").replace("*", "")
    match = _COMPLEX.fullmatch(spaceless)
    if match is None or not spaceless:
        return None
    real_part = _exact_value(match[1] or "0")
    imaginary_part = Fraction(0)
    if spaceless.endswith("i"):
        # `i` alone is 1 times i.
        size = _exact_value(match[3] or "1")
        if size is None:
            return None
        imaginary_part = -size if match[2] == "-" else size
    return None if real_part is None else f"{real_part},{imaginary_part}"


def _read_numbers(text: str) -> str | None:
    """Read numbers in order, with or without brackets, quotes and commas."""
    pieces = re.split(r"[\s,;\[\](){}'\"`$]+", text.strip().rstrip("."))
    values = _exact_values([piece for piece in pieces if piece])
    # An empty list is an answer only where its brackets are written.
    if values is None or (not values and "[" not in text):
        return None
    return " ".join(map(str, values))


def _read_roots(text: str) -> str | None:
    """Read the solutions of an equation in any order, to the four places of golds."""
    if not text.strip():
        return None
    text = _BETWEEN_ROOTS.sub(",", text)
    pieces = re.split(r"[\s,;\[\](){}]+", text.strip().rstrip("."))
    values = _exact_values([piece for piece in pieces if piece])
    if values is None:
        return None
    return " ".join(map(str, sorted(round(value, 4) for value in values)))


def _read_items(text: str) -> str | None:
    """Read words between commas, with or without brackets and quotes."""
    items = text.rpartition(":")[2].strip().rstrip(".")
    pieces = [text_form(piece.strip(" []()")) for piece in items.split(",")]
    return ",".join(pieces) if all(pieces) else None


def _read_factors(text: str) -> str | None:
    """Read a product of numbers in any order."""
    pieces = re.split(r"\s*(?:×|\*|x|X|·|\\times|\\cdot)\s*", text.strip().rstrip("."))
    values = _exact_values(pieces)
    return None if values is None else "*".join(map(str, sorted(values)))


def _read_clauses(text: str) -> str | None:
    """Read `A is a knight, and B is a knave` in any order."""
    clauses = []
    for piece in re.split(r"\s*(?:,\s*and\s+|,|\band\b)\s*", text_form(text)):
        if not piece:
            continue
        clause = _CLAUSE.fullmatch(piece)
        if clause is None:
            return None
        clauses.append(f"{clause[1]}={clause[2]}")
    return ";".join(sorted(clauses)) or None


def _read_time(text: str) -> str | None:
    """Read a duration: `5 days`, or hours, minutes and seconds between colons."""
    form = text_form(text)
    in_words = _TIME_IN_WORDS.fullmatch(form)
    if in_words is not None:
        clock_parts = [str(Fraction(part)) for part in in_words.groups()[1:] if part]
        return f"{int(in_words[1] or 0)} days {':'.join(clock_parts)}"
    match = _DURATION.fullmatch(form)
    if match is None:
        return None
    days, clock = match.groups()
    clock_parts = [str(Fraction(part)) for part in clock.split(":")] if clock else []
    return f"{int(days or 0)} days {':'.join(clock_parts)}"


def _read_grid(text: str) -> str | None:
    """Read rows of cells, also as a nested list; numbers by value, to two decimals."""
    if text.lstrip().startswith("["):
        lists = _parsed_lists(text)
        if lists is None:
            return None
        rows = [list(map(str, cells)) for cells in lists]
    else:
        lines = text.strip().rstrip(".").splitlines()
        rows = [line.split() for line in lines if line.strip()]
    return "/".join(" ".join(map(_read_cell, row)) for row in rows) or None


def _read_cell(text: str) -> str:
    value = _exact_value(text)
    return text if value is None else str(round(value, 2))


def _read_digit_grid(text: str) -> str | None:
    """Read the digits of each row, with any of a grid's lines between them."""
    if re.search(r"[^\d\s<>∧∨v^|+\-.]", text):
        return None
    rows = ["".join(re.findall(r"\d", line)) for line in text.splitlines()]
    return "/".join(row for row in rows if row) or None


def _parsed_json(text: str) -> object:
    if len(text) > MAX_CHARS:
        return None
    try:
        value: object = json.loads(text.strip().rstrip("."))
    except (ValueError, RecursionError):
        return None
    return value


def _parsed_lists(text: str) -> list[list[object]] | None:
    value = _parsed_json(text)
    if not isinstance(value, list) or not all(isinstance(inner, list) for inner in value):
        return None
    return value


def _read_json(text: str) -> str | None:
    value = _parsed_json(text)
    if value is None:
        # Replies leave out the quotes of a lone string.
        return _read_number(text) or _read_words(text)
    return json.dumps(value, sort_keys=True)


def _read_list_in_any_order(text: str) -> str | None:
    lists = _parsed_lists(text)
    if lists is None:
        return None
    # A list that is named twice counts once.
    return json.dumps(sorted({json.dumps(inner) for inner in lists}))


def _read_groups_in_any_order(text: str) -> str | None:
    lists = _parsed_lists(text)
    if lists is None:
        return None
    # Words of a group in any order, and groups in any order; a group named twice counts twice.
    return json.dumps(sorted(sorted(map(str, inner)) for inner in lists))


class _ArithmeticError(ValueError):
    """A text other than arithmetic of integers."""


class _Arithmetic:
    """Integers, + - * / and brackets, read by recursive descent and never evaluated as code."""

    # Only ever matched at a position, never searched.
    _TOKEN = re.compile(r"\s*(\d{1,12}|[-+*/()])")

    def __init__(self, text: str) -> None:
        text = text.translate(_ARITHMETIC_SIGNS).strip().strip("$.` ")
        self._tokens: list[str] = []
        end = 0
        while end < len(text):
            match = self._TOKEN.match(text, end)
            if match is None:
                raise _ArithmeticError
            self._tokens.append(match[1])
            end = match.end()
        if len(self._tokens) > MAX_DIGITS:
            raise _ArithmeticError
        self._position = 0
        self._depth = 0

    @property
    def numbers(self) -> list[int]:
        """The integers of the text, in order of size."""
        return sorted(int(token) for token in self._tokens if token.isdecimal())

    def value(self) -> Fraction:
        """Compute the value of the whole text."""
        value = self._read_sum()
        if self._position < len(self._tokens):
            raise _ArithmeticError
        return value

    def _take(self, signs: str) -> str | None:
        at_end = self._position == len(self._tokens)
        if at_end or self._tokens[self._position] not in signs:
            return None
        self._position += 1
        return self._tokens[self._position - 1]

    def _read_sum(self) -> Fraction:
        value = self._read_product()
        while sign := self._take("+-"):
            term = self._read_product()
            value = value + term if sign == "+" else value - term
        return value

    def _read_product(self) -> Fraction:
        value = self._read_factor()
        while sign := self._take("*/"):
            factor = self._read_factor()
            if sign == "/" and not factor:
                raise _ArithmeticError
            value = value * factor if sign == "*" else value / factor
        return value

    def _read_factor(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_NESTING or self._position == len(self._tokens):
            raise _ArithmeticError
        if self._take("-"):
            value = -self._read_factor()
        elif self._take("("):
            value = self._read_sum()
            if not self._take(")"):
                raise _ArithmeticError
        elif self._tokens[self._position].isdecimal():
            value = Fraction(int(self._tokens[self._position]))
            self._position += 1
        else:
            raise _ArithmeticError
        self._depth -= 1
        return value


def _has_value_of(gold: str, answer: str) -> bool:
    """Check an expression for the gold's numbers, each once, and the gold's value."""
    expression = answer.split("=")[0]  # Some write the target behind it.
    try:
        gold_arithmetic = _Arithmetic(gold)
        arithmetic = _Arithmetic(expression)
        has_same_numbers = arithmetic.numbers == gold_arithmetic.numbers
        return has_same_numbers and arithmetic.value() == gold_arithmetic.value()
    except _ArithmeticError:
        return False


def _is_palindrome_of(gold: str, answer: str) -> bool:
    """Check for a palindrome of the gold's letters."""
    word = text_form(answer)
    return word == word[::-1] and sorted(word) == sorted(text_form(gold))


def _has_sums_of(gold: str, answer: str) -> bool:
    """Check a grid of 0 and 1 for the sums of the gold's rows and columns."""
    gold_sums = _kakurasu_sums(gold)
    return gold_sums is not None and gold_sums == _kakurasu_sums(answer)


def _kakurasu_sums(text: str) -> tuple[list[int], list[int]] | None:
    grid = _read_grid(text)
    if grid is None or re.search(r"[^01 /]", grid):
        return None
    rows = [list(map(int, row.split())) for row in grid.split("/")]
    if len({len(row) for row in rows}) != 1:
        return None
    columns = list(zip(*rows, strict=True))
    return [_weighted_sum(row) for row in rows], [_weighted_sum(column) for column in columns]


def _weighted_sum(cells: Sequence[int]) -> int:
    return sum(position * cell for position, cell in enumerate(cells, start=1))


def _form_of_each(names: str, form: Form) -> dict[str, Form]:
    return dict.fromkeys(names.split(), form)


EXACT: dict[str, Form] = {
    **_form_of_each(
        "acre bf caesar_cipher course_schedule emoji_mystery figlet_font letter_jumble "
        "mahjong_puzzle needle_haystack sentence_reordering string_insertion "
        "string_manipulation tsumego base_conversion",
        _read_words,
    ),
    **_form_of_each(
        "color_cube_rotation family_relationships spell_backward syllogism zebra_puzzles",
        _read_word,
    ),
    **_form_of_each("ab arc_1d path_star string_splitting string_synthesis", _read_tokens),
    **_form_of_each(
        "aiw basic_arithmetic binary_alternation chain_sum circuit_logic count_bits "
        "count_primes decimal_arithmetic decimal_chain_sum dice gcd gsm_symbolic largest_island "
        "lcm leg_counting letter_counting maze number_format number_sequence products "
        "rectangle_count rotten_oranges self_reference simple_equations simple_geometry",
        _read_count,
    ),
    "bitwise_arithmetic": _read_hexadecimal,
    "calendar_arithmetic": _read_number_or_word,
    "coin_flip": functools.partial(_read_rounded, num_digits=10),
    "complex_arithmetic": _read_complex,
    "fraction_simplification": _read_fraction,
    "power_function": functools.partial(_read_rounded, num_digits=3),
    **_form_of_each(
        "advanced_geometry list_functions number_filtering number_sorting spiral_matrix",
        _read_numbers,
    ),
    "polynomial_equations": _read_roots,
    **_form_of_each("word_sequence_reversal word_sorting", _read_items),
    "prime_factorization": _read_factors,
    "knights_knaves": _read_clauses,
    "time_intervals": _read_time,
    **_form_of_each(
        "arc_agi binary_matrix game_of_life manipulate_matrix modulo_grid n_queens pool_matrix "
        "rearc rotate_matrix survo",
        _read_grid,
    ),
    **_form_of_each("futoshiki mini_sudoku sudoku", _read_digit_grid),
    "codeio": _read_json,
    "group_anagrams": _read_groups_in_any_order,
    "palindrome_partitioning": _read_list_in_any_order,
}
"""Tasks with one right answer, or with all right ones in `meta["accept"]`."""

CHECKED: dict[str, Check] = {
    "countdown": _has_value_of,
    "puzzle24": _has_value_of,
    "palindrome_generation": _is_palindrome_of,
    "kakurasu": _has_sums_of,
}
"""Tasks with several right answers, checked by the gold answer."""

VERIFIED: dict[str, str] = {
    "cryptarithm": r"[A-Z]\s*=\s*\d(?:\s*,\s*[A-Z]\s*=\s*\d)*",
    "jugs": r"\[[\sA-Za-z\->\",]*\]",
    "quantum_lock": r"[A-Ca-c](?:\s*(?:→|->|,)?\s*[A-Ca-c])*",
    "shortest_path": r"(?:up|down|left|right)(?:\s+(?:up|down|left|right))*|infeasible",
    "sokoban": r"[LRUD]+",
    "tower_of_hanoi": r"(?:Move disk \d+ from Peg \d+ to Peg \d+\s*)+",
    "word_ladder": r"[A-Za-z]+(?:,[A-Za-z]+)*",
}
"""Tasks left to the library's verifier, with the pattern of an answer."""

JUDGED = frozenset((*EXACT, *CHECKED, *VERIFIED))
"""All tasks on offer."""


def _settings_text(task: Mapping[str, object]) -> str:
    settings = {name: task.get(name) for name in ("task", "config", "seed", "size")}
    return json.dumps(settings, sort_keys=True, default=str)


def open_task(task: Mapping[str, object]) -> None:
    """Let questions of a task be judged by its verifier in this process.

    Args:
        task: `task`, `config`, `seed` and `size`, as the run's own data has them.
    """
    _opened_tasks.add(_settings_text(task))


def task_name(question: Question) -> str | None:
    """Look up the name of a question's task, if any."""
    task = question.meta.get(TASK)
    name = task.get("task") if isinstance(task, Mapping) else None
    return name if isinstance(name, str) else None


def puzzle_form(question: Question, text: str) -> str | None:
    """Read an answer into the common form of a class of answers."""
    if len(text) > MAX_CHARS:
        return None
    name = task_name(question) or ""
    read_form = EXACT.get(name, _read_tokens)
    text = _without_heading(text)
    form = read_form(text)
    behind_verb = _BEHIND_VERB.match(text) if form is None else None
    if behind_verb is not None and not _OPEN.search(behind_verb[0]):
        # "The fraction is 2/3."
        form = read_form(text[behind_verb.end() :])
    # The brackets protect white space and quotes at the ends.
    return None if form is None else f"<{name} {form}>"


def _without_heading(text: str) -> str:
    """Drop a first line such as `Here is the solved puzzle:`, and the marks of a code block."""
    heading, colon, body = text.partition(":\n")
    has_heading = colon and body.strip() and "\n" not in heading.strip()
    text = body if has_heading else text
    return text.strip().removeprefix("```").removesuffix("```") if "```" in text else text


def judge_puzzle(question: Question, golds: list[str], text: str) -> Judgment:
    """Judge an answer to a question of reasoning-gym by the table above.

    `gold_unparsable` where the task is unknown, or needs a verifier in a process without the
    opened task.

    Args:
        question: With `meta["reasoning_gym"]`.
        golds: The right answers, the question's own first.
        text: The answer.
    """
    name = task_name(question) or ""
    if len(text) > MAX_CHARS:
        return "unparsable"

    if name in EXACT:
        gold_forms = {puzzle_form(question, gold) for gold in golds}
        if gold_forms == {None}:
            return "gold_unparsable"
        form = puzzle_form(question, text)
        if form is None:
            return "unparsable"
        return "right" if form in gold_forms else "wrong"

    if name in CHECKED:
        is_right = CHECKED[name]
        return "right" if is_right(golds[0], _without_heading(text)) else "wrong"

    task = question.meta.get(TASK)
    if name not in VERIFIED or not isinstance(task, Mapping):
        return "gold_unparsable"
    if _settings_text(task) not in _opened_tasks:
        return "gold_unparsable"
    if text.strip() == golds[0].strip():
        return "right"
    if not re.fullmatch(VERIFIED[name], plain_answer(text)):
        return "unparsable"
    # The question's text goes along: which of several right answers is its own differs by process,
    # so the worker recognizes the question by its text.
    return TaskJob(json.dumps({**task, "question": question.text}, sort_keys=True))


def plain_answer(text: str) -> str:
    """Strip an answer for a verifier: no final full stop, no quotes."""
    return text.strip(" \n\t.`'")
