"""`debate-study`: run the missing runs of a study, print and write the tables."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from debate_protocol.command_line import DONE, heed_options, is_quiet
from debate_protocol.transcripts.showing import escaped
from debate_studies.lines import FinishedRun, Lines
from debate_studies.options import STUDY, study_parser
from debate_studies.runs import Runs, Task, TrainProcesses, work
from debate_studies.study_file import (
    Study,
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run `debate-study`; return its exit code."""
    arguments = study_parser().parse_intermixed_args(argv)
    heed_options(arguments)
    raise_interrupts()
    return exit_code(STUDY, lambda: study(arguments))


def study(arguments: argparse.Namespace) -> int:
    """Run the missing runs of a study, print and write the tables.

    Raises:
        UsageError: The file, or an option, is wrong.
        RunFailure: Runs failed; all others have ended.
    """
    file: Path = arguments.file
    chosen = read_study(file)
    selected = _selected_runs(chosen, arguments)
    root = (arguments.output or Path("runs") / chosen.name).resolve()
    lines = Lines(file.parent / chosen.results if chosen.results else root / "results.jsonl")
    problems = [*output_problems(chosen, file.parent)]
    if arguments.check:
        _check(chosen, file, selected, lines, problems)
        return DONE
    if problems:
        raise UsageError("\n".join(problems))
    # Finished runs of other settings would count as runs of this study.
    for run in lines.read():
        if run.arm in chosen.arms and run.made_by not in (None, made_by(chosen, run.arm)):
            raise UsageError(
                f"{lines.file}: arm {run.arm}, seed {run.seed} was run with other settings; "
                "expected another name for the arm, or this line and its run directory removed"
            )
    failures = []
    if not arguments.tables:
        failures = _run(chosen, selected, lines, root, arguments)
    # Tables are written even if some runs have failed.
    finished = lines.read()
    try:
        if finished:
            _write(chosen, file, root, finished)
        else:
            print("no run is finished")
    except OSError as error:
        failures.append(f"no page was written: {error}")
    if failures:
        raise RunFailure("\n".join(failures))
    return DONE


def _write(chosen: Study, file: Path, root: Path, finished: list[FinishedRun]) -> None:
    """Print and write tables, plot and page."""
    page_file = (file.parent / chosen.page if chosen.page else root / "study.md").resolve()
    page_file.parent.mkdir(parents=True, exist_ok=True)
    image = page_file.with_suffix(".svg")
    markdown = tables(chosen, finished, image)
    print(*map(escaped, markdown), sep="\n")
    write_whole(page_file, page(chosen, file, image, markdown).encode())
    print(escaped(f"page: {page_file}"))


def _selected_runs(chosen: Study, arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """List arm and seed of the selected runs, seed by seed."""
    for option, names in (("seeds", chosen.all_seeds()), ("arms", [*chosen.arms])):
        for unknown in set(getattr(arguments, option) or ()) - {*names}:
            expected = ", ".join(map(str, names))
            raise UsageError(f"--{option}: found {unknown}; expected some of {expected}")
    for option in ("jobs", "nproc"):
        count = getattr(arguments, option)
        if count is not None and count < 1:
            raise UsageError(f"--{option}: found {count}; expected at least 1")
    if arguments.jobs is not None and arguments.devices:
        raise UsageError("--jobs: found beside --devices; expected one of them")
    selected = []
    for seed in chosen.all_seeds():
        if arguments.seeds and seed not in arguments.seeds:
            continue
        for arm in chosen.arms_of(seed):
            if not arguments.arms or arm in arguments.arms:
                selected.append((arm, seed))
    return selected


def _check(
    chosen: Study, file: Path, selected: list[tuple[str, int]], lines: Lines, problems: list[str]
) -> None:
    warnings = dict[str, list[str]]()
    for key, loaded, model in loaded_runs(chosen, file.parent):
        report = check(loaded.recipe, model=model)
        problems += [f"{key}: {problem}" for problem in report.errors]
        for warning in report.warnings:
            warnings.setdefault(warning, []).append(key)
    # Lines of a study with problems may not be readable.
    num_finished = 0 if problems else len({*selected} & lines.done())
    print(escaped(f"study {chosen.name}: {len(selected)} runs, {num_finished} of them finished"))
    print(escaped(f"results: {lines.file}"))
    for warning, keys in warnings.items():
        print(escaped(f"warning: {', '.join(keys)}: {warning}"), file=sys.stderr)
    if problems:
        raise UsageError("\n".join(problems))


def _run(
    chosen: Study,
    selected: list[tuple[str, int]],
    lines: Lines,
    root: Path,
    arguments: argparse.Namespace,
) -> list[str]:
    """Run missing runs; return a message for each failure."""
    folder = arguments.file.parent
    # Errors in the recipe of the last arm are reported before the first arm runs.
    list(loaded_runs(chosen, folder))
    root.mkdir(parents=True, exist_ok=True)
    lines.file.parent.mkdir(parents=True, exist_ok=True)
    options = [] if arguments.nproc is None else ["--nproc", str(arguments.nproc)]
    places = [{"CUDA_VISIBLE_DEVICES": gpus} for gpus in arguments.devices]
    if not places:
        places = [{}] * (arguments.jobs or 1)
    environment = {str(name): value for name, value in chosen.environment.items()}
    processes = TrainProcesses(environment, places, options)
    runs = Runs(chosen, folder, root, lines, processes)
    tasks = _tasks(chosen, selected, runs, lines)
    failures, skipped = work(tasks, len(places), processes.stop)
    messages = [str(error) for error in failures.values()]
    if skipped:
        messages.append(f"left out, as what they need failed: {'; '.join(skipped)}")
    return messages


def _tasks(
    chosen: Study, selected: list[tuple[str, int]], runs: Runs, lines: Lines
) -> Mapping[str, Task]:
    """List the missing runs as tasks, each after the start."""
    finished = lines.done()
    tasks: dict[str, Task] = {}

    def add_start(name: str, seed: int) -> str:
        start = chosen.starts[name]
        needs = add_start(start.start, seed) if start.start else None
        title = f"start {name}, seed {seed}"
        # Several arms may share a start, which runs once.
        tasks.setdefault(title, Task(partial(_start, runs, name, seed, title), needs))
        return title

    missing = [run for run in selected if run not in finished]
    _report(f"{len(missing)} of {len(selected)} runs to do; logs: {runs.root}")
    for number, (name, seed) in enumerate(missing, 1):
        start = chosen.arms[name].start
        needs = add_start(start, seed) if start else None
        title = f"[{number}/{len(missing)}] {name}, seed {seed}"
        tasks[title] = Task(partial(_arm, runs, name, seed, title), needs)
    return tasks


def _start(runs: Runs, name: str, seed: int, title: str) -> None:
    _, settings = runs.start(name, seed)
    _report(f"{title}: {'done' if settings else 'missed its exit criterion'}")


def _arm(runs: Runs, name: str, seed: int, title: str) -> None:
    run = runs.arm(name, seed)
    _report(f"{title}: {_measures_text(run)}")


def _report(text: str) -> None:
    if not is_quiet():
        print(escaped(text), flush=True)


def _measures_text(run: FinishedRun) -> str:
    """Format measures before and after the run, and the seconds."""
    if not run.start_met:
        return "not run, as the start missed its exit criterion"
    parts = []
    for name, before in run.before.items():
        if name in run.after:
            parts.append(f"{name} {before:.3f} → {run.after[name]:.3f}")
    parts.append(f"{run.seconds:.0f} s")
    return ", ".join(parts)


if __name__ == "__main__":
    sys.exit(main())
