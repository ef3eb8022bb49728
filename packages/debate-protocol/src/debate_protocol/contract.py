"""Contracts: which sections a response has, where sampling stops, and where its answer stands."""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, cast, get_args

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

    Raises:
        ValueError: The sections do not fit the kind, are more than `MAX_SECTIONS`, repeat, or are
            not lower-case names; the stop string is empty; an instruction is about no section.
    """

    name: str
    sections: tuple[str, ...] = ()
    stop: str | None = cast(None, ...)
    kind: ContractKind = "xml"
    instructions: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.kind not in get_args(ContractKind):
            raise ValueError(
                f"contract {self.name!r}: kind {self.kind!r}; "
                f"expected one of {', '.join(get_args(ContractKind))}"
            )
        if (self.kind == "xml") != bool(self.sections):
            raise ValueError(
                f"contract {self.name!r}: kind {self.kind!r} with sections {self.sections!r}; "
                "an xml contract needs sections, the other kinds have none"
            )
        for section in self.sections:
            if not _SECTION_NAME.match(section) or section in _RESERVED:
                raise ValueError(
                    f"contract {self.name!r}: section {section!r}; expected a lower-case name of "
                    f"letters, digits and _ that is none of {', '.join(_RESERVED)}"
                )
        if len(self.sections) > MAX_SECTIONS:
            raise ValueError(
                f"contract {self.name!r}: found {len(self.sections)} sections, expected at most "
                f"{MAX_SECTIONS}"
            )
        if len(set(self.sections)) != len(self.sections):
            raise ValueError(f"contract {self.name!r}: a section is named twice: {self.sections!r}")
        if cast(object, self.stop) is ...:
            last_tag = f"</{self.sections[-1]}>" if self.sections else None
            object.__setattr__(self, "stop", last_tag)
        if self.stop == "":
            raise ValueError(f"contract {self.name!r}: stop is empty; write null for none")
        for section in self.instructions:
            if section not in self.sections:
                raise ValueError(
                    f"contract {self.name!r}: instructions for {section!r}, expected one of its "
                    f"sections ({', '.join(self.sections) or 'it has none'})"
                    f"{did_you_mean(section, self.sections)}"
                )

    def __str__(self) -> str:
        return self.name

    @property
    def answer_section(self) -> str | None:
        """The section that holds the answer: `solution`, else the first; None without sections."""
        if "solution" in self.sections or not self.sections:
            return "solution" if self.sections else None
        return self.sections[0]


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
