"""The runs of a study: starts once for each seed, arms from them, a line for each that ends."""

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


class TrainProcesses:
    """Runs `debate-train`, each run in a process of its own with one thread of OpenMP.

    Args:
        variables: Of the environment of each, beside the caller's.
        places: As many as are under way at once, each with variables of its own.
        options: Of each run, such as `--nproc 2`.
    """

    def __init__(
        self,
        variables: Mapping[str, str],
        places: Sequence[Mapping[str, str]] = ({},),
        options: Sequence[str] = (),
    ) -> None:
        self._variables, self._options = dict(variables), list(options)
        self._free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for place in places:
            self._free.put(place)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock, self._is_stopping = Lock(), False

    def __call__(self, arguments: Sequence[str], log: Path) -> int:
        """Run `debate-train` with these arguments, its output at the end of a log."""
        place = self._free.get()
        try:
            return self._run([*arguments, *self._options], log, place)
        finally:
            self._free.put(place)

    def _run(self, arguments: Sequence[str], log: Path, place: Mapping[str, str]) -> int:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self._variables, **place}
        command = [sys.executable, "-m", "debate_train", *arguments]
        with _closed_at_end() as pipe, log.open("ab") as file:
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
        """Begin no further run, and let those under way end their step and write a checkpoint.

        A second call has them stop as a second Ctrl-C does.
        """
        with self._lock:
            if not self._is_stopping and self._running:
                print(_STOPPING, file=sys.stderr, flush=True)
            self._is_stopping = True
            for process in self._running:
                process.send_signal(signal.SIGINT)


@contextmanager
def _closed_at_end() -> Iterator[int]:
    """Yield the reading end of a pipe that closes when this process ends, in whatever way."""
    ends = os.pipe()
    try:
        yield ends[0]
    finally:
        for end in ends:
            os.close(end)


@dataclass(frozen=True, slots=True)
class Task:
    """Something to do once."""

    act: Callable[[], object]
    needs: str | None = None
    """The task that has to be done before."""


def work(
    tasks: Mapping[str, Task], jobs: int, stop: Callable[[], None]
) -> tuple[dict[str, RunFailure], list[str]]:
    """Do tasks, at most `jobs` at once, in their order as far as each has what it needs.

    What needs a task that failed is left out.

    Args:
        tasks: By name; none needs one that comes later.
        jobs: How many at once.
        stop: Called at each interrupt; has tasks that are under way end soon.

    Returns:
        The failures, by name, and the names of those that were left out.

    Raises:
        KeyboardInterrupt: After all that was under way has ended.
    """
    waiting, running = dict(tasks), dict[Future[object], str]()
    failed, lost = dict[str, RunFailure](), list[str]()
    # A handler that raised could do so anywhere, in `stop` or in the pool's own locks, too.
    ended = SimpleQueue[Future[object] | None]()  # None is an interrupt.
    ending: BaseException | None = None
    with handled(heeded(), lambda *_: ended.put(None)), ThreadPoolExecutor(jobs) as pool:
        while True:
            for name, task in [*waiting.items()]:
                if task.needs in failed or task.needs in lost:
                    lost.append(name)
                    del waiting[name]
                elif len(running) < jobs and task.needs not in {*waiting, *running.values()}:
                    future = pool.submit(task.act)
                    running[future] = name
                    future.add_done_callback(ended.put)
                    del waiting[name]
            if not running:
                break
            done = ended.get()
            error = done.exception() if done else KeyboardInterrupt()
            name = running.pop(done) if done else ""
            if isinstance(error, RunFailure | UsageError | OSError):
                failed[name] = RunFailure(str(error))  # Others are done meanwhile.
            elif error is not None:
                ending = ending or error
                waiting.clear()
                stop()
    if ending is not None:
        raise ending
    return failed, lost


Train = Callable[[Sequence[str], Path], int]
"""From the arguments of `debate-train` and a log to its exit code."""
MOST_POINTS = 120
"""Of a curve that is kept; longer ones are thinned out evenly, and end with their last."""


@dataclass(frozen=True, slots=True)
class Figure:
    """What results.json has of a measure."""

    mean: float


