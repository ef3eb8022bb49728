"""What a reply must hold, its contract, and what a reply says: sections, votes and its answer."""

import difflib
import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal, NamedTuple, cast, get_args

ContractKind = Literal["xml", "boxed", "answer_line"]
_SECTION_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
MAX_SECTIONS = 100
"""Most sections of a contract: each tag of a response is compared with all of them."""
_RESERVED = ("think", "turn")


def did_you_mean(name: object, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return `; did you mean 'x'?` with the nearest known name, or nothing."""
    near = difflib.get_close_matches(str(name), list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""


@dataclass(frozen=True, slots=True)
class Contract:
    r"""The form that a response must have.

    `xml` responses consist of the named sections as tags, in order. `boxed` and `answer_line`
    responses are free text that ends with `\boxed{…}` or with a last line `Answer: …`.

    Args:
        name: What recipes and transcripts call it.
        sections: Tag names in order; empty unless `kind` is `xml`.
        stop: Stop string that ends a response, None for none. Left out, it is the closing tag of
            the last section, or None without sections.
        kind: Where the answer is read from.
        instructions: What prompts say of a section instead of the usual; any of the sections.
        answers: Whether a reply owes an answer; a reply that only judges others owes none.
        ranks_own: Whether comparisons may name their author, who is shown an answer of its own.

    Raises:
        ValueError: The sections do not fit the kind, are more than `MAX_SECTIONS`, repeat, or are
            not lower-case names; the stop string is empty; an instruction is about no section.
    """

    name: str
    sections: tuple[str, ...] = ()
    stop: str | None = cast(None, ...)
    kind: ContractKind = "xml"
    instructions: Mapping[str, str] = field(default_factory=dict, hash=False)
    answers: bool = True
    ranks_own: bool = False

    def __post_init__(self) -> None:
        if cast(object, self.stop) is ...:
            last_tag = f"</{self.sections[-1]}>" if self.sections else None
            object.__setattr__(self, "stop", last_tag)
        for problem in self._problems():
            raise ValueError(f"contract {self.name!r}: {problem}")

    def _problems(self) -> Iterator[str]:
        kinds, sections = get_args(ContractKind), self.sections
        if self.kind not in kinds:
            yield f"kind {self.kind!r}; expected one of {', '.join(kinds)}"
        if (self.kind == "xml") != bool(sections):
            yield (
                f"kind {self.kind!r} with sections {sections!r}; "
                "an xml contract needs sections, the other kinds have none"
            )
        for section in sections:
            if not _SECTION_NAME.match(section) or section in _RESERVED:
                yield (
                    f"section {section!r}; expected a lower-case name of letters, digits and _ "
                    f"that is none of {', '.join(_RESERVED)}"
                )
        if len(sections) > MAX_SECTIONS:
            yield f"found {len(sections)} sections, expected at most {MAX_SECTIONS}"
        if len(set(sections)) != len(sections):
            yield f"a section is named twice: {sections!r}"
        if self.stop == "":
            yield "stop is empty; write null for none"
        for section in self.instructions:
            if section not in sections:
                yield (
                    f"instructions for {section!r}, expected one of its sections "
                    f"({', '.join(sections) or 'it has none'}){did_you_mean(section, sections)}"
                )

    def __str__(self) -> str:
        return self.name

    @property
    def answer_section(self) -> str | None:
        """The section that holds the answer: `solution`, else the first; None without one."""
        if not self.answers:
            return None
        first = self.sections[0] if self.sections else None
        return "solution" if "solution" in self.sections else first

    def reply(self, answer: str, sections: Mapping[str, str] | None = None) -> str:
        """Return a response of this form that gives an answer.

        Args:
            answer: Stands where answers are read from.
            sections: What others say; one that is left out says `N/A`, a consensus NO.
        """
        if self.kind == "boxed":
            return f"\\boxed{{{answer}}}"
        if self.kind == "answer_line":
            return f"Answer: {answer}"
        said = {"consensus": "NO", **(sections or {}), self.answer_section or "": answer}
        return "\n".join(
            f"<{name}>\n{said.get(name) or 'N/A'}\n</{name}>" for name in self.sections
        )


_BUILT_IN = (
    Contract("three_section", ("solution", "evaluation", "comparison"), "</comparison>"),
    Contract(
        "five_section",
        ("solution", "evaluation", "comparison", "consensus", "consensus_reason"),
        "</consensus_reason>",
    ),
    Contract("boxed", (), None, "boxed"),
    Contract("answer_line", (), None, "answer_line"),
)
CONTRACTS: Mapping[str, Contract] = MappingProxyType({c.name: c for c in _BUILT_IN})
"""The built-in contracts by name."""


def find_contract(contract: str | Contract) -> Contract | None:
    """Return a contract itself or the built-in one of this name, None when there is none."""
    return CONTRACTS.get(contract) if isinstance(contract, str) else contract


def get_contract(contract: str | Contract) -> Contract:
    """Return a contract itself or the built-in one of this name.

    Raises:
        ValueError: No contract has this name; the message names the nearest one.
    """
    found = find_contract(contract)
    if found is not None:
        return found
    raise ValueError(
        f"contract: found {contract!r}, expected one of {', '.join(CONTRACTS)}"
        f"{did_you_mean(contract, CONTRACTS)}"
    )


ThinkMode = Literal["unwrap", "drop"]
Range = tuple[int, int]

_FENCED = re.compile(
    r"(`{3,}+(?=[^`\n]*+$)|~{3,}+).*+\n(?s:(.*?))^[^\S\n]*+\1[`~]*+[^\S\n]*+$", re.MULTILINE
)


class Block(NamedTuple):
    """One occurrence of a section: its name, its outer range and the range between its tags."""

    name: str
    outer: Range
    inner: Range
    truncated: bool


@dataclass(slots=True)
class Scan:
    """The blocks of a text in order, what to cut out of it, and tags that close nothing."""

    blocks: list[Block] = field(default_factory=list)
    holes: list[Range] = field(default_factory=list)
    stray: list[str] = field(default_factory=list)
    _open: tuple[str, Range] | None = None

    def _read_section_tag(self, tag: str, closing: bool, span: Range) -> None:
        if not closing:
            self._end_section(span[0], span[0], truncated=True)
            self._open = tag, span
        elif self._open is not None and self._open[0] == tag:
            self._end_section(span[0], span[1], truncated=False)
        else:
            self.stray.append(tag)

    def _end_section(self, inner_end: int, outer_end: int, *, truncated: bool) -> None:
        if self._open is not None:
            tag, (outer, inner) = self._open
            self.blocks.append(Block(tag, (outer, outer_end), (inner, inner_end), truncated))
            self._open = None


@functools.lru_cache(maxsize=64)
def _tag_pattern(sections: tuple[str, ...]) -> re.Pattern[str]:
    # ASCII folding only: under Unicode folding the long s would match the s of solution.
    # Possessive white space, and no white space before the name, keep the scan linear.
    names = "|".join(sorted((*sections, "think"), key=len, reverse=True))
    return re.compile(rf"<(/?)((?ai:{names}))\s*+>")


def scan(text: str, sections: tuple[str, ...], think: ThinkMode) -> Scan:
    """Find sections and thinking tags; time grows linearly with the text."""
    found = Scan()
    thinking_from = -1
    seen_think = False
    for match in _tag_pattern(sections).finditer(text):
        slash, tag = match.groups()
        closing, tag = slash != "", tag.lower()
        if tag != "think":
            if thinking_from < 0:
                found._read_section_tag(tag, closing, match.span())
            continue
        if think == "unwrap":
            found.holes.append(match.span())
        elif not closing:
            thinking_from = match.start() if thinking_from < 0 else thinking_from
        elif seen_think:
            found.holes.append((match.start() if thinking_from < 0 else thinking_from, match.end()))
            thinking_from = -1
        else:
            # The template opened the thinking in the prompt: all up to here is thought.
            found = Scan(holes=[(0, match.end())])
        seen_think = True
    if thinking_from >= 0:
        found.holes.append((thinking_from, len(text)))
    found._end_section(len(text), len(text), truncated=True)
    return found


def blanked(text: str, start: int, end: int, holes: Iterable[Range]) -> str:
    """Return `text[start:end]` with the holes as spaces, so that offsets stay true."""
    pieces: list[str] = []
    at = start
    for left, right in holes:
        left, right = max(left, at), min(right, end)
        if left >= right:
            continue
        pieces += (text[at:left], " " * (right - left))
        at = right
    if not pieces:
        return text[start:end]
    pieces.append(text[at:end])
    return "".join(pieces)


def trimmed(content: str) -> Range:
    """Return the range of a section's content without outer white space and code fences.

    Fences are cut off where one wraps the whole content: it is closed by the first one of the same
    sign that is as long and names no language.
    """
    start, end = _stripped(content, 0, len(content))
    fenced = _FENCED.match(content, start, end)
    if fenced is not None and fenced.end() == end:
        return _stripped(content, *fenced.span(2))
    return start, end


@functools.lru_cache(maxsize=64)
def _armed_pattern(sections: tuple[str, ...]) -> re.Pattern[str]:
    names = {"think", "turn", *sections, *(s for c in CONTRACTS.values() for s in c.sections)}
    known = "|".join(sorted(names, key=len, reverse=True))
    # Also `< /solution`, half tags, template marks such as <|im_end|>, and at the end of the text
    # what would make a tag of a name that follows it.
    tag = rf"\s*+(?:/\s*+)?+(?:(?ai:{known})(?![A-Za-z0-9_])|\Z)"
    return re.compile(rf"<(?={tag}|\|[A-Za-z0-9_]+\|>)")


def neutralised(text: str, contract: Contract) -> str:
    """Return the text with every tag that could open or close a section made plain.

    The `<` of such a tag becomes `‹`; nothing else changes, and the length stays the same.
    """
    if "<" not in text:
        return text
    return _armed_pattern(contract.sections).sub("‹", text)


_BULLET = r"(?:[-*+•·–—`]++|\(?[0-9]{1,9}[.)])?+"
_LINE = re.compile(
    rf"\s*+{_BULLET}\s*+[*_`]*+(?ai:agent)\s*+([0-9]++)\s*+[*_`]*+\s*+"
    r"((?ai:>|<|=|&gt;|&lt;))\s*+[*_`]*+\s*+(?ai:agent)\s*+([0-9]++)(?!\w)(?!\s*+(?:[<>=]|&[gl]t;))"
)
_NOTHING = re.compile(rf"\s*+{_BULLET}\s*+(?ai:n/a|na|none)\s*+[.]?+\s*+\Z")
_NOTHING_LINE = re.compile(rf"\s*+{_BULLET}\s*+(?ai:n/a(?!\w)|(?:na|none)\s*+[.]?+\s*+\Z)")
_FENCE_LINE = re.compile(r"\s*+(?:`{3,}+|~{3,}+)\s*+\w*+\s*+\Z")
# Reading long ones as numbers is not linear, and Python may refuse it; they count as malformed.
_MAX_ID_DIGITS = 640


@dataclass(frozen=True, slots=True)
class Comparison:
    """One vote; `A < B` is held as `B > A`. `span` covers the whole line in the original text."""

    left: int
    op: Literal[">", "="]
    right: int
    span: tuple[int, int]


def says_nothing(text: str | None) -> bool:
    """Return whether a section's text is missing, empty or just `N/A`."""
    return text is None or not text.strip() or _NOTHING.match(text) is not None


_DROPPED = {
    "invalid_lines": "invalid lines",
    "self_dropped": "lines name their author",
    "malformed": "lines with impossible agents",
}
"""Why a line of a comparison does not count, in words."""


def _read_votes(
    content: str, offset: int, author: int | None, num_agents: int | None
) -> tuple[list[Comparison], list[tuple[str, Range]]]:
    """Return the comparisons of a section, and why and where lines of it do not count.

    The places of the latter include line breaks: where a line cannot be read because it ends too
    early, the break is what is wrong with it.

    Args:
        content: The section's content.
        offset: Where it begins in the original text; spans count from there.
        author: Comparisons that name this agent are dropped.
        num_agents: Ids from this number on are malformed.
    """
    comparisons: list[Comparison] = []
    dropped: list[tuple[str, Range]] = []
    # Ids are never negative; where the number of agents is unknown, none is too high.
    beyond = float("inf") if num_agents is None else num_agents
    for line in content.splitlines(keepends=True):
        start, offset = offset, offset + len(line)
        words = line.strip()
        begin = start + line.find(words)
        match = _LINE.match(line)
        if match is None:
            if words and not _NOTHING_LINE.match(line) and not _FENCE_LINE.match(line):
                dropped.append(("invalid_lines", (begin, offset)))
            continue
        first, sign, second = match.groups()
        ids = (first.lstrip("0"), second.lstrip("0"))
        left, right = (int(one or "0") if len(one) <= _MAX_ID_DIGITS else -1 for one in ids)
        if author is not None and author in (left, right):
            dropped.append(("self_dropped", (begin, offset)))
        elif not 0 <= left < beyond or not 0 <= right < beyond or left == right:
            dropped.append(("malformed", (begin, offset)))
        else:
            if sign.lower() in ("<", "&lt;"):
                left, right = right, left
            op: Literal[">", "="] = "=" if sign == "=" else ">"
            comparisons.append(Comparison(left, op, right, (begin, begin + len(words))))
    return comparisons, dropped


@dataclass(frozen=True, slots=True)
class SectionText:
    """The text of a section and where it stands in the original text.

    `span` covers the stripped text, `outer` everything from the start of the opening tag to the
    end of the closing tag or to where the section ended. `text` is `original[span]`, without
    thinking tags (or, with `think="drop"`, thinking blocks) that stand inside.
    """

    text: str
    span: Range
    outer: Range
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a response says.

    `sections` holds those that were found, in contract order. `answer` is what the answer is
    read from: the text of the solution, or the final box or answer line; None if there is none.
    `dropped_lines` says where the lines stand that `invalid_lines`, `self_dropped` and `malformed`
    count, in text order, line breaks included.
    `problems` lists in words everything that departs from the contract. `reading` says what was
    read and by which rules; two of equal content are equal whatever they were read from.
    """

    sections: Mapping[str, SectionText]
    comparisons: tuple[Comparison, ...] = ()
    invalid_lines: int = 0
    self_dropped: int = 0
    malformed: int = 0
    dropped_lines: tuple[Range, ...] = ()
    consensus: bool | None = None
    answer: str | None = None
    problems: tuple[str, ...] = ()
    spoken: str = field(default="", compare=False, repr=False)
    """The response without thinking tags or, with `think="drop"`, without thinking blocks."""
    holes: tuple[Range, ...] = field(default=(), compare=False, repr=False)
    """Where in the response stands what `spoken` leaves out."""
    reading: tuple[object, ...] | None = field(default=None, compare=False, repr=False)


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


def parse(
    text: str,
    contract: Contract | str,
    *,
    author: int | None = None,
    num_agents: int | None = None,
    think: ThinkMode = "unwrap",
) -> Parsed:
    """Read a response in time linear in its length; spans are offsets into `text` as given.

    Args:
        text: Any string.
        contract: A contract or the name of a built-in one.
        author: The agent who wrote it; comparisons that name it are dropped and counted.
        num_agents: Comparisons of ids from this number on are malformed and counted.
        think: `unwrap` reads what stands in thinking blocks like other text; `drop` ignores it.

    Raises:
        ValueError: The contract's name is unknown.
    """
    rules = get_contract(contract) if isinstance(contract, str) else contract
    found = scan(text, rules.sections, think)
    if rules.kind == "xml":
        parsed = _parse_sections(text, rules, found, author, num_agents)
    else:
        parsed = _parse_free_text(text, rules, found.holes)
    spoken = _without_holes(text, (0, len(text)), found.holes).strip()
    reading = (text, rules, author, num_agents, think)
    return replace(parsed, spoken=spoken, holes=tuple(found.holes), reading=reading)


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
    comparisons: list[Comparison] = []
    dropped: list[tuple[str, Range]] = []
    for name, block in chosen.items():
        start, end = block.inner
        content = blanked(text, start, end, found.holes) if found.holes else text[start:end]
        left, right = trimmed(content)
        span = (start + left, start + right)
        words = _without_holes(text, span, found.holes)
        sections[name] = SectionText(words, span, block.outer, block.truncated)
        if name == "comparison":
            named = None if rules.ranks_own else author
            comparisons, dropped = _read_votes(content[left:right], span[0], named, num_agents)
    counts = Counter(why for why, _ in dropped)
    problems += [
        f"comparison: {counts[why]} {words}" for why, words in _DROPPED.items() if counts[why]
    ]
    consensus = None
    if "consensus" in sections:
        match = _YES_NO.match(sections["consensus"].text)
        consensus = None if match is None else match.group(1) is not None
        if match is None:
            problems.append("consensus: neither YES nor NO")
    holder = sections.get(rules.answer_section or "")
    if holder and not holder.text:
        problems.append(f"{rules.answer_section}: empty")
    return Parsed(
        sections,
        tuple(comparisons),
        counts["invalid_lines"],
        counts["self_dropped"],
        counts["malformed"],
        dropped_lines=tuple(place for _, place in dropped),
        consensus=consensus,
        answer=(holder and holder.text) or None,
        problems=tuple(problems),
    )


def _choose(blocks: list[Block], rules: Contract, problems: list[str]) -> dict[str, Block]:
    """Take the last complete block of each section, else its last one."""
    counts = Counter(block.name for block in blocks)
    chosen: dict[str, Block] = {}
    for block in blocks:
        best = chosen.get(block.name)
        if best is None or best.truncated or not block.truncated:
            chosen[block.name] = block
    after = -1
    for name in rules.sections:
        if name not in chosen:
            problems.append(f"{name}: missing")
            continue
        block = chosen[name]
        if counts[name] > 1:
            problems.append(f"{name}: {counts[name]} blocks, the last complete one is read")
        if block.truncated:
            problems.append(f"{name}: truncated, no closing tag")
        if block.outer[0] < after:
            problems.append(f"{name}: out of order")
        after = max(after, block.outer[0])
    return {name: chosen[name] for name in rules.sections if name in chosen}


def _without_holes(text: str, span: Range, holes: list[Range]) -> str:
    start, end = span
    pieces: list[str] = []
    for left, right in holes:
        if right <= start or left >= end:
            continue
        pieces.append(text[start : max(left, start)])
        start = min(right, end)
    return "".join((*pieces, text[start:end])).strip() if pieces else text[start:end]


# The word boundary is looked for behind the name: in front of it, it costs as much as all the rest.
_MENTION = re.compile(r"(?i:agent)(?<!\w.{5})\s+(\d{1,9})\b")


def evaluation_parts(text: str, parsed: Parsed) -> list[tuple[int, Range]]:
    """Return (agent, character range) for each part of a reply's evaluation about one agent.

    A part begins where an agent is named and ends where another agent is named or the evaluation
    ends; text before the first name belongs to no part.
    """
    section = parsed.sections.get("evaluation")
    if section is None:
        return []
    start, end = section.span
    marks: list[tuple[int, int]] = []
    for found in _MENTION.finditer(blanked(text, 0, end, parsed.holes), start):
        agent = int(found[1])
        if not marks or marks[-1][0] != agent:
            marks.append((agent, found.start()))
    ends = [begin for _, begin in marks[1:]] + [end] * bool(marks)
    return [(agent, (begin, stop)) for (agent, begin), stop in zip(marks, ends, strict=True)]
