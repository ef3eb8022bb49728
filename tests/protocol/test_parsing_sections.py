"""Sections: where they begin and end, what wraps them, which block counts."""

import pytest

from debate_protocol.parsing import CONTRACTS, Contract, get_contract, parse

THREE = (
    "<solution>42</solution>\n<evaluation>N/A</evaluation>\n<comparison>Agent 0 > Agent 1"
    "</comparison>"
)


def texts(text: str, contract: str = "three_section", **options: object) -> dict[str, str]:
    parsed = parse(text, contract, **options)  # type: ignore[arg-type]
    return {name: section.text for name, section in parsed.sections.items()}


def test_parse_reads_sections_and_answer_when_all_is_well() -> None:
    parsed = parse(THREE, "three_section")
    assert texts(THREE) == {
        "solution": "42",
        "evaluation": "N/A",
        "comparison": "Agent 0 > Agent 1",
    }
    assert parsed.answer == "42"
    assert parsed.problems == ()
    assert parsed.consensus is None


def test_parse_gives_spans_in_the_original_when_there_is_white_space_and_a_preamble() -> None:
    text = "Let me think. 答え\n<Solution >\n\u2003 42 🙂\u00a0\n</SOLUTION\t><evaluation>"
    section = parse(text, "three_section").sections["solution"]
    assert text[slice(*section.span)] == section.text == "42 🙂"
    assert text[slice(*section.outer)].startswith("<Solution >")
    assert text[slice(*section.outer)].endswith("</SOLUTION\t>")
    assert not section.truncated


def test_parse_ends_a_section_at_the_next_opening_tag_when_its_closing_tag_is_missing() -> None:
    parsed = parse("<solution>42 <evaluation>fine</evaluation>", "three_section")
    solution = parsed.sections["solution"]
    # "<solution>" is 10 characters, "42" follows, then a space up to 13.
    assert (solution.text, solution.span, solution.outer) == ("42", (10, 12), (0, 13))
    assert solution.truncated
    assert not parsed.sections["evaluation"].truncated
    assert "solution: truncated, no closing tag" in parsed.problems


def test_parse_reads_to_the_end_when_the_stop_string_was_cut() -> None:
    parsed = parse(THREE.removesuffix("</comparison>") + "\n", "three_section")
    assert parsed.sections["comparison"].truncated
    assert len(parsed.comparisons) == 1
    assert parsed.sections["comparison"].outer[1] == len(THREE) - len("</comparison>") + 1


def test_parse_takes_the_last_complete_block_when_there_are_several() -> None:
    twice = parse("<solution>1</solution><solution>2</solution>", "three_section")
    assert twice.answer == "2"
    assert "solution: 2 blocks, the last complete one is read" in twice.problems
    overshoot = parse("<solution>1</solution><solution>3", "three_section")
    assert overshoot.answer == "1"
    nested = parse("<solution>1<solution>2</solution>", "three_section")
    assert nested.answer == "2"


def test_parse_reads_and_reports_when_sections_are_out_of_order() -> None:
    parsed = parse(
        "<evaluation>good</evaluation><solution>7</solution><comparison>N/A</comparison>",
        "three_section",
    )
    assert list(parsed.sections) == ["solution", "evaluation", "comparison"]
    assert parsed.problems == ("evaluation: out of order",)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<solution></solution>", None),
        ("<solution> \n\u3000</solution>", None),
        ("no tags at all", None),
        ("", None),
        ("</solution>42", None),
        ("<solution>42", "42"),
        ("<ſolution>42</ſolution>", None),  # the long s is no s
        ("<solution>4 <ſolution> 2</solution>", "4 <ſolution> 2"),
        ("<solutions>42</solutions>", None),
        ("<solution\u2003>42</solution\u00a0>", "42"),
    ],
)
def test_parse_finds_an_answer_only_when_there_is_one(text: str, answer: str | None) -> None:
    assert parse(text, "three_section").answer == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (f"```xml\n{THREE}\n```", "42"),
        ("<solution>\n```\n42\n```\n</solution>", "42"),
        ("<solution>```python\nx = 1\n```</solution>", "x = 1"),
        ("<solution>so\n```\nx\n```</solution>", "so\n```\nx\n```"),
        ("<solution>```\na\n```\nb\n```\nc\n```</solution>", "```\na\n```\nb\n```\nc\n```"),
        ("<solution>```\n```</solution>", None),
    ],
)
def test_parse_strips_fences_when_they_wrap_the_content(text: str, answer: str | None) -> None:
    assert parse(text, "three_section").answer == answer


