"""`debate-eval`: arguments, and the policies to measure."""

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
"""The policy of the recipe's own model, which is measured where the call names no policy."""
_STEP = re.compile(r"step-(\d{6,})")
# Files that decide how a model answers: weights, settings, tokenizer and chat template.
_MODEL_SUFFIXES = {".safetensors", ".json", ".jinja", ".txt", ".model"}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def named_policies(texts: Sequence[str]) -> list[NamedPolicy]:
    """Find the policies of `[NAME=]RUN_DIR[@STEP]|CHECKPOINT|MODEL|recipe`, in order.

    Raises:
        UsageError: There is no such policy, or two have the same name.
    """
    policies = [named_policy(text) for text in texts or (RECIPE,)]
    name_counts = Counter(policy.name for policy in policies)
    for policy in policies:
        count = name_counts[policy.name]
        if count > 1:
            raise UsageError(
                f"--policy: found {policy.name!r} {count} times; expected another name for each, "
                f"as in --policy before={policy.source}"
            )
    return policies


def named_policy(text: str, option: str = "--policy") -> NamedPolicy:
    """Find the policy that a text names; `option` is for refusals."""
    if "\0" in text or text.encode(errors="replace").decode() != text:
        raise UsageError(f"{option}: found {text[:200]!a}, which is not UTF-8; expected text")
    name, equals, source = text.partition("=")
    # Folders may have "=" in their names.
    has_name = equals and not is_folder(text) and re.fullmatch(NAME, name) is not None
    if not has_name:
        name = ""
        source = text
    if source == RECIPE and not is_folder(source):
        return NamedPolicy(name or RECIPE, source)
    model, default_name = _locate_weights(source, option)
    if not name:
        name = re.sub(r"[^\w.@+-]+", "-", default_name).lstrip(".-")[:60] or "policy"
    return NamedPolicy(name, source, model, weights_hash(model, option))


def _locate_weights(source: str, option: str) -> tuple[str, str]:
    """Find the folder or hub id of a policy's weights, and a default name for the policy."""
    path = source
    at = ""
    step = ""
    if not is_folder(source) and "@" in source:
        path, at, step = source.rpartition("@")
    if not is_folder(path):
        if at or is_meant_as_path(path) or _HUB_ID.fullmatch(path) is None:
            raise UsageError(
                f"{option}: found no {path!r}{_nearest_folder(path)}; expected the directory of a "
                "run, a checkpoint or a model, RUN_DIR@STEP, a hub id such as Qwen/Qwen3-8B, or "
                "recipe"
            )
        return path, path.rpartition("/")[2]

    folder = Path(path)
    if (folder / "checkpoints").is_dir():
        checkpoint = _find_checkpoint(folder, step, option)
        return str(checkpoint), folder.resolve().name + at + step
    if at:
        raise UsageError(f"{option}: found {source!r}, but {path!r} is no run directory")
    has_adapters = (folder / ADAPTER).is_file() or any(folder.glob(f"*/{ADAPTER}"))
    if not has_adapters and not (folder / "config.json").is_file():
        raise UsageError(
            f"{option}: {path!r} holds neither checkpoints/ nor a model (config.json or {ADAPTER})"
        )
    # A checkpoint is called by its run: step-000020 alone would not say of which.
    path_parts = folder.resolve().parts
    if path_parts[-2:-1] == ("checkpoints",):
        step_match = _STEP.fullmatch(path_parts[-1])
        if step_match is not None:
            return path, f"{path_parts[-3]}@{int(step_match[1])}"
    return path, path_parts[-1]


def _nearest_folder(path: str) -> str:
    """Suggest the nearest name among the folders beside a missing folder."""
    parent = Path(path).parent
    try:
        names = [entry.name for entry in parent.iterdir() if entry.is_dir()]
    except (OSError, ValueError):
        return ""
    return did_you_mean(Path(path).name, names)


def _find_checkpoint(run: Path, step: str, option: str) -> Path:
    """Find the checkpoint of a run after a step, the best or, without either, the last."""
    folder = run / "checkpoints"
    checkpoints = {}
    for path in folder.iterdir():
        match = _STEP.fullmatch(path.name)
        if match is not None:
            checkpoints[int(match[1])] = path
    if not checkpoints:
        raise UsageError(f"{option}: {str(run)!r} has no checkpoint yet; expected one that is done")
    if not step:
        return checkpoints[max(checkpoints)]
    if step == "best":
        try:
            best = json.loads((folder / "best.json").read_bytes())
            step = best["checkpoint"][len("step-") :]
        except (OSError, ValueError, KeyError, TypeError):
            raise UsageError(
                f"{option}: {str(run)!r} keeps no best checkpoint (checkpoint.keep_best); expected "
                "the number of a step"
            ) from None
    if not step.isdecimal() or int(step) not in checkpoints:
        steps = ", ".join(map(str, sorted(checkpoints)))
        near = did_you_mean(step, [*map(str, checkpoints), "best"])
        raise UsageError(
            f"{option}: {str(run)!r} has no checkpoint @{step}{near}; expected best or one of "
            f"{steps}"
        )
    return checkpoints[int(step)]


