"""Tensors by name in safetensors files of bounded size, written and read one at a time."""

from collections.abc import Iterable
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from debate_train.errors import ModelError

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
