"""Throw broken input at debate-protocol: any string must be read, and nothing may be lost.

Each input is a string of bytes that picks one target and spells text out of tags, fences, votes,
boxes, thinking, control characters, surrogates and plain letters:

- parse: all contracts, both ways of thinking, lenient and strict; true spans, same problems
- neutralise: no tag in the text opens or closes a section of its reader
- jsonl: damaged files of transcripts give transcripts or one error a line, and survive a round
- xml: transcripts with these texts come back equal; damaged documents give one error

With atheris (`pip install atheris`) libFuzzer drives it by coverage; without, a seeded generator.
The seeded run prints one JSON line; a failure prints the input that caused it.

    python -m benchmarks.robustness.fuzz_protocol --tool seeded --inputs 1000000 --seed 0
    python -m benchmarks.robustness.fuzz_protocol --tool atheris --inputs 1000000 --seed 1
"""

import argparse
import contextlib
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator

if __name__ == "__main__" and "atheris" in sys.argv:
    import atheris

    _instrumented = atheris.instrument_imports(include=["debate_protocol"])
else:
    atheris, _instrumented = None, contextlib.nullcontext()
with _instrumented:
    from debate_protocol.parsing import CONTRACTS, neutralised, parse
    from debate_protocol.transcripts.files import (
        TranscriptError,
        from_json,
        json_line,
        read_lines,
        to_json,
        transcript_problems,
    )
    from debate_protocol.transcripts.showing import shown_debate
    from debate_protocol.transcripts.xml import from_xml, to_xml
    from debate_protocol.types import Protocol, Question, Transcript, Turn

PIECES = (
    "<solution>", "</solution>", "<SOLUTION >", "</Solution\n>", "<evaluation>", "</evaluation>",
    "<comparison>", "</comparison>", "<consensus>", "</consensus>", "<consensus_reason>",
    "</consensus_reason>", "<think>", "</think>", "<THINK\t>", "</ think>", "< solution>",
    "<turn>", "</turn", "<|im_end|>", "```", "```xml\n", "\n```\n", "~~~\n", "````\n", "\n",
    "\r\n", "\r", "\t", "  ", "\u2028", "\u3000", "\nAgent 0 > Agent 1\n", "\nAgent 2 = Agent 0",
    "Agent ", "agent 1", " < ", " &gt; ", "&lt;", ">", "<", "</", "=", "N/A", "- ", "1. ", "**",
    "\\boxed{", "\\boxed {x}", "}", "{", "\\", "\nAnswer: ", "**Answer:**", "YES", "no",
    "\x00", "\x1b[31m", "\ud800", "\udc00", "\ufffe", "🙂", "e\u0301", "İ", "ſ", "K", "9" * 30,
    "]]>", "&amp;", "<!--", "<![CDATA[", "<!DOCTYPE a [<!ENTITY b 'c'>]>", "&b;", '"', "\\u0000",
    "[" * 30, "null", "1e999", "NaN", '"agent": ', '"shown": [[0, 0]]', '{"text": ""}',
)  # fmt: skip
_REPEAT, _CODE_POINT = 0xFE, 0xFF


def spelled(data: bytes) -> str:
    """Return the text that the bytes spell: pieces, characters, repetitions, code points."""
    text: list[str] = []
    at = 0
    while at < len(data):
        byte = data[at]
        at += 1
        if byte == _CODE_POINT:
            text.append(chr(int.from_bytes(data[at : at + 3]) % 0x110000))
            at += 3
        elif byte == _REPEAT and text:
            text.append(text[-1][:40] * (data[at] % 32 if at < len(data) else 1))
            at += 1
        else:
            text.append(PIECES[byte] if byte < len(PIECES) else chr(byte))
    return "".join(text)


def fuzz_parse(data: bytes) -> None:
    """Read the text in every way there is."""
    text = spelled(data)
    author, count = (data[0] % 4, data[0] % 5 + 1) if data and data[0] % 2 else (None, None)
    for contract, think in itertools.product(CONTRACTS, ("unwrap", "drop")):
        parsed = parse(text, contract, author=author, num_agents=count, think=think)
        for section in parsed.sections.values():
            start, end = section.span
            assert section.outer[0] <= start <= end <= section.outer[1] <= len(text)
            if "think" not in text.lower():
                assert text[start:end] == section.text
        for vote in parsed.comparisons:
            assert text[slice(*vote.span)].strip() == text[slice(*vote.span)] != ""
            assert vote.left != vote.right and author not in (vote.left, vote.right)
            assert count is None or max(vote.left, vote.right) < count
        assert parsed.answer is None or parsed.answer in parsed.spoken


def fuzz_neutralise(data: bytes) -> None:
    """Put the disarmed text into a section of a response."""
    text = spelled(data)
    for name in ("three_section", "five_section"):
        contract = CONTRACTS[name]
        around = parse(f"<solution>{neutralised(text, contract)}</solution>", contract)
        outer = around.sections["solution"].outer
        assert len(around.sections) == 1 and outer == (0, len(text) + 21), outer


