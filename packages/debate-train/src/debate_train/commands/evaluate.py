"""`debate-eval`: its arguments, and the policies that they name."""

import argparse
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from debate_protocol.plugins import did_you_mean
from debate_train.checkpoints import MANIFEST, RefusedCheckpoint, file_hashes, verify
from debate_train.checkpoints.run_directory import new_folder, refuse_used
from debate_train.commands.compare import chosen_benchmarks, compare_main, finished_table
from debate_train.commands.evaluation_files import NAME, NamedPolicy
from debate_train.commands.options import eval_parser
from debate_train.commands.recipe_command import (
    DONE,
    CheckedRecipe,
    command,
    run_recipe,
    say_loading,
)
from debate_train.errors import UsageError
from debate_train.interrupts import interruptible
from debate_train.models.model_files import ADAPTER, is_folder, is_meant_as_path

if TYPE_CHECKING:
    from debate_train.commands.evaluating import Evaluating
    from debate_train.recipe import Recipe
    from debate_train.recipe.check import CheckReport


RECIPE = "recipe"
"""The policy of the recipe's own model, which is measured where none is named."""
_STEP = re.compile(r"step-(\d{6,})")
_OF_MODEL = {".safetensors", ".json", ".jinja", ".txt", ".model"}
"""What decides how a model answers: weights, settings, tokenizer and chat template."""
_HUB = re.compile(r"[\w.-]+/[\w.-]+")


def named_policies(texts: Sequence[str]) -> list[NamedPolicy]:
    """Return the policies that `[NAME=]RUN_DIR[@STEP]|CHECKPOINT|MODEL|recipe` name, in order.

    Raises:
        UsageError: There is no such policy, or two have one name.
    """
    found = [named_policy(text) for text in texts or (RECIPE,)]
    counts = Counter(policy.name for policy in found)
    for policy in found:
        if (times := counts[policy.name]) > 1:
            raise UsageError(
                f"--policy: found {policy.name!r} {times} times; expected another name for each, "
                f"as in --policy before={policy.source}"
            )
    return found


def named_policy(text: str, option: str = "--policy") -> NamedPolicy:
    """Return the policy that a text names; `option` is the one that it was given to."""
    if "\0" in text or text.encode(errors="replace").decode() != text:
        raise UsageError(f"{option}: found {text[:200]!a}, which is not UTF-8; expected text")
    given, equals, source = text.partition("=")
    if not equals or is_folder(text) or re.fullmatch(NAME, given) is None:
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
    if not is_folder(path):
        if at or is_meant_as_path(path) or _HUB.fullmatch(path) is None:
            raise UsageError(
                f"{option}: found no {path!r}{_beside(path)}; expected the directory of a run, a "
                "checkpoint or a model, RUN_DIR@STEP, a hub id such as Qwen/Qwen3-8B, or recipe"
            )
        return path, path.rpartition("/")[2]
    folder = Path(path)
    if (folder / "checkpoints").is_dir():
        return str(_checkpoint(folder, step, option)), folder.resolve().name + at + step
    if at:
        raise UsageError(f"{option}: found {source!r}, but {path!r} is no run directory")
    if not _holds_model(folder):
        raise UsageError(
            f"{option}: {path!r} holds neither checkpoints/ nor a model (config.json or {ADAPTER})"
        )
    parts = folder.resolve().parts
    step_of = _STEP.fullmatch(parts[-1]) if parts[-2:-1] == ("checkpoints",) else None
    return path, f"{parts[-3]}@{int(step_of[1])}" if step_of else parts[-1]


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
            step = json.loads((folder / "best.json").read_bytes())["checkpoint"][len("step-") :]
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(
                f"{option}: {str(run)!r} keeps no best checkpoint (checkpoint.keep_best); expected "
                "the number of a step"
            ) from None
    if not step.isdecimal() or int(step) not in known:
        has = ", ".join(map(str, sorted(known)))
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
            verify(folder, None)
        except RefusedCheckpoint as error:
            raise UsageError(
                f"{option}: the checkpoint {model!r} cannot be used: {error}; expected it as its "
                "run has written it"
            ) from error
        return hashlib.sha256(content).hexdigest()
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted([*folder.glob("*"), *folder.glob("*/*")])
        if path.suffix in _OF_MODEL and path.is_file()
    }
    try:
        hashes = list(file_hashes(files).items())
    except OSError as error:
        raise UsageError(f"{option}: {error.filename}: cannot be read: {error.strerror}") from error
    return hashlib.sha256(repr(hashes).encode()).hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return its exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["compare"]:
        return compare_main(argv[1:])
    return command("debate-eval", eval_parser(), argv, _main)


def _main(arguments: argparse.Namespace) -> int:
    if arguments.resume and arguments.output is None:
        raise UsageError("--resume: found no --output; expected the folder of the evaluation")
    if not arguments.benchmark:
        for planned in _planned(arguments, arguments.overrides):
            _run(planned, arguments, arguments.output, resume=arguments.resume)
        return DONE
    chosen = chosen_benchmarks(arguments.benchmark)
    plans = [_planned(arguments, [*arguments.overrides, *keys]) for keys in chosen.values()]
    if not all(plans):  # Nothing but what was asked about is said.
        return DONE
    folder = arguments.output or new_folder("benchmarks")
    if not arguments.resume:
        refuse_used(folder)
    for name, (planned,) in zip(chosen, plans, strict=True):
        resume = arguments.resume and (folder / name).is_dir()
        _run(planned, arguments, folder / name, resume=resume)
    finished_table(folder, list(chosen))
    return DONE


def _planned(
    arguments: argparse.Namespace, overrides: Sequence[str]
) -> "list[tuple[Evaluating, str]]":
    """Check an evaluation; return it with its recipe's text, nothing where that was all."""
    made: list[Evaluating] = []
    texts: list[str] = []

    def check(recipe: "Recipe") -> "CheckReport":
        from debate_train.commands.evaluating import check_evaluating

        made.append(_wanted(recipe, arguments))
        return check_evaluating(made[0])

    def act(checked: CheckedRecipe) -> int:
        texts.append(checked.text)
        return DONE

    run_recipe(argparse.Namespace(**{**vars(arguments), "overrides": overrides}), check, act)
    return list(zip(made, texts, strict=False))


def _run(
    planned: "tuple[Evaluating, str]",
    arguments: argparse.Namespace,
    output: Path | None,
    resume: bool,
) -> None:
    say_loading()
    from debate_train.commands.evaluating import run_evaluation

    shows = {"resume": resume, "all_figures": arguments.all}
    interruptible(lambda: run_evaluation(*planned, output, **shows))


def _wanted(recipe: "Recipe", arguments: argparse.Namespace) -> "Evaluating":
    from debate_train.commands.evaluating import Evaluating, measured_phase, with_opponents

    against = [named_policy(text, "--against") for text in arguments.against]
    phase = with_opponents(measured_phase(recipe, arguments.questions), against)
    return Evaluating(phase, named_policies(arguments.policy), arguments.split, against)
