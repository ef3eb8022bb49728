r"""One spelling of a mathematical answer: the same text for answers of the same meaning.

Fonts, sizes, spaces, signs such as `½`, thousands separators, wrappers and units go; `\dfrac`,
`\frac12` and `\frac{1}{2}` become one. Each rewrite takes time linear in the text, of at most
`MAX_MATH_CHARS` characters.
"""

import re

MAX_MATH_CHARS = 4096
"""Longer answers are compared as text only."""
_MAX_TEXT_UNITS = 3
"""Most units in text commands to be dropped in a row: `5\\text{ kg}\\text{ m}`."""

# Signs as LaTeX writes them; those without a meaning for the value are dropped.
_SIGNS = str.maketrans(
    {
        "−": "-",
        "–": "-",
        "×": r"\times ",
        "·": r"\cdot ",
        "⋅": r"\cdot ",
        "÷": "/",
        "⁄": "/",
        "∞": r"\infty ",
        "∪": r"\cup ",
        "∩": r"\cap ",
        "π": r"\pi ",
        "θ": r"\theta ",
        "√": r"\sqrt ",
        "°": r"^\circ ",
        "±": r"\pm ",
        "≤": r"\le ",
        "≥": r"\ge ",
        "≠": r"\ne ",
        "≈": r"\approx ",
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "ℝ": r"\mathbb{R}",
        "∠": r"\angle ",
        "²": "^2 ",
        "³": "^3 ",
        "¢": " cents",
        "½": r"\frac{1}{2}",
        "¼": r"\frac{1}{4}",
        "¾": r"\frac{3}{4}",
        "⅓": r"\frac{1}{3}",
        "⅔": r"\frac{2}{3}",
        "⟨": r"\langle ",
        "⟩": r"\rangle ",
        "€": "",
        "£": "",
        "¥": "",
        "₹": "",
        "\u00a0": " ",
        "\u202f": " ",
    }
)
_FONTS = (
    "text|mbox|textbf|textit|textrm|textnormal|emph|mathrm|mathbf|mathit|mathsf|boldsymbol|bm|"
    "operatorname"
)
_WRAPPER_COMMAND = re.compile(r"\\(?:boxed|fbox|underline|boldsymbol|bm)\s*+\{")
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
_PERCENT = re.compile(r"(?<=[\d})])\s*+(?:\\text\{\s*+)?per ?cent\b\s*+\}?\.?$", re.IGNORECASE)
_LABEL_BEFORE = re.compile(
    r"\\text\{\s*\([A-E]\)\s*\}\s*(?=[^\s.])|^\([A-E]\)\s+(?=[-\d.]|\\frac|\\sqrt)"
)
_SCALED_UNIT = re.compile(
    r"(?<=\d)\s*\\text\{\s*(hundred|thousand|million|billion|trillion)\s+[a-zA-Z]+\s*\}$", re.I
)
_NAME_ALONE = re.compile(r"\\?[a-zA-Z]+(?:\([a-zA-Z\d]*\))?=?")
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
_NO_UNITS |= {
    "tops",
    "max",
    "maximum",
    "minimum",
    "plus",
    "minus",
    "times",
    "over",
    "squared",
    "cubed",
    "factorial",
}
_DEGREE = r"\^\s*+(?:\{\s*+\\circ\s*+\}|\\circ(?![a-zA-Z]))"
_DEGREE_ONLY = re.compile(_DEGREE)
_ANGLE_FUNCTION = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)(?![a-zA-Z])(?!\s*\^\s*\{?\s*-)")
_NUMBER_OF_DEGREES = re.compile(r"(\d+(?:\.\d+)?)\s*\^\\circ(?![a-zA-Z])")
_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SCALE = re.compile(rf"(?<=\d)\s*(?:\\text\{{\s*)?({'|'.join(_SCALES)})\s*\}}?$", re.IGNORECASE)
_MEMBER = re.compile(r"[a-zA-Z]\s*\\in(?![a-zA-Z])\s*|\\\{\s*[a-zA-Z]\s*(?:\\mid|:|\|)")


# Each rewrite of `_canonical_commands`, in order.
_COMMAND_REWRITES = (
    # Fractions with and without braces.
    (re.compile(r"\\[dtc]frac(?![a-zA-Z])"), r"\\frac"),
    (re.compile(rf"\\frac\s*+{_SHORT}\s*+{_SHORT}"), r"\\frac{\1}{\2}"),
    (re.compile(rf"\\frac\s*+{_SHORT}\s*+(?=\{{)"), r"\\frac{\1}"),
    (re.compile(rf"(\\frac\s*+\{{[^{{}}]*+\}})\s*+{_SHORT}"), r"\1{\2}"),
    # Powers, roots and names as programs write them.
    (re.compile(r"(?<=[\w)}])\s*+\*\*\s*+(?=[\w({\\-])"), "^"),
    (re.compile(r"(?<![\\a-zA-Z])(pi|sqrt|exp|sin|cos|tan|log|ln)(?![a-zA-Z])"), r"\\\1 "),
    (re.compile(r"\\sqrt\s*+\(([^()]*+)\)"), r"\\sqrt{\1}"),
    (re.compile(r"\\exp\s*+\(([^()]*+)\)"), r"e^{\1}"),
    (re.compile(r"\\sqrt\s*+(\d++)"), r"\\sqrt{\1}"),
    # Commands with several names.
    (re.compile(r"\\(le|ge)(?:q|qslant)(?![a-zA-Z])"), r"\\\1"),
    (re.compile(r"\\langle(?![a-zA-Z])"), "("),
    (re.compile(r"\\rangle(?![a-zA-Z])"), ")"),
    (re.compile(r"\\neq(?![a-zA-Z])"), r"\\ne"),
    (re.compile(r"\\varnothing"), r"\\emptyset"),
    (re.compile(r"([_^])\s*+(\d)\s++(?=\d)"), r"\1{\2}"),
    (re.compile(r"\\lt(?![a-zA-Z])"), "<"),
    (re.compile(r"\\gt(?![a-zA-Z])"), ">"),
    (re.compile(rf"{_DEGREE}|\\degrees?(?![a-zA-Z])"), r"^\\circ "),
    (re.compile(r"(?<!\\)%"), r"\\%"),
)
_MATRIX_REWRITES = (
    (
        re.compile(r"[(\[]\s*+\\begin\{(?:matrix|array)\}(?:\{[lcr| ]*\})?"),
        r"\\begin{pmatrix}",
    ),
    (re.compile(r"\\end\{(?:matrix|array)\}\s*+[)\]]"), r"\\end{pmatrix}"),
    (re.compile(r"\\(begin|end)\{(?:bmatrix|smallmatrix)\}"), r"\\\1{pmatrix}"),
    (re.compile(r"\\\\\s*+(?=\\end)"), ""),
)


def spelling(text: str) -> str:
    """Rewrite a mathematical answer in the common spelling of its equals."""
    if len(text) > MAX_MATH_CHARS:
        return " ".join(text.split())
    text = text.translate(_SIGNS).strip().strip("`")
    while len(text) > 4 and text.startswith("**") and text.endswith("**"):
        text = text[2:-2].strip()

    # Two backslashes before a letter are a backslash that JSON escaped, except in a matrix, where
    # they end a row.
    if "\\begin" not in text:
        text = re.sub(r"\\\\(?=[a-zA-Z])", r"\\", text)
    text = _DELIMITERS.sub(lambda match: r"\\" if match[0].startswith(r"\\") else "", text)
    text = re.sub(r"\\text\s*\{\s*\\\$\s*\}|\\?\$", "", text)
    text = _SILENT.sub("", _unwrapped(text))
    text = _GROUPS.sub("", text).replace("\\!", "")
    text = _WIDE.sub(" ", text)
    # Twice, for a font inside of a font.
    text = FONT.sub(_plain_font, FONT.sub(_plain_font, text))

    text = _canonical_commands(text)
    text = _without_ends(text)
    text = without_units(text)
    text = _without_spaces(text)
    # Between brackets a comma separates elements, also before three digits.
    if not any(bracket in text for bracket in "([{"):
        text = COMMAS.sub(lambda match: match[0].replace(",", ""), text)
    return text.replace(" ", "") if _SPACED.fullmatch(text) else text


def _plain_font(match: re.Match[str]) -> str:
    # Words stay text; numbers and single letters need no font.
    content = match[1]
    bare = content.strip()
    if not bare.strip("."):
        return " "
    if _DEGREE_ONLY.fullmatch(bare):
        return bare
    has_letter = any(character.isalpha() for character in bare)
    if bare[0].isdigit() or not has_letter:
        return content
    is_symbol = len(bare) == 1 and "text" not in match[0]
    return content if is_symbol else f"\\text{{{content}}}"


def _canonical_commands(text: str) -> str:
    for pattern, replacement in _COMMAND_REWRITES:
        text = pattern.sub(replacement, text)
    if "\\begin" in text:
        for pattern, replacement in _MATRIX_REWRITES:
            text = pattern.sub(replacement, text)
    return text


def _without_group(text: str) -> str:
    """Drop braces around a whole text, which group it in LaTeX."""
    if text.startswith("{") and _closing_brace(text) == len(text) - 1:
        return text[1:-1].strip()
    return text


def _without_ends(text: str) -> str:
    r"""Drop a label before the answer, outer braces, `x \in`, `=`, `\approx` and punctuation."""
    text = _LABEL_BEFORE.sub("", text.strip())
    while text.endswith(("\\\\", ".", ",", ";", ":")):
        text = text.removesuffix("\\\\").rstrip(".,;: ")
    text = _without_group(text)  # Once around the membership, once around what x is in.
    membership = _MEMBER.match(text)
    if membership is not None:
        text = text[membership.end() :]
        is_set_builder = membership[0].startswith("\\{")
        if is_set_builder:
            text = text.removesuffix("\\}")
    text = _without_group(text)

    # `x \approx 3.14` says 3.14, `\sqrt{2} \approx 1.41` the exact value.
    left, approx, right = text.partition("\\approx")
    if approx:
        has_only_name = not left.strip() or _NAME_ALONE.fullmatch(left.strip())
        text = right if has_only_name else left.strip()
    return text.strip().removeprefix("=").strip()


def without_units(text: str) -> str:
    """Drop the unit at the end of a number, and write `million` and `percent` as mathematics."""
    if _ANGLE_FUNCTION.search(text):
        # The sine of 30 degrees is not that of 30: these degrees are no unit to drop.
        text = _NUMBER_OF_DEGREES.sub(r"(\1\\cdot\\frac{\\pi}{180})", text)
    text = _SCALED_UNIT.sub(r" \1", _PERCENT.sub(r"\\%", text))
    for _ in range(_MAX_TEXT_UNITS):
        unit = _TEXT_UNIT.search(text)
        if unit and _is_unit(unit[1]) and _QUANTITY.search(text, 0, unit.start()):
            text = text[: unit.start()]
    text = _SCALE.sub(lambda match: f"\\cdot 10^{{{_SCALES[match[1].casefold()]}}}", text)
    text = _UNIT.sub("", text).rstrip()
    # "6 red apples": any nouns behind a number alone.
    counted = _COUNTED.fullmatch(text)
    if counted and _is_unit(counted[2]):
        text = counted[1]
    return re.sub(r"(?<=[\d})])\s*\^\\circ(?:\s*[CF])?\s*$", "", text)


def _is_unit(words: str) -> bool:
    return not any(word in _NO_UNITS or word in _SCALES for word in words.casefold().split())


def _without_spaces(text: str) -> str:
    """Drop spaces, except between numbers and after a comma."""
    text = _TIGHT.sub(lambda match: match[1] or "", " ".join(text.split()))
    return _LIST.sub(lambda match: ", " if len(match[0]) > 1 else ",", text).strip()


def _unwrapped(text: str) -> str:
    r"""Remove `\boxed{…}` and similar commands around parts, but not the parts."""
    if not _WRAPPER_COMMAND.search(text):
        return text
    removed_spans: list[tuple[int, int]] = []
    # Open braces: the span of a wrapper, None for any other brace.
    open_braces: list[tuple[int, int] | None] = []
    for match in _WRAPPERS.finditer(text):
        is_wrapper = len(match[0]) > 2
        if is_wrapper:
            open_braces.append(match.span())
        elif match[0] == "{":
            open_braces.append(None)
        elif match[0] == "}" and open_braces:
            wrapper = open_braces.pop()
            if wrapper is not None:
                removed_spans += [wrapper, match.span()]

    pieces = []
    piece_start = 0
    for start, end in sorted(removed_spans):
        pieces.append(text[piece_start:start])
        piece_start = end
    return "".join(pieces) + text[piece_start:]


def _closing_brace(text: str) -> int:
    """Find the brace to the first brace; -1 where it stays open."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        if match[0] == "{":
            depth += 1
        elif match[0] == "}":
            depth -= 1
            if depth == 0:
                return match.start()
    return -1
