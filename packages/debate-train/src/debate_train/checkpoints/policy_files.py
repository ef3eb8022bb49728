"""The policy in a checkpoint: files for transformers or peft to load directly."""

import hashlib
import json
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from debate_rollout.engines.weights import save_model
from debate_train.errors import ModelError
from debate_train.models.loaded_model import LoadedModel, adapter_of, adapter_tensors

FILE_BYTES = 4 << 30
"""A file of tensors is closed when it reaches this size; one tensor is never split."""
FILE_SIZE = "5GB"
"""Larger models are split over several files, as on a hub."""
MOST_VALUES = 65_536
"""Values of each tensor in a hash: enough that no two runs begin alike by chance."""

ReadTensor = Callable[[], Tensor]


def write_tensors(
    directory: Path, stem: str, tensors: Iterable[tuple[str, Tensor]], file_bytes: int = FILE_BYTES
) -> None:
    """Write `<stem>-00000.safetensors` and so on; at most a file's worth is in memory."""
    pending: dict[str, Tensor] = {}
    num_bytes = 0
    num_files = 0
    # Views are copied: safetensors refuses tensors that share memory or have gaps.
    for name, tensor in tensors:
        pending[name] = tensor.detach().cpu().contiguous()
        num_bytes += pending[name].nbytes
        if num_bytes >= file_bytes:
            save_file(pending, directory / f"{stem}-{num_files:05d}.safetensors")
            pending = {}
            num_bytes = 0
            num_files += 1
    if pending:
        save_file(pending, directory / f"{stem}-{num_files:05d}.safetensors")


class StoredTensors:
    """The tensors in some safetensors files, read by name."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._file_of: dict[str, Path] = {}
        for file in files:
            try:
                with safe_open(file, framework="pt") as tensors:
                    self._file_of |= dict.fromkeys(tensors.keys(), file)
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{file}: found no safetensors file ({error}); expected one as it was written"
                ) from error

    @classmethod
    def of(cls, directory: Path, stem: str) -> "StoredTensors":
        """Open the files of `write_tensors` with this stem, if any."""
        return cls(sorted(directory.glob(f"{stem}-*.safetensors")))

    def __contains__(self, name: str) -> bool:
        return name in self._file_of

    def names(self) -> list[str]:
        """List all names."""
        return list(self._file_of)

    def read(self, name: str) -> Tensor:
        """Read a tensor into separate memory."""
        with safe_open(self._file_of[name], framework="pt") as tensors:
            tensor: Tensor = tensors.get_tensor(name)
        return tensor


def model_print(loaded: LoadedModel, frozen: str) -> str:
    """Hash the tokenizer together with the hash of the frozen weights (`frozen`).

    The hash stays the same when the model moves to another folder.
    """
    tokenizer = loaded.tokenizer
    vocabulary = sorted(tokenizer.get_vocab().items())
    content = json.dumps([vocabulary, tokenizer.chat_template, frozen], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


@torch.no_grad()
def weight_prints(loaded: LoadedModel) -> dict[str, str]:
    """Hash the weights to be trained (`start`), and the others if there are any (`frozen`).

    Runs with equal hashes began with the same weights. Of each tensor name, shape and up to
    65,536 evenly spaced values are read.
    """
    if loaded.remote is not None:
        return loaded.remote.prints()
    digests: dict[str, hashlib._Hash] = {}
    for name, parameter in sorted(loaded.model.named_parameters()):
        is_frozen = loaded.lora is not None and adapter_of(name) is None
        digest = digests.setdefault("frozen" if is_frozen else "start", hashlib.sha256())
        values = parameter.detach().flatten()
        # Evenly spaced, so that a change anywhere in a tensor is likely to be seen.
        spacing = max(1, values.numel() // MOST_VALUES)
        values = values[::spacing][:MOST_VALUES].float().cpu()
        digest.update(f"{name} {tuple(parameter.shape)}".encode())
        digest.update(values.numpy().tobytes())
    prints: dict[str, str] = {}
    for kind in ("start", "frozen"):
        if kind in digests:
            prints[kind] = digests[kind].hexdigest()
    return prints


def save_policy(directory: Path, loaded: LoadedModel, file_size: str = FILE_SIZE) -> None:
    """Write model and tokenizer as transformers (or peft) reads them.

    Not so for a LoRA on a model that is a base and an adapter itself: transformers and peft read
    one adapter a folder, and drop the inner one or refuse. A recipe's `model.name` reads both.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    if loaded.lora is None:
        save_model(loaded.model, directory, max_shard_size=file_size)
    else:
        loaded.model.save_pretrained(directory, max_shard_size=file_size)
    loaded.tokenizer.save_pretrained(directory)
    for name in _adapter_folders(loaded):
        if name:
            # The folder of a named adapter is a policy of its own.
            loaded.tokenizer.save_pretrained(directory / name)
        path = directory / name / "adapter_config.json"
        # peft writes these lists from sets, in another order in each process.
        config = json.loads(path.read_text(encoding="utf-8"))
        for key, value in config.items():
            if isinstance(value, list) and all(isinstance(item, str) for item in value):
                config[key] = sorted(value)
        path.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")
    if loaded.lora is not None:
        # peft writes a model card that says nothing.
        (directory / "README.md").unlink(missing_ok=True)


