"""A response's own final answer, and the form in which answers of each kind are compared."""

import functools
import itertools
import re
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from string import ascii_uppercase
from typing import Literal, NamedTuple

from debate_protocol.parsing import answer_line, final_box, parse
from debate_protocol.types import Question

# Longer answers are only compared as text.
MAX_MATH_CHARS = 4096

_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "⁄": "/"}
    | {"∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "π": r"\pi ", "θ": r"\theta ", "√": r"\sqrt "}
    | {"°": r"^\circ ", "±": r"\pm ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx "}
    | {"∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "²": "^2 ", "³": "^3 ", "¢": " cents"}
    | {"½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}"}
    | {"⅔": r"\frac{2}{3}", "€": "", "£": "", "¥": "", "₹": "", "\u00a0": " ", "\u202f": " "}
)
_FONTS = (
    "text|mbox|textbf|textit|textrm|textnormal|emph|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|"
    "operatorname"
)
_WRAPPERS = re.compile(r"\\(?:boxed|fbox|underline|boldsymbol|bm)\s*+\{|\\.|[{}]", re.DOTALL)
FONT = re.compile(rf"\\(?:{_FONTS})\s*+\{{([^{{}}]*)\}}")
_DELIMITERS = re.compile(r"\\\\(?:\s*+\[-?[\d.]+\s*+[a-z]{2}\])?|\\[()\[\]]")
_SILENT = re.compile(
    r"\\(?:left|right)\s*+\.|"
    r"\\(?:left|right|[bB]igg?[lr]?|displaystyle|textstyle|limits)(?![a-zA-Z])"
)
_WIDE = re.compile(
    r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![a-zA-Z])|\\(?:thin|en|med|thick)space(?![a-zA-Z])"
)
_GROUPS = re.compile(r"(?<=\d)(?:\{,\}|,\\!\s*+|\\[,;: ]|~)(?=\d{3}(?!\d))")
COMMAS = re.compile(r"(?<![\d,.])\d{1,3}(?:,\d{3})+(?![\d,])")
_SPACED = re.compile(r"[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_SHORT = r"(\d|\\[a-zA-Z]++(?!\s*[{\[]))"
_LIST = re.compile(r",\s*")
_TIGHT = re.compile(r"\s*([-+*/^_=<>()\[\]{}|])\s*|(?<=\d)\s+(?=[a-zA-Z])|\s+(?=\\)")

_UNIT_WORDS = (
    "degrees? dollars? cents? units? radians? points? people ways times "
    "inch(?:es)? in ft feet foot yards? yd miles? mm cm km meters? metres? mg kg grams? lbs? "
    "pounds? oz ounces? liters? litres? gallons? mph hours? hrs? minutes? mins? seconds? secs? "
    "days? weeks? months? years?"
).replace(" ", "|")
_POWER = r"\s*(?:\^\s*(?:\d|\{-?\d\}))?"
_UNIT = re.compile(
    rf"(?<=[\d}})])\s*(?:(?:square|cubic|sq\.?|cu\.?)\s*)?(?:{_UNIT_WORDS}){_POWER}\.?$", re.I
)
_TEXT_UNIT = re.compile(rf"(?<=[^\s{{(\[,=])\s*/?\s*\\text\{{((?:[^{{}}\d,;]|\^\d)*)\}}{_POWER}$")
_QUANTITY = re.compile(r"\d|\\(?:pi|sqrt)(?![a-zA-Z])")
_COUNTED = re.compile(r"([-+]?\d[\d.,]*)((?:\s+[A-Za-z]{3,})+)")
_NO_UNITS = frozenset(("and", "or", "if", "for", "not", "when", "half", "percent", "dozen"))
_NO_UNITS |= {"plus", "minus", "times", "over"}
_DEGREE = r"\^\s*+(?:\{\s*+\\circ\s*+\}|\\circ(?![a-zA-Z]))"
_DEGREE_ONLY = re.compile(_DEGREE)
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(rf"(?<=\d)\s*(?:\\text\{{\s*)?({'|'.join(_SCALES)})\s*\}}?$", re.IGNORECASE)
_MEMBER = re.compile(r"[a-zA-Z]\s*\\in(?![a-zA-Z])\s*|\\\{\s*[a-zA-Z]\s*(?:\\mid|:|\|)")


def spelling(text: str) -> str:
    """Return the one spelling of a mathematical answer; empty when nothing is left."""
    if len(text) > MAX_MATH_CHARS:
        return " ".join(text.split())
    text = text.translate(_SIGNS).strip().strip("`")
    while len(text) > 4 and text.startswith("**") and text.endswith("**"):
        text = text[2:-2].strip()
    if "\\begin" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)
    text = _DELIMITERS.sub(lambda found: r"\\" if found[0].startswith(r"\\") else "", text)
    text = re.sub(r"\\text\s*\{\s*\\\$\s*\}|\\?\$", "", text)
    text = _SILENT.sub("", _unwrapped(text))
    text = _GROUPS.sub("", text).replace("\\!", "")
    text = FONT.sub(_plain_font, FONT.sub(_plain_font, _WIDE.sub(" ", text)))
    for rewrite in (_commands, _matrices, _without_ends, _without_units):
        text = rewrite(text)
    text = _tight(text)
    if not any(bracket in text for bracket in "([{"):
        text = COMMAS.sub(lambda found: found[0].replace(",", ""), text)
    return text.replace(" ", "") if _SPACED.fullmatch(text) else text


def _plain_font(found: re.Match[str]) -> str:
    """Words stay text; numbers and single letters need no font."""
    inner = found[1]
    bare = inner.strip()
    if not bare.strip("."):
        return " "
    if _DEGREE_ONLY.fullmatch(bare):
        return bare
    if bare[0].isdigit() or not any(c.isalpha() for c in bare):
        return inner
    if len(bare) == 1 and "text" not in found[0]:
        return inner
    return f"\\text{{{inner}}}"


def _commands(text: str) -> str:
    text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text)
    text = re.sub(rf"\\frac\s*+{_SHORT}\s*+{_SHORT}", r"\\frac{\1}{\2}", text)
    text = re.sub(rf"\\frac\s*+{_SHORT}\s*+(?=\{{)", r"\\frac{\1}", text)
    text = re.sub(rf"(\\frac\s*+\{{[^{{}}]*+\}})\s*+{_SHORT}", r"\1{\2}", text)
    text = re.sub(r"\\sqrt\s*+(\d++)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\(le|ge)(?:q|qslant)(?![a-zA-Z])", r"\\\1", text)
    text = re.sub(r"\\neq(?![a-zA-Z])", r"\\ne", text).replace("\\varnothing", "\\emptyset")
    text = re.sub(r"([_^])\s*+(\d)\s++(?=\d)", r"\1{\2}", text)
    text = re.sub(r"\\([lg])t(?![a-zA-Z])", lambda found: "<>"[found[1] == "g"], text)
    text = re.sub(rf"{_DEGREE}|\\degrees?(?![a-zA-Z])", r"^\\circ ", text)
    return re.sub(r"(?<!\\)%", r"\\%", text)


def _matrices(text: str) -> str:
    if "\\begin" not in text:
        return text
    text = re.sub(
        r"[(\[]\s*+\\begin\{(?:matrix|array)\}(?:\{[lcr| ]*\})?", r"\\begin{pmatrix}", text
    )
    text = re.sub(r"\\end\{(?:matrix|array)\}\s*+[)\]]", r"\\end{pmatrix}", text)
    text = re.sub(r"\\(begin|end)\{(?:bmatrix|smallmatrix)\}", r"\\\1{pmatrix}", text)
    return re.sub(r"\\\\\s*+(?=\\end)", "", text)


def _without_ends(text: str) -> str:
    r"""Drop what stands around: outer braces, `x \in`, `=`, `\approx`, punctuation."""
    text = text.strip()
    while text.endswith(("\\\\", ".", ",", ";", ":")):
        text = text.removesuffix("\\\\").rstrip(".,;: ")
    if text.startswith("{") and _closing(text) == len(text) - 1:
        text = text[1:-1].strip()
    if found := _MEMBER.match(text):
        is_builder = found[0].startswith("\\{")
        text = text[found.end() :].removesuffix("\\}") if is_builder else text[found.end() :]
    left, approx, right = text.partition("\\approx")
    if approx:
        text = left.strip() or right
    return text.strip().removeprefix("=").strip()


def _without_units(text: str) -> str:
    for _ in range(3):
        found = _TEXT_UNIT.search(text)
        if found and _is_unit(found[1]) and _QUANTITY.search(text, 0, found.start()):
            text = text[: found.start()]
    text = _SCALE.sub(lambda found: f"\\cdot 10^{{{_SCALES[found[1].casefold()]}}}", text)
    text = _UNIT.sub("", text).rstrip()
    counted = _COUNTED.fullmatch(text)
    text = counted[1] if counted and _is_unit(counted[2]) else text
    return re.sub(r"(?<=[\d})])\s*\^\\circ(?:\s*[CF])?\s*$", "", text)


def _is_unit(words: str) -> bool:
    return not any(word in _NO_UNITS or word in _SCALES for word in words.casefold().split())


def _tight(text: str) -> str:
    """Drop spaces that mean nothing; one stays between numbers and after a comma."""
    text = _TIGHT.sub(lambda found: found[1] or "", " ".join(text.split()))
    return _LIST.sub(lambda found: ", " if len(found[0]) > 1 else ",", text).strip()


def _unwrapped(text: str) -> str:
    r"""Remove `\boxed{…}` and its like around parts, keeping what they hold."""
    if not re.search(r"\\(?:boxed|fbox|underline|boldsymbol|bm)\s*+\{", text):
        return text
    cut: list[tuple[int, int]] = []
    stack: list[tuple[int, int] | None] = []
    for found in _WRAPPERS.finditer(text):
        if len(found[0]) > 2:
            stack.append(found.span())
        elif found[0] == "{":
            stack.append(None)
        elif found[0] == "}" and stack and (opened := stack.pop()) is not None:
            cut += [opened, found.span()]
    kept, start = [], 0
    for first, last in sorted(cut):
        kept.append(text[start:first])
        start = last
    return "".join(kept) + text[start:]


def _closing(text: str) -> int:
    """Return where the brace that opens the text is closed, -1 if nowhere."""
    depth = 0
    for found in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(found[0], 0)
        if depth == 0 and found[0] == "}":
            return found.start()
    return -1


_DECIMAL = r"(?:\d+(?:\.\d*)?|\.\d+)"
_PLAIN = re.compile(
    rf"(?P<sign>[-+]?)(?:(?P<whole>\d+)\s*?(?:\\frac\{{(?P<up>\d+)\}}\{{(?P<low>\d+)\}}"
    rf"|\s(?P<up2>\d+)\s*/\s*(?P<low2>\d+))"
    rf"|\\frac\{{(?P<minus>-?)(?P<num>{_DECIMAL})\}}\{{(?P<den>{_DECIMAL})\}}"
    rf"|(?P<n>{_DECIMAL})(?:[eE](?P<exp>[-+]?\d{{1,3}})|\s*/\s*(?P<d>\d+))?"
    r"|(?P<before>\d*)\.(?P<fixed>\d*)\\(?:overline|bar|dot)\{(?P<repeat>\d+)\})"
)
_BASED = re.compile(r"\(?([0-9A-Za-z]+)\)?_\{?\(?(?:\\text\{)?(\w+)\}?\)?\}?")
_BASE_NAMES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}
_BASE_NAMES |= {"nine": 9, "ten": 10, "eleven": 11, "twelve": 12, "sixteen": 16}
_WORDS = re.compile(r"[A-Za-z][A-Za-z .'’-]*")


