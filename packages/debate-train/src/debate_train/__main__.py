"""The commands as they are typed, `python -m debate_train` among them."""

import os
import sys
from importlib import import_module

from debate_train.interrupts import leave_on_interrupt


def _run(module: str) -> int:
    """Run the command of a module, which is imported when an interrupt ends it without a trace."""
    leave_on_interrupt()
    # GNU's OpenMP threads, which torch has on Linux, spin where they wait for each other. Beside
    # other work the one they wait for may have no core: two threads on two cores with two other
    # processes took over seven times as long as one. A short spin costs idle cores a tenth at most.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    return int(import_module(f"debate_train.commands.{module}").main())


def train() -> int:
    """Run `debate-train`; return its exit code."""
    return _run("cli")


def rollout() -> int:
    """Run `debate-rollout`; return its exit code."""
    return _run("rollout")


def preflight() -> int:
    """Run `debate-preflight`; return its exit code."""
    return _run("preflight")


def evaluate() -> int:
    """Run `debate-eval`; return its exit code."""
    return _run("evaluate")


def ask() -> int:
    """Run `debate-ask`; return its exit code."""
    return _run("ask")


if __name__ == "__main__":
    sys.exit(train())
