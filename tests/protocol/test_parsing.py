"""Parsing: the rules that `docs/protocol.md` states, and what holds for any string."""

import re
import runpy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.counted_calls import num_calls

from debate_protocol.parsing import (
    CONTRACTS,
    MAX_SECTIONS,
    Contract,
    Parsed,
    ThinkMode,
    get_contract,
    neutralised,
    parse,
)
from debate_protocol.transcripts.files import TranscriptError, from_json
from debate_protocol.types import Protocol, Question, Transcript, Turn, parse_turn

# One of each kind of Unicode white space; none of them ends a tag.
WHITE = "\t\x0b\x0c\x1c\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000"
# Those of them that do not end a line, either.
WHITE_IN_LINE = "".join(sign for sign in WHITE if len(f"a{sign}b".splitlines()) == 1)


def three(text: str, think: ThinkMode = "unwrap") -> Parsed:
    return parse(text, "three_section", think=think)


def comparisons(*lines: str, author: int | None = None, num_agents: int | None = None) -> Parsed:
    text = "<comparison>" + "\n".join(lines) + "</comparison>"
    return parse(text, "three_section", author=author, num_agents=num_agents)


def votes_of(parsed: Parsed) -> list[str]:
    return [f"{vote.left}{vote.op}{vote.right}" for vote in parsed.comparisons]


# ---- sections -------------------------------------------------------------------------------


def test_spans_are_offsets_into_the_text() -> None:
    text = "🙂 <think>\r\n</think>\ud800<SOLUTION\t>\r\n ```\r\n日本\r\n```</solution\u3000>"
    section = three(text).sections["solution"]
    assert text[slice(*section.span)] == section.text == "日本"
    assert text[slice(*section.outer)] == text[text.index("<SOLUTION") :]
    assert not section.truncated
    inside = "<solution><think>42</think></solution>"
    assert three(inside).sections["solution"].span == (17, 19)  # <solution> 10 + <think> 7.


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<solution></solution>", None),
        ("no tags at all", None),
        ("", None),
        ("<solution>42", "42"),
        ("<ſolution>42</ſolution>", None),  # The long s is no s.
        ("<solution>4 <ſolution> 2</solution>", "4 <ſolution> 2"),
        ("<solutions>42</solutions>", None),
        (f"<sOlUtIoN{WHITE}>42</SoLuTiOn{WHITE}>", "42"),
        (f"<solution>{WHITE}4{WHITE}2{WHITE}</solution>", f"4{WHITE}2"),
        ("Agent 0 > Agent 1\nAnswer: 7 </b> 1 < 2 > <p>\n<solution>42</solution>", "42"),
        # Of several blocks the last complete one counts.
        ("<solution>1</solution><solution>2</solution><solution>3</solution>", "3"),
        ("<solution>1</solution><solution>2</solution><solution>3", "2"),
        ("<solution>1<solution>2<solution>3", "3"),
        ("<solution>1</solution><solution></solution>", None),
        ("<solution>\n```\n42\n```\n</solution>", "42"),
        ("<solution>```python\nx = 1\n```</solution>", "x = 1"),
        ("<solution> \r\n~~~\r\n42\r\n~~~\r\n </solution>", "42"),
        ("<solution>```\na\n```\nb\n```\nc\n```</solution>", "```\na\n```\nb\n```\nc\n```"),
        ("<solution>````\n```\nx\n```\n````</solution>", "```\nx\n```"),
        ("<solution>```\n```</solution>", None),
        # Thinking is unwrapped and its content read.
        ("<think><solution>41</solution></think>", "41"),
        ("<THINK>plan</think><solution>4<think>0</THINK >2</solution>", "402"),
    ],
)
def test_the_answer_is_the_content_of_the_last_complete_solution(
    text: str, answer: str | None
) -> None:
    assert three(text).answer == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think><solution>1</solution></think><solution>2</solution>", "2"),
        ("<think><solution>1</solution>", None),  # Still thinking at the end.
        ("<solution>1</solution></think><solution>2</solution>", "2"),  # Opened by the template.
        ("<solution>1</solution></think>", None),
        ("<solution><think>no 7</think>2</solution>", "2"),
        ("<solution>2 <think>no</think>!</solution>", "2 !"),
        ("<think>a<think>b</think><solution>2</solution></think>", "2"),
    ],
)
def test_thoughts_are_not_read_when_thinking_is_dropped(text: str, answer: str | None) -> None:
    assert three(text, "drop").answer == answer