class Number(NamedTuple):
    """An exact value, and whether it was written as a decimal and so may be rounded."""

    value: Fraction
    decimal: bool


@functools.lru_cache(maxsize=4096)
def read_number(text: str) -> Number | None:
    r"""Return a plain number such as `-1,234.5`, `3/4`, `1 1/2`, `6e-5` or `\frac{3}{4}` exactly.

    None for anything else, also for a percentage.
    """
    text = text.strip().replace("−", "-")
    if len(text) > 200:
        return None
    found = _PLAIN.fullmatch(text.replace(",", "") if COMMAS.search(text) else text)
    if found is None:
        return None
    part = found.groupdict()
    try:
        value = _fraction(part)
    except ZeroDivisionError:
        return None
    sign = -1 if "-" in (part["sign"], part["minus"]) and part["sign"] != part["minus"] else 1
    return Number(sign * value, "." in (part["n"] or "") or bool(part["exp"]))


def compare_text(gold: str, given: str) -> bool | None:
    """Return whether two spellings are the same answer where their text decides it, else None.

    A decimal may be rounded: it equals what agrees with it to six decimals and four digits.
    """
    left, right = read_number(gold), read_number(given)
    if left and right:
        return _close(left, right)
    for decide in (_compare_bases, _compare_letters, _compare_words):
        known = decide(gold, given)
        if known is not None:
            return known
    return None