def _adapter_folders(loaded: LoadedModel) -> tuple[str, ...]:
    """List the folders of adapters, "" for the directory itself; empty for a whole model."""
    if loaded.lora is None:
        return ()
    return loaded.lora.adapters or ("",)


def refuse_other_base(directory: Path, loaded: LoadedModel) -> None:
    """Refuse an adapter trained on other weights than this model's.

    The record of a run has the hash of the base. An adapter without a run names the folder of the
    base, compared if it exists. Without either the base is unknown, and passes.

    Raises:
        ModelError: The adapter was trained on another base.
    """
    if loaded.lora is None:
        return
    run_prints = _read_json_object(directory.parent.parent / "environment.json").get("weights")
    folder = next((directory / name for name in _adapter_folders(loaded)), directory)
    base = _read_json_object(folder / "adapter_config.json").get("base_model_name_or_path")
    # By content where a hash is known: the base may have moved, or changed in place.
    is_other = False
    if isinstance(run_prints, dict) and "frozen" in run_prints:
        is_other = run_prints["frozen"] != weight_prints(loaded).get("frozen")
    elif isinstance(base, str) and Path(base).is_dir():
        model_folder = Path(loaded.model.get_base_model().name_or_path)
        is_other = model_folder.is_dir() and model_folder.resolve() != Path(base).resolve()
    if is_other:
        raise ModelError(
            f"{directory}: found an adapter of {base!r}; expected one of the recipe's own model"
        )


def _read_json_object(file: Path) -> dict[str, Any]:
    """Read the object of a JSON file, an empty object where it cannot be read."""
    try:
        content = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def load_policy(directory: Path, loaded: LoadedModel) -> None:
    """Read the trained weights of a checkpoint into a model of the same shape.

    Only safetensors are read, tensor by tensor.

    Raises:
        ModelError: The checkpoint holds the weights of another model.
    """
    if loaded.remote is not None:
        loaded.remote.load(directory)
        return
    try:
        for parameter, read in _stored_values(directory, loaded):
            with torch.no_grad():
                parameter.copy_(read())
    except ModelError:
        raise
    except (RuntimeError, OSError, ValueError) as error:
        # Shapes, names and damaged files all come here: the first line says which.
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"checkpoint {directory}: found weights of another model ({reason}); expected those of "
            "model in the recipe that the run was started with"
        ) from error


def stored_policy(directory: Path, loaded: LoadedModel) -> Callable[[str], Tensor]:
    """Build the function to read a stored parameter, by the model's name of it.

    Raises:
        ValueError: The directory holds the weights of another model.
    """
    reads = {id(parameter): read for parameter, read in _stored_values(directory, loaded)}
    parameters = dict(loaded.model.named_parameters())
    return lambda name: reads[id(parameters[name])]()


def _stored_values(directory: Path, loaded: LoadedModel) -> list[tuple[Tensor, ReadTensor]]:
    """Pair each tensor of the model with the function to read the stored value."""
    tensors = dict(loaded.model.state_dict(keep_vars=True))
    if loaded.lora is not None:
        tensors = adapter_tensors(loaded, loaded.lora.adapters, tensors)
    reads = _stored_reads(directory, loaded, tensors.keys())
    # Tied tensors have several names in the model, and one of these in the files.
    names_of: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names_of.setdefault(id(tensor), []).append(name)

    unexpected = sorted(set(reads) - set(tensors))
    missing = []
    stored_values: list[tuple[Tensor, ReadTensor]] = []
    for names in names_of.values():
        stored_names = [name for name in names if name in reads]
        if not stored_names:
            missing.append(names[0])
            continue
        tensor = tensors[names[0]]
        name = stored_names[0]
        stored_values.append((tensor, partial(_read_shaped, reads[name], name, tensor.shape)))
    if unexpected or missing:
        raise ValueError(f"missing or unexpected {', '.join([*unexpected, *missing][:3])}")
    return stored_values


def _read_shaped(read: ReadTensor, name: str, shape: torch.Size) -> Tensor:
    tensor = read()
    if tensor.shape != shape:
        raise ValueError(f"{name} of shape {tuple(tensor.shape)} instead of {tuple(shape)}")
    return tensor


def _stored_reads(
    directory: Path, loaded: LoadedModel, model_names: Iterable[str]
) -> dict[str, ReadTensor]:
    """Build the function to read each stored tensor of the policy, by the name in the files."""
    if loaded.lora is None:
        reads = _file_reads(directory, "model")
        if reads.keys() <= set(model_names):
            return reads
        # Some architectures have other names in files than in the model, such as experts in one
        # tensor: transformers translates them.
        converted = type(loaded.model).from_pretrained(
            directory,
            use_safetensors=True,
            local_files_only=True,
            dtype=loaded.model.dtype,
            trust_remote_code=False,
        )
        tensors: dict[str, Tensor] = converted.state_dict()
        return {name: partial(tensors.__getitem__, name) for name in tensors}

    reads = {}
    for folder in _adapter_folders(loaded):
        for name, read in _file_reads(directory / folder, "adapter_model").items():
            reads[f"{folder}/{name}".removeprefix("/")] = read
    return reads


def _file_reads(directory: Path, stem: str) -> dict[str, ReadTensor]:
    stored = StoredTensors(sorted(directory.glob(f"{stem}*.safetensors")))
    return {name: partial(stored.read, name) for name in stored.names()}
