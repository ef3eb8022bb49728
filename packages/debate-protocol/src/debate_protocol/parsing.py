"""Reading a reply, from any string: its sections, votes and its own final answer."""

import re
from collections.abc import Mapping
from dataclasses import replace

from debate_protocol.contract import Contract, get_contract
from debate_protocol.roles import gives_answers
from debate_protocol.tags import (
    Block,
    Parsed,
    Range,
    Reading,
    Scan,
    SectionText,
    ThinkMode,
    Votes,
    blanked,
    read_votes,
    scan,
    trimmed,
)
from debate_protocol.types import Transcript, Turn

_BRACES = re.compile(r"\\boxed\s*+\{|\\.|[{}]", re.DOTALL)
_SPACE = re.compile(r"\s*+")
_ANSWER_LINE = re.compile(
    r"^[^\S\n]*+[*_#>-]*+[^\S\n]*+(?ai:(?:final )?answer)[^\S\n]*+[*_]*+[^\S\n]*+[:：]",
    re.MULTILINE,
)


def final_box(text: str) -> Range | None:
    r"""Return the range of the content of the last complete `\boxed{…}`, or None.

    One pass with a stack, so that a million openings cost linear time. A box that holds nothing
    but another box counts as the inner one.
    """
    if "\\boxed" not in text:
        return None
    stack: list[Range | None] = []  # (outer start, content start) of a box; None for other braces
    content: Range | None = None
    outer = (-1, -1)
    for match in _BRACES.finditer(text):
        found = match.group()
        if found.startswith("\\boxed"):
            stack.append(match.span())
        elif found == "{":
            stack.append(None)
        elif found == "}" and stack:
            opened = stack.pop()
            if opened is None:
                continue
            start, end = opened[1], match.start()
            holds_box = _skip_space(text, start) == outer[0] and _skip_space(text, outer[1]) == end
            if not holds_box:
                content = (start, end)
            outer = (opened[0], match.end())
    return content and _stripped(text, *content)


def answer_line(text: str) -> Range | None:
    """Return the range of what follows `Answer:` in the last line that begins so, or None."""
    last: re.Match[str] | None = None
    for match in _ANSWER_LINE.finditer(text):
        last = match
    if last is None:
        return None
    line_end = text.find("\n", last.end())
    start, end = _stripped(text, last.end(), len(text) if line_end < 0 else line_end)
    while start < end and text[start] == "*":
        start += 1
    while start < end and text[end - 1] == "*":
        end -= 1
    return _stripped(text, start, end)


def _skip_space(text: str, start: int) -> int:
    match = _SPACE.match(text, start) if start >= 0 else None
    return match.end() if match else start


def _stripped(text: str, start: int, end: int) -> Range:
    inner = text[start:end]
    left = start + len(inner) - len(inner.lstrip())
    return left, max(left, start + len(inner.rstrip()))


_YES_NO = re.compile(r"[\W_]*+(?ai:(yes)|no)(?![^\W_])")


class ParseError(ValueError):
    """A response departs from its contract; raised in strict mode only.

    Attributes:
        contract: The contract's name.
        problems: Everything found, in words.
    """

    def __init__(self, contract: str, problems: tuple[str, ...]) -> None:
        self.contract = contract
        self.problems = problems
        super().__init__(f"response does not keep contract {contract!r}: {'; '.join(problems)}")

    def __reduce__(self) -> tuple[type["ParseError"], tuple[str, tuple[str, ...]]]:
        return ParseError, (self.contract, self.problems)


def parse(
    text: str,
    contract: Contract | str,
    *,
    author: int | None = None,
    num_agents: int | None = None,
    think: ThinkMode = "unwrap",
    strict: bool = False,
) -> Parsed:
    """Read a response in time linear in its length; spans are offsets into `text` as given.

    Args:
        text: Any string.
        contract: A contract or the name of a built-in one.
        author: The agent who wrote it; comparisons that name it are dropped and counted.
        num_agents: Comparisons of ids from this number on are malformed and counted.
        think: `unwrap` reads what stands in thinking blocks like other text; `drop` ignores it.
        strict: Raise instead of recording problems.

    Raises:
        ParseError: In strict mode, when there is any problem; it lists all of them.
        ValueError: The contract's name is unknown.
    """
    rules = get_contract(contract) if isinstance(contract, str) else contract
    found = scan(text, rules.sections, think)
    if rules.kind == "xml":
        parsed = _parse_sections(text, rules, found, author, num_agents)
    else:
        parsed = _parse_free_text(text, rules, found.holes)
    if strict and parsed.problems:
        raise ParseError(rules.name, parsed.problems)
    return replace(parsed, reading=Reading(text, rules, author, num_agents, think))