def words(text: str) -> str:
    r"""Return text that stands in `\text{…}` or bare, without that and in lower case."""
    return " ".join(FONT.sub(r" \1 ", text).split()).strip("()., ").casefold()


def _fraction(part: dict[str, str | None]) -> Fraction:
    if part["repeat"]:
        fixed, repeat = part["fixed"] or "", part["repeat"]
        whole = int((part["before"] or "0") + fixed)
        cycle = Fraction(int(repeat), 10 ** len(repeat) - 1)
        return (whole + cycle) / Fraction(10 ** len(fixed))
    if part["whole"]:
        up, low = part["up"] or part["up2"] or "0", part["low"] or part["low2"] or "1"
        return int(part["whole"]) + Fraction(int(up), int(low))
    if part["num"]:
        return Fraction(Decimal(part["num"])) / Fraction(Decimal(part["den"] or "1"))
    value = Fraction(Decimal(part["n"] or "0")) / int(part["d"] or 1)
    power = int(part["exp"] or 0)
    scale = Fraction(10 ** abs(power))
    return value * scale if power >= 0 else value / scale


def _close(left: Number, right: Number) -> bool:
    if left.value == right.value or not (left.decimal or right.decimal):
        return left.value == right.value
    apart = abs(left.value - right.value)
    return apart <= Fraction(5, 10**7) and apart <= max(map(abs, (left.value, right.value))) / 10**4


