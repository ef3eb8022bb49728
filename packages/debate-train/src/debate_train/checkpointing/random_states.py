"""Global random states, kept as JSON.

The project draws from generators named after what they are for, which need no keeping. What a
library draws besides comes from the global ones.
"""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from debate_protocol.config import Config
from debate_train.errors import ModelError

_FILE = "random.json"
_Word = Annotated[int, Field(ge=0, lt=2**32)]


class _States(Config):
    python: tuple[
        Literal[3], Annotated[list[_Word], Field(min_length=625, max_length=625)], float | None
    ]
    numpy: tuple[
        Literal["MT19937"],
        Annotated[list[_Word], Field(min_length=624, max_length=624)],
        Annotated[int, Field(ge=0, le=624)],
        Annotated[int, Field(ge=0, le=1)],
        float,
    ]
    torch: str
    cuda: list[str]


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


@dataclass(frozen=True, slots=True)
class RandomStates:
    """The global random states of this process, as the libraries hand them out."""

    python: tuple[int, tuple[int, ...], float | None]
    numpy: Any
    torch: Tensor
    cuda: list[Tensor]


def random_states() -> RandomStates:
    """Return the global random states of this process."""
    on_devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return RandomStates(
        random.getstate(), np.random.get_state(), torch.get_rng_state(), list(on_devices)
    )


def save_random_states(directory: Path, taken: RandomStates | None = None) -> None:
    """Write random states that were taken before, or else those of now."""
    taken = taken or random_states()
    version, words, gauss = taken.python
    name, keys, place, has_gauss, cached = taken.numpy
    states = {
        "python": [version, list(words), gauss],
        "numpy": [name, keys.tolist(), place, has_gauss, cached],
        "torch": _hex(taken.torch),
        "cuda": [_hex(state) for state in taken.cuda],
    }
    (directory / _FILE).write_text(json.dumps(states), encoding="utf-8")


def load_random_states(directory: Path) -> None:
    """Go on with the random states of a checkpoint.

    Devices beyond those of the checkpoint keep their state.

    Raises:
        ModelError: There are none, or they are not random states.
    """
    with _readable(directory):
        found = _read(directory)
        version, words, gauss = found.python
        random.setstate((version, tuple(words), gauss))
        name, keys, place, has_gauss, cached = found.numpy
        np.random.set_state((name, np.array(keys, np.uint32), place, has_gauss, cached))
        torch.set_rng_state(_tensor(found.torch))
        for device, state in enumerate(found.cuda[: torch.cuda.device_count()]):
            torch.cuda.set_rng_state(_tensor(state), device)


def _read(directory: Path) -> _States:
    return _States.model_validate_json((directory / _FILE).read_bytes())


@contextmanager
def _readable(directory: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, TypeError, RuntimeError, OverflowError) as error:
        reason = str(error).splitlines()[0]
        raise ModelError(
            f"{directory / _FILE}: found no random states ({reason}); expected them as written"
        ) from error


def _hex(state: torch.Tensor) -> str:
    return bytes(state.tolist()).hex()


def _tensor(state: str) -> torch.Tensor:
    found: list[int] = list(bytes.fromhex(state))
    return torch.tensor(found, dtype=torch.uint8)
