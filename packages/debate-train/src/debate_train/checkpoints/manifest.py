"""The manifest of a checkpoint: the hash of every file, and the hash of the run."""

import hashlib
import json
import os
import stat
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import Field, ValidationError

from debate_protocol.plugins import Config
from debate_train.checkpoints.whole_files import sync_directory

MANIFEST = "manifest.json"
FORMAT: Final = "debate-checkpoint/4"
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class RefusedCheckpoint(Exception):
    """A checkpoint cannot be used; the message says why."""


class Manifest(Config):
    """Contents of a checkpoint: the SHA-256 of each file, and the hash of the run."""

    format: Literal["debate-checkpoint/4"] = FORMAT
    run: Sha256
    files: dict[str, Sha256]


def run_hash(recipe_yaml: str, base: str = "") -> str:
    """Hash the meaning of a run's first recipe.

    Args:
        recipe_yaml: The resolved recipe.
        base: Hash of the frozen weights and the tokenizer (`model_print`).
    """
    recipe: dict[str, Any] = yaml.safe_load(recipe_yaml)
    model = recipe.get("model")
    if isinstance(model, dict):
        # The model may move to another folder: trained weights are in the checkpoint, and `base`
        # knows the others.
        recipe["model"] = {key: value for key, value in model.items() if key != "name"}
    text = json.dumps([recipe, base], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def seal(directory: Path, run: str) -> None:
    """Sync every file to the disk and write the manifest, the last file of a checkpoint."""
    files = _files(directory)
    # By the umask: safetensors writes files that only their owner can read.
    mode = stat.S_IMODE(directory.stat().st_mode) & 0o666
    for path in files.values():
        path.chmod(mode)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    manifest = Manifest(run=run, files=file_hashes(files))
    # Last: a checkpoint without a manifest is not complete, whatever else it has.
    with (directory / MANIFEST).open("w", encoding="utf-8") as file:
        file.write(manifest.model_dump_json(indent=1))
        file.flush()
        os.fsync(file.fileno())
    # A file that is on the disk can still lose its name: the folders are synced, too.
    for folder in {directory, *(path.parent for path in files.values())}:
        sync_directory(folder)


def verify(directory: Path, run: str | None) -> None:
    """Read every byte of a checkpoint and compare it with the manifest.

    Args:
        directory: The checkpoint.
        run: Hash of the expected run; `None` for any.

    Raises:
        RefusedCheckpoint: It is torn, altered or of another run; the message says how.
    """
    try:
        manifest = Manifest.model_validate_json((directory / MANIFEST).read_bytes())
    except FileNotFoundError as error:
        raise RefusedCheckpoint(
            f"it holds no {MANIFEST}: it is not complete, or another version wrote it"
        ) from error
    except (OSError, ValidationError) as error:
        raise RefusedCheckpoint(f"its {MANIFEST} is damaged, or not of {FORMAT!r}") from error
    if run not in (None, manifest.run):
        raise RefusedCheckpoint("it belongs to a run with another recipe, base model or tokenizer")
    actual = file_hashes(_files(directory))
    expected = manifest.files
    for name in sorted(actual.keys() | expected.keys()):
        if name not in actual:
            raise RefusedCheckpoint(f"{name} is missing")
        if name not in expected:
            raise RefusedCheckpoint(f"{name} is not named in its {MANIFEST}")
        if actual[name] != expected[name]:
            raise RefusedCheckpoint(f"{name} is not as it was written (SHA-256 differs)")


def _files(directory: Path) -> dict[str, Path]:
    """List all files of a checkpoint but the manifest, by name."""
    files = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if name != MANIFEST and not path.is_dir():
            files[name] = path
    return files


def file_hashes(files: Mapping[str, Path]) -> dict[str, str]:
    """Hash several files at a time; hashing lets other threads run."""
    with ThreadPoolExecutor() as pool:
        hashes = pool.map(_file_hash, files.values())
        return dict(zip(files, hashes, strict=True))


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
