r"""How many responses of two kilobytes does the parser read a second, and does time grow linearly?

Beside it, in alternating order and on the same responses: what people usually write with `re`
(three `<tag>(.*?)</tag>` and one pattern for votes, compiled, no spans, no repair), and lxml's
recovering HTML parser with one look-up a section and the same pattern for votes. All three must
find the same sections and votes before they are timed; the responses are complete and in order,
which is the best case for the other two. One process, one core, the process's own time.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.parser_speed
"""

import argparse
import random
import re
import time
from collections.abc import Callable
from statistics import median
from typing import Any

from lxml import etree

from benchmarks.measurement import print_line
from debate_protocol import parse

SECTIONS = ("solution", "evaluation", "comparison")
Vote = tuple[int, str, int]
Read = dict[str, str | tuple[Vote, ...]]
Reader = Callable[[str], Read]

SENTENCES = (
    "We move 3 from both sides and halve what is left.",
    "So the sum of the first n odd numbers is n squared, here 49.",
    "The second step drops a sign, and substitution would have shown it.",
    "Both reach $\\frac{7}{2}$; only Agent {a} says why the other root is impossible.",
    "That 12 * 7 = 84 is right, but the tax of 4 dollars is left out.",
)
_TAGS = [(name, re.compile(rf"<{name}>(.*?)</{name}>", re.DOTALL | re.I)) for name in SECTIONS]
_VOTE = re.compile(r"^\s*(?:[-*]\s*)?Agent\s+(\d+)\s*([>=])\s*Agent\s+(\d+)", re.M | re.I)
HOSTILE = {
    "openings": "<solution>",
    "thinking": "<solution><think>",
    "votes": "<comparison>Agent 0 > Agent 1\n",
    "fences": "<solution>\n```x\n````\n~~~\n",
    "boxes": "\\boxed{\\boxed{x} ",
}


def response(rng: random.Random, size: int) -> str:
    """Return a response that keeps the contract, of about this many bytes."""

    def prose(length: int) -> str:
        text = ""
        while len(text) < length:
            text += rng.choice(SENTENCES).replace("{a}", str(rng.randrange(5))) + " "
        return text.strip()

    votes = "\n".join(
        f"- Agent {a} {rng.choice('>=')} Agent {b}, it shows its steps"
        for a, b in ((1, 2), (2, 3), (3, 4), (1, 4), (2, 4), (1, 3))
    )
    said = (prose(size * 5 // 10), prose(size * 3 // 10), votes)
    tagged = (f"<{name}>\n{text}\n</{name}>" for name, text in zip(SECTIONS, said, strict=True))
    return "Let me think about it.\n\n" + "\n\n".join(tagged)


def by_parser(text: str) -> Read:
    """Read with debate-protocol."""
    parsed = parse(text, "three_section", author=0, num_agents=5)
    said: Read = {name: section.text for name, section in parsed.sections.items()}
    return said | {"votes": tuple((one.left, one.op, one.right) for one in parsed.comparisons)}


def by_re(text: str) -> Read:
    """Read with three patterns of `re`."""
    said: Read = {}
    for name, pattern in _TAGS:
        found = pattern.search(text)
        if found is not None:
            said[name] = found.group(1).strip()
    return said | {"votes": _votes(str(said.get("comparison", "")))}


def by_html(text: str) -> Read:
    """Read with lxml's HTML parser, which recovers from anything."""
    tree = etree.fromstring(text, etree.HTMLParser(recover=True))
    said: Read = {}
    for name in SECTIONS:
        found = tree.find(f".//{name}")
        if found is not None:
            said[name] = "".join(found.itertext()).strip()
    return said | {"votes": _votes(str(said.get("comparison", "")))}


def _votes(text: str) -> tuple[Vote, ...]:
    return tuple((int(a), op, int(b)) for a, op, b in _VOTE.findall(text))


READERS: dict[str, Reader] = {"debate_protocol": by_parser, "bare_re": by_re, "lxml_html": by_html}


def speeds(texts: list[str], repeats: int) -> dict[str, list[float]]:
    """Return responses a second of each reader, in turns, after one round to warm up."""
    found: dict[str, list[float]] = {name: [] for name in READERS}
    for _ in range(repeats + 1):
        for name, read in READERS.items():
            start = time.process_time()
            for text in texts:
                read(text)
            found[name].append(len(texts) / (time.process_time() - start))
    return {name: values[1:] for name, values in found.items()}


def growth(piece: str, small: int, large: int, repeats: int) -> list[float]:
    """Return how many times longer a large hostile text takes than a small one, per repeat."""

    def seconds(size: int) -> float:
        text = piece * (size // len(piece))
        start = time.process_time()
        parse(text, "three_section", think="drop")
        parse(text, "boxed")
        return time.process_time() - start

    return [seconds(large) / seconds(small) for _ in range(repeats)]


def main() -> None:
    """Check that all readers agree, then print one line for each measurement."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--responses", type=int, default=500)
    parser.add_argument("--bytes", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    texts = [response(rng, options.bytes) for _ in range(options.responses)]
    for text in texts:
        expected = by_parser(text)
        for name, read in READERS.items():
            if read(text) != expected:
                raise SystemExit(f"{name} and debate_protocol read differently:\n{text}")
    size = sum(len(text.encode()) for text in texts) / len(texts)
    settings: dict[str, Any] = vars(options) | {
        "mean_bytes": round(size), "votes": 6, "clock": "process time", "cores": 1,
    }  # fmt: skip
    packages = ("debate-protocol", "lxml")
    found = speeds(texts, options.repeats)
    for name, values in found.items():
        print_line(f"parser/two_kilobytes/{name}", values, "1/s", "higher", settings, packages)
    for name in ("bare_re", "lxml_html"):
        ratios = [a / b for a, b in zip(found["debate_protocol"], found[name], strict=True)]
        label = f"parser/two_kilobytes/debate_protocol_over_{name}"
        print_line(label, ratios, "ratio", "higher", settings, packages)
    sizes = {"small_bytes": 1_250_000, "large_bytes": 10_000_000}
    for name, piece in HOSTILE.items():
        ratios = growth(piece, *sizes.values(), repeats=5)
        told = {"piece": piece, **sizes, "linear": 8, "quadratic": 64}
        print_line(f"parser/growth/{name}", ratios, "ratio", "lower", told, packages)
    if median(found["debate_protocol"]) < 20_000:
        raise SystemExit("slower than 20 000 responses a second")


if __name__ == "__main__":
    main()