@dataclass(frozen=True, slots=True)
class Alarm:
    """What results.json has of an alarm of the health watch."""

    detector: str
    step: int


@dataclass(frozen=True, slots=True)
class Results:
    """What is read of a run's results.json."""

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


_RESULTS = TypeAdapter(Results)


class Runs:
    """The runs of a study below one folder.

    Args:
        study: What is run.
        folder: Of the study's file.
        root: Where run directories and logs go.
        lines: Where results go.
        train: Runs `debate-train`.
    """

    def __init__(self, study: Study, folder: Path, root: Path, lines: Lines, train: Train) -> None:
        self.study, self.folder, self.root = study, folder, root
        self.lines, self.train = lines, train

    def arm(self, name: str, seed: int) -> FinishedRun:
        """Run an arm of a seed, and what it begins with where that is missing; return its line.

        An arm whose start missed an exit criterion is not run: the measures of that start are its
        before and after. It is counted as a start that failed, and is in no interval.

        Raises:
            RunFailure: `debate-train` failed.
        """
        arm, folder = self.study.arms[name], self.root / f"{name}-{seed}"
        found, settings = self.start(arm.start, seed)
        is_begun = found is None or found.met
        if found is None or is_begun:
            rates = {} if found is None else call_rates(found.after)
            settings += [filled(setting, rates) for setting in arm.settings]
            found = self._results(folder, arm, settings, seed)
        line = FinishedRun(
            arm=name,
            seed=seed,
            made_by=made_by(self.study, name),
            start_met=is_begun,
            steps=found.steps,
            seconds=round(sum(found.seconds.values()), 1) if is_begun else None,
            warnings=first_warnings(found) if is_begun else None,
            before=self._figures(found.before if is_begun else found.after),
            after=self._figures(found.after),
            **(self._of_steps(folder) if is_begun else {}),
        )
        self.lines.add(line)
        return line

    def start(
        self, name: str | None, seed: int, again: Sequence[str] = ()
    ) -> tuple[Results | None, list[str]]:
        """Return the results of a start, run where they are missing, and settings to go on from it.

        A run with these settings leaves out the phases of the start, but for those in `again`.
        Without a start there are neither results nor settings.

        Raises:
            RunFailure: `debate-train` failed.
        """
        if name is None:
            return None, []
        start, folder = self.study.starts[name], self.root / f"{name}-{seed}"
        found, settings = self.start(start.start, seed, start.phases)
        if found is None or found.met:
            found = self._results(folder, start, [*settings, *start.settings], seed)
        skipped = sorted(self.study.left_out(name) - {*again})
        return found, (without(skipped, folder) if found.met else [])

    def _results(
        self, folder: Path, run: StartingRun | Arm, settings: Sequence[str], seed: int
    ) -> Results:
        """Return the results of a run, which is done or ended first where they are missing."""
        file, log = folder / "results.json", self.root / f"{folder.name}.log"
        shared = self.study.settings if run.start is None else without_scratch(self.study.settings)
        own = [filled(setting, {"seed": seed}) for setting in (*shared, *settings)]
        named = [f"name={folder.name}", f"tracking.group={self.study.name}", f"seed={seed}"]
        arguments = [str(recipe_file(run.recipe, self.folder)), *named, *own]
        _refuse_other_settings(folder, [*arguments, *map("=".join, self.study.environment.items())])
        if not file.is_file():
            resumed = ["--resume"] if (folder / "recipe.yaml").is_file() else []
            code = self.train([*arguments, "--output", str(folder), *resumed], log)
            if code:
                raise RunFailure(f"{folder.name}: debate-train ended with {code}; see {log}")
        found = read_as_written(file)
        with _as_written(folder):
            if found is None:
                raise ValueError(f"its results.json; see {log}")
            return _RESULTS.validate_python(found)

    def _figures(self, found: Mapping[str, Figure]) -> dict[str, float]:
        """Return the study's measures of one side of results.json."""
        measures = self.study.measures.items()
        return {name: round(found[key].mean, 6) for name, key in measures if key in found}

    def _of_steps(self, folder: Path) -> dict[str, Any]:
        """Return step and value of each curve, and the totals, of a run's metrics."""
        if not self.study.curves and not self.study.totals:
            return {}
        found, totals = {}, {}
        with _as_written(folder):
            rows = [json.loads(row) for row in (folder / "metrics.jsonl").read_bytes().splitlines()]
            for name, key in self.study.curves.items():
                # A value that is not finite is null.
                of_key = [row for row in rows if row.get(key) is not None]
                points = [(row["step"], round(row[key], 5)) for row in of_key]
                thinned = points[:: -(-len(points) // MOST_POINTS) or 1]
                found[name] = (*thinned, *(points[-1:] if thinned[-1:] != points[-1:] else ()))
            for name, key in self.study.totals.items():
                totals[name] = round(sum(row.get(key) or 0.0 for row in rows), 5)
        return {"curves": found, "totals": totals}


@contextmanager
def _as_written(folder: Path) -> Iterator[None]:
    """Say in one line that what a finished run has written is not there as it was."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, yaml.YAMLError) as error:
        raise RunFailure(
            f"{folder}: its files are not as its run has written them ({type(error).__name__}: "
            f"{error}); put them back, or remove the folder to run it again"
        ) from error


def _refuse_other_settings(folder: Path, arguments: Sequence[str]) -> None:
    """Keep with what a run is begun; refuse to take over one that was begun otherwise."""
    kept, text = folder.with_name(f"{folder.name}.arguments"), "\n".join(arguments) + "\n"
    if not folder.is_dir() or not kept.is_file():
        write_whole(kept, text.encode())
    elif kept.read_bytes() != text.encode():  # Two arms may read those of a start at once.
        raise RunFailure(
            f"{folder}: was run with other settings, which are in {kept}; remove the folder, or "
            "give the arm or start another name"
        )


def first_warnings(found: Results) -> dict[str, int]:
    """Return the step at which each detector of the health watch first spoke."""
    return {alarm.detector: alarm.step for alarm in reversed(found.health)}


def without(phases: Sequence[str], folder: Path) -> list[str]:
    """Return the settings with which a run leaves phases out and begins where a start ended."""
    found = folder.glob("checkpoints/step-*")
    checkpoint = max(found, key=lambda step: (len(step.name), step.name), default=None)
    if checkpoint is None:
        raise RunFailure(f"{folder}/checkpoints: found none; remove the folder to run it again")
    with _as_written(folder):
        recipe = yaml.safe_load((folder / "recipe.yaml").read_bytes())
        dtype = recipe["model"]["dtype"]
    skipped = "{steps: 0, exit_criterion: null, keep_if: null}"
    settings = [f"phases.{name}={skipped}" for name in phases]
    settings += ["model.type=pretrained", f"model.name={checkpoint}"]
    return [*settings, f"model.dtype={dtype}"]


def call_rates(found: Mapping[str, Figure]) -> dict[str, float]:
    """Return the rates of `votes_from` with which drawn votes are as good as a judge's.

    A judge names the right of two turns with probability s (strict accuracy) and is right at half
    weight for `=` with A (accuracy), so it names the wrong one with w = 1 − 2A + s. Calls with
    rates t and f name them with t (1 − f) = s and f (1 − t) = w, whose difference is t − f; so t
    is the larger root of t² − (1 + s − w) t + s = 0. A judge that says `=` less often than two
    calls can has no root: then t and f are the nearest, with the same difference.

    Args:
        found: One side of results.json.

    Returns:
        `tpr` and `fpr`; nothing where no judge was measured.
    """
    if "eval/judge/strict_accuracy" not in found:
        return {}
    right, accuracy = (found[f"eval/judge/{n}"].mean for n in ("strict_accuracy", "accuracy"))
    difference = 2 * accuracy - 1
    root = math.sqrt(max(0.0, (1 + difference) ** 2 - 4 * right))
    tpr = (1 + difference + root) / 2
    return {"tpr": min(tpr, 1.0), "fpr": min(max(tpr - difference, 0.0), 1.0)}
