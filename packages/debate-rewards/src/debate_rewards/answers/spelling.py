r"""One spelling of a mathematical answer: the same text for what differs only in its typing.

Fonts, sizes, spaces, signs such as `½`, thousands separators, wrappers and units go; `\dfrac`,
`\frac12` and `\frac{1}{2}` become one. Each rewrite takes time linear in the text, which is of at
most `MAX_MATH_CHARS`.
"""

import re

MAX_MATH_CHARS = 4096
"""Longer answers are compared as text only."""

_SIGNS = str.maketrans(
    {"−": "-", "–": "-", "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": "/", "⁄": "/"}
    | {"∞": r"\infty ", "∪": r"\cup ", "∩": r"\cap ", "π": r"\pi ", "θ": r"\theta ", "√": r"\sqrt "}
    | {"°": r"^\circ ", "±": r"\pm ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx "}
    | {
        "∈": r"\in ",
        "∅": r"\emptyset ",
        "ℝ": r"\mathbb{R}",
        "∠": r"\angle ",
        "²": "^2 ",
        "³": "^3 ",
        "¢": " cents",
    }
    | {"½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "⅓": r"\frac{1}{3}"}
    | {"⅔": r"\frac{2}{3}", "€": "", "£": "", "¥": "", "₹": "", "\u00a0": " ", "\u202f": " "}
    | {"⟨": r"\langle ", "⟩": r"\rangle "}
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
_PLAIN_NAME = re.compile(r"(?<![\\a-zA-Z])(pi|sqrt|exp|sin|cos|tan|log|ln)(?![a-zA-Z])")
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
_NO_UNITS |= {"plus", "minus", "times", "over", "squared", "cubed", "factorial"}
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
    text = _DELIMITERS.sub(lambda match: r"\\" if match[0].startswith(r"\\") else "", text)
    text = re.sub(r"\\text\s*\{\s*\\\$\s*\}|\\?\$", "", text)
    text = _SILENT.sub("", _unwrapped(text))
    text = _GROUPS.sub("", text).replace("\\!", "")
    text = FONT.sub(_plain_font, FONT.sub(_plain_font, _WIDE.sub(" ", text)))
    for rewrite in (_commands, _matrices, _without_ends, without_units):
        text = rewrite(text)
    text = _tight(text)
    if not any(bracket in text for bracket in "([{"):
        text = COMMAS.sub(lambda match: match[0].replace(",", ""), text)
    return text.replace(" ", "") if _SPACED.fullmatch(text) else text


def _plain_font(match: re.Match[str]) -> str:
    """Words stay text; numbers and single letters need no font."""
    inner = match[1]
    bare = inner.strip()
    if not bare.strip("."):
        return " "
    if _DEGREE_ONLY.fullmatch(bare):
        return bare
    if bare[0].isdigit() or not any(c.isalpha() for c in bare):
        return inner
    if len(bare) == 1 and "text" not in match[0]:
        return inner
    return f"\\text{{{inner}}}"


def _commands(text: str) -> str:
    text = re.sub(r"\\[dtc]frac(?![a-zA-Z])", r"\\frac", text)
    text = re.sub(rf"\\frac\s*+{_SHORT}\s*+{_SHORT}", r"\\frac{\1}{\2}", text)
    text = re.sub(rf"\\frac\s*+{_SHORT}\s*+(?=\{{)", r"\\frac{\1}", text)
    text = re.sub(rf"(\\frac\s*+\{{[^{{}}]*+\}})\s*+{_SHORT}", r"\1{\2}", text)
    text = re.sub(r"(?<=[\w)}])\s*+\*\*\s*+(?=[\w({\\-])", "^", text)
    text = _PLAIN_NAME.sub(r"\\\1 ", text)
    text = re.sub(r"\\sqrt\s*+\(([^()]*+)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\exp\s*+\(([^()]*+)\)", r"e^{\1}", text)
    text = re.sub(r"\\sqrt\s*+(\d++)", r"\\sqrt{\1}", text)
    text = re.sub(r"\\(le|ge)(?:q|qslant)(?![a-zA-Z])", r"\\\1", text)
    text = re.sub(r"\\langle(?![a-zA-Z])", "(", text)
    text = re.sub(r"\\rangle(?![a-zA-Z])", ")", text)
    text = re.sub(r"\\neq(?![a-zA-Z])", r"\\ne", text).replace("\\varnothing", "\\emptyset")
    text = re.sub(r"([_^])\s*+(\d)\s++(?=\d)", r"\1{\2}", text)
    text = re.sub(r"\\([lg])t(?![a-zA-Z])", lambda match: "<>"[match[1] == "g"], text)
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
    text = _LABEL_BEFORE.sub("", text.strip())
    while text.endswith(("\\\\", ".", ",", ";", ":")):
        text = text.removesuffix("\\\\").rstrip(".,;: ")
    if text.startswith("{") and _closing(text) == len(text) - 1:
        text = text[1:-1].strip()
    if match := _MEMBER.match(text):
        is_builder = match[0].startswith("\\{")
        text = text[match.end() :].removesuffix("\\}") if is_builder else text[match.end() :]
    left, approx, right = text.partition("\\approx")
    if approx:
        names_only = not left.strip() or _NAME_ALONE.fullmatch(left.strip())
        text = right if names_only else left.strip()
    return text.strip().removeprefix("=").strip()


def without_units(text: str) -> str:
    """Drop the unit at the end of a number, and write `million` and `percent` as mathematics."""
    text = _SCALED_UNIT.sub(r" \1", _PERCENT.sub(r"\\%", text))
    for _ in range(3):
        match = _TEXT_UNIT.search(text)
        if match and _is_unit(match[1]) and _QUANTITY.search(text, 0, match.start()):
            text = text[: match.start()]
    text = _SCALE.sub(lambda match: f"\\cdot 10^{{{_SCALES[match[1].casefold()]}}}", text)
    text = _UNIT.sub("", text).rstrip()
    counted = _COUNTED.fullmatch(text)
    text = counted[1] if counted and _is_unit(counted[2]) else text
    return re.sub(r"(?<=[\d})])\s*\^\\circ(?:\s*[CF])?\s*$", "", text)


def _is_unit(words: str) -> bool:
    return not any(word in _NO_UNITS or word in _SCALES for word in words.casefold().split())


def _tight(text: str) -> str:
    """Drop spaces that mean nothing; one stays between numbers and after a comma."""
    text = _TIGHT.sub(lambda match: match[1] or "", " ".join(text.split()))
    return _LIST.sub(lambda match: ", " if len(match[0]) > 1 else ",", text).strip()


def _unwrapped(text: str) -> str:
    r"""Remove `\boxed{…}` and its like around parts, keeping what they hold."""
    if not re.search(r"\\(?:boxed|fbox|underline|boldsymbol|bm)\s*+\{", text):
        return text
    cut: list[tuple[int, int]] = []
    stack: list[tuple[int, int] | None] = []
    for match in _WRAPPERS.finditer(text):
        if len(match[0]) > 2:
            stack.append(match.span())
        elif match[0] == "{":
            stack.append(None)
        elif match[0] == "}" and stack and (opened := stack.pop()) is not None:
            cut += [opened, match.span()]
    kept, start = [], 0
    for first, last in sorted(cut):
        kept.append(text[start:first])
        start = last
    return "".join(kept) + text[start:]


def _closing(text: str) -> int:
    """Return where the brace that opens the text is closed, -1 if nowhere."""
    depth = 0
    for match in re.finditer(r"\\.|[{}]", text, re.DOTALL):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if depth == 0 and match[0] == "}":
            return match.start()
    return -1