def test_a_missing_closing_tag_ends_at_the_next_known_opening_tag() -> None:
    text = "<solution>4<b>2</evaluation> <EVALUATION >x</evaluation>"
    parsed = three(text)
    section = parsed.sections["solution"]
    # </evaluation> closes nothing there, and <b> is no tag of the contract.
    assert (section.text, section.truncated) == ("4<b>2</evaluation>", True)
    assert section.outer == (0, text.index("<EVAL"))
    assert not parsed.sections["evaluation"].truncated
    assert "solution: truncated, no closing tag" in parsed.problems


@pytest.mark.parametrize("cut", ["</comparison", "</comp", "<", ""])
def test_a_missing_closing_tag_ends_at_the_end_when_a_stop_string_was_cut(cut: str) -> None:
    text = f"<comparison>Agent 0 > Agent 1\n{cut}"
    parsed = three(text)
    assert votes_of(parsed) == ["0>1"]
    assert parsed.sections["comparison"].outer == (0, len(text))
    assert "comparison: truncated, no closing tag" in parsed.problems


def test_problems_list_every_departure_from_the_contract() -> None:
    text = (
        "</consensus></solution></solution></evaluation><evaluation>a</evaluation><solution>"
        "</solution><evaluation>b<comparison>Agent 0 > Agent 0\nfoo\nAgent 1 > Agent 2"
        "</comparison><consensus>maybe</consensus>"
    )
    assert parse(text, "five_section", author=2, num_agents=3).problems == (
        "closing tag </consensus> closes nothing",
        "closing tag </solution> closes nothing",
        "closing tag </solution> closes nothing",
        "1 more closing tags close nothing",
        "evaluation: 2 blocks, the last complete one is read",
        "evaluation: out of order",
        "consensus_reason: missing",
        "comparison: 1 invalid lines",
        "comparison: 1 lines name their author",
        "comparison: 1 lines with impossible agents",
        "consensus: neither YES nor NO",
        "solution: empty",
    )
    for contract in ("boxed", "answer_line"):
        (problem,) = parse("nothing", contract).problems
        assert problem.startswith("answer: no")


@pytest.mark.parametrize(
    ("word", "consensus"),
    [("YES", True), ("no", False), ("**Yes**.", True), ("Not yet", None), ("", None)],
)
def test_consensus_is_yes_or_no(word: str, consensus: bool | None) -> None:
    text = f"<solution>1</solution><consensus> {word} </consensus>"
    assert parse(text, "five_section").consensus is consensus


