"""Contracts: the sections of a reply, its stop string and where its answer is read from."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, cast, get_args

from debate_protocol.suggestions import did_you_mean

AskedKind = Literal["xml", "boxed", "answer_line"]
"""How debates may ask for answers."""
ContractKind = Literal["xml", "boxed", "answer_line", "hash_line"]
"""How answers are read, those of files included: replies to GSM8K end with `#### …`."""
MAX_SECTIONS = 100
"""Most sections of a contract: each tag of a response is compared with all of them."""
_SECTION_NAME = re.compile(r"[a-z][a-z0-9_]*\Z")
_RESERVED = ("think", "turn")


@dataclass(frozen=True, slots=True)
class Contract:
    r"""The form that a response must have.

    `xml` responses consist of the named sections as tags, in order. The others are free text that
    ends with `\boxed{…}` (`boxed`), a last line `Answer: …` (`answer_line`) or `#### …`
    (`hash_line`, in files of other programs).

    Args:
        name: The contract's name in recipes and transcripts.
        sections: Tag names in order; empty unless `kind` is `xml`.
        stop: Stop string that ends a response, None for no stop string. By default the closing tag
            of the last section, or `None` without sections.
        kind: Where the answer is read from.
        instructions: Prompt texts that replace the usual ones, by section.
        answers: Whether a reply must answer; a reply that only judges others need not.
        ranks_own: Whether comparisons may name their author, who is shown an answer of its own.

    Raises:
        ValueError: The sections do not fit the kind, are more than `MAX_SECTIONS`, repeat, or are
            not lower-case names; the stop string is empty; an instruction is about no section.
    """

    name: str
    sections: tuple[str, ...] = ()
    # None is a value of its own (no stop string), so `...` marks a stop string left out.
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
        sections = self.sections
        kinds = get_args(ContractKind)
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
        # Every text contains the empty string: it would end each reply before its first token.
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
        """The section that contains the answer: `solution`, else the first; `None` without one."""
        if not self.answers:
            return None
        first_section = self.sections[0] if self.sections else None
        return "solution" if "solution" in self.sections else first_section

    def reply(self, answer: str, sections: Mapping[str, str] | None = None) -> str:
        """Write a response of this form that gives an answer.

        Args:
            answer: Text of the place from which answers are read.
            sections: Texts of other sections; `N/A` by default, and NO for a consensus.
        """
        if self.kind == "boxed":
            return f"\\boxed{{{answer}}}"
        if self.kind == "answer_line":
            return f"Answer: {answer}"
        if self.kind == "hash_line":
            return f"#### {answer}"
        texts = {"consensus": "NO", **(sections or {}), self.answer_section or "": answer}
        return "\n".join(
            f"<{name}>\n{texts.get(name) or 'N/A'}\n</{name}>" for name in self.sections
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
    """Look up a built-in contract by name, `None` if unknown; a contract is returned unchanged."""
    return CONTRACTS.get(contract) if isinstance(contract, str) else contract


def get_contract(contract: str | Contract) -> Contract:
    """Look up a built-in contract by name; a contract is returned unchanged.

    Raises:
        ValueError: No contract has this name; the message names the nearest one.
    """
    rules = find_contract(contract)
    if rules is not None:
        return rules
    raise ValueError(
        f"contract: found {contract!r}, expected one of {', '.join(CONTRACTS)}"
        f"{did_you_mean(contract, CONTRACTS)}"
    )
