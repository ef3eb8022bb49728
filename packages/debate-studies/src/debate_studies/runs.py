"""The runs of a study: starts once for each seed, arms from them, a line for each finished run."""

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

import yaml
from pydantic import TypeAdapter

from debate_studies.lines import FinishedRun, Lines
from debate_studies.study_file import (
    Arm,
    StartingRun,
    Study,
    filled,
    made_by,
    recipe_file,
    without_scratch,
)
from debate_train.checkpoints.run_directory import read_as_written
from debate_train.checkpoints.whole_files import write_whole
from debate_train.errors import RunFailure, UsageError
from debate_train.interrupts import handled, heeded

_STOPPING = (
    "interrupted: runs end their step and write a checkpoint; press again to stop without the step"
)
STOPPED = 130
"""Exit code of a run that was not begun, as the study is being stopped."""


Train = Callable[[Sequence[str], Path], int]
"""From the arguments of `debate-train` and a log to its exit code."""
MOST_POINTS = 120
"""Points of a curve in a line; longer curves are thinned out evenly, and end with their last."""


class TrainProcesses:
    """Runs `debate-train`, each run in a separate process with one thread of OpenMP.

    Args:
        variables: Environment variables of each run, beside the caller's.
        places: Environment variables of each place; runs at once have different places.
        options: Options of each run, such as `--nproc 2`.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        places: Sequence[Mapping[str, str]] = ({},),
        options: Sequence[str] = (),
    ) -> None:
        self._variables = dict(variables)
        self._options = list(options)
        self._free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for place in places:
            self._free.put(place)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = Lock()
        self._is_stopping = False

    def __call__(self, arguments: Sequence[str], log: Path) -> int:
        """Run `debate-train` with these arguments and append the output to a log."""
        place = self._free.get()
        try:
            return self._run([*arguments, *self._options], log, place)
        finally:
            self._free.put(place)

    def _run(self, arguments: Sequence[str], log: Path, place: Mapping[str, str]) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self._variables, **place}
        command = [sys.executable, "-m", "debate_train", *arguments]
        with _pipe_until_exit() as pipe, log.open("ab") as file:
            if not self._options:  # The launcher of several processes has a pipe of its own.
                command.append(f"--interrupts=/dev/fd/{pipe}")
            with self._lock:
                if self._is_stopping:
                    return STOPPED
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env=environment,
                    pass_fds=[pipe],
                    start_new_session=True,  # The terminal's Ctrl-C comes through `stop` alone.
                )
                self._running.add(process)
            code = process.wait()
        with self._lock:
            self._running.discard(process)
        return code

    def stop(self) -> None:
        """Begin no further run, and let open runs end their step and write a checkpoint.

        A second call stops them as a second Ctrl-C does.
        """
        with self._lock:
            if not self._is_stopping and self._running:
                print(_STOPPING, file=sys.stderr, flush=True)
            self._is_stopping = True
            for process in self._running:
                process.send_signal(signal.SIGINT)


@contextmanager
def _pipe_until_exit() -> Iterator[int]:
    """Open a pipe for a child to read from; it closes when this process ends, even if killed."""
    read_end, write_end = os.pipe()
    try:
        yield read_end
    finally:
        os.close(read_end)
        os.close(write_end)


@dataclass(frozen=True, slots=True)
class Task:
    """A task, and the name of an earlier task needed for it."""

    act: Callable[[], object]
    needs: str | None = None


def work(
    tasks: Mapping[str, Task], jobs: int, stop: Callable[[], None]
) -> tuple[dict[str, RunFailure], list[str]]:
    """Do tasks, at most `jobs` at once, each after the task that it needs.

    A task is skipped if the task it needs has failed or was skipped.

    Args:
        tasks: By name; each needs earlier tasks only.
        jobs: Most tasks at once.
        stop: Called at each interrupt; makes running tasks end soon.

    Returns:
        The failures, by name, and the names of skipped tasks.

    Raises:
        KeyboardInterrupt: After all running tasks have ended.
    """
    waiting = dict(tasks)
    running: dict[Future[object], str] = {}
    failures: dict[str, RunFailure] = {}
    skipped: list[str] = []
    # The interrupt handler puts None here. A handler that raised could do so anywhere, in `stop`
    # or in the pool's own locks, too.
    events = SimpleQueue[Future[object] | None]()
    fatal_error: BaseException | None = None
    with handled(heeded(), lambda *_: events.put(None)), ThreadPoolExecutor(jobs) as pool:
        while True:
            for name, task in [*waiting.items()]:
                if task.needs in failures or task.needs in skipped:
                    skipped.append(name)
                    del waiting[name]
                elif len(running) < jobs and task.needs not in {*waiting, *running.values()}:
                    future = pool.submit(task.act)
                    running[future] = name
                    future.add_done_callback(events.put)
                    del waiting[name]
            if not running:
                break
            future_or_interrupt = events.get()
            if future_or_interrupt is None:
                name = ""
                error: BaseException | None = KeyboardInterrupt()
            else:
                name = running.pop(future_or_interrupt)
                error = future_or_interrupt.exception()
            if isinstance(error, RunFailure | UsageError | OSError):
                failures[name] = RunFailure(str(error))  # Independent tasks go on.
            elif error is not None:
                # The first such error is raised when all running tasks have ended.
                fatal_error = fatal_error or error
                waiting.clear()
                stop()
    if fatal_error is not None:
        raise fatal_error
    return failures, skipped


@dataclass(frozen=True, slots=True)
class Figure:
    """A measure in results.json."""

    mean: float


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm of the health monitor in results.json."""

    detector: str
    step: int