def parse_turn(transcript: Transcript, turn: Turn) -> Parsed:
    """Read a recorded turn by the transcript's contract, number of agents and thinking rule.

    What was read is kept in `turn.parsed`, so that a turn is read once, mostly by its form. It is
    used again only for the same text and rules: a changed copy of a turn is read itself.
    """
    rules = transcript.protocol
    think: ThinkMode = "drop" if rules.extra.get("think") == "drop" else "unwrap"
    contract = get_contract(rules.contract)
    wanted = Reading(turn.text, contract, turn.agent, rules.num_agents, think)
    if turn.parsed is None or turn.parsed.reading != wanted:
        found = parse(
            turn.text, contract, author=turn.agent, num_agents=rules.num_agents, think=think
        )
        # Turns are frozen; this field follows from the others and no comparison reads it.
        object.__setattr__(turn, "parsed", found)
        return found
    return turn.parsed


def turn_failed(transcript: Transcript, turn: Turn) -> bool:
    """Return whether a turn failed: recorded as failed, or without the answer that was due.

    A critic owes no answer; its turn fails when it says nothing.
    """
    if turn.failure is not None:
        return True
    if not gives_answers(transcript.protocol, turn.agent):
        return not turn.text.strip()
    return parse_turn(transcript, turn).answer is None


def spoken_text(text: str, think: ThinkMode) -> str:
    """Return a response without thinking tags or, with `drop`, without thinking blocks."""
    return _without_holes(text, (0, len(text)), scan(text, (), think).holes).strip()


def _parse_free_text(text: str, rules: Contract, holes: list[Range]) -> Parsed:
    seen = blanked(text, 0, len(text), holes)
    span = final_box(seen) if rules.kind == "boxed" else answer_line(seen)
    if span is None or span[0] == span[1]:
        missing = r"\boxed{…}" if rules.kind == "boxed" else "line 'Answer: …'"
        return Parsed({}, problems=(f"answer: no {missing} with content",))
    return Parsed({}, answer=_without_holes(text, span, holes))


def _parse_sections(
    text: str, rules: Contract, found: Scan, author: int | None, num_agents: int | None
) -> Parsed:
    problems = [f"closing tag </{tag}> closes nothing" for tag in found.stray[:3]]
    if len(found.stray) > 3:
        problems.append(f"{len(found.stray) - 3} more closing tags close nothing")
    chosen = _choose(found.blocks, rules, problems)
    sections: dict[str, SectionText] = {}
    votes = Votes()
    for name, block in chosen.items():
        start, end = block.inner
        content = blanked(text, start, end, found.holes) if found.holes else text[start:end]
        left, right = trimmed(content)
        span = (start + left, start + right)
        words = _without_holes(text, span, found.holes)
        sections[name] = SectionText(words, span, block.outer, block.truncated)
        if name == "comparison":
            votes = read_votes(content[left:right], span[0], author, num_agents)
            _report_votes(votes, problems)
    consensus = _consensus(sections, rules, problems)
    holder = sections.get(rules.answer_section or "")
    answer = holder.text if holder and holder.text else None
    if holder and not holder.text:
        problems.append(f"{rules.answer_section}: empty")
    return Parsed(
        sections,
        tuple(votes.comparisons),
        votes.invalid_lines,
        votes.self_dropped,
        votes.malformed,
        tuple(votes.dropped),
        consensus,
        answer,
        tuple(problems),
    )


def _choose(blocks: list[Block], rules: Contract, problems: list[str]) -> dict[str, Block]:
    """Take the last complete block of each section, else its last one."""
    counts: dict[str, int] = {}
    chosen: dict[str, Block] = {}
    for block in blocks:
        counts[block.name] = counts.get(block.name, 0) + 1
        best = chosen.get(block.name)
        if best is None or best.truncated or not block.truncated:
            chosen[block.name] = block
    in_order = {name: chosen[name] for name in rules.sections if name in chosen}
    after = -1
    for name in rules.sections:
        block_or_none = in_order.get(name)
        if block_or_none is None:
            problems.append(f"{name}: missing")
            continue
        if counts[name] > 1:
            problems.append(f"{name}: {counts[name]} blocks, the last complete one is read")
        if block_or_none.truncated:
            problems.append(f"{name}: truncated, no closing tag")
        if block_or_none.outer[0] < after:
            problems.append(f"{name}: out of order")
        after = max(after, block_or_none.outer[0])
    return in_order


def _report_votes(votes: Votes, problems: list[str]) -> None:
    if votes.invalid_lines:
        problems.append(f"comparison: {votes.invalid_lines} invalid lines")
    if votes.self_dropped:
        problems.append(f"comparison: {votes.self_dropped} lines name their author")
    if votes.malformed:
        problems.append(f"comparison: {votes.malformed} lines with impossible agents")


def _consensus(
    sections: Mapping[str, SectionText], rules: Contract, problems: list[str]
) -> bool | None:
    section = sections.get("consensus")
    if section is None:
        return None
    match = _YES_NO.match(section.text)
    if match is None:
        problems.append("consensus: neither YES nor NO")
        return None
    return match.group(1) is not None


def _without_holes(text: str, span: Range, holes: list[Range]) -> str:
    start, end = span
    pieces: list[str] = []
    for left, right in holes:
        if right <= start or left >= end:
            continue
        pieces.append(text[start : max(left, start)])
        start = min(right, end)
    return "".join((*pieces, text[start:end])).strip() if pieces else text[start:end]
