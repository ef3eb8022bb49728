"""The manifest of a checkpoint: which run wrote it, and every file with its size and hash."""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError

from debate_protocol.config import Config
from debate_train.checkpointing.whole_files import sync_directory

MANIFEST = "manifest.json"
FORMAT = "debate-checkpoint/2"
_CODE = {".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".py", ".so"}
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RefusedCheckpoint(Exception):
    """Why a checkpoint is not used."""


class Origin(Config):
    """The run that a checkpoint belongs to, by what the recipe that it was started with means.

    Where its model is found may change: the weights that are trained are in the checkpoint, and
    `base` knows those that are not.
    """

    recipe: Sha256
    model: Sha256
    phases: tuple[str, ...]
    base: str = ""
    """Of the tokenizer, and of weights that are not trained: see `model_print`."""

    @classmethod
    def of(cls, recipe_yaml: str, base: str = "") -> "Origin":
        """Return the origin of checkpoints of a run with this resolved recipe."""
        recipe: dict[str, Any] = yaml.safe_load(recipe_yaml)
        model = recipe.pop("model", None)
        if isinstance(model, dict):
            model = {key: value for key, value in model.items() if key != "name"}
        return cls(
            recipe=_hash(recipe),
            model=_hash(model),
            phases=tuple(recipe.get("phases") or ("train",)),
            base=base,
        )


def is_recipe(text: str) -> bool:
    """Return whether a text is a recipe, as far as a mapping shows that."""
    try:
        return isinstance(yaml.safe_load(text), dict) and bool(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, RecursionError):
        return False


def _hash(value: object) -> str:
    """Hash what a part of a recipe means: not its comments, nor the order of its keys."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class FileRecord(Config):
    """A file as it was written."""

    bytes: int = Field(ge=0)
    sha256: Sha256


class Manifest(Config):
    """All that is in a checkpoint."""

    format: str
    step: int = Field(ge=0)
    origin: Origin
    files: dict[str, FileRecord]


def seal(directory: Path, step: int, origin: Origin) -> None:
    """Bring every file to the disk and write the manifest, the last file of a checkpoint."""
    found = dict(_files(directory))
    mode = stat.S_IMODE(directory.stat().st_mode) & 0o666  # By the umask; safetensors takes 0600.
    for path in found.values():
        path.chmod(mode)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    manifest = Manifest(format=FORMAT, step=step, origin=origin, files=file_records(found))
    with (directory / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(manifest.model_dump_json(indent=1))
        file.flush()
        os.fsync(file.fileno())
    for folder in {path.parent for _, path in _files(directory)}:
        sync_directory(folder)


def verify(directory: Path, step: int, origin: Origin) -> None:
    """Read every byte of a checkpoint, and none of it as code.

    Raises:
        RefusedCheckpoint: It is torn, altered or of another run; the message says how.
    """
    if directory.is_symlink():
        raise RefusedCheckpoint("it is a link; expected a folder of this run")
    if not directory.is_dir():
        raise RefusedCheckpoint("it is a file; expected a folder of this run")
    found = dict(_files(directory))
    if MANIFEST not in found:
        raise RefusedCheckpoint(
            f"it holds no {MANIFEST}: it is not complete, or another version wrote it"
        )
    try:
        content = json.loads(found.pop(MANIFEST).read_bytes())
        if isinstance(content, dict) and content.get("format") != FORMAT:
            raise RefusedCheckpoint(
                f"its format is {content.get('format')!r}; this version reads {FORMAT!r}"
            )
        manifest = Manifest.model_validate(content)
    except (OSError, ValueError, RecursionError, ValidationError) as error:
        raise RefusedCheckpoint(f"its {MANIFEST} cannot be read") from error
    _check_origin(manifest.origin, origin)
    if manifest.step != step:
        raise RefusedCheckpoint(f"it was written after {manifest.step} steps, not {step}")
    _check_files(found, manifest.files)


def _check_origin(found: Origin, expected: Origin) -> None:
    for what in ("model", "phases", "recipe"):
        if getattr(found, what) != getattr(expected, what):
            raise RefusedCheckpoint(f"it belongs to a run with another {what}")
    if expected.base and found.base != expected.base:
        raise RefusedCheckpoint("it belongs to a run with another base model or tokenizer")


def _check_files(found: Mapping[str, Path], expected: Mapping[str, FileRecord]) -> None:
    for name in sorted(set(found) ^ set(expected)):
        which = "is missing" if name in expected else f"is not named in its {MANIFEST}"
        raise RefusedCheckpoint(f"{name} {which}")
    for name, path in found.items():
        if path.suffix in _CODE:
            raise RefusedCheckpoint(f"{name} could run code; expected safetensors and text")
        size = path.stat().st_size
        if size != expected[name].bytes:
            raise RefusedCheckpoint(f"{name} has {size} bytes instead of {expected[name].bytes}")
    for name, record in file_records(found).items():
        if record != expected[name]:
            raise RefusedCheckpoint(f"{name} is not as it was written (SHA-256 differs)")


def file_records(files: Mapping[str, Path]) -> dict[str, FileRecord]:
    """Hash several files at a time; hashing lets other threads run."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(files, pool.map(_record, files.values()), strict=True))


def _record(path: Path) -> FileRecord:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRecord(bytes=path.stat().st_size, sha256=digest)


def _files(directory: Path, below: str = "") -> Iterator[tuple[str, Path]]:
    """Name all files of a folder and its folders.

    Raises:
        RefusedCheckpoint: Something is neither a file nor a folder: links lead elsewhere.
    """
    for path in sorted(directory.iterdir()):
        mode = path.lstat().st_mode
        name = f"{below}{path.name}"
        if stat.S_ISDIR(mode):
            yield from _files(path, f"{name}/")
        elif stat.S_ISREG(mode):
            yield name, path
        else:
            raise RefusedCheckpoint(f"{name} is a link or a device; expected plain files")