@dataclass(frozen=True, slots=True)
class Results:
    """The fields of a run's results.json read by a study."""

    exit_criteria: dict[str, bool]
    before: dict[str, Figure]
    after: dict[str, Figure]
    steps: int
    seconds: dict[str, float] = field(default_factory=dict)
    health: list[Alarm] = field(default_factory=list)

    @property
    def met(self) -> bool:
        """Whether all exit criteria were met."""
        return all(self.exit_criteria.values())


class Runs:
    """The runs of a study below a folder.

    Args:
        study: The study.
        folder: Folder of the study's file.
        root: Folder of run directories and logs.
        lines: File of results.
        train: Runs `debate-train`.
    """

    def __init__(self, study: Study, folder: Path, root: Path, lines: Lines, train: Train) -> None:
        self.study = study
        self.folder = folder
        self.root = root
        self.lines = lines
        self.train = train

    def arm(self, name: str, seed: int) -> FinishedRun:
        """Run an arm of a seed, after a missing start, and write the line.

        An arm is not run if the start missed an exit criterion: the measures of the start are the
        arm's before and after. It is counted as a failed start, and is in no interval.

        Raises:
            RunFailure: `debate-train` failed.
        """
        arm = self.study.arms[name]
        folder = self.root / f"{name}-{seed}"
        start_results, settings = self.start(arm.start, seed)
        if start_results is not None and not start_results.met:
            measures = self._figures(start_results.after)
            line = FinishedRun(
                arm=name,
                seed=seed,
                made_by=made_by(self.study, name),
                start_met=False,
                steps=start_results.steps,
                before=measures,
                after=measures,
            )
        else:
            rates = {} if start_results is None else call_rates(start_results.after)
            settings += [filled(setting, rates) for setting in arm.settings]
            results = self._results(folder, arm, settings, seed)
            line = FinishedRun(
                arm=name,
                seed=seed,
                made_by=made_by(self.study, name),
                start_met=True,
                steps=results.steps,
                seconds=round(sum(results.seconds.values()), 1),
                warnings=first_warnings(results),
                before=self._figures(results.before),
                after=self._figures(results.after),
                **self._of_steps(folder),
            )
        self.lines.add(line)
        return line

    def start(
        self, name: str | None, seed: int, again: Sequence[str] = ()
    ) -> tuple[Results | None, list[str]]:
        """Run a start if it is missing.

        Args:
            name: The start's name; `None` has neither results nor settings.
            seed: The seed of the run.
            again: Phases of the start that the next run trains again.

        Returns:
            The results, and the settings of a run that continues from it. They leave out the
            phases of the start but for `again`.

        Raises:
            RunFailure: `debate-train` failed.
        """
        if name is None:
            return None, []
        start = self.study.starts[name]
        folder = self.root / f"{name}-{seed}"
        # A start may begin with another; if that one missed its criterion, its results are both's.
        results, settings = self.start(start.start, seed, start.phases)
        if results is None or results.met:
            results = self._results(folder, start, [*settings, *start.settings], seed)
        if not results.met:
            return results, []
        skipped_phases = sorted(self.study.left_out(name) - {*again})
        return results, without(skipped_phases, folder)

    def _results(
        self, folder: Path, run: StartingRun | Arm, settings: Sequence[str], seed: int
    ) -> Results:
        """Read the results of a run, after running or resuming it if they are missing."""
        results_file = folder / "results.json"
        log = self.root / f"{folder.name}.log"
        study_settings: Sequence[str] = self.study.settings
        if run.start is not None:
            study_settings = without_scratch(self.study.settings)
        arguments = [
            str(recipe_file(run.recipe, self.folder)),
            f"name={folder.name}",
            f"tracking.group={self.study.name}",
            f"seed={seed}",
        ]
        arguments += [filled(setting, {"seed": seed}) for setting in (*study_settings, *settings)]
        environment = map("=".join, self.study.environment.items())
        _refuse_other_settings(folder, [*arguments, *environment])
        if not results_file.is_file():
            is_begun = (folder / "recipe.yaml").is_file()
            options = ["--output", str(folder), *(["--resume"] if is_begun else [])]
            code = self.train([*arguments, *options], log)
            if code:
                raise RunFailure(f"{folder.name}: debate-train ended with {code}; see {log}")
        values = read_as_written(results_file)
        with _as_written(folder):
            if values is None:
                raise ValueError(f"its results.json; see {log}")
            return TypeAdapter(Results).validate_python(values)

    def _figures(self, figures: Mapping[str, Figure]) -> dict[str, float]:
        """Select the study's measures from a side of results.json."""
        measures = self.study.measures.items()
        return {name: round(figures[key].mean, 6) for name, key in measures if key in figures}

    def _of_steps(self, folder: Path) -> dict[str, Any]:
        """Read the curves and totals of the study from a run's metrics."""
        if not self.study.curves and not self.study.totals:
            return {}
        curves = {}
        totals = {}
        with _as_written(folder):
            lines = (folder / "metrics.jsonl").read_bytes().splitlines()
            rows = [json.loads(line) for line in lines]
            for name, key in self.study.curves.items():
                # A value that is not finite is null.
                rows_with_key = [row for row in rows if row.get(key) is not None]
                curves[name] = _thinned(
                    [(row["step"], round(row[key], 5)) for row in rows_with_key]
                )
            for name, key in self.study.totals.items():
                totals[name] = round(sum(row.get(key) or 0.0 for row in rows), 5)
        return {"curves": curves, "totals": totals}


