"""Tensors and random states in files without pickles, and a model as a hash."""

import hashlib
import json
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from debate_protocol.plugins import Config
from debate_train.interrupts import ModelError
from debate_train.models.loaded_model import adapter_of

if TYPE_CHECKING:
    from debate_train.models.loaded_model import LoadedModel


FILE_BYTES = 4 << 30
"""A file is closed when it holds this much; one tensor is never split."""


def write_tensors(
    directory: Path, stem: str, tensors: Iterable[tuple[str, Tensor]], file_bytes: int = FILE_BYTES
) -> None:
    """Write `<stem>-00000.safetensors` and so on; at most one file's worth is held in memory."""
    part: dict[str, Tensor] = {}
    size = number = 0
    for name, tensor in tensors:
        part[name] = tensor.detach().cpu().contiguous()
        size += part[name].nbytes
        if size >= file_bytes:
            save_file(part, directory / f"{stem}-{number:05d}.safetensors")
            part, size, number = {}, 0, number + 1
    if part:
        save_file(part, directory / f"{stem}-{number:05d}.safetensors")


class StoredTensors:
    """The tensors in some safetensors files, read by name."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._file_of: dict[str, Path] = {}
        for file in files:
            try:
                with safe_open(file, framework="pt") as found:
                    self._file_of |= dict.fromkeys(found.keys(), file)
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{file}: found no safetensors file ({error}); expected one as it was written"
                ) from error

    @classmethod
    def of(cls, directory: Path, stem: str) -> "StoredTensors":
        """Return what `write_tensors` wrote under this stem; nothing where it wrote nothing."""
        return cls(sorted(directory.glob(f"{stem}-*.safetensors")))

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def names(self) -> list[str]:
        """Return all names."""
        return list(self._file_of)

    def read(self, name: str) -> Tensor:
        """Return one tensor, in memory of its own."""
        with safe_open(self._file_of[name], framework="pt") as found:
            tensor: Tensor = found.get_tensor(name)
        return tensor


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


_VALUES = 64
"""Values that are read of each tensor."""
_MOST_VALUES = 65_536
"""The same of the weights that a run begins with, to which no run is to be compared by chance."""


@torch.no_grad()
def model_print(loaded: "LoadedModel") -> str:
    """Return a hash of the tokenizer, and of weights that an adapter leaves as they are.

    It knows the model at another place. Of each tensor shape and evenly spaced values are read.
    """
    digest = hashlib.sha256()
    tokenizer = loaded.tokenizer
    digest.update(json.dumps(sorted(tokenizer.get_vocab().items())).encode())
    digest.update(json.dumps(tokenizer.chat_template, sort_keys=True, default=str).encode())
    if loaded.lora is not None:
        for name, parameter in loaded.model.named_parameters():
            if adapter_of(name) is None:
                _add(digest, name, parameter, _VALUES)
    return digest.hexdigest()


@torch.no_grad()
def weight_prints(loaded: "LoadedModel") -> dict[str, str]:
    """Return a hash of the weights to be trained (`start`), and one of the others (`frozen`).

    Runs whose hashes are equal began with the same weights. Of each tensor name, shape and up to
    65,536 evenly spaced values are read. Nothing frozen has no hash.
    """
    found: dict[str, hashlib._Hash] = {}
    for name, parameter in sorted(loaded.model.named_parameters()):
        is_base = loaded.lora is not None and adapter_of(name) is None
        kind = "frozen" if is_base else "start"
        _add(found.setdefault(kind, hashlib.sha256()), name, parameter, _MOST_VALUES)
    return {kind: digest.hexdigest() for kind, digest in sorted(found.items(), reverse=True)}


def _add(digest: "hashlib._Hash", name: str, parameter: torch.Tensor, most: int) -> None:
    flat = parameter.detach().flatten()
    values = flat[:: max(1, flat.numel() // most)][:most].float().cpu()
    digest.update(f"{name} {tuple(parameter.shape)}".encode())
    digest.update(values.numpy().tobytes())
