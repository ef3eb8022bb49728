"""The program of a worker that compares mathematical answers: a supervisor and its child.

The child reads one JSON object a line from standard input and answers on standard output. The
supervisor has imported everything and waits: SIGUSR1 replaces a child that takes too long by a
fresh one within milliseconds, SIGTERM ends both. It reaps every child.
"""

import json
import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

MEMORY_BYTES = 4 << 30
GRACE_S = 2.0
_SIGNALS = {signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1}

Say = Callable[[dict[str, object]], None]


def main() -> None:
    """Serve comparisons until standard input closes or SIGTERM comes."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    logging.disable(logging.CRITICAL)
    _limit_memory()

    def say(message: dict[str, object]) -> None:
        out.write(json.dumps(message) + "\n")
        out.flush()

    try:
        from debate_rewards.answers import math_equality
    except ImportError as error:
        say({"error": str(error)})
        return
    # The first use builds parser tables; that must not count against an answer's limit.
    read = math_equality.read
    math_equality.equal(read(r"\frac{x^{2}}{2}"), read(r"\sqrt{2}+(1,2)"))
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    children = 0
    goes_on = True
    while goes_on:
        children += 1
        child = os.fork()
        if child == 0:
            say({"stage": "ready", "child": children})
            _serve(math_equality, say)
        goes_on = _supervise(child)


def _supervise(child: int) -> bool:
    """Wait until the child is gone; return whether there shall be another."""
    wanted = True
    while True:
        caught = signal.sigwait(_SIGNALS)
        if caught != signal.SIGCHLD:
            wanted = caught == signal.SIGUSR1
            os.kill(child, signal.SIGKILL)
        gone, status = os.waitpid(child, os.WNOHANG if caught == signal.SIGCHLD else 0)
        if gone:
            # A child ends by itself, with status 0, when standard input was closed.
            return wanted and status != 0


def _serve(rules: ModuleType, say: Say) -> None:
    jobs: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()
    while True:
        job = json.loads(jobs.get())
        say({"stage": "started"})
        # The default action of this alarm ends the process even inside one long C call, so a
        # worker never outlives a parent that was killed.
        signal.setitimer(signal.ITIMER_REAL, job["limit_s"] + GRACE_S)
        say({"outcome": _compare(job, rules, say)})
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


def _compare(job: dict[str, Any], rules: ModuleType, say: Say) -> str:
    """Return the outcome; say `gold` once the gold answer has been read and compared with 1."""
    if not job["cached"]:
        rules.read.cache_clear()
    try:
        gold = rules.read(job["gold"])
        rules.equal(gold, rules.ONE)
    except (Exception, RecursionError, MemoryError):
        return "gold_unparsable"
    say({"stage": "gold"})
    try:
        given = rules.read(job["prediction"])
        if rules.equal(gold, given):
            return "equal"
        return "unparsable" if isinstance(given, str) and not isinstance(gold, str) else "different"
    except (Exception, RecursionError, MemoryError):
        return "unparsable"
