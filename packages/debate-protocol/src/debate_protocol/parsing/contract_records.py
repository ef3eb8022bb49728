"""Contracts as they stand in files: a built-in one by name, any other as an object."""

from collections.abc import Mapping
from typing import cast

from debate_protocol.parsing.contract import Contract, ContractKind
from debate_protocol.transcripts.fields import TranscriptError, optional, required, unknown_keys

_KEYS = ("name", "sections", "stop", "kind", "instructions")


def contract_to_json(contract: str | Contract) -> str | dict[str, object]:
    """Return a contract as it stands in a file."""
    if isinstance(contract, str):
        return contract
    record: dict[str, object] = {
        "name": contract.name,
        "sections": list(contract.sections),
        "stop": contract.stop,
        "kind": contract.kind,
    }
    return record | ({"instructions": dict(contract.instructions)} if contract.instructions else {})


def read_contract(data: object, at: str) -> tuple[str | Contract, dict[str, object]]:
    """Read a contract by name or as an object; also return the object's unknown keys.

    Args:
        data: A parsed JSON value. Whether a name is known is not looked at.
        at: Where it stands, for messages.

    Raises:
        TranscriptError: It is neither, or the object describes no contract.
    """
    if isinstance(data, str):
        return data, {}
    if not isinstance(data, Mapping):
        raise TranscriptError(at, data, "a name or an object with name and sections")
    where = f"{at}."
    kind = optional(data, "kind", str, where, "xml")
    sections = optional(data, "sections", list, where, [])
    instructions = optional(data, "instructions", dict, where, {})
    for part, texts in (("sections", sections), ("instructions", instructions.values())):
        for text in texts:
            if not isinstance(text, str):
                raise TranscriptError(f"{where}{part}", text, "text")
    try:
        contract = Contract(
            name=required(data, "name", str, where),
            sections=tuple(sections),
            stop=optional(data, "stop", str, where, None),
            kind=cast(ContractKind, kind),
            instructions=instructions,
        )
    except TranscriptError:
        raise
    except ValueError as problem:
        raise TranscriptError.at(at, str(problem)) from None
    return contract, unknown_keys(data, _KEYS)
