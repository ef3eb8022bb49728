"""Devices by the names that torch gives them."""

import re
from typing import Annotated

from pydantic import AfterValidator

_KINDS = ("cpu", "cuda", "mps", "xpu", "npu", "hpu", "mtia")
_NAME = re.compile(rf"auto|(?:{'|'.join(_KINDS)})(?::\d{{1,3}})?")


def _known(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"found {name!r}; expected auto, or a device such as cpu, cuda or cuda:1 "
            f"({', '.join(_KINDS)})"
        )
    return name


Device = Annotated[str, AfterValidator(_known)]
"""A device that torch may know; whether it is there is asked of `absent_device`."""


def absent_device(name: str) -> str | None:
    """Return why nothing can be put on a device here, None where it can; needs torch."""
    if name == "auto":
        return None
    import torch

    try:
        torch.empty(1, device=name)
    except Exception as error:  # Each backend answers with errors of its own.
        lines = str(error).strip().splitlines()
        return lines[0] if lines else type(error).__name__
    return None