def _thinned(points: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    stride = max(1, math.ceil(len(points) / MOST_POINTS))
    thinned = points[::stride]
    if thinned and thinned[-1] != points[-1]:
        return (*thinned, points[-1])
    return tuple(thinned)


@contextmanager
def _as_written(folder: Path) -> Iterator[None]:
    """Turn errors of damaged files of a finished run into a refusal of a single line."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise RunFailure(
            f"{folder}: its files are not as its run has written them ({type(error).__name__}: "
            f"{error}); put them back, or remove the folder to run it again"
        ) from error


def _refuse_other_settings(folder: Path, arguments: Sequence[str]) -> None:
    """Record the arguments of a run; refuse a run directory of other arguments."""
    arguments_file = folder.with_name(f"{folder.name}.arguments")
    text = "\n".join(arguments) + "\n"
    if not folder.is_dir() or not arguments_file.is_file():
        # Written whole, as another arm may read the arguments of a common start meanwhile.
        write_whole(arguments_file, text.encode())
    elif arguments_file.read_bytes() != text.encode():
        raise RunFailure(
            f"{folder}: was run with other settings, which are in {arguments_file}; remove the "
            "folder, or give the arm or start another name"
        )


def first_warnings(results: Results) -> dict[str, int]:
    """Find the step of the first warning of each detector of the health monitor."""
    # In reverse, so that the first alarm of a detector is written last.
    return {alarm.detector: alarm.step for alarm in reversed(results.health)}


def without(phases: Sequence[str], folder: Path) -> list[str]:
    """Write the settings to skip phases and begin from a start's last checkpoint."""
    # Longer names have more digits, so a later step.
    checkpoint = max(
        folder.glob("checkpoints/step-*"),
        key=lambda step: (len(step.name), step.name),
        default=None,
    )
    if checkpoint is None:
        raise RunFailure(f"{folder}/checkpoints: found none; remove the folder to run it again")
    with _as_written(folder):
        recipe = yaml.safe_load((folder / "recipe.yaml").read_bytes())
        dtype = recipe["model"]["dtype"]
    skipped = "{steps: 0, exit_criterion: null, keep_if: null}"
    settings = [f"phases.{name}={skipped}" for name in phases]
    settings += ["model.type=pretrained", f"model.name={checkpoint}", f"model.dtype={dtype}"]
    return settings


def call_rates(figures: Mapping[str, Figure]) -> dict[str, float]:
    """Compute the rates of `votes_from` with which drawn votes are as good as a judge's.

    A judge names the right of two turns with probability s (strict accuracy) and is right at half
    weight for `=` with A (accuracy), so it names the wrong one with w = 1 − 2A + s. Calls with
    rates t and f name them with t (1 − f) = s and f (1 − t) = w, whose difference is t − f; so t
    is the larger root of t² − (1 + s − w) t + s = 0. A judge that says `=` less often than two
    calls can has no root: then t and f are the nearest, with the same difference.

    Args:
        figures: One side of results.json.

    Returns:
        `tpr` and `fpr`; empty without a measured judge.
    """
    if "eval/judge/strict_accuracy" not in figures:
        return {}
    strict_accuracy = figures["eval/judge/strict_accuracy"].mean
    accuracy = figures["eval/judge/accuracy"].mean
    difference = 2 * accuracy - 1  # s − w = t − f
    # Without a root the judge says `=` less often than two calls can.
    root = math.sqrt(max(0.0, (1 + difference) ** 2 - 4 * strict_accuracy))
    tpr = (1 + difference + root) / 2
    return {"tpr": min(tpr, 1.0), "fpr": min(max(tpr - difference, 0.0), 1.0)}