def _transcript(text: str, data: bytes) -> Transcript:
    cut = len(text) // 3
    turns = (
        Turn(0, 0, text, extra={text[:9]: text} if data[:1] > b"\x60" else {}),
        Turn(1, 0, text[cut:], (), ({"role": "user", "content": text},), text[:cut] or None),
    )  # fmt: skip
    question = Question(text[-9:], text, text[cut:], {"kind": text[:4]})
    rules = Protocol(2, contract=("three_section", "boxed")[len(data) % 2], extra={"x" + text: 1.5})
    return Transcript(text[:7], question, rules, turns, {"ended": text}, {"y" + text: [text, None]})


def _damaged(raw: bytes, data: bytes) -> bytes:
    """Return the file with up to six places overwritten, as the data says."""
    damaged = bytearray(raw)
    for place, value in zip(data[:12:2], data[1:12:2], strict=False):
        at = place * len(damaged) // 256
        patch = spelled(bytes([value])).encode("utf-8", "surrogatepass")
        damaged[at : at + value % 7] = patch
    return bytes(damaged)


def fuzz_jsonl(data: bytes) -> None:
    """Read damaged lines; what is read survives another round."""
    transcript = _transcript(spelled(data[12:]), data)
    line = json_line(to_json(transcript))
    damaged = _damaged(line, data) + line[: len(data)]
    for _, read, _ in read_lines(damaged.splitlines(keepends=True), "fuzz"):
        if isinstance(read, Transcript):
            again = from_json(json.loads(json_line(to_json(read))))
            # Two halves of a pair that stand apart become one character in JSON.
            assert again == read or "\\ud" in repr(read)
            transcript_problems(read)
            with contextlib.suppress(ValueError):  # a contract that is not known
                shown_debate(read)


def fuzz_xml(data: bytes) -> None:
    """Write and read a document, then read it damaged."""
    transcript = _transcript(spelled(data[12:]), data)
    document = to_xml([transcript])
    assert from_xml(document) == [transcript]
    try:
        read = from_xml(_damaged(document, data))
    except TranscriptError:
        return
    assert from_xml(to_xml(read)) == read


TARGETS: dict[str, Callable[[bytes], None]] = {
    "parse": fuzz_parse,
    "neutralise": fuzz_neutralise,
    "jsonl": fuzz_jsonl,
    "xml": fuzz_xml,
}
# Of 16 inputs, how many go where; reading responses is what meets strangers most.
_SHARES = ("parse",) * 8 + ("neutralise",) * 3 + ("jsonl",) * 3 + ("xml",) * 2


def target_of(data: bytes) -> str:
    """Return the target that the first byte picks."""
    return _SHARES[data[0] % len(_SHARES)] if data else "parse"


def fuzz(data: bytes) -> None:
    """Give an input to its target; an exception is a fault that was found."""
    TARGETS[target_of(data)](data[1:])


def seeded_inputs(seed: int, count: int) -> Iterator[bytes]:
    """Yield inputs: fresh ones, mostly of pieces, and earlier ones changed or joined."""
    draw = random.Random(seed)
    kept: list[bytes] = [b"\x00"]
    for _ in range(count):
        if draw.random() < 0.5:
            size = min(int(draw.expovariate(1 / 24)) + 1, 400)
            limit = len(PIECES) if draw.random() < 0.7 else 256
            data = bytes([draw.randrange(256), *(draw.randrange(limit) for _ in range(size))])
        else:
            left, right = draw.choice(kept), draw.choice(kept)
            data = left[: draw.randrange(len(left) + 1)] + right[draw.randrange(len(right)) :]
            at = draw.randrange(len(data) + 1)
            data = (data[:at] + bytes([draw.randrange(256)]) + data[at + draw.randrange(3) :])[:400]
        if len(kept) < 500:
            kept.append(data)
        else:
            kept[draw.randrange(500)] = data
        yield data


def run_seeded(seed: int, count: int) -> dict[str, int]:
    """Run the seeded generator and return how many inputs each target had."""
    counts = dict.fromkeys(TARGETS, 0)
    for data in seeded_inputs(seed, count):
        try:
            fuzz(data)
            counts[target_of(data)] += 1
        except BaseException:
            print(f"failed on bytes.fromhex({data.hex()!r})", file=sys.stderr)
            raise
    return counts


def main() -> None:
    """Fuzz with the tool that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tool", choices=("atheris", "seeded"), default="seeded")
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--corpus", help="folder that atheris starts from and adds to")
    options = parser.parse_args()
    if options.tool == "atheris":
        arguments = [f"-runs={options.inputs}", f"-seed={options.seed}"]
        arguments += ["-max_len=400", "-len_control=0", *filter(None, [options.corpus])]
        atheris.Setup([sys.argv[0], *arguments], fuzz)
        atheris.Fuzz()
        return
    from benchmarks.measurement import print_line

    start = time.perf_counter()
    counts = run_seeded(options.seed, options.inputs)
    seconds = time.perf_counter() - start
    settings = {"tool": "seeded", "seed": options.seed, "targets": counts, "seconds": seconds}
    packages = ("debate-protocol", "lxml")
    print_line("fuzz_protocol/survived", [options.inputs], "inputs", "higher", settings, packages)


if __name__ == "__main__":
    main()
