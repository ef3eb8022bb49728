"""The policy in a checkpoint: files that transformers or peft load directly."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from debate_train.interrupts import ModelError
from debate_train.models.loaded_model import ONLY, LoadedModel, adapter_of

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


_VALUES = 64
"""Values that are read of each tensor."""
_MOST_VALUES = 65_536
"""The same of the weights that a run begins with, to which no run is to be compared by chance."""


@torch.no_grad()
def model_print(loaded: LoadedModel) -> str:
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
def weight_prints(loaded: LoadedModel) -> dict[str, str]:
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


FILE_SIZE = "5GB"
"""Larger models are split over several files, as on a hub."""


def save_policy(directory: Path, loaded: LoadedModel, file_size: str = FILE_SIZE) -> None:
    """Write model and tokenizer as transformers (or peft) reads them."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    loaded.model.save_pretrained(directory, max_shard_size=file_size)
    loaded.tokenizer.save_pretrained(directory)
    for name in _names(loaded):
        if name:  # A folder of its own, which is a policy of its own.
            loaded.tokenizer.save_pretrained(directory / name)
        _sort_sets(directory / name / "adapter_config.json")
    if loaded.lora is not None:  # peft writes a model card that says nothing.
        (directory / "README.md").unlink(missing_ok=True)


def _names(loaded: LoadedModel) -> tuple[str, ...]:
    """Return the names of all adapters, an empty one for one without; none for a whole model."""
    if loaded.lora is None:
        return ()
    return loaded.lora.adapters or ("",)


def _sort_sets(path: Path) -> None:
    """Sort the lists that peft writes from sets, whose order differs from process to process."""
    config = json.loads(path.read_text(encoding="utf-8"))
    for key, value in config.items():
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            config[key] = sorted(value)
    path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def load_policy(directory: Path, loaded: LoadedModel) -> None:
    """Read the trained weights of a checkpoint into a model of the same shape.

    Only safetensors are read, one tensor at a time.

    Raises:
        ModelError: The checkpoint holds the weights of another model.
    """
    targets = _targets(loaded)
    try:
        source = _source(directory, loaded, targets)
        for names, target in _distinct(targets):
            name = next(name for name in names if name in source)
            _copy(source[name](), target, name)
    except ModelError:
        raise
    except (RuntimeError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"checkpoint {directory}: found weights of another model ({reason}); expected those of "
            "model in the recipe that the run was started with"
        ) from error


def stored_policy(directory: Path, loaded: LoadedModel) -> Callable[[str], Tensor]:
    """Return what reads a policy's value of one of the model's parameters, by its name.

    Raises:
        ValueError: The directory holds the weights of another model.
    """
    targets = _targets(loaded)
    source = _source(directory, loaded, targets)
    stored = {id(t): [n for n in names if n in source] for names, t in _distinct(targets)}
    own = dict(loaded.model.named_parameters())

    def read(name: str) -> Tensor:
        tensor = source[stored[id(own[name])][0]]()
        if tensor.shape != own[name].shape:
            raise ValueError(f"{name} of shape {tuple(tensor.shape)}")
        return tensor

    return read


def _targets(loaded: LoadedModel) -> dict[str, Tensor]:
    """Return the model's own tensors under the names that they have in files."""
    own = dict(loaded.model.state_dict(keep_vars=True))
    if loaded.lora is None:
        return own
    from peft import get_peft_model_state_dict

    model = loaded.model
    return {
        f"{name}/{key}".removeprefix("/"): tensor
        for name in _names(loaded)
        for key, tensor in get_peft_model_state_dict(
            model, state_dict=own, adapter_name=name or ONLY
        ).items()
    }


def _distinct(targets: Mapping[str, Tensor]) -> list[tuple[list[str], Tensor]]:
    """Return each tensor once, with all its names: tied ones are in files under one of them."""
    found: dict[int, tuple[list[str], Tensor]] = {}
    for name, target in targets.items():
        found.setdefault(id(target), ([], target))[0].append(name)
    return list(found.values())


def _source(
    directory: Path, loaded: LoadedModel, targets: Mapping[str, Tensor]
) -> Mapping[str, Callable[[], Tensor]]:
    """Return what reads each tensor of the policy in a directory, by name."""
    if loaded.lora is None:
        source = _readers(directory, "model")
        if source and not set(source) <= set(targets):
            source = _converted(directory, loaded)
    else:  # Each adapter is in a folder of its name, one without in the directory.
        source = {
            f"{name}/{key}".removeprefix("/"): read
            for name in _names(loaded)
            for key, read in _readers(directory / name, "adapter_model").items()
        }
    unknown = sorted(set(source) - set(targets))
    missing = [names[0] for names, _ in _distinct(targets) if not any(n in source for n in names)]
    if unknown or missing:
        raise ValueError(f"missing or unexpected {', '.join([*unknown, *missing][:3])}")
    return source


def _readers(directory: Path, stem: str) -> dict[str, Callable[[], Tensor]]:
    stored = StoredTensors(sorted(directory.glob(f"{stem}*.safetensors")))
    return {name: partial(stored.read, name) for name in stored.names()}


def _converted(directory: Path, loaded: LoadedModel) -> dict[str, Callable[[], Tensor]]:
    """Read weights that files name in another way than the model, such as those of experts."""
    model = type(loaded.model).from_pretrained(
        directory,
        use_safetensors=True,
        local_files_only=True,
        dtype=loaded.model.dtype,
        trust_remote_code=False,
    )
    tensors: dict[str, Tensor] = model.state_dict()
    return {name: partial(tensors.__getitem__, name) for name in tensors}


@torch.no_grad()
def _copy(tensor: Tensor, target: Tensor, name: str) -> None:
    if target.shape != tensor.shape:
        found, expected = tuple(tensor.shape), tuple(target.shape)
        raise ValueError(f"{name} of shape {found} instead of {expected}")
    target.copy_(tensor)