def _compare_bases(gold: str, given: str) -> bool | None:
    """Take a base that only one of them names for the base of the question."""
    left, right = _digits_and_base(gold), _digits_and_base(given)
    if left is None or right is None or left[1] == right[1] == 0:
        return None
    return left[0] == right[0] and (left[1] == right[1] or 0 in (left[1], right[1]))


def _digits_and_base(text: str) -> tuple[str, int] | None:
    if text.isdecimal():
        return text.lstrip("0"), 0
    found = _BASED.fullmatch(text)
    if found is None:
        return None
    digits, named = found[1].upper(), found[2]
    base = int(named) if named.isdecimal() and len(named) < 3 else _BASE_NAMES.get(named.lower(), 0)
    if not 2 <= base <= 36 or not all(int(digit, 36) < base for digit in digits):
        # A letter with an index is a variable; a number with one that is no base is only itself.
        return (text, -1) if digits.isdecimal() else None
    return digits.lstrip("0"), base


def _compare_letters(gold: str, given: str) -> bool | None:
    r"""Single letters: `\text{(C)}`, `(c)` and `C. 5` are the choice C; bare ones are variables."""
    if len(gold) == len(given) == 1 and gold.isalpha() and given.isalpha():
        return gold == given
    choice = re.fullmatch(r"\\text\{\s*\(?([A-Za-z])\)?\.?\s*\}|\(([A-Z])\)", gold)
    if choice is None:
        return None
    letter = (choice[1] or choice[2]).casefold()
    if words(given) == letter:
        return True
    leading = re.match(r"(?:\\text\{)?\s*(?:\(([A-Za-z])\)|([A-Z])[.:)])", given)
    return bool(leading and (leading[1] or leading[2]).casefold() == letter)


def _compare_words(gold: str, given: str) -> bool | None:
    """Words are compared as text when at least one side is marked as text."""
    left, right = words(gold), words(given)
    if not (_WORDS.fullmatch(left) and _WORDS.fullmatch(right)):
        return None
    marked = gold.startswith("\\text{") or given.startswith("\\text{")
    if left == right:
        return True if len(left) > 3 or (marked and len(left) > 1) else None
    return False if marked and max(len(left), len(right)) > 2 else None


