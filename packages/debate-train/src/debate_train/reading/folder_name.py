"""Names in recipes that become folders."""

from typing import Annotated

from pydantic import AfterValidator

_LONGEST_NAME = 100


def _names_one_file(name: str) -> str:
    parts = {"/", "\\", "\0"} & set(name)
    if parts or name in ("", ".", "..") or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise ValueError(
            f"found {name[:60]!r}; expected a name that a folder can have: at most "
            f"{_LONGEST_NAME} characters and none of / and \\"
        )
    return name


FolderName = Annotated[str, AfterValidator(_names_one_file)]
"""One file name, of a length that every disk takes."""
