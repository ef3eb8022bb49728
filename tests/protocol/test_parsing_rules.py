"""The rules of parsing, one test a sentence; `docs/protocol.md` states them."""

import re
from dataclasses import replace

import pytest

from debate_protocol.parsing import CONTRACTS, Parsed, ThinkMode, parse
from debate_protocol.types import Protocol, Question, Transcript, Turn, parse_turn

WHITE = "\t\x0b\x0c\x1c\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000"
"""One of each kind of Unicode white space; none of them ends a tag."""


def three(text: str, think: ThinkMode = "unwrap") -> Parsed:
    return parse(text, "three_section", think=think)


def lines(*given: str, author: int | None = None, num_agents: int | None = None) -> Parsed:
    text = "<comparison>" + "\n".join(given) + "</comparison>"
    return parse(text, "three_section", author=author, num_agents=num_agents)


def votes(parsed: Parsed) -> list[str]:
    return [f"{one.left}{one.op}{one.right}" for one in parsed.comparisons]


@pytest.mark.parametrize("contract", sorted(CONTRACTS))
@pytest.mark.parametrize("think", ["unwrap", "drop"])
@pytest.mark.parametrize(
    "text",
    ["", "\x00", "\ud800<solution>\udfff", "<", "</", "<solution", "</think>", "\\boxed{", "`" * 9],
)
def test_no_string_raises_when_lenient(contract: str, think: ThinkMode, text: str) -> None:
    assert parse(text, contract, think=think).answer is None or "solution" in text


def test_problems_list_all_that_departs_from_the_contract() -> None:
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


def test_spans_are_offsets_into_the_text_as_given() -> None:
    text = "🙂 <think>\r\n</think>\ud800<SOLUTION\t>\r\n ```\r\n日本\r\n```</solution\u3000>"
    found = three(text).sections["solution"]
    assert text[slice(*found.span)] == found.text == "日本"
    assert text[slice(*found.outer)] == text[text.index("<SOLUTION") :]


@pytest.mark.parametrize("fence", ["```", "````", "```xml", "~~~", "  ``` python"])
def test_markdown_fences_are_stripped(fence: str) -> None:
    close = re.sub(r"[^`~]", "", fence)
    whole = "<solution>42</solution><evaluation>N/A</evaluation><comparison>N/A</comparison>"
    assert three(f"{fence}\n{whole}\n{close}").problems == ()
    for text in (
        f"<solution>{fence}\n42\n{close}</solution>",
        f"<solution> \r\n{fence}\r\n42\r\n{close}\r\n </solution>",
    ):
        assert three(text).answer == "42"
    code = f"see\n{fence}\nx\n{close}"
    assert three(f"<solution>{code}</solution>").answer == code
    assert votes(lines(fence, "Agent 0 > Agent 1", close, "Agent 1 > Agent 2")) == ["0>1", "1>2"]


def test_a_fence_keeps_the_fences_inside_it() -> None:
    assert three("<solution>````\n```\nx\n```\n````</solution>").answer == "```\nx\n```"


def test_thinking_is_unwrapped_and_its_content_kept() -> None:
    text = "<Think>a</THINK ><think><solution>4<think>0</think>2</solution></think>"
    found = three(text).sections["solution"]
    assert found.text == "402"
    assert text[slice(*found.span)] == "4<think>0</think>2"


def test_tags_in_thinking_are_ignored_when_it_is_dropped() -> None:
    text = "<think><solution>1</solution></think><solution>2<THINK>3</think></solution>"
    assert three(text, "drop").answer == "2"
    assert three(text, "drop").problems == ("evaluation: missing", "comparison: missing")
    dropped = three("<comparison><think>Agent 0 > Agent 1\n</think>Agent 1 > Agent 2", "drop")
    assert votes(dropped) == ["1>2"]


def test_parsing_starts_at_the_first_structured_tag() -> None:
    text = "Agent 0 > Agent 1\nAnswer: 7 </b> 1 < 2 > <p>\n<solution>42</solution>"
    parsed = three(text)
    assert (parsed.answer, votes(parsed), parsed.invalid_lines) == ("42", [], 0)
    assert parsed.sections["solution"].outer[0] == text.index("<sol")


