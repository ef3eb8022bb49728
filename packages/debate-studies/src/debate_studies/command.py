"""`debate-study`: run what is missing of a study, print and write its tables."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from debate_protocol.command_line import DONE, add_options, heed_options, is_quiet
from debate_protocol.transcripts.showing import escaped
from debate_studies.lines import FinishedRun, Lines
from debate_studies.runs import Runs, Task, TrainProcesses, work
from debate_studies.study_file import (
    Study,
    add_study_options,
    loaded_runs,
    made_by,
    output_problems,
    read_study,
)
from debate_studies.tables import page, tables
from debate_train.checkpoints.whole_files import write_whole
from debate_train.commands.recipe_command import exit_code
from debate_train.errors import RunFailure, UsageError
from debate_train.interrupts import raise_interrupts
from debate_train.recipe.check import check

NAME = "debate-study"
_DESCRIPTION = """\
Run arms of recipes over seeds, as FILE says and as far as they are missing; compare them."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run `debate-study`; return its exit code."""
    arguments = command_parser().parse_intermixed_args(argv)
    heed_options(arguments)
    raise_interrupts()
    return exit_code(NAME, lambda: study(arguments))


def command_parser() -> argparse.ArgumentParser:
    """Return what the command takes."""
    parser = argparse.ArgumentParser(prog=NAME, description=_DESCRIPTION, allow_abbrev=False)
    add_study_options(parser)
    add_options(parser, "debate_studies")
    return parser


def study(arguments: argparse.Namespace) -> int:
    """Run what is missing of a study, print and write its tables.

    Raises:
        UsageError: The file, or an option, is wrong.
        RunFailure: Runs failed; all others were done.
    """
    file: Path = arguments.file
    chosen = read_study(file)
    wanted = _wanted(chosen, arguments)
    root = (arguments.output or Path("runs") / chosen.name).resolve()
    lines = Lines(file.parent / chosen.results if chosen.results else root / "results.jsonl")
    others = [*output_problems(chosen, file.parent)]
    if arguments.check:
        _check(chosen, file, wanted, lines, others)
        return DONE
    if others:
        raise UsageError("\n".join(others))
    _refuse_others(chosen, lines)
    failed = [] if arguments.tables else _run(chosen, wanted, lines, root, arguments)
    finished = lines.read()
    try:
        if finished:
            _write(chosen, file, root, finished)
        else:
            print("no run is finished")
    except OSError as error:
        failed = [*failed, f"no page was written: {error}"]
    if failed:
        raise RunFailure("\n".join(failed))
    return DONE


def _write(chosen: Study, file: Path, root: Path, finished: list[FinishedRun]) -> None:
    """Print and write tables, plot and page."""
    kept = (file.parent / chosen.page if chosen.page else root / "study.md").resolve()
    kept.parent.mkdir(parents=True, exist_ok=True)
    image = kept.with_suffix(".svg")
    found = tables(chosen, finished, image)
    print(*map(escaped, found), sep="\n")
    write_whole(kept, page(chosen, file, image, found).encode())
    print(escaped(f"page: {kept}"))


