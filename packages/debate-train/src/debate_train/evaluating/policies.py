"""The policies of an evaluation: runs, checkpoints and models by the names that they are given."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from debate_protocol.plugins import did_you_mean
from debate_train.checkpointing.checkpoint_manifest import (
    MANIFEST,
    Manifest,
    RefusedCheckpoint,
    file_records,
    verify,
)
from debate_train.errors import UsageError
from debate_train.models.model_files import ADAPTER, is_folder, is_meant_as_path

RECIPE = "recipe"
"""The policy of the recipe's own model, which is measured where none is named."""
_NAME = r"[\w@+][\w.@+-]{0,59}"
_STEP = re.compile(r"step-(\d{6,})")
_OF_MODEL = {".safetensors", ".json", ".jinja", ".txt", ".model"}
"""What decides how a model answers: weights, settings, tokenizer and chat template."""
_HUB = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True, slots=True)
class NamedPolicy:
    """A policy that is measured."""

    name: str
    source: str
    """What the caller gave."""
    model: str | None = None
    """The folder or hub id of its weights, None for the recipe's own model."""
    sha256: str = ""
    """Of all files of the model, empty for a hub id."""


def named_policies(texts: Sequence[str]) -> list[NamedPolicy]:
    """Return the policies that `[NAME=]RUN_DIR[@STEP]|CHECKPOINT|MODEL|recipe` name, in order.

    Raises:
        UsageError: There is no such policy, or two have one name.
    """
    found = [named_policy(text) for text in texts or (RECIPE,)]
    names = [policy.name for policy in found]
    for policy in found:
        if names.count(policy.name) > 1:
            raise UsageError(
                f"--policy: found {policy.name!r} {names.count(policy.name)} times; expected "
                f"another name for each, as in --policy before={policy.source}"
            )
    return found


def named_policy(text: str, option: str = "--policy") -> NamedPolicy:
    """Return the policy that a text names; `option` is the one that it was given to."""
    if "\0" in text or text.encode(errors="replace").decode() != text:
        raise UsageError(f"{option}: found {text[:200]!a}, which is not UTF-8; expected text")
    given, equals, source = text.partition("=")
    if not equals or is_folder(text) or re.fullmatch(_NAME, given) is None:
        given, source = "", text
    if source == RECIPE and not is_folder(source):
        return NamedPolicy(given or RECIPE, source)
    model, name = _located(source, option)
    if not given:
        given = re.sub(r"[^\w.@+-]+", "-", name).lstrip(".-")[:60] or "policy"
    return NamedPolicy(given, source, model, weights_hash(model, option))


def _located(source: str, option: str) -> tuple[str, str]:
    """Return the folder or hub id of a policy's weights, and what it may be called."""
    path, at, step = source, "", ""
    if not is_folder(source) and "@" in source:
        path, at, step = source.rpartition("@")
    if is_folder(path):
        folder = Path(path)
        if (folder / "checkpoints").is_dir():
            chosen = _checkpoint(folder, step, option)
            return str(chosen), folder.resolve().name + at + step
        if at:
            raise UsageError(
                f"{option}: found {source!r}, but {path!r} is no run directory; expected one with "
                "checkpoints/ before @, or the folder of a checkpoint alone"
            )
        if not _holds_model(folder):
            raise UsageError(
                f"{option}: {path!r} holds neither checkpoints/ nor a model (config.json or "
                f"{ADAPTER}); expected the directory of a run, a checkpoint or a model"
            )
        parts = folder.resolve().parts
        is_of_run = _STEP.fullmatch(parts[-1]) and parts[-2:-1] == ("checkpoints",)
        return path, f"{parts[-3]}@{_number(folder)}" if is_of_run else parts[-1]
    is_path = is_meant_as_path(path) or _HUB.fullmatch(path) is None
    if is_path or at:
        raise UsageError(
            f"{option}: found no {path!r}{_beside(path)}; expected the directory of a run, a "
            "checkpoint or a model, RUN_DIR@STEP, a hub id such as Qwen/Qwen3-8B, or recipe"
        )
    return path, path.rpartition("/")[2]


def _beside(path: str) -> str:
    """Return the nearest name in the folder where the path was looked for."""
    parent = Path(path).parent
    try:
        known = [entry.name for entry in parent.iterdir() if entry.is_dir()]
    except (OSError, ValueError):
        return ""
    return did_you_mean(Path(path).name, known)


def _holds_model(folder: Path) -> bool:
    own = (folder / "config.json").is_file() or (folder / ADAPTER).is_file()
    return own or any(folder.glob(f"*/{ADAPTER}"))


def _number(folder: Path) -> int:
    return int(folder.resolve().name.removeprefix("step-"))


def _checkpoint(run: Path, step: str, option: str) -> Path:
    """Return the checkpoint of a run after a step, its best or, without either, its last."""
    folder = run / "checkpoints"
    known = {int(m[1]): path for path in folder.iterdir() if (m := _STEP.fullmatch(path.name))}
    if not known:
        raise UsageError(f"{option}: {str(run)!r} has no checkpoint yet; expected one that is done")
    if not step:
        return known[max(known)]
    if step == "best":
        try:
            named = str(json.loads((folder / "best.json").read_bytes())["checkpoint"])
            step = named.removeprefix("step-")
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(
                f"{option}: {str(run)!r} keeps no best checkpoint; expected a run with "
                "checkpoint.keep_best, or the number of a step"
            ) from None
    if not step.isdecimal() or int(step) not in known:
        has = ", ".join(str(number) for number in sorted(known))
        near = did_you_mean(step, [*map(str, known), "best"])
        raise UsageError(
            f"{option}: {str(run)!r} has no checkpoint @{step}{near}; expected best or one of {has}"
        )
    return known[int(step)]


def weights_hash(model: str, option: str) -> str:
    """Return a hash of all files of a model, which are read whole; an empty one for a hub id.

    Raises:
        UsageError: It is a checkpoint that is not as it was written, or cannot be read.
    """
    folder = Path(model)
    if not folder.is_dir():
        return ""
    if (folder / MANIFEST).is_file():
        content = (folder / MANIFEST).read_bytes()
        try:
            manifest = Manifest.model_validate_json(content)
            verify(folder, manifest.step, manifest.origin)
        except (ValidationError, RefusedCheckpoint) as error:
            said = str(error).splitlines()[0]
            raise UsageError(
                f"{option}: the checkpoint {model!r} cannot be used: {said}; expected it as its "
                "run has written it"
            ) from error
        return hashlib.sha256(content).hexdigest()
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted([*folder.glob("*"), *folder.glob("*/*")])
        if path.suffix in _OF_MODEL and path.is_file()
    }
    try:
        hashes = [(name, record.sha256) for name, record in file_records(files).items()]
    except OSError as error:
        raise UsageError(f"{option}: {error.filename}: cannot be read: {error.strerror}") from error
    return hashlib.sha256(repr(hashes).encode()).hexdigest()