@pytest.mark.parametrize("name", ["solution", "SOLUTION", "sOlUtIoN"])
@pytest.mark.parametrize("white", ["", " ", "\n", "\r\n", WHITE])
def test_tags_are_read_in_any_case_and_with_white_space_before_their_end(
    name: str, white: str
) -> None:
    parsed = three(f"<{name}{white}>42</{name.swapcase()}{white}>")
    assert parsed.answer == "42"
    assert not parsed.sections["solution"].truncated


def test_a_missing_closing_tag_ends_at_the_next_known_opening_tag_and_is_reported() -> None:
    text = "<solution>4<b>2</evaluation> <EVALUATION >x</evaluation>"
    found = three(text).sections["solution"]
    # </evaluation> closes nothing there, and <b> is no tag of the contract.
    assert (found.text, found.truncated) == ("4<b>2</evaluation>", True)
    assert found.outer == (0, text.index("<EVAL"))
    assert "solution: truncated, no closing tag" in three(text).problems


@pytest.mark.parametrize("cut", ["</comparison", "</comp", "<", ""])
def test_a_missing_closing_tag_ends_at_the_end_when_a_stop_string_was_cut(cut: str) -> None:
    text = f"<comparison>Agent 0 > Agent 1\n{cut}"
    parsed = three(text)
    assert votes(parsed) == ["0>1"]
    assert parsed.sections["comparison"].outer == (0, len(text))
    assert "comparison: truncated, no closing tag" in parsed.problems


@pytest.mark.parametrize(
    ("blocks", "answer"),
    [
        ("<solution>1</solution><solution>2</solution><solution>3</solution>", "3"),
        ("<solution>1</solution><solution>2</solution><solution>3", "2"),
        ("<solution>1<solution>2<solution>3", "3"),
        ("<solution>1</solution><solution></solution>", None),
    ],
)
def test_the_last_complete_block_counts_and_several_are_reported(
    blocks: str, answer: str | None
) -> None:
    parsed = three(blocks)
    count = blocks.count("<solution>")
    assert parsed.answer == answer
    assert f"solution: {count} blocks, the last complete one is read" in parsed.problems


def test_sections_out_of_order_are_read_and_reported() -> None:
    parsed = three("<comparison>Agent 0 > Agent 1</comparison><solution>4</solution>")
    assert (parsed.answer, votes(parsed)) == ("4", ["0>1"])
    assert "comparison: out of order" in parsed.problems


def test_white_space_is_any_of_unicode() -> None:
    found = three(f"<solution>{WHITE}4{WHITE}2{WHITE}</solution>").sections["solution"]
    assert found.text == f"4{WHITE}2"
    inside = "".join(sign for sign in WHITE if not f"a{sign}b".splitlines()[1:])
    vote = f"{inside}-{inside}Agent{inside}0{inside}>{inside}Agent{inside}1{inside}so"
    assert votes(lines(vote)) == ["0>1"]


@pytest.mark.parametrize("digits", [1, 9, 20, 600])
def test_ids_may_be_of_any_length(digits: int) -> None:
    agent = "1" * digits
    assert votes(lines(f"Agent {agent} > Agent 0")) == [f"{agent}>0"]
    assert votes(lines(f"Agent {'0' * 100_000}{agent} > Agent 0")) == [f"{agent}>0"]


@pytest.mark.parametrize("bullet", ["", "- ", "* ", "+ ", "• ", "1. ", "(2) ", "12)", "-\u00a0"])
@pytest.mark.parametrize("op", [">", "="])
@pytest.mark.parametrize("reason", ["", " because", ": so", ", so", " (so)", ". So", " - Agent 2"])
def test_a_comparison_may_have_a_bullet_before_and_a_reason_after(
    bullet: str, op: str, reason: str
) -> None:
    for name in ("Agent", "agent", "AGENT"):
        parsed = lines(f"{bullet}{name} 0 {op} {name} 1{reason}")
        assert (votes(parsed), parsed.invalid_lines) == ([f"0{op}1"], 0)


