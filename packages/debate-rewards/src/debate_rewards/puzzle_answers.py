"""How answers to the tasks of reasoning-gym are judged, one row a task.

- *Exact*: one answer is right. Gold and reply are read into one key, as words, a number, a list, a
  grid or another form; the key decides the verdict, and which replies are one class.
- *Checked here*: several answers are right, and the gold answer says what a right one owes, such
  as the numbers and the value of a countdown. Nothing is evaluated: `_Arithmetic` reads sums.
- *The library's verifier*: several answers are right, and only the library can see it. The text
  goes to a confined worker, after a check of its length and characters, and only if the process
  has opened the task itself (`open_task`): what a file says of a task is not believed.
- *Refused*: see `REFUSED`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Literal

from debate_protocol.types import Question
from debate_rewards.answers.folding import text_form
from debate_rewards.math_pool import TASK, TaskJob

MAX_CHARS = 20_000
MAX_DIGITS = 200
MAX_NESTING = 50

_NO_ANSWER = "its questions have no answer of their own"
_UNSTABLE = "its questions differ between processes"
_EVALUATED = "its verifier evaluates the reply as code, and no key fits all right answers"
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        ("boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"), _NO_ANSWER
    ),
    **dict.fromkeys(("isomorphic_strings", "polynomial_multiplication", "ransom_note"), _UNSTABLE),
    **dict.fromkeys(("intermediate_integration", "simple_integration"), _EVALUATED),
    "composite": "it is itself several tasks",
    "knight_swap": "its questions cannot be made again by a worker that judges them",
    "game_of_life_halting": "its verifier takes any text for True",
}
"""Tasks that cannot be debated and judged again, and why."""

Form = Callable[[str], str | None]
"""From an answer to what it says, None for what is no such answer."""
Check = Callable[[str, str], bool]
"""From gold and answer to whether the answer is right."""


def _words(text: str) -> str | None:
    return text_form(text) or None


def _tokens(text: str) -> str | None:
    return " ".join(text.strip(" \n\t.\"'`").split()) or None


def _number(text: str) -> str | None:
    value = _exact(text)
    return None if value is None else str(value)


def _number_or_words(text: str) -> str | None:
    return _number(text) or _words(text)


_PLAIN_NUMBER = re.compile(r"([-+]?)(\d{1,3}(?:,\d{3})+|\d+|(?=\.\d))(\.\d*)?([eE][-+]?\d{1,3})?")
_RATIO = re.compile(r"([-+]?)(?:\\[dtc]?frac\{(\d+)\}\{(\d+)\}|(\d+)\s*/\s*(\d+))")


def _unquoted(text: str) -> str:
    plain = text.strip().removesuffix(".").strip("$\"'`* \u00b0")
    return plain.removesuffix(".").replace("−", "-")


def _exact(text: str) -> Fraction | None:
    """Return the value of a number without rounding, also of one with a final full stop."""
    text = _unquoted(text)
    if len(text) > MAX_DIGITS:
        return None
    match = _PLAIN_NUMBER.fullmatch(text)
    if match is not None:
        sign, whole, decimals, power = match.groups()
        digits = (whole.replace(",", "") or "0") + (decimals or "").rstrip(".") + (power or "")
        return Fraction(Decimal(sign + digits))
    match = _RATIO.fullmatch(text.rstrip("."))
    if match is None:
        return None
    upper, lower = match[2] or match[4], match[3] or match[5]
    if not int(lower):
        return None
    value = Fraction(int(upper), int(lower))
    return -value if match[1] == "-" else value


def _fraction(text: str) -> str | None:
    """Read numerator and denominator as they are written: whether they are simple is the task."""
    match = _RATIO.fullmatch(_unquoted(text).rstrip(". $"))
    if match is None:
        return None
    upper, lower = match[2] or match[4], match[3] or match[5]
    sign = "-" if match[1] == "-" else ""
    return f"{sign}{int(upper)}/{int(lower)}"


def _three_digits(text: str) -> str | None:
    return _rounded(text, 3)


def _ten_digits(text: str) -> str | None:
    return _rounded(text, 10)


def _rounded(text: str, digits: int) -> str | None:
    """Read a number to the significant digits that golds have, or that are asked for."""
    value = _exact(text)
    if value is None:
        return None
    return f"{Decimal(value.numerator) / Decimal(value.denominator):.{digits - 1}e}"


def _hexadecimal(text: str) -> str | None:
    match = re.fullmatch(r"(-?)0x([0-9a-f]{1,200})", _unquoted(text).rstrip(".").lower())
    return None if match is None else match[1] + hex(int(match[2], 16))


def _complex(text: str) -> str | None:
    spaceless = "".join(_unquoted(text).rstrip(".").split()).replace("j", "i").replace("*", "")
    match = re.fullmatch(r"([-+]?[\d.]+(?![\d.]*i))?(?:([-+]?)([\d.]*)i)?", spaceless)
    if match is None or not spaceless:
        return None
    real = _exact(match[1] or "0")
    imaginary = Fraction(0)
    if spaceless.endswith("i"):
        size = _exact(match[3] or "1")
        if size is None:
            return None
        imaginary = -size if match[2] == "-" else size
    return None if real is None else f"{real},{imaginary}"


def _numbers(text: str) -> str | None:
    """Read numbers in order, with or without brackets, quotes and commas."""
    pieces = filter(None, re.split(r"[\s,;\[\](){}'\"`$]+", text.strip().rstrip(".")))
    values = [_exact(piece) for piece in pieces]
    if None in values or (not values and "[" not in text):
        return None
    return " ".join(map(str, values))


def _roots(text: str) -> str | None:
    """Read the solutions of an equation in any order, to the four places that golds have."""
    pieces = [piece for piece in re.split(r"[\s,;\[\](){}]+", text.strip().rstrip(".")) if piece]
    values = [_exact(piece) for piece in pieces]
    if not text.strip():
        return None
    rounded = [round(value, 4) for value in values if value is not None]
    return None if len(rounded) < len(values) else " ".join(map(str, sorted(rounded)))


def _items(text: str) -> str | None:
    """Read words between commas, with or without brackets and quotes."""
    pieces = [text_form(piece.strip(" []()")) for piece in text.strip().rstrip(".").split(",")]
    return ",".join(pieces) if all(pieces) else None


def _factors(text: str) -> str | None:
    """Read a product of numbers in any order."""
    pieces = re.split(r"\s*(?:×|\*|x|X|·|\\times|\\cdot)\s*", text.strip().rstrip("."))
    values = [_exact(piece) for piece in pieces]
    known = sorted(value for value in values if value is not None)
    return None if len(known) < len(values) else "*".join(map(str, known))


_CLAUSE = re.compile(r"(\w+) is (?:an? )?(\w+)")


def _clauses(text: str) -> str | None:
    """Read `A is a knight, and B is a knave` in any order."""
    pieces = re.split(r"\s*(?:,\s*and\s+|,|\band\b)\s*", text_form(text))
    clauses = [_CLAUSE.fullmatch(piece) for piece in pieces if piece]
    if not clauses or None in clauses:
        return None
    return ";".join(sorted(f"{clause[1]}={clause[2]}" for clause in clauses if clause))


_DURATION = re.compile(
    r"(?=.)(?:(-?\d{1,9}) days?)?(?:(?:(?<=day)|(?<=days))(?:, ?| )|)"
    r"(-?\d{1,4}:\d{1,2}(?::\d{1,2}(?:\.\d{1,9})?)?)?"
)


def _time(text: str) -> str | None:
    """Read a duration: `5 days`, or hours, minutes and seconds between colons."""
    match = _DURATION.fullmatch(text_form(text))
    if match is None:
        return None
    days, clock = match.groups()
    parts = [str(Fraction(part)) for part in clock.split(":")] if clock else []
    return f"{int(days or 0)} days {':'.join(parts)}"


def _grid(text: str) -> str | None:
    """Read rows of cells, also as a nested list; numbers by value, to two decimals."""
    if text.lstrip().startswith("["):
        parsed = _parsed_json(text)
        if not isinstance(parsed, list) or not all(isinstance(row, list) for row in parsed):
            return None
        rows = [[str(cell) for cell in row] for row in parsed]
    else:
        lines = text.strip().rstrip(".").splitlines()
        rows = [line.split() for line in lines if line.strip()]
    return "/".join(" ".join(map(_cell, row)) for row in rows) or None


def _cell(text: str) -> str:
    value = _exact(text)
    return text if value is None else str(round(value, 2))


def _digit_grid(text: str) -> str | None:
    """Read the digits of each row, whatever stands between them."""
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


def _json(text: str) -> str | None:
    value = _parsed_json(text)
    if value is None:
        return _number_or_words(text)
    return json.dumps(value, sort_keys=True)


def _list_in_any_order(text: str) -> str | None:
    value = _parsed_json(text)
    if not isinstance(value, list) or not all(isinstance(inner, list) for inner in value):
        return None
    return json.dumps(sorted({json.dumps(inner) for inner in value}))


def _groups_in_any_order(text: str) -> str | None:
    value = _parsed_json(text)
    if not isinstance(value, list) or not all(isinstance(inner, list) for inner in value):
        return None
    return json.dumps(sorted(sorted(map(str, inner)) for inner in value))


class _ArithmeticError(ValueError):
    """A text that is no arithmetic of integers."""


class _Arithmetic:
    """Reads sums, products and brackets of integers, and nothing else."""

    _TOKEN = re.compile(r"\s*(\d{1,12}|[-+*/()])")
    _SIGNS = str.maketrans({"×": "*", "÷": "/", "·": "*", "−": "-", "[": "(", "]": ")"})

    def __init__(self, text: str) -> None:
        text = text.translate(self._SIGNS).strip().strip("$.` ")
        self.tokens: list[str] = []
        place = 0
        while place < len(text):
            match = self._TOKEN.match(text, place)
            if match is None:
                raise _ArithmeticError
            self.tokens.append(match[1])
            place = match.end()
        self._next = 0
        self._depth = 0
        if len(self.tokens) > MAX_DIGITS:
            raise _ArithmeticError

    @property
    def numbers(self) -> list[int]:
        """The integers that are written, in order of size."""
        return sorted(int(token) for token in self.tokens if token.isdecimal())

    def value(self) -> Fraction:
        """Return the value of the whole text."""
        value = self._sum()
        if self._next < len(self.tokens):
            raise _ArithmeticError
        return value

    def _take(self, wanted: str) -> str | None:
        token = self.tokens[self._next] if self._next < len(self.tokens) else None
        if token is None or token not in wanted:
            return None
        self._next += 1
        return token

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._take("+-"):
            term = self._product()
            value = value + term if sign == "+" else value - term
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while sign := self._take("*/"):
            factor = self._factor()
            if sign == "/" and not factor:
                raise _ArithmeticError
            value = value * factor if sign == "*" else value / factor
        return value

    def _factor(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_NESTING or self._next == len(self.tokens):
            raise _ArithmeticError
        if self._take("-"):
            value = -self._factor()
        elif self._take("("):
            value = self._sum()
            if not self._take(")"):
                raise _ArithmeticError
        elif self.tokens[self._next].isdecimal():
            value = Fraction(int(self.tokens[self._next]))
            self._next += 1
        else:
            raise _ArithmeticError
        self._depth -= 1
        return value


def _has_value_of(gold: str, answer: str) -> bool:
    """Return whether an expression has the gold's numbers, each once, and its value."""
    # Some write the target behind it.
    expression = answer.split("=")[0]
    try:
        wanted, given = _Arithmetic(gold), _Arithmetic(expression)
        return given.numbers == wanted.numbers and given.value() == wanted.value()
    except _ArithmeticError:
        return False


