"""The policy in a checkpoint: files that transformers or peft load directly."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from debate_train.interrupts import ModelError
from debate_train.models.loaded_model import LoadedModel, adapter_of, adapter_tensors

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


_MOST_VALUES = 65_536
"""Values that are read of each tensor: no two runs are to begin alike by chance."""


def model_print(loaded: LoadedModel, frozen: str) -> str:
    """Return a hash of the tokenizer, and of weights that an adapter leaves as they are (`frozen`).

    It knows the model at another place.
    """
    tokenizer = loaded.tokenizer
    known = [sorted(tokenizer.get_vocab().items()), tokenizer.chat_template, frozen]
    return hashlib.sha256(json.dumps(known, sort_keys=True, default=str).encode()).hexdigest()


@torch.no_grad()
def weight_prints(loaded: LoadedModel) -> dict[str, str]:
    """Return a hash of the weights to be trained (`start`), and one of the others (`frozen`).

    Runs whose hashes are equal began with the same weights. Of each tensor name, shape and up to
    65,536 evenly spaced values are read. Nothing frozen has no hash.
    """
    found: dict[str, hashlib._Hash] = {}
    for name, parameter in sorted(loaded.model.named_parameters()):
        is_base = loaded.lora is not None and adapter_of(name) is None
        digest = found.setdefault("frozen" if is_base else "start", hashlib.sha256())
        flat = parameter.detach().flatten()
        values = flat[:: max(1, flat.numel() // _MOST_VALUES)][:_MOST_VALUES].float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        digest.update(values.numpy().tobytes())
    return {kind: digest.hexdigest() for kind, digest in sorted(found.items(), reverse=True)}


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


def refuse_other_base(directory: Path, loaded: LoadedModel) -> None:
    """Refuse an adapter that was trained on other weights than this model's.

    A run's own record knows them; of an adapter without a run it is the folder of its base, where
    that is there. What neither says is not known, and passes.

    Raises:
        ModelError: It is one.
    """
    if loaded.lora is None:
        return
    run = _json_of(directory.parent.parent / "environment.json").get("weights")
    folder = next((directory / name for name in _names(loaded)), directory)
    base = _json_of(folder / "adapter_config.json").get("base_model_name_or_path")
    is_other = False
    if isinstance(run, dict) and "frozen" in run:
        is_other = run["frozen"] != weight_prints(loaded).get("frozen")
    elif isinstance(base, str) and Path(base).is_dir():
        own = Path(loaded.model.get_base_model().name_or_path)
        is_other = own.is_dir() and own.resolve() != Path(base).resolve()
    if is_other:
        raise ModelError(
            f"{directory}: found an adapter of {base!r}; expected one of the recipe's own model"
        )


def _json_of(file: Path) -> dict[str, Any]:
    """Return what a JSON file holds, nothing where it cannot be read."""
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def load_policy(directory: Path, loaded: LoadedModel) -> None:
    """Read the trained weights of a checkpoint into a model of the same shape.

    Only safetensors are read, one tensor at a time.

    Raises:
        ModelError: The checkpoint holds the weights of another model.
    """
    try:
        for target, read in _stored(directory, loaded):
            with torch.no_grad():
                target.copy_(read())
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
    reads = {id(target): read for target, read in _stored(directory, loaded)}
    own = dict(loaded.model.named_parameters())
    return lambda name: reads[id(own[name])]()


def _stored(directory: Path, loaded: LoadedModel) -> list[tuple[Tensor, Callable[[], Tensor]]]:
    """Return the model's own tensors, each with what reads its value in a directory."""
    names: dict[int, list[str]] = {}  # Tied tensors are in files under one of their names.
    targets = _targets(loaded)
    for name, target in targets.items():
        names.setdefault(id(target), []).append(name)
    source = _source(directory, loaded, targets)
    held = {key: [n for n in own if n in source] for key, own in names.items()}
    missing = [names[key][0] for key, own in held.items() if not own]
    if wrong := [*sorted(set(source) - set(targets)), *missing]:
        raise ValueError(f"missing or unexpected {', '.join(wrong[:3])}")
    distinct = {id(target): target for target in targets.values()}
    return [
        (target, partial(_read, source[held[key][0]], held[key][0], target.shape))
        for key, target in distinct.items()
    ]


def _read(read: Callable[[], Tensor], name: str, shape: torch.Size) -> Tensor:
    tensor = read()
    if tensor.shape != shape:
        raise ValueError(f"{name} of shape {tuple(tensor.shape)} instead of {tuple(shape)}")
    return tensor


def _targets(loaded: LoadedModel) -> dict[str, Tensor]:
    """Return the model's own tensors under the names that they have in files."""
    own = dict(loaded.model.state_dict(keep_vars=True))
    return own if loaded.lora is None else adapter_tensors(loaded, loaded.lora.adapters, own)


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