@pytest.mark.parametrize(
    ("contract", "text", "answer"),
    [
        ("boxed", r"first \boxed{1}, then \boxed{\frac{1}{2}} done", r"\frac{1}{2}"),
        ("boxed", r"\boxed{\boxed{5}}", "5"),
        ("boxed", r"\boxed{a \boxed{5}}", r"a \boxed{5}"),
        ("boxed", r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        ("boxed", r"} { \boxed {6}", "6"),
        ("boxed", r"\boxed{}", None),
        ("boxed", "no box", None),
        ("answer_line", "work\nAnswer: 42", "42"),
        ("answer_line", "Answer: 1\nmore\n**answer:** 2 \n", "2"),
        ("answer_line", "**Final Answer: 7**\r\n", "7"),
        ("answer_line", "Answer: \\[\n 42\n\\]\n", "42"),
        ("answer_line", "**Answer:** $$\n42\n$$", "42"),
        ("answer_line", "the Answer: 42", None),
        ("answer_line", "Answer:", None),
    ],
)
def test_free_text_has_its_answer_in_the_last_box_or_line(
    contract: str, text: str, answer: str | None
) -> None:
    assert parse(text, contract).answer == answer


def test_a_thought_box_is_not_read_when_thinking_is_dropped() -> None:
    text = r"\boxed{4}<think>\boxed{5}</think>"
    assert parse(text, "boxed").answer == "5"
    assert parse(text, "boxed", think="drop").answer == "4"


# ---- comparisons ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "vote"),
    [
        ("agent 0 = AGENT 1", "0=1"),
        ("Agent 0 &gt; Agent 1", "0>1"),
        ("Agent 0 &LT; Agent 1", "1>0"),
        ("• Agent 0 > Agent 1 because it checks", "0>1"),
        ("(2) Agent 0 = Agent 1, so", "0=1"),
        ("+ Agent 0 > Agent 1 - Agent 2", "0>1"),
        ("1. **Agent 0** > **Agent 1**", "0>1"),
        ("\u2003Agent\u00a00\u2003>\u00a0Agent 1 (sound)", "0>1"),
        (" - Agent 0 > Agent 1 so".replace(" ", WHITE_IN_LINE), "0>1"),
        ("Agent 007 > Agent 10", "7>10"),
        ("Agent 0 > Agent 1; Agent 1 > Agent 2", "0>1"),  # One comparison a line is read.
        (f"Agent {'1' * 600} > Agent 0", f"{'1' * 600}>0"),
        (f"Agent {'0' * 100_000}20 > Agent 0", "20>0"),
    ],
)
def test_a_comparison_may_have_a_bullet_before_and_a_reason_after(line: str, vote: str) -> None:
    parsed = comparisons(line)
    assert votes_of(parsed) == [vote]
    assert (parsed.invalid_lines, parsed.malformed, parsed.self_dropped) == (0, 0, 0)


@pytest.mark.parametrize(
    "line",
    [
        "Agent 0 beats Agent 1",
        "Agent 0 >> Agent 1",
        "Agent 0 > Agent 1 > Agent 2",
        "Agent 0 > Agent 1st",
        "Agent -1 > Agent 0",
        "Agent 0.5 > Agent 1",
        "Agent ٣ > Agent 1",
        "Agent 0 > ",
        "I prefer Agent 0 > Agent 1",
        "0 > 1",
        "\x00",
        "\ud800",
    ],
)
def test_any_other_line_is_invalid(line: str) -> None:
    parsed = comparisons("Agent 3 > Agent 4", line)
    assert (votes_of(parsed), parsed.invalid_lines) == (["3>4"], 1)


@pytest.mark.parametrize(
    "lines", ["", "N/A", " n/a.\n", "None", "- N/A.", "N/A (first round)", "\n\nN/A\n", WHITE]
)
def test_no_comparison_is_no_invalid_line(lines: str) -> None:
    parsed = comparisons(lines)
    assert (votes_of(parsed), parsed.invalid_lines, parsed.malformed) == ([], 0, 0)


def test_fences_among_lines_are_no_lines() -> None:
    parsed = comparisons("```", "Agent 0 > Agent 1", "```", "Agent 1 = Agent 2", "```text", "```")
    assert (votes_of(parsed), parsed.invalid_lines) == (["0>1", "1=2"], 0)


def test_lines_that_name_their_author_or_impossible_agents_are_dropped_and_counted() -> None:
    huge = "9" * 5000  # Longer than Python turns into a number.
    lines = ("Agent 1 > Agent 0", "Agent 0 = Agent 1", "Agent 1 > Agent 1", "Agent 1 > Agent 9")
    parsed = comparisons(*lines, "Agent 0 > Agent 2", author=1, num_agents=3)
    assert (votes_of(parsed), parsed.self_dropped, parsed.malformed) == (["0>2"], 4, 0)
    lines = (
        "Agent 0 > Agent 3",
        "Agent 3 = Agent 0",
        "Agent 2 > Agent 2",
        f"Agent {huge} > Agent 0",
    )
    parsed = comparisons(*lines, "Agent 2 < Agent 0", num_agents=3)
    assert (votes_of(parsed), parsed.malformed, parsed.invalid_lines) == (["0>2"], 4, 0)
    # Without a number of agents, what is out of range is not known.
    assert votes_of(comparisons("Agent 0 > Agent 3")) == ["0>3"]
    assert comparisons("Agent 4 > Agent 4").malformed == 1
    assert comparisons(f"Agent 0 > Agent {huge}").malformed == 1