def _is_palindrome_of(gold: str, answer: str) -> bool:
    """Return whether a word reads the same backward and has the gold's letters."""
    word = text_form(answer)
    return word == word[::-1] and sorted(word) == sorted(text_form(gold))


def _has_sums_of(gold: str, answer: str) -> bool:
    """Return whether a grid of 0 and 1 has the sums of the gold's rows and columns."""
    sums = [_kakurasu_sums(text) for text in (gold, answer)]
    return sums[0] is not None and sums[0] == sums[1]


def _kakurasu_sums(text: str) -> tuple[list[int], list[int]] | None:
    form = _grid(text)
    if form is None or re.search(r"[^01 /]", form):
        return None
    rows = [[int(cell) for cell in row.split()] for row in form.split("/")]
    if len({len(row) for row in rows}) != 1:
        return None
    columns = list(zip(*rows, strict=True))
    return [_weighted_sum(row) for row in rows], [_weighted_sum(column) for column in columns]


def _weighted_sum(cells: Sequence[int]) -> int:
    return sum(place * cell for place, cell in enumerate(cells, start=1))


def _rows(names: str, how: Form) -> dict[str, Form]:
    return dict.fromkeys(names.split(), how)


EXACT: dict[str, Form] = {
    **_rows(
        "acre bf caesar_cipher color_cube_rotation course_schedule emoji_mystery "
        "family_relationships figlet_font letter_jumble mahjong_puzzle needle_haystack "
        "sentence_reordering spell_backward string_insertion string_manipulation syllogism "
        "tsumego zebra_puzzles base_conversion",
        _words,
    ),
    **_rows("ab arc_1d path_star string_splitting string_synthesis", _tokens),
    **_rows(
        "aiw basic_arithmetic binary_alternation chain_sum circuit_logic count_bits "
        "count_primes decimal_arithmetic decimal_chain_sum dice gcd gsm_symbolic largest_island "
        "lcm leg_counting letter_counting maze number_format number_sequence products "
        "rectangle_count rotten_oranges self_reference simple_equations simple_geometry",
        _number,
    ),
    "bitwise_arithmetic": _hexadecimal,
    "calendar_arithmetic": _number_or_words,
    "coin_flip": _ten_digits,
    "complex_arithmetic": _complex,
    "fraction_simplification": _fraction,
    "power_function": _three_digits,
    **_rows(
        "advanced_geometry list_functions number_filtering number_sorting spiral_matrix", _numbers
    ),
    "polynomial_equations": _roots,
    **_rows("word_sequence_reversal word_sorting", _items),
    "prime_factorization": _factors,
    "knights_knaves": _clauses,
    "time_intervals": _time,
    **_rows(
        "arc_agi binary_matrix game_of_life manipulate_matrix modulo_grid n_queens pool_matrix "
        "rearc rotate_matrix survo",
        _grid,
    ),
    **_rows("futoshiki mini_sudoku sudoku", _digit_grid),
    "codeio": _json,
    "group_anagrams": _groups_in_any_order,
    "palindrome_partitioning": _list_in_any_order,
}
"""Tasks with one right answer, or with all right ones in `meta["accept"]`."""

