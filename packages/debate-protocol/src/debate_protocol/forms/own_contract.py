"""A contract that a recipe brings, beside the built-in ones."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import BaseModel, Discriminator, Field, Tag, model_validator

from debate_protocol.config import Config
from debate_protocol.parsing.contract import CONTRACTS, Contract, ContractKind


class OwnContract(Config):
    """A contract written in a recipe; see `Contract`.

    Attributes:
        stop: Left out, the closing tag of the last section; null for none.
        instructions: What prompts say of a section; those left out get the usual words.
    """

    name: str = Field(min_length=1)
    """What messages and transcripts call it."""
    sections: tuple[str, ...] = ()
    """Tags of the sections that a reply has, in order."""
    stop: str | None = None
    kind: ContractKind = "xml"
    """How a reply is read: XML tags, a boxed answer, or a last line with the answer."""
    instructions: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _stops_after_the_last_section(cls, data: object) -> object:
        if isinstance(data, Mapping) and "stop" not in data:
            sections = data.get("sections")
            if isinstance(sections, list | tuple) and sections:
                return {**data, "stop": f"</{sections[-1]}>"}
        return data

    @model_validator(mode="after")
    def _describes_a_contract(self) -> Self:
        if self.name in CONTRACTS:
            raise ValueError(f"contract.name: {self.name!r} is built in; choose another name")
        self.contract()
        return self

    def contract(self) -> Contract:
        """Return the contract itself."""
        return Contract(self.name, self.sections, self.stop, self.kind, self.instructions)


def named_or_own(value: object) -> str:
    """Return which kind a setting is: a built-in name, or a description of its own."""
    return "own" if isinstance(value, Mapping | BaseModel) else "named"


ContractChoice = Annotated[
    Annotated[str, Tag("named")] | Annotated[OwnContract, Tag("own")],
    Discriminator(named_or_own),
]
"""A built-in contract by name, or one of the user's."""