def test_votes_have_the_span_of_their_line() -> None:
    text = "<comparison>\r\n  - Agent 0 > Agent 1, good \r\nfoo\n\tAgent 1 = Agent 2</comparison>"
    lines = [text[slice(*vote.span)] for vote in three(text).comparisons]
    assert lines == ["- Agent 0 > Agent 1, good", "Agent 1 = Agent 2"]
    text = "<comparison><think>Agent 5 > Agent 6\n</think>Agent 0 > Agent 1</comparison>"
    lines = [text[slice(*vote.span)] for vote in three(text, "drop").comparisons]
    assert lines == ["Agent 0 > Agent 1"]
    assert votes_of(three(text)) == ["5>6", "0>1"]


# ---- contracts ------------------------------------------------------------------------------


def test_an_unknown_contract_is_refused_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'three_section'"):
        get_contract("three_sections")
    assert get_contract("boxed") is CONTRACTS["boxed"]


def test_without_a_solution_the_first_section_is_the_answer() -> None:
    poem = Contract("poem", ("draft", "poem"), "</poem>")
    parsed = parse("<poem>Roses</poem><draft>r</draft>", poem)
    assert parsed.sections["poem"].text == "Roses"
    assert parsed.answer == "r"


def test_a_contract_has_a_limited_number_of_sections() -> None:
    names = [f"s{number}" for number in range(MAX_SECTIONS + 1)]
    assert Contract("own", tuple(names[:-1])).stop == "</s99>"
    with pytest.raises(ValueError, match=r"contract 'own': found 101 sections, expected at most"):
        Contract("own", tuple(names))
    protocol = {"num_agents": 2, "contract": {"name": "own", "sections": names}}
    with pytest.raises(TranscriptError, match="found 101 sections, expected at most 100"):
        from_json({"question": {"text": "?"}, "protocol": protocol, "turns": []})


def test_a_turn_is_read_again_when_its_text_or_rules_were_changed() -> None:
    text = "<solution>4</solution><comparison>Agent 1 > Agent 2</comparison>"
    turn = Turn(0, 0, text)
    debate = Transcript("d", Question("q", "2 + 2?"), Protocol(3), (turn,))
    parsed = parse_turn(debate, turn)
    assert (parsed.answer, votes_of(parsed)) == ("4", ["1>2"])
    assert parse_turn(debate, turn) is parsed
    assert turn == Turn(0, 0, text)  # What was read of a turn is no part of it.
    assert parse_turn(debate, replace(turn, text=text.replace("4", "5"))).answer == "5"
    assert parse_turn(debate, replace(turn, agent=1)).self_dropped == 1
    assert parse_turn(replace(debate, protocol=Protocol(2)), turn).malformed == 1
    boxed = replace(debate, protocol=Protocol(3, contract="boxed"))
    assert parse_turn(boxed, turn).answer is None


# ---- any string -----------------------------------------------------------------------------

WORDS = """<solution> </solution> <evaluation> </evaluation> <comparison> </comparison>
<consensus> </consensus> <consensus_reason> </consensus_reason> <think> </think>
``` N/A \\boxed{ } { \\ YES no < </ > &gt; 🙂 İ ſ K"""
PIECES = [
    *WORDS.split(),
    "<SOLUTION >",
    "</THINK\n>",
    "```xml\n",
    "\n```\n",
    "~~~~\n",
    "\n",
    "\r\n",
    " ",
    "<comparison>Agent 1 > Agent 2\n",
    "\nAgent 2 = Agent 0\n",
    "Agent 0 = Agent 0",
    "Agent ",
    "\\boxed {x}",
    "\nAnswer: ",
    "\x00",
    "\ud800",
    "\u2028",
    "9" * 40,
]
HOSTILE = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=40).map("".join)
TEXTS = st.text(st.characters(codec=None, categories=None), max_size=200) | HOSTILE
THINK_MODES: tuple[ThinkMode, ...] = ("unwrap", "drop")
# What is taken out of a section's text.
THOUGHTS = {
    "unwrap": re.compile(r"(?ai)</?think(?u:\s)*>"),
    "drop": re.compile(r"(?ais)<think(?u:\s)*>.*?(?:</think(?u:\s)*>|\Z)|</think(?u:\s)*>"),
}