def test_parse_unwraps_thinking_when_asked_to() -> None:
    text = "<THINK>plan <solution>41</solution></think><solution><think>hm</think> 42</solution>"
    parsed = parse(text, "three_section")
    assert parsed.answer == "hm 42"
    only = parse("<think><solution>41</solution></think>", "three_section")
    assert only.answer == "41"
    at_the_edge = parse("<solution><think>42</think></solution>", "three_section")
    section = at_the_edge.sections["solution"]
    assert section.text == "42"
    assert section.span == (17, 19)  # <solution> 10 + <think> 7


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<think><solution>1</solution></think><solution>2</solution>", "2"),
        ("<think><solution>1</solution>", None),  # still thinking at the end
        ("<solution>1</solution></think><solution>2</solution>", "2"),  # opened by the template
        ("<solution>1</solution></think>", None),
        ("<solution><think>no 7</think>2</solution>", "2"),
        ("<solution>2 <think>no</think>!</solution>", "2 !"),
        ("<think>a<think>b</think><solution>2</solution></think>", "2"),
    ],
)
def test_parse_ignores_what_is_thought_when_thinking_is_dropped(
    text: str, answer: str | None
) -> None:
    assert parse(text, "three_section", think="drop").answer == answer


@pytest.mark.parametrize(
    ("word", "consensus"),
    [("YES", True), ("no", False), ("**Yes**.", True), ("Not yet", None), ("", None)],
)
def test_parse_reads_consensus_when_it_is_yes_or_no(word: str, consensus: bool | None) -> None:
    parsed = parse(f"<solution>1</solution><consensus> {word} </consensus>", "five_section")
    assert parsed.consensus is consensus


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"first \boxed{1}, then \boxed{\frac{1}{2}} done", r"\frac{1}{2}"),
        (r"\boxed{ 3 } and \boxed{4", "3"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{a \boxed{5}}", r"a \boxed{5}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"} { \boxed {6}", "6"),
        (r"\boxed{}", None),
        ("no box", None),
    ],
)
def test_parse_reads_the_last_box_when_the_contract_is_boxed(text: str, answer: str | None) -> None:
    assert parse(text, "boxed").answer == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("work\nAnswer: 42", "42"),
        ("Answer: 1\nmore\n**answer:** 2 \n", "2"),
        ("**Final Answer: 7**\r\n", "7"),
        ("Answer : - - +", "- - +"),
        ("the Answer: 42", None),
        ("Answer:", None),
    ],
)
def test_parse_reads_the_last_line_when_the_contract_is_answer_line(
    text: str, answer: str | None
) -> None:
    assert parse(text, "answer_line").answer == answer


def test_parse_ignores_a_thought_box_when_thinking_is_dropped() -> None:
    text = r"\boxed{4}<think>\boxed{5}</think>"
    assert parse(text, "boxed").answer == "5"
    assert parse(text, "boxed", think="drop").answer == "4"


def test_parse_lists_every_problem() -> None:
    text = "</comparison><evaluation>x<comparison>Agent 0 beats Agent 1</comparison>"
    assert parse(text, "three_section").problems == (
        "closing tag </comparison> closes nothing",
        "solution: missing",
        "evaluation: truncated, no closing tag",
        "comparison: 1 invalid lines",
    )
    assert parse(THREE, "three_section").problems == ()


def test_get_contract_names_the_nearest_when_the_name_is_unknown() -> None:
    with pytest.raises(ValueError, match="did you mean 'three_section'"):
        get_contract("three_sections")
    assert get_contract("boxed") is CONTRACTS["boxed"]


def test_contract_serves_a_users_sections_when_declared() -> None:
    poem = Contract("poem", ("draft", "poem"), "</poem>")
    parsed = parse("<poem>Roses</poem><draft>r</draft>", poem)
    assert parsed.sections["poem"].text == "Roses"
    assert parsed.answer == "r"  # without a solution the first section is the answer


@pytest.mark.parametrize(
    ("sections", "kind"),
    [((), "xml"), (("a",), "boxed"), (("a", "a"), "xml"), (("Think",), "xml"), (("think",), "xml")],
)
def test_contract_refuses_when_its_sections_make_no_sense(
    sections: tuple[str, ...], kind: str
) -> None:
    with pytest.raises(ValueError, match="contract 'bad'"):
        Contract("bad", sections, None, kind)  # type: ignore[arg-type]
