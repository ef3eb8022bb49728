"""What holds for any string: no error, true spans, and what was rendered comes back."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from debate_protocol.parsing import (
    CONTRACTS,
    Parsed,
    ThinkMode,
    get_contract,
    neutralised,
    parse,
)

PIECES = [
    "<solution>", "</solution>", "<SOLUTION >", "<evaluation>", "</evaluation>", "<comparison>",
    "</comparison>", "<consensus>", "</consensus>", "<consensus_reason>", "</consensus_reason>",
    "<think>", "</think>", "</THINK\n>", "```", "```xml\n", "\n```\n", "~~~~\n", "\n", "\r\n", " ",
    "<comparison>Agent 1 > Agent 2\n", "\nAgent 2 = Agent 0\n", "Agent 0 = Agent 0", "Agent ",
    "N/A", "\\boxed{", "\\boxed {x}", "}", "{",
    "\\", "\nAnswer: ", "YES", "no", "\x00", "\ud800", "\u2028", "🙂", "<", "</", ">", "&gt;",
    "9" * 40, "İ", "ſ", "K",
]  # fmt: skip
HOSTILE = st.lists(st.sampled_from(PIECES) | st.text(max_size=4), max_size=40).map("".join)
ANY = st.text(st.characters(codec=None, categories=None), max_size=200) | HOSTILE
CONTRACT = st.sampled_from(sorted(CONTRACTS))
THINK = st.sampled_from(["unwrap", "drop"])
THOUGHT = {
    "unwrap": re.compile(r"(?ai)</?think(?u:\s)*>"),
    "drop": re.compile(r"(?ais)<think(?u:\s)*>.*?(?:</think(?u:\s)*>|\Z)|</think(?u:\s)*>"),
}


@settings(max_examples=400, deadline=None)
@given(ANY, CONTRACT, THINK, st.none() | st.integers(0, 3), st.none() | st.integers(1, 4))
def test_parse_survives_and_tells_true_spans_when_given_any_string(
    text: str, contract: str, think: ThinkMode, author: int | None, num_agents: int | None
) -> None:
    parsed = parse(text, contract, author=author, num_agents=num_agents, think=think)
    at = 0
    for section in sorted(parsed.sections.values(), key=lambda one: one.span):
        start, end = section.span
        assert at <= section.outer[0] <= start <= end <= section.outer[1] <= len(text)
        assert section.text == THOUGHT[think].sub("", text[start:end]).strip()
        assert text[start:end] == text[start:end].strip()
        at = section.outer[1]
    for vote in parsed.comparisons:
        start, end = parsed.sections["comparison"].span
        assert start <= vote.span[0] < vote.span[1] <= end
        assert vote.left != vote.right
        assert author not in (vote.left, vote.right)
        assert num_agents is None or max(vote.left, vote.right) < num_agents
    assert parsed.answer is None or parsed.answer.strip()
    assert parsed.answer is None or parsed.answer in parsed.spoken


PLAIN = st.text(st.characters(exclude_characters="<`~", exclude_categories=["Cs"]), max_size=60)
FILLED = PLAIN.map(lambda text: f"{text.strip()} so")
VOTES = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from("<=>"), st.integers(0, 3))
    .filter(lambda vote: vote[0] != vote[2])
)  # fmt: skip


def rendered(contract: str, said: dict[str, str], preamble: str) -> str:
    """A response that keeps its contract, after a preamble."""
    if contract == "boxed":
        return f"{preamble}\\boxed{{1}} then \\boxed{{{said['solution']}}}."
    if contract == "answer_line":
        return f"{preamble}\nAnswer: 1\nno,\n**Answer: {said['solution']}**\n"
    names = get_contract(contract).sections
    return preamble + "\n".join(f"<{name}>{said[name]}</{name}>" for name in names)


@settings(max_examples=200, deadline=None)
@given(CONTRACT, THINK, st.tuples(FILLED, PLAIN, FILLED), VOTES, st.booleans())
def test_parse_gives_back_what_was_rendered_when_texts_hold_no_tags(
    contract: str,
    think: ThinkMode,
    texts: tuple[str, str, str],
    votes: list[tuple[int, str, int]],
    consensus: bool,
) -> None:
    free = contract in ("boxed", "answer_line")
    # Braces and line ends are what frames the answer of free text.
    solution = re.sub(r"[{}\\\n*]", "", texts[0]).strip() if free else texts[0]
    said = {
        "solution": solution,
        "evaluation": texts[1],
        "comparison": "\n".join(f"Agent {a} {op} Agent {b}" for a, op, b in votes) or "N/A",
        "consensus": "YES" if consensus else "NO",
        "consensus_reason": texts[2],
    }
    preamble = f"<think>{texts[1]}</think>" if think == "drop" else ""
    text = rendered(contract, said, preamble)
    parsed = parse(text, contract, think=think)
    assert parsed.problems == ()
    assert parsed.answer == solution.strip()
    if free:
        return
    assert list(parsed.sections) == list(get_contract(contract).sections)
    for name, section in parsed.sections.items():
        assert section.text == said[name].strip() == text[slice(*section.span)]
        assert text[slice(*section.outer)] == f"<{name}>{said[name]}</{name}>"
    assert told(parsed) == [(b, ">", a) if op == "<" else (a, op, b) for a, op, b in votes]
    assert [text[slice(*vote.span)] for vote in parsed.comparisons] == [
        f"Agent {a} {op} Agent {b}" for a, op, b in votes
    ]
    assert parsed.consensus is (consensus if contract == "five_section" else None)


def told(parsed: Parsed) -> list[tuple[int, str, int]]:
    return [(vote.left, vote.op, vote.right) for vote in parsed.comparisons]


@settings(max_examples=200, deadline=None)
@given(ANY, st.sampled_from(["three_section", "five_section"]))
def test_neutralised_disarms_every_tag_when_given_any_string(text: str, contract: str) -> None:
    disarmed = neutralised(text, get_contract(contract))
    assert len(disarmed) == len(text)
    # Whatever text stands around it, no section opens and none closes in it.
    around = parse(f"<solution>{disarmed}</solution>", contract)
    assert list(around.sections) == ["solution"]
    assert around.sections["solution"].outer == (0, len(text) + len("<solution></solution>"))
    assert not any("block" in problem or "closes" in problem for problem in around.problems)