CHECKED: dict[str, Check] = {
    "countdown": _has_value_of,
    "puzzle24": _has_value_of,
    "palindrome_generation": _is_palindrome_of,
    "kakurasu": _has_sums_of,
}
"""Tasks with several right answers that the gold answer is enough to check."""

VERIFIED: dict[str, str] = {
    "cryptarithm": r"[A-Z]\s*=\s*\d(?:\s*,\s*[A-Z]\s*=\s*\d)*",
    "jugs": r"\[[\sA-Za-z\->\",]*\]",
    "quantum_lock": r"[A-Ca-c](?:\s*(?:→|->|,)?\s*[A-Ca-c])*",
    "shortest_path": r"(?:up|down|left|right)(?:\s+(?:up|down|left|right))*|infeasible",
    "sokoban": r"[LRUD]+",
    "tower_of_hanoi": r"(?:Move disk \d+ from Peg \d+ to Peg \d+\s*)+",
    "word_ladder": r"[A-Za-z]+(?:,[A-Za-z]+)*",
}
"""Tasks left to the library's verifier, and what an answer may look like."""

JUDGED = frozenset((*EXACT, *CHECKED, *VERIFIED))
"""Tasks that are offered."""

_opened: set[str] = set()


def _made_with(task: Mapping[str, object]) -> str:
    how = {name: task.get(name) for name in ("task", "config", "seed", "size")}
    return json.dumps(how, sort_keys=True, default=str)


