"""Comparison lines: what counts, what is dropped, what is invalid."""

import pytest

from debate_protocol.parsing import Parsed, parse


def votes(
    lines: str, author: int | None = None, num_agents: int | None = None
) -> tuple[list[tuple[int, str, int]], Parsed]:
    text = f"<comparison>{lines}</comparison>"
    parsed = parse(text, "three_section", author=author, num_agents=num_agents)
    return [(one.left, one.op, one.right) for one in parsed.comparisons], parsed


@pytest.mark.parametrize(
    ("line", "vote"),
    [
        ("Agent 0 > Agent 1", (0, ">", 1)),
        ("agent 0 = AGENT 1", (0, "=", 1)),
        ("Agent 0 < Agent 1", (1, ">", 0)),
        ("Agent 0 &gt; Agent 1", (0, ">", 1)),
        ("Agent 0 &LT; Agent 1", (1, ">", 0)),
        ("- Agent 0 > Agent 1", (0, ">", 1)),
        ("• Agent 0 > Agent 1 because it checks", (0, ">", 1)),
        ("12) Agent 0 > Agent 1: clearer", (0, ">", 1)),
        ("1. **Agent 0** > **Agent 1**", (0, ">", 1)),
        ("\u2003Agent\u00a00\u2003>\u00a0Agent 1 (sound)", (0, ">", 1)),
        ("Agent 007 > Agent 10", (7, ">", 10)),
        ("Agent0>Agent1", (0, ">", 1)),
    ],
)
def test_parse_reads_a_vote_when_the_line_has_the_form(
    line: str, vote: tuple[int, str, int]
) -> None:
    found, parsed = votes(line)
    assert found == [vote]
    assert (parsed.invalid_lines, parsed.malformed, parsed.self_dropped) == (0, 0, 0)


@pytest.mark.parametrize(
    "line",
    [
        "Agent 0 beats Agent 1",
        "Agent 0 >= Agent 1",
        "Agent 0 > Agent 1 > Agent 2",
        "Agent 0 > Agent 1st",
        "I think Agent 0 > Agent 1",
        "0 > 1",
        "Agent ٣ > Agent 1",
    ],
)
def test_parse_counts_a_line_as_invalid_when_it_has_another_form(line: str) -> None:
    found, parsed = votes(f"{line}\nAgent 3 > Agent 4")
    assert found == [(3, ">", 4)]
    assert parsed.invalid_lines == 1


@pytest.mark.parametrize("lines", ["", "N/A", " n/a.\n", "None", "- N/A", "N/A (first round)"])
def test_parse_finds_no_vote_when_there_is_none(lines: str) -> None:
    found, parsed = votes(lines)
    assert found == []
    assert parsed.invalid_lines == 0


def test_parse_takes_one_vote_a_line_when_a_line_has_two() -> None:
    found, parsed = votes("Agent 0 > Agent 1, Agent 1 > Agent 2")
    assert found == [(0, ">", 1)]
    assert parsed.invalid_lines == 0


def test_parse_ignores_fences_when_they_stand_among_the_lines() -> None:
    found, parsed = votes("```\nAgent 0 > Agent 1\n```\nAgent 1 = Agent 2\n```text\n```")
    assert found == [(0, ">", 1), (1, "=", 2)]
    assert parsed.invalid_lines == 0


def test_parse_drops_and_counts_when_a_line_names_its_author() -> None:
    found, parsed = votes(
        "Agent 2 > Agent 0\nAgent 0 > Agent 2\nAgent 2 = Agent 2\nAgent 0 > Agent 1", author=2
    )
    assert found == [(0, ">", 1)]
    assert parsed.self_dropped == 3
    assert parsed.malformed == 0


def test_parse_counts_malformed_when_ids_are_impossible() -> None:
    huge = "9" * 5000  # longer than Python turns into a number
    found, parsed = votes(
        f"Agent 0 > Agent 3\nAgent 1 = Agent 1\nAgent {huge} > Agent 0\nAgent 2 > Agent 0",
        num_agents=3,
    )
    assert found == [(2, ">", 0)]
    assert parsed.malformed == 3
    assert votes("Agent 0 > Agent 3")[0] == [(0, ">", 3)]  # nothing known about the number
    assert votes(f"Agent 0 > Agent {huge}")[1].malformed == 1


def test_parse_gives_each_vote_the_span_of_its_line_when_lines_are_decorated() -> None:
    text = "<comparison>\r\n  - Agent 0 > Agent 1, good \r\nfoo\n\tAgent 1 = Agent 2</comparison>"
    parsed = parse(text, "three_section")
    assert [text[slice(*vote.span)] for vote in parsed.comparisons] == [
        "- Agent 0 > Agent 1, good",
        "Agent 1 = Agent 2",
    ]


def test_parse_reads_votes_at_their_place_when_thinking_stands_between() -> None:
    text = "<comparison><think>Agent 5 > Agent 6\n</think>Agent 0 > Agent 1</comparison>"
    dropped = parse(text, "three_section", think="drop")
    assert [text[slice(*vote.span)] for vote in dropped.comparisons] == ["Agent 0 > Agent 1"]
    assert len(parse(text, "three_section").comparisons) == 2