@pytest.mark.parametrize(
    ("op", "vote"),
    [("<", "1>0"), ("&lt;", "1>0"), ("&gt;", "0>1"), ("&GT;", "0>1")],
)
def test_less_is_read_the_other_way_round_and_entities_are_understood(op: str, vote: str) -> None:
    assert votes(lines(f"Agent 0 {op} Agent 1", f"Agent 0{op}Agent 1")) == [vote, vote]


def test_one_comparison_a_line_is_read() -> None:
    parsed = lines("Agent 0 > Agent 1; Agent 1 > Agent 2", "Agent 2 > Agent 0")
    assert (votes(parsed), parsed.invalid_lines) == (["0>1", "2>0"], 0)


@pytest.mark.parametrize("nothing", ["", "N/A", "n/a", " N/A ", "\n\nN/A\n", "- N/A.", WHITE])
def test_nothing_is_said_by_na_and_by_nothing(nothing: str) -> None:
    parsed = lines(nothing)
    assert (votes(parsed), parsed.invalid_lines, parsed.malformed) == ([], 0, 0)


@pytest.mark.parametrize(
    "line",
    [
        "Agent 0 beats Agent 1",
        "Agent 0 >> Agent 1",
        "Agent 0 >= Agent 1",
        "Agent 0 > Agent 1 > Agent 2",
        "Agent -1 > Agent 0",
        "Agent 0.5 > Agent 1",
        "Agent A > Agent B",
        "Agent 0 > ",
        "> Agent 1",
        "I prefer Agent 0 > Agent 1",
        "-",
        "\x00",
        "\ud800",
    ],
)
def test_anything_else_counts_as_an_invalid_line(line: str) -> None:
    parsed = lines("Agent 0 > Agent 1", line)
    assert (votes(parsed), parsed.invalid_lines) == (["0>1"], 1)


def test_comparisons_that_name_their_author_are_dropped_and_counted() -> None:
    parsed = lines(
        "Agent 1 > Agent 0", "Agent 0 = Agent 1", "Agent 1 > Agent 1", "Agent 1 > Agent 9",
        "Agent 0 > Agent 2", author=1, num_agents=3,
    )  # fmt: skip
    assert (votes(parsed), parsed.self_dropped, parsed.malformed) == (["0>2"], 4, 0)


def test_ids_out_of_range_and_equal_ids_are_malformed() -> None:
    parsed = lines(
        "Agent 0 > Agent 3", "Agent 3 = Agent 0", "Agent 2 > Agent 2", "Agent 2 < Agent 0",
        f"Agent {'9' * 5000} > Agent 0", num_agents=3,
    )  # fmt: skip
    assert (votes(parsed), parsed.malformed, parsed.invalid_lines) == (["0>2"], 4, 0)
    assert lines("Agent 4 > Agent 4").malformed == 1


def test_parse_turn_reads_a_turn_again_when_its_text_or_rules_were_changed() -> None:
    said = "<solution>4</solution><comparison>Agent 1 > Agent 2</comparison>"
    turn = Turn(0, 0, said)
    debate = Transcript("d", Question("q", "2 + 2?"), Protocol(3), (turn,))
    first = parse_turn(debate, turn)
    assert (first.answer, len(first.comparisons)) == ("4", 1)
    assert parse_turn(debate, turn) is first
    assert turn == Turn(0, 0, said)  # What was read of a turn is no part of it.
    other = replace(turn, text=said.replace("4", "5"))
    assert parse_turn(debate, other).answer == "5"
    assert parse_turn(replace(debate, protocol=Protocol(2)), turn).malformed == 1
    assert parse_turn(debate, replace(turn, agent=1)).self_dropped == 1
    boxed = replace(debate, protocol=Protocol(3, contract="boxed"))
    assert parse_turn(boxed, turn).answer is None
    assert parse_turn(debate, turn) == first
