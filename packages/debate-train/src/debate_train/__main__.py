"""The commands as they are typed, `python -m debate_train` among them."""

import os
import sys

from debate_train.interrupts import leave_on_interrupt


def _begin() -> None:
    leave_on_interrupt()
    # GNU's OpenMP threads, which torch has on Linux, spin where they wait for each other. Beside
    # other work the one they wait for may have no core: two threads on two cores with two other
    # processes took over seven times as long as one. A short spin costs idle cores a tenth at most.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def train() -> int:
    """Run `debate-train`; return its exit code."""
    _begin()
    from debate_train.commands.cli import main

    return main()


def rollout() -> int:
    """Run `debate-rollout`; return its exit code."""
    _begin()
    from debate_train.commands.rollout import main

    return main()


def preflight() -> int:
    """Run `debate-preflight`; return its exit code."""
    _begin()
    from debate_train.commands.preflight import main

    return main()


def evaluate() -> int:
    """Run `debate-eval`; return its exit code."""
    _begin()
    from debate_train.commands.evaluate import main

    return main()


def ask() -> int:
    """Run `debate-ask`; return its exit code."""
    _begin()
    from debate_train.commands.ask import main

    return main()


if __name__ == "__main__":
    sys.exit(train())