def _wanted(chosen: Study, arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """Return arm and seed of the runs that the options ask for, seed by seed."""
    for option, known in (("seeds", chosen.all_seeds()), ("arms", [*chosen.arms])):
        for one in set(getattr(arguments, option) or ()) - {*known}:
            names = ", ".join(map(str, known))
            raise UsageError(f"--{option}: found {one}; expected some of {names}")
    for option in ("jobs", "nproc"):
        count = getattr(arguments, option)
        if count is not None and count < 1:
            raise UsageError(f"--{option}: found {count}; expected at least 1")
    if arguments.jobs is not None and arguments.devices:
        raise UsageError("--jobs: found beside --devices; expected one of them")
    return [
        (arm, seed)
        for seed in chosen.all_seeds()
        for arm in chosen.arms_of(seed)
        if seed in (arguments.seeds or [seed]) and arm in (arguments.arms or [arm])
    ]


def _check(
    chosen: Study, file: Path, wanted: list[tuple[str, int]], lines: Lines, problems: list[str]
) -> None:
    warnings = dict[str, list[str]]()
    for key, loaded, model in loaded_runs(chosen, file.parent):
        report = check(loaded.recipe, model=model)
        problems += [f"{key}: {problem}" for problem in report.errors]
        for warning in report.warnings:
            warnings.setdefault(warning, []).append(key)
    done = 0 if problems else len({*wanted} & lines.done())
    print(escaped(f"study {chosen.name}: {len(wanted)} runs, {done} of them finished"))
    print(escaped(f"results: {lines.file}"))
    for warning, keys in warnings.items():
        print(escaped(f"warning: {', '.join(keys)}: {warning}"), file=sys.stderr)
    if problems:
        raise UsageError("\n".join(problems))


def _run(
    chosen: Study,
    wanted: list[tuple[str, int]],
    lines: Lines,
    root: Path,
    arguments: argparse.Namespace,
) -> list[str]:
    """Do what is missing; return what failed."""
    folder = arguments.file.parent
    # What is wrong with the last arm should be known before the first one runs.
    list(loaded_runs(chosen, folder))
    root.mkdir(parents=True, exist_ok=True)
    lines.file.parent.mkdir(parents=True, exist_ok=True)
    options = [] if arguments.nproc is None else ["--nproc", str(arguments.nproc)]
    places = [{"CUDA_VISIBLE_DEVICES": gpus} for gpus in arguments.devices]
    places = places or [{}] * (arguments.jobs or 1)
    processes = TrainProcesses({str(k): v for k, v in chosen.environment.items()}, places, options)
    runs = Runs(chosen, folder, root, lines, processes)
    tasks = _tasks(chosen, wanted, runs, lines)

    failed, lost = work(tasks, len(places), processes.stop)
    said = [str(error) for error in failed.values()]
    return [*said, f"left out, as what they need failed: {'; '.join(lost)}"] if lost else said


def _refuse_others(chosen: Study, lines: Lines) -> None:
    """Refuse finished runs that other settings have made."""
    for run in lines.read():
        if run.arm in chosen.arms and run.made_by not in (None, made_by(chosen, run.arm)):
            raise UsageError(
                f"{lines.file}: arm {run.arm}, seed {run.seed} was run with other settings; "
                "expected another name for the arm, or this line and its run directory removed"
            )


def _tasks(
    chosen: Study, wanted: list[tuple[str, int]], runs: Runs, lines: Lines
) -> Mapping[str, Task]:
    """Return what is missing, starts before what goes on from them."""
    done, tasks = lines.done(), dict[str, Task]()

    def begin(name: str, seed: int) -> str:
        start = chosen.starts[name]
        needs = begin(start.start, seed) if start.start else None
        key = f"start {name}, seed {seed}"
        tasks.setdefault(key, Task(partial(_start, runs, name, seed, key), needs))
        return key

    missing = [run for run in wanted if run not in done]
    _say(f"{len(missing)} of {len(wanted)} runs to do; logs: {runs.root}")
    for place, (name, seed) in enumerate(missing, 1):
        start = chosen.arms[name].start
        needs = begin(start, seed) if start else None
        said = f"[{place}/{len(missing)}] {name}, seed {seed}"
        tasks[said] = Task(partial(_arm, runs, name, seed, said), needs)
    return tasks


def _start(runs: Runs, name: str, seed: int, said: str) -> None:
    _, settings = runs.start(name, seed)
    _say(f"{said}: {'done' if settings else 'missed its exit criterion'}")


def _arm(runs: Runs, name: str, seed: int, said: str) -> None:
    run = runs.arm(name, seed)
    _say(f"{said}: {_figures(run)}")


def _say(text: str) -> None:
    if not is_quiet():
        print(escaped(text), flush=True)


def _figures(run: FinishedRun) -> str:
    """Return measures before and after, and how long it took."""
    if not run.start_met:
        return "not run, as the start missed its exit criterion"
    both = [
        f"{name} {before:.3f} → {run.after[name]:.3f}"
        for name, before in run.before.items()
        if name in run.after
    ]
    return ", ".join([*both, f"{run.seconds:.0f} s"])


if __name__ == "__main__":
    sys.exit(main())