def open_task(task: Mapping[str, object]) -> None:
    """Let questions of a task be judged by its verifier in this process.

    Args:
        task: `task`, `config`, `seed` and `size`, as the run's own data has them.
    """
    _opened.add(_made_with(task))


def task_name(question: Question) -> str | None:
    """Return the name of the task that a question is of, None where it is of none."""
    task = question.meta.get(TASK)
    name = task.get("task") if isinstance(task, Mapping) else None
    return name if isinstance(name, str) else None


def puzzle_form(question: Question, text: str) -> str | None:
    """Return what an answer says, by which answers to the question are one class."""
    if len(text) > MAX_CHARS:
        return None
    name = task_name(question) or ""
    form = EXACT.get(name, _tokens)(text)
    # The brackets keep what stands at the ends.
    return None if form is None else f"<{name} {form}>"


Judgment = Literal["right", "wrong", "unparsable", "gold_unparsable"] | TaskJob
"""A verdict, or what is left to a worker."""


def judge_puzzle(question: Question, golds: list[str], text: str) -> Judgment:
    """Judge an answer to a question of reasoning-gym by the table above.

    `gold_unparsable` where the task is unknown, or needs a verifier in a process that has not
    opened the task.

    Args:
        question: With `meta["reasoning_gym"]`.
        golds: The answers that are right, the question's own first.
        text: The answer.
    """
    name = task_name(question) or ""
    if len(text) > MAX_CHARS:
        return "unparsable"
    if name in EXACT:
        form = puzzle_form(question, text)
        known = {puzzle_form(question, gold) for gold in golds}
        if known == {None}:
            return "gold_unparsable"
        if form is None:
            return "unparsable"
        return "right" if form in known else "wrong"
    if name in CHECKED:
        return "right" if CHECKED[name](golds[0], text) else "wrong"
    task = question.meta.get(TASK)
    if name not in VERIFIED or not isinstance(task, Mapping) or _made_with(task) not in _opened:
        return "gold_unparsable"
    if text.strip() == golds[0].strip():
        return "right"
    plain = text.strip(" \n\t.`'")
    if not re.fullmatch(VERIFIED[name], plain):
        return "unparsable"
    # The text is the question; which of several right answers is its own differs by process.
    return TaskJob(json.dumps({**task, "question": question.text}, sort_keys=True))


def plain_answer(text: str) -> str:
    """Return an answer as a verifier is given it: without a final full stop or quotes."""
    return text.strip(" \n\t.`'")
