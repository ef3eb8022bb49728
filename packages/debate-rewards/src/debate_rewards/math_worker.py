"""The program of a worker process that compares mathematical answers.

It is run as a script, reads one JSON object a line from standard input and answers on standard
output. It imports nothing of this package, so that its only start-up cost is Math-Verify's.
"""

import functools
import json
import logging
import os
import queue
import signal
import sys
import threading
from typing import Any

MEMORY_BYTES = 4 << 30
GRACE_S = 2.0


def main() -> None:
    """Serve comparisons until standard input closes."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    logging.disable(logging.CRITICAL)
    _limit_memory()

    def say(message: dict[str, str]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        # The first use builds parser tables; that must not count against an answer's limit.
        _equal(_read(r"\frac{x^{2}}{2}"), _read(r"\sqrt{2}+(1,2)"))
    except ImportError as error:
        say({"error": str(error)})
        return
    say({"stage": "ready"})
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    while True:
        job = json.loads(jobs.get())
        # The default action of this alarm ends the process even inside one long C call, so a
        # worker never outlives a parent that was killed.
        signal.setitimer(signal.ITIMER_REAL, job["limit_s"] + GRACE_S)
        say({"outcome": _compare(job["gold"], job["prediction"], say)})
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limit_memory() -> None:
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    except (ImportError, ValueError, OSError):
        return  # The time limit holds without it.


def _read_jobs(jobs: "queue.SimpleQueue[str]") -> None:
    for line in sys.stdin:
        jobs.put(line)
    os._exit(0)


@functools.lru_cache(maxsize=4096)
def _read(answer: str) -> tuple[Any, ...]:
    import math_verify

    return tuple(math_verify.parse(f"\\boxed{{{answer}}}", parsing_timeout=None))


def _equal(gold: tuple[Any, ...], prediction: tuple[Any, ...]) -> bool:
    import math_verify

    return bool(math_verify.verify(list(gold), list(prediction), timeout_seconds=None))


def _compare(gold: str, prediction: str, say: Any) -> str:
    """Return the outcome; say `gold` once the gold answer has been read and compared with 1."""
    try:
        wanted = _read(gold)
        if not wanted:
            return "gold_unparsable"
        _equal(wanted, _read("1"))
    except (Exception, RecursionError, MemoryError):
        return "gold_unparsable"
    say({"stage": "gold"})
    try:
        given = _read(prediction)
        if not given:
            return "unparsable"
        return "equal" if _equal(wanted, given) else "different"
    except (Exception, RecursionError, MemoryError):
        return "unparsable"


if __name__ == "__main__":
    main()