def check_spans(text: str, parsed: Parsed, think: ThinkMode) -> None:
    position = 0
    for section in sorted(parsed.sections.values(), key=lambda section: section.span):
        start, end = section.span
        assert position <= section.outer[0] <= start <= end <= section.outer[1] <= len(text)
        assert section.text == THOUGHTS[think].sub("", text[start:end]).strip()
        assert text[start:end] == text[start:end].strip()
        position = section.outer[1]
    for vote in parsed.comparisons:
        start, end = parsed.sections["comparison"].span
        assert start <= vote.span[0] < vote.span[1] <= end


@settings(max_examples=50, deadline=None, derandomize=True)
@given(TEXTS, st.none() | st.integers(0, 3), st.none() | st.integers(1, 4))
def test_any_string_is_parsed_with_true_spans(
    text: str, author: int | None, num_agents: int | None
) -> None:
    for contract in CONTRACTS:
        for think in THINK_MODES:
            parsed = parse(text, contract, author=author, num_agents=num_agents, think=think)
            check_spans(text, parsed, think)
            for vote in parsed.comparisons:
                assert vote.left != vote.right
                assert author not in (vote.left, vote.right)
                assert num_agents is None or max(vote.left, vote.right) < num_agents
            assert parsed.answer is None or parsed.answer.strip()
            assert parsed.answer is None or parsed.answer in parsed.spoken


PLAIN = st.text(st.characters(exclude_characters="<`~", exclude_categories=["Cs"]), max_size=60)
AGENT_PAIRS = st.sampled_from([(0, 1), (1, 0), (2, 0), (3, 1)])
VOTES = st.lists(st.tuples(AGENT_PAIRS, st.sampled_from("<=>")), max_size=6)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(PLAIN, PLAIN, VOTES, st.booleans())
def test_rendered_sections_come_back(
    solution: str, evaluation: str, votes: list[tuple[tuple[int, int], str]], consensus: bool
) -> None:
    lines = []
    expected = []
    for (left, right), op in votes:
        lines.append(f"Agent {left} {op} Agent {right}")
        expected.append(f"{right}>{left}" if op == "<" else f"{left}{op}{right}")
    contents = {
        "solution": f"{solution.strip()} so",
        "evaluation": evaluation,
        "comparison": "\n".join(lines) or "N/A",
        "consensus": "YES" if consensus else "NO",
        "consensus_reason": "because",
    }
    blocks = [f"<{name}>{content}</{name}>" for name, content in contents.items()]
    text = f"<think>{evaluation}</think>" + "\n".join(blocks)
    parsed = parse(text, "five_section", think="drop")
    assert parsed.problems == ()
    assert parsed.answer == contents["solution"].strip()
    assert list(parsed.sections) == list(contents)
    for block, (name, section) in zip(blocks, parsed.sections.items(), strict=True):
        assert section.text == contents[name].strip() == text[slice(*section.span)]
        assert text[slice(*section.outer)] == block
    assert votes_of(parsed) == expected
    assert [text[slice(*vote.span)] for vote in parsed.comparisons] == lines
    assert parsed.consensus is consensus