def weights_hash(model: str, option: str) -> str:
    """Hash the whole files of a model; "" for a hub id.

    Raises:
        UsageError: A checkpoint is not as it was written, or a file cannot be read.
    """
    folder = Path(model)
    if not folder.is_dir():
        return ""
    if (folder / MANIFEST).is_file():
        # The manifest has the hashes of all other files, which `verify` has compared with it.
        manifest = (folder / MANIFEST).read_bytes()
        try:
            verify(folder, None)
        except RefusedCheckpoint as error:
            raise UsageError(
                f"{option}: the checkpoint {model!r} cannot be used: {error}; expected it as its "
                "run has written it"
            ) from error
        return hashlib.sha256(manifest).hexdigest()
    files = {}
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        if path.suffix in _MODEL_SUFFIXES and path.is_file():
            files[path.relative_to(folder).as_posix()] = path
    try:
        hashes = list(file_hashes(files).items())
    except OSError as error:
        raise UsageError(f"{option}: {error.filename}: cannot be read: {error.strerror}") from error
    return hashlib.sha256(repr(hashes).encode()).hexdigest()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return the exit code."""
    argv = list(sys.argv[1:] if argv is None else argv)
    if argv[:1] == ["compare"]:
        return compare_main(argv[1:])
    return command("debate-eval", eval_parser(), argv, _main)


def _main(arguments: argparse.Namespace) -> int:
    if arguments.resume and arguments.output is None:
        raise UsageError("--resume: found no --output; expected the folder of the evaluation")
    if not arguments.benchmark:
        planned = _plan(arguments, arguments.overrides)
        if planned is not None:
            _run(planned, arguments, arguments.output, resume=arguments.resume)
        return DONE

    # All benchmarks are checked before the first is measured, which may take hours.
    plans = {}
    for name, changes in chosen_benchmarks(arguments.benchmark).items():
        planned = _plan(arguments, [*arguments.overrides, *changes])
        if planned is not None:
            plans[name] = planned
    if not plans:
        return DONE
    folder = arguments.output or new_folder("benchmarks")
    if not arguments.resume:
        refuse_used(folder)
    for name, planned in plans.items():
        resume = arguments.resume and (folder / name).is_dir()
        _run(planned, arguments, folder / name, resume=resume)
    finished_table(folder, list(plans))
    return DONE


def _plan(
    arguments: argparse.Namespace, overrides: Sequence[str]
) -> "tuple[Evaluating, str] | None":
    """Check an evaluation; return it with the recipe's text, `None` after --check and the like."""
    evaluating: Evaluating | None = None
    planned: tuple[Evaluating, str] | None = None

    def check(recipe: "Recipe") -> "CheckReport":
        # It imports torch, which --print and a mistyped key need not wait for.
        from debate_train.commands.evaluating import (
            Evaluating,
            check_evaluating,
            measured_phase,
            with_opponents,
        )

        nonlocal evaluating
        opponents = [named_policy(text, "--against") for text in arguments.against]
        phase = measured_phase(recipe, arguments.questions)
        evaluating = Evaluating(
            recipe=with_opponents(phase, opponents),
            policies=named_policies(arguments.policy),
            split=arguments.split,
            against=opponents,
        )
        return check_evaluating(evaluating)

    def act(checked: CheckedRecipe) -> int:
        nonlocal planned
        assert evaluating is not None
        planned = (evaluating, checked.text)
        return DONE

    run_recipe(argparse.Namespace(**{**vars(arguments), "overrides": overrides}), check, act)
    return planned


def _run(
    planned: "tuple[Evaluating, str]",
    arguments: argparse.Namespace,
    output: Path | None,
    resume: bool,
) -> None:
    say_loading()
    from debate_train.commands.evaluating import run_evaluation

    evaluating, recipe_text = planned
    interruptible(
        lambda: run_evaluation(
            evaluating, recipe_text, output, resume=resume, all_figures=arguments.all
        )
    )
