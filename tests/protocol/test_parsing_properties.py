"""What holds for any string: no error, true spans, what was rendered comes back, linear time."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from debate_protocol.contract import CONTRACTS, get_contract
from debate_protocol.parsing import parse
from debate_protocol.tags import ThinkMode, neutralised

PIECES = [
    "<solution>", "</solution>", "<SOLUTION >", "<evaluation>", "</evaluation>", "<comparison>",
    "</comparison>", "<consensus>", "</consensus>", "<think>", "</think>", "```", "```xml\n", "\n",
    "Agent 1 > Agent 2", "Agent 0 = Agent 0", "N/A", "\\boxed{", "}", "{", "Answer: ", "YES", " ",
    "\x00", "\ud800", "\u2028", "🙂", "<", "</", ">", "&gt;", "9" * 40, "İ", "ſ",
]  # fmt: skip
HOSTILE = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=40).map("".join)
ANY = st.text(st.characters(codec=None, categories=None), max_size=200) | HOSTILE
CONTRACT = st.sampled_from(sorted(CONTRACTS))
THINK = st.sampled_from(["unwrap", "drop"])


@settings(max_examples=400, deadline=None)
@given(ANY, CONTRACT, THINK, st.none() | st.integers(0, 3), st.none() | st.integers(1, 4))
def test_parse_survives_and_tells_true_spans_when_given_any_string(
    text: str, contract: str, think: ThinkMode, author: int | None, num_agents: int | None
) -> None:
    parsed = parse(text, contract, author=author, num_agents=num_agents, think=think)
    for section in parsed.sections.values():
        start, end = section.span
        assert section.outer[0] <= start <= end <= section.outer[1] <= len(text)
        assert text[start:end] == section.text or "<" in text[start:end]
        assert section.text == section.text.strip()
    for vote in parsed.comparisons:
        start, end = parsed.sections["comparison"].span
        assert start <= vote.span[0] < vote.span[1] <= end
        assert vote.left != vote.right
        assert author not in (vote.left, vote.right)
    assert parsed.answer != ""


PLAIN = st.text(st.characters(exclude_characters="<`", exclude_categories=["Cs"]), max_size=60)


@settings(max_examples=200, deadline=None)
@given(PLAIN, PLAIN, st.lists(st.tuples(st.integers(0, 9), st.sampled_from(">="))), st.booleans())
def test_parse_gives_back_what_was_rendered_when_texts_hold_no_tags(
    solution: str, evaluation: str, lines: list[tuple[int, str]], consensus: bool
) -> None:
    votes = "\n".join(f"Agent {agent} {op} Agent {agent + 1}" for agent, op in lines)
    text = (
        f"<solution>{solution}</solution><evaluation>{evaluation}</evaluation>"
        f"<comparison>{votes}</comparison><consensus>{'YES' if consensus else 'NO'}</consensus>"
        "<consensus_reason>because</consensus_reason>"
    )
    parsed = parse(text, "five_section")
    assert parsed.sections["solution"].text == solution.strip()
    assert parsed.sections["evaluation"].text == evaluation.strip()
    assert [(v.left, v.op, v.right) for v in parsed.comparisons] == [
        (a, o, a + 1) for a, o in lines
    ]
    assert parsed.consensus is consensus
    assert not any("invalid" in problem for problem in parsed.problems)


@settings(max_examples=300, deadline=None)
@given(ANY, st.sampled_from(["three_section", "five_section"]))
def test_neutralised_disarms_every_tag_when_given_any_string(text: str, contract: str) -> None:
    disarmed = neutralised(text, get_contract(contract))
    assert len(disarmed) == len(text)
    # Whatever text stands around it, no section opens and none closes in it.
    around = parse(f"<solution>{disarmed}</solution>", contract)
    assert list(around.sections) == ["solution"]
    assert around.sections["solution"].outer == (0, len(text) + len("<solution></solution>"))
    assert not any("block" in problem or "closes" in problem for problem in around.problems)


@pytest.mark.parametrize(
    "piece",
    [
        "<solution>", "</solution>", "<think>", "</think>", "<", "```\n", "\\boxed{", "{", "}",
        "<solution" + " " * 40, "<comparison>Agent 9", "<solution><think>", "\\boxed{\\boxed{x} ",
        "<comparison>\n```", "Agent 0 > Agent 1\n", "Answer: ", "\n" + " " * 30, "*", "9", "\x00",
    ],
)  # fmt: skip
def test_parse_takes_linear_time_when_the_text_is_hostile(piece: str) -> None:
    def seconds(size: int) -> float:
        text = "<comparison>" + piece * (size // len(piece))
        best = float("inf")
        for _ in range(2):
            start = time.process_time()
            for contract in ("five_section", "boxed", "answer_line"):
                parse(text, contract, think="drop")
            best = min(best, time.process_time() - start)
        return best

    small, large = seconds(40_000), seconds(320_000)
    # 8 times the text: 8 times the time if linear, 64 times if quadratic.
    assert large < 24 * small + 0.02
