"""Reading takes time linear in the text, whatever the text does."""

import gc
import math
import re
import resource
from collections.abc import Callable

import pytest

from debate_protocol.parsing import get_contract, neutralised, parse

HOSTILE = {
    "openings": "<solution>",
    "closings": "</solution>",
    "mixed case": "<sOlUtIoN ><EVALUATION>",
    "blocks": "<solution>4</solution>",
    "half tags": "<solution",
    "spaces in a tag": "<solution" + " " * 40,
    "less": "<",
    "think": "<think>",
    "think end": "</think>",
    "think pairs": "<THINK>x</think>",
    "think and openings": "<solution><think>",
    "think inside": "<solution>a<think>b</think>",
    "fences": "```\n",
    "nested fences": "```x\n````\n~~~\n`````y\n",
    "fenced openings": "<comparison>\n```\n",
    "ticks": "`",
    "votes": "Agent 0 > Agent 1\n",
    "votes in a line": "Agent 0 > Agent 1 ",
    "half votes": "Agent 0 > Agent ",
    "digits": "9",
    "bullets": "- * ",
    "stars": "*",
    "entities": "&gt;",
    "lines": "\n",
    "indents": "\n" + " " * 30,
    "boxes": "\\boxed{x} ",
    "open boxes": "\\boxed{",
    "boxes in boxes": "\\boxed{\\boxed{x} ",
    "open braces": "{",
    "closed braces": "}",
    "backslashes": "\\",
    "answers": "Answer: ",
    "answer lines": "Answer: 1\n",
    "zero": "\x00",
    "controls": "\x1b\x0b\x1c\x85",
    "surrogates": "\ud800\udfff",
}
Read = Callable[[str], object]


def read_everyhow(text: str) -> None:
    """Parse by every kind of contract and thinking, and make plain."""
    parse("<comparison>" + text, "five_section")
    parse("<comparison>" + text, "five_section", think="drop")
    parse(text + "}" * 9, "boxed")
    parse(text, "answer_line", think="drop")
    neutralised(text, get_contract("five_section"))


def user_seconds() -> float:
    """Processor time without the system's, which grows when memory is short."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def growth(read: Read, piece: str, small: int, large: int) -> float:
    """How many times longer the large text takes than the small one, 20 ms set aside.

    A busy machine makes single measurements longer, so up to three large ones are tried.
    """

    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        gc.disable()  # Or it would walk all that other tests left behind.
        try:
            start = user_seconds()
            read(text)
            return user_seconds() - start
        finally:
            gc.enable()

    at_least = max(min(seconds(small) for _ in range(2)), 1e-4)
    ratio = math.inf
    for _ in range(3):
        ratio = min(ratio, max(0.0, seconds(large) - 0.02) / at_least)
        if ratio < LIMIT:
            break
    return ratio


# Those in which a million tags, fences, votes, boxes or signs meet.
LONGEST = (
    "openings", "mixed case", "blocks", "spaces in a tag", "think", "think pairs", "nested fences",
    "votes", "votes in a line", "digits", "open boxes", "boxes", "open braces", "controls",
    "surrogates",
)  # fmt: skip
# Eight times the text takes 8 times as long if linear, 64 times if quadratic.
SIZES, LIMIT = (1_250_000, 10_000_000), 24


@pytest.mark.parametrize("piece", HOSTILE.values(), ids=HOSTILE.keys())
def test_parse_takes_linear_time_when_the_text_is_hostile(piece: str) -> None:
    assert growth(read_everyhow, piece, 40_000, 320_000) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("name", LONGEST)
def test_parse_takes_linear_time_up_to_ten_megabytes_when_the_text_is_hostile(name: str) -> None:
    assert growth(read_everyhow, HOSTILE[name], *SIZES) < LIMIT


@pytest.mark.slow
def test_parse_takes_linear_time_in_a_text_of_everything() -> None:
    assert growth(read_everyhow, "".join(HOSTILE.values()), *SIZES) < LIMIT


@pytest.mark.parametrize(
    ("pattern", "piece"), [(r"(?is)<solution>(.*?)</solution>", "<solution>"), (r"\s+x", " ")]
)
def test_growth_tells_a_quadratic_reader(pattern: str, piece: str) -> None:
    assert growth(re.compile(pattern).findall, piece, 2_500, 20_000) > LIMIT
