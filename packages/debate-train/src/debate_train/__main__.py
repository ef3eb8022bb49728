"""The commands as they are typed, `python -m debate_train` among them."""

import os
import sys
from functools import partial
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


# Of the console scripts, each returns its exit code.
train = partial(_run, "cli")
rollout = partial(_run, "rollout")
preflight = partial(_run, "preflight")
evaluate = partial(_run, "evaluate")
ask = partial(_run, "ask")

if __name__ == "__main__":
    sys.exit(train())