Kind = Literal["math", "choice", "yes_no", "number", "text"]
KINDS: tuple[Kind, ...] = ("math", "choice", "yes_no", "number", "text")

_SOLUTION = re.compile(r"<\s*solution\s*>", re.IGNORECASE)
_ANSWER_IS = re.compile(r"\b(?:answer|result)\s++is\b:?", re.IGNORECASE)
_MAX_UNMARKED_CHARS = 4096
_MAX_FOLDED_CHARS = 4096
_THINKING_ENDS = re.compile(r"</\s*think\s*>", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:\s*+/\s*+\d+)?")
_LETTER = re.compile(r"(?<![A-Za-z'’])\(?([A-Za-z])\)?(?![A-Za-z'’])")
_YES_NO = re.compile(r"\b(yes|no|true|false)\b", re.IGNORECASE)
_FORMULA = re.compile(r"\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]")
_TEXT_COMMAND = re.compile(r"\\(?:text|textbf|mathrm|mathbf|textit)\s*\{([^{}]*)\}")


class FinalAnswer(NamedTuple):
    """The answer's text, and whether the response marked it as its answer."""

    text: str
    marked: bool


def final_answer(response: str, kind: Kind) -> FinalAnswer | None:
    r"""Return a response's own final answer, or None when there is none.

    Read are the solution section when there are sections, and what follows the thinking when it
    has an end. There, the later of the last `\boxed{…}` and the last line `Answer: …` counts, else
    (except for free text) what follows `####` or `the answer is`; without any mark it is the last
    line, or for free text all of it. So no earlier box, quoted or not, matters.
    """
    text: str | None = response
    if _SOLUTION.search(response):
        text = parse(response, "three_section").answer
    text = _after_thinking(text or "")
    if not text.strip():
        return None
    place = _marked_place(text)
    if place is not None:
        inner = text[place[0] : place[1]]
        if not inner:
            return None
        is_box = text[: place[0]].rstrip().endswith("{")
        return FinalAnswer(inner, True) if is_box else _stated(inner, kind)
    if kind == "text":
        return FinalAnswer(text.strip(), False)
    lines = text.strip().splitlines()
    stated = _after_hashes(lines) or _after_answer_is(lines)
    if stated:
        return _stated(stated, kind)
    return FinalAnswer(lines[-1].strip()[-_MAX_UNMARKED_CHARS:], False)


def _stated(text: str, kind: Kind) -> FinalAnswer:
    """Return what a line states; a sentence around one formula or number is read for that."""
    marked = True
    if kind == "math" and len(text) <= _MAX_UNMARKED_CHARS and not _is_expression(text):
        marked = len(_FORMULA.findall(text) or _NUMBER.findall(text)) != 1
    return FinalAnswer(text, marked)


def _after_thinking(text: str) -> str:
    ends = [found.end() for found in _THINKING_ENDS.finditer(text)]
    after = text[ends[-1] :] if ends else ""
    return after if after.strip() else text


def _marked_place(text: str) -> tuple[int, int] | None:
    box, line = final_box(text), answer_line(text)
    if line is None or line[0] == line[1] or (box is not None and box[1] > line[0]):
        return box
    return line


def _after_hashes(lines: Sequence[str]) -> str | None:
    marked = [line.strip()[4:].strip() for line in lines if line.lstrip().startswith("####")]
    return marked[-1] if marked else None


def _after_answer_is(lines: Sequence[str]) -> str | None:
    for line in reversed(lines):
        places = list(_ANSWER_IS.finditer(line))
        if places:
            return line[places[-1].end() :].strip().removesuffix(".").strip()
    return None


def canonical(question: Question, kind: Kind, answer: FinalAnswer) -> str | None:
    """Return the form in which answers are equal as text, None when the answer cannot be read.

    For `math` it is the expression to compare; equal forms are equal answers but unequal forms
    may be equal answers too.
    """
    if kind == "math":
        return math_form(answer)
    if kind == "choice":
        return choice_form(answer, question.meta.get("choices"))
    if kind == "yes_no":
        return yes_no_form(answer)
    if kind == "number":
        value = number_value(answer)
        return None if value is None else str(value)
    return text_form(answer.text) or None


