"""What the mutation scripts share: one trial within a limit of time, counts, and going on.

A trial is a command run in this process. It fails where the command shows a traceback, ends with
another code than 0 or 2, or takes more than 20 seconds of a processor (200 by the clock, which
other work on the machine prolongs). Outcomes are appended to a file, so that
a script that was stopped goes on with the trials that are not in it.
"""

import contextlib
import io
import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

LIMIT_S, CLOCK_S = 20.0, 200.0
GOOD = ("refused", "accepted")


@dataclass(frozen=True)
class Outcome:
    """How a trial ended: refused and accepted are as they should be, anything else is a failure."""

    trial: str
    ended: str
    seconds: float
    said: str = ""


class TooLong(BaseException):
    """Raised in a trial at the limit; nothing that is tried catches it."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `TooLong` in the block after a limit of this process's seconds, or `CLOCK_S` in all."""

    def ring(number: int, frame: Any) -> None:
        raise TooLong

    timers = {signal.SIGALRM: signal.ITIMER_REAL, signal.SIGPROF: signal.ITIMER_PROF}
    before = {number: signal.signal(number, ring) for number in timers}
    signal.setitimer(signal.ITIMER_REAL, CLOCK_S)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        for number, timer in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])


def tried(name: str, act: Callable[[], int], limit_s: float = LIMIT_S) -> Outcome:
    """Run a command in this process and judge how it ended."""
    # As a terminal in a UTF-8 locale: what cannot be encoded on standard output is an error.
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    began = time.process_time()
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), within(limit_s):
            code: object = act()
    except TooLong:
        code = "hang"
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        code = f"{type(error).__name__}: {error}"
    seconds = time.process_time() - began
    out.flush()
    err.flush()
    said = err.buffer.getvalue().decode("utf-8", "replace")  # type: ignore[attr-defined]
    return Outcome(name, _ended(code, said), round(seconds, 3), said[-400:])


def _ended(code: object, said: str) -> str:
    if code == "hang":
        return "hang"
    if "Traceback (most recent call last)" in said:
        return "traceback"
    if isinstance(code, str):
        return "raised"
    if "\x1b" in said:
        return "escape"
    return {0: "accepted", 2: "refused"}.get(code, f"exit {code}")  # type: ignore[call-overload]


class Log:
    """Outcomes so far, in a file of one JSON object a line; None keeps them in memory alone."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.outcomes: list[Outcome] = []
        if path is not None and path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                with contextlib.suppress(ValueError, TypeError):  # A torn last line is tried again.
                    self.outcomes.append(Outcome(**json.loads(line)))
        self._done = {one.trial for one in self.outcomes}

    def run(self, trials: Sequence[tuple[str, Callable[[], Outcome]]]) -> None:
        """Make the trials that are not there yet."""
        for number, (name, make) in enumerate(trials):
            if name in self._done:
                continue
            outcome = make()
            self._done.add(name)
            self.outcomes.append(outcome)
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")
            if outcome.ended not in GOOD:
                print(f"{outcome.ended}: {name!a}: {outcome.said[-200:]!r}", file=sys.stderr)
            elif number % 500 == 499:
                print(f"{number + 1} of {len(trials)}", file=sys.stderr)

    def counts(self) -> dict[str, Any]:
        """Count the trials by outcome and group (the text before the first colon)."""
        groups: dict[str, Counter[str]] = {}
        for one in self.outcomes:
            groups.setdefault(one.trial.split(":")[0], Counter())[one.ended] += 1
        failures = sum(n for kinds in groups.values() for k, n in kinds.items() if k not in GOOD)
        return {
            "trials": len(self.outcomes),
            "failures": failures,
            "slowest_s": max((one.seconds for one in self.outcomes), default=0.0),
            "groups": {name: dict(sorted(kinds.items())) for name, kinds in groups.items()},
        }


@contextlib.contextmanager
def quiet_environment() -> Iterator[None]:
    """No network and no secrets: what is tried neither reaches out nor reads a key."""
    kept = dict(os.environ)
    os.environ.update(HF_HUB_OFFLINE="1", WANDB_MODE="disabled", OMP_NUM_THREADS="1")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)
