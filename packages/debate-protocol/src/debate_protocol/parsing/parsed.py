"""What a response says, once it has been read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from debate_protocol.parsing.comparisons import Comparison
from debate_protocol.parsing.contract import Contract
from debate_protocol.parsing.tags import Range, ThinkMode


@dataclass(frozen=True, slots=True)
class Reading:
    """A text and the rules it is read by; as `parse` takes them."""

    text: str
    contract: Contract
    author: int | None
    num_agents: int | None
    think: ThinkMode


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
    reading: Reading | None = field(default=None, compare=False, repr=False)