def text_form(text: str) -> str:
    """Return the text without differences of case, white space, quotes and final full stops.

    Braces may be escaped, as they must be inside of a box that they do not balance.
    Compatible characters such as `ﬁ` and `fi` count as one (NFKC) in texts of at most 4,096
    characters: sorting a run of combining marks takes time that grows with its square.
    """
    plain = _TEXT_COMMAND.sub(r"\1", text).replace("\\{", "{").replace("\\}", "}")
    if len(plain) <= _MAX_FOLDED_CHARS:
        plain = unicodedata.normalize("NFKC", plain)
    return " ".join(plain.casefold().split()).strip("\"'`.“”‘’ ")


def yes_no_form(answer: FinalAnswer) -> str | None:
    """Return `yes` or `no`: what the answer begins with, else the last such word in it."""
    words = _YES_NO.findall(answer.text)
    if not words:
        return None
    leading = re.match(r"\W*(yes|no|true|false)\b", answer.text, re.IGNORECASE)
    word = (leading[1] if leading else words[-1]).lower()
    return "yes" if word in ("yes", "true") else "no"


def choice_form(answer: FinalAnswer, choices: object) -> str | None:
    """Return the chosen label; an answer that repeats a choice's text has its label."""
    texts = _choice_texts(choices)
    whole = text_form(answer.text)
    for letter, text in texts.items():
        if whole == text_form(text):
            return letter
    text = _TEXT_COMMAND.sub(r"\1", answer.text)
    bare = text.strip(" ().:[]").upper()
    if bare in texts:
        return bare  # A label may be no letter: 1, 2, 3, 4.
    allowed = {letter.upper() for letter in texts} or set("ABCDEFGHIJ")
    leading = re.match(r"\W*([A-Za-z])(?![A-Za-z'’])", text)
    # "A" and "I" are words too, so a letter inside a sentence must be a capital.
    letters = [leading[1].upper()] if leading and _is_option(leading, text) else []
    letters += [found.upper() for found in _LETTER.findall(text) if found.isupper()][::-1]
    return next((letter for letter in letters if letter in allowed), None)


def _is_option(match: re.Match[str], text: str) -> bool:
    rest = text[match.end() :].strip()
    return not rest or not rest[0].isalnum()


def _choice_texts(choices: object) -> dict[str, str]:
    if isinstance(choices, Mapping):
        return {str(letter).upper(): str(text) for letter, text in choices.items()}
    if isinstance(choices, Sequence) and not isinstance(choices, str):
        letters = itertools.chain(ascii_uppercase, map(str, itertools.count(27)))
        return {letter: str(text) for letter, text in zip(letters, choices, strict=False)}
    return {}


def number_value(answer: FinalAnswer) -> Fraction | None:
    """Return the number that the answer states, with thousands separators and fractions read.

    In a marked answer this is the first number after the last `=`, otherwise the last one.
    """
    text = answer.text.rsplit("=", 1)[-1] if answer.marked else answer.text
    text = spelling(text[:_MAX_UNMARKED_CHARS])
    whole = read_number(text)
    if whole is not None:
        return whole.value
    text = re.sub(r"\\frac\{(-?\d+)\}\{(\d+)\}", r"\1/\2", text).replace("\\", " ")
    found = _NUMBER.findall(text)
    number = read_number(found[0] if answer.marked else found[-1]) if found else None
    return None if number is None else number.value


def math_form(answer: FinalAnswer) -> str | None:
    """Return the expression of a mathematical answer in one spelling, None when there is none."""
    text = answer.text.strip()
    if not answer.marked and not _is_expression(text):
        formulas = _FORMULA.findall(text)
        if not formulas:
            value = number_value(answer)
            return None if value is None else str(value)
        text = "".join(formulas[-1])
    return spelling(text) or None


def _is_expression(text: str) -> bool:
    """Return whether a text without a mark is a formula rather than a sentence."""
    bare = re.sub(r"\\[a-zA-Z]+(?:\s*\{[a-zA-Z\s]*\})?", " ", text)
    bare = re.sub(r"(?i)\b(?:sin|cos|tan|log|sqrt|exp)\b", " ", bare)
    return not re.search(r"[A-Za-z]{3,}", bare) and len(re.findall(r"[A-Za-z]{2,}", bare)) < 2
