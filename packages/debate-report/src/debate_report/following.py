"""The page of an unfinished run: written again whenever the run has grown, until it ends."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from debate_protocol.command_line import UsageError
from debate_report.json_values import as_mapping, finite, read_object, read_text
from debate_report.page import write_report
from debate_report.page_templates import Live
from debate_report.rollout_files import RUN_FILES
from debate_report.run_files import RunFiles, read_run
from debate_report.stages import recipe_of, step_of

POLL_S = 2.0
# Making pages takes at most a tenth of the time, whatever a page costs.
SHORTEST_INTERVAL_S = 5.0
INTERVAL_PER_COST = 10.0
# A run whose process is gone may be on another machine; then its files grow.
GONE_AFTER_S = 60.0
GROWING_FILES = (*RUN_FILES, "results.json", "environment.json", ".lock")
GROWING_FOLDERS = ("transcripts", "tokens", "evaluations")


@dataclass(frozen=True, slots=True)
class Clock:
    """Time and waiting; tests replace both."""

    now: Callable[[], float] = time.monotonic
    wait: Callable[[float], None] = time.sleep


def follow_report(
    run_dir: Path, path: Path, say: Callable[[str], object], clock: Clock | None = None
) -> Path:
    """Write the page of a run whenever the run has grown, until the run ends.

    The last page, which a keyboard interrupt writes too, does not reload itself.

    Args:
        run_dir: The folder of the run.
        path: The page.
        say: Takes one sentence when it begins and one when it ends.
        clock: Time; `None` is that of the machine.

    Raises:
        UsageError: It is not the folder of a run.
        KeyboardInterrupt: After the last page is written.
    """
    if not run_dir.is_dir() or not any((run_dir / name).is_file() for name in RUN_FILES):
        raise UsageError(
            f"--follow: found {run_dir}; expected the folder of a run of debate train, which has "
            "metrics.jsonl or recipe.yaml"
        )
    clock = clock or Clock()
    try:
        ending = _follow(run_dir, path, say, clock)
    except KeyboardInterrupt:
        write_report(run_dir, path)
        raise
    write_report(run_dir, path)
    say(f"{path}: {ending}")
    return path


def _follow(run_dir: Path, path: Path, say: Callable[[str], object], clock: Clock) -> str:
    """Write pages until the run ends; return how it did."""
    interval_s = SHORTEST_INTERVAL_S
    last_seen: dict[str, tuple[int, int]] | None = None
    grown_at = written_at = clock.now()
    while True:
        # What is written after this look, a page may already have; the next look sees it, too.
        seen = _fingerprint(run_dir)
        now = clock.now()
        if seen != last_seen:
            grown_at = now
        ending = _ending(run_dir, now - grown_at)
        if ending:
            when = "complete" if last_seen is None else "over"
            return f"the run is {when}: {ending}; the page is written for the last time"
        if last_seen is None:
            say(f"{path}: written whenever the run grows, and reloads itself; Ctrl-C ends this")
        if seen != last_seen and (last_seen is None or now - written_at >= interval_s):
            live = Live(
                progress=progress_of(read_run(run_dir)),
                written=datetime.now(UTC),
                interval_s=max(SHORTEST_INTERVAL_S, interval_s),
            )
            write_report(run_dir, path, live=live)
            written_at = clock.now()
            interval_s = max(SHORTEST_INTERVAL_S, INTERVAL_PER_COST * (written_at - now))
            last_seen = seen
        clock.wait(POLL_S)


def _fingerprint(run_dir: Path) -> dict[str, tuple[int, int]]:
    """Collect sizes and times of the files of a page."""
    files = [run_dir / name for name in GROWING_FILES]
    for folder in GROWING_FOLDERS:
        # The folder is made when it is first needed.
        files += (run_dir / folder).glob("*")
    fingerprint = {}
    for file in files:
        try:
            status = file.stat()
        except OSError:
            continue  # not there yet, or just renamed
        fingerprint[str(file)] = (status.st_size, status.st_mtime_ns)
    return fingerprint


def _ending(run_dir: Path, quiet_s: float) -> str:
    """Say how a run ended; empty while it goes on.

    Args:
        run_dir: The folder of the run.
        quiet_s: Seconds since the run's files last grew.
    """
    if read_object(run_dir / "results.json") is not None:
        return "it has results"
    process_id = read_text(run_dir / ".lock").strip()
    if not process_id:
        return "no process writes there, and there are no results"
    if quiet_s >= GONE_AFTER_S and not _is_alive(process_id):
        return f"process {process_id[:20]} is gone, and there are no results"
    return ""


def _is_alive(process_id: str) -> bool:
    try:
        os.kill(int(process_id), 0)
    except (ValueError, OverflowError, ProcessLookupError):
        return False
    except OSError:
        return True  # another user's
    return True


def progress_of(run: RunFiles) -> str:
    """Describe how far a run is."""
    if not run.rows:
        return "before its first step"
    last_row = run.rows[-1]
    step = f"step {step_of(last_row):,.0f}"
    num_steps = _num_steps(run)
    if num_steps is not None and num_steps >= step_of(last_row):
        step += f" of {num_steps:,.0f}"
    phase = f", phase {str(last_row.get('phase', ''))[:80]}" if len(run.phases) > 1 else ""
    return step + phase


def _num_steps(run: RunFiles) -> float | None:
    """Add up the steps of all phases; `None` where an exit criterion decides on them."""
    recipe = recipe_of(run)
    steps = finite(recipe.get("steps"))
    phases = as_mapping(recipe.get("phases"))
    if not phases:
        return steps
    total = 0.0
    for phase in phases.values():
        phase_steps = finite(as_mapping(phase).get("steps", steps))
        if phase_steps is None or as_mapping(phase).get("exit_criterion") is not None:
            return None
        total += phase_steps
    return total