@settings(max_examples=50, deadline=None, derandomize=True)
@given(PLAIN)
def test_rendered_free_text_comes_back(text: str) -> None:
    # Braces and line ends are what frames the answer.
    answer = re.sub(r"[{}\\\n*]", "", f"{text.strip()} so").strip()
    boxed = parse(f"\\boxed{{1}} then \\boxed{{{answer}}}.", "boxed")
    assert (boxed.answer, boxed.problems) == (answer, ())
    line = parse(f"\nAnswer: 1\nno,\n**Answer: {answer}**\n", "answer_line")
    assert (line.answer, line.problems) == (answer, ())


@settings(max_examples=50, deadline=None, derandomize=True)
@given(TEXTS, st.sampled_from(["three_section", "five_section"]))
def test_neutralised_text_opens_and_closes_no_section(text: str, contract: str) -> None:
    disarmed = neutralised(text, get_contract(contract))
    assert len(disarmed) == len(text)
    around = parse(f"<solution>{disarmed}</solution>", contract)
    assert list(around.sections) == ["solution"]
    assert around.sections["solution"].outer == (0, len(text) + len("<solution></solution>"))
    assert not any("block" in problem or "closes" in problem for problem in around.problems)


# ---- long texts -----------------------------------------------------------------------------

REPEATED = {
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
# Those in which a million tags, fences, votes, boxes or signs meet.
LONGEST = (
    "openings", "mixed case", "blocks", "spaces in a tag", "think", "think pairs", "nested fences",
    "votes", "votes in a line", "digits", "open boxes", "boxes", "open braces", "controls",
    "surrogates",
)  # fmt: skip


def read_everyhow(text: str) -> None:
    """Parse by every kind of contract and thinking, and make plain."""
    parse("<comparison>" + text, "five_section")
    parse("<comparison>" + text, "five_section", think="drop")
    parse(text + "}" * 9, "boxed")
    parse(text, "answer_line", think="drop")
    neutralised(text, get_contract("five_section"))


@pytest.mark.parametrize("piece", REPEATED.values(), ids=REPEATED.keys())
def test_reading_takes_as_many_calls_as_the_text_is_long(piece: str) -> None:
    def calls_for(size: int) -> int:
        text = piece * (size // len(piece))
        return num_calls(lambda: read_everyhow(text))

    # Eight times the text takes at most 8 times the calls if linear, 64 times if quadratic.
    assert calls_for(32_000) < 10 * calls_for(4_000)


# Patterns of quadratic time would take hours.
@pytest.mark.slow
@pytest.mark.parametrize(
    "text", [*(REPEATED[name] for name in LONGEST), "".join(REPEATED.values())]
)
def test_ten_megabytes_are_read_and_made_plain(text: str) -> None:
    long_text = text * (10_000_000 // len(text))
    read_everyhow(long_text)
    # What other agents are shown holds no section any more, at any length.
    plain_text = neutralised(long_text, get_contract("five_section"))
    assert parse(plain_text, "five_section").sections == {}


@pytest.fixture(scope="module")
def fuzzing(repository: Path) -> dict[str, Any]:
    return runpy.run_path(str(repository / "benchmarks/robustness/fuzz_protocol.py"))


def test_no_target_fails_when_a_seeded_generator_feeds_them(fuzzing: dict[str, Any]) -> None:
    counts = fuzzing["run_seeded"](2026, 2000)
    assert sum(counts.values()) == 2000
    assert min(counts.values()) > 100


@pytest.mark.parametrize(
    ("target", "text"), [("parse", "<solution>4</solution>"), ("neutralise", "</solution>")]
)
def test_target_fails_when_what_it_tries_is_broken(
    fuzzing: dict[str, Any], monkeypatch: pytest.MonkeyPatch, target: str, text: str
) -> None:
    try_out: Callable[[bytes], None] = fuzzing["TARGETS"][target]
    monkeypatch.setitem(try_out.__globals__, "spelled", lambda data: text)
    try_out(b"\x01")
    broken = {
        "parse": ("parse", lambda text, contract, **given: Parsed({}, answer="5")),
        "neutralise": ("neutralised", lambda text, contract: text),
    }
    monkeypatch.setitem(try_out.__globals__, *broken[target])
    with pytest.raises(AssertionError):
        try_out(b"\x01")
