"""The commands as they are typed, `python -m debate_train` among them."""

import gc
import os
import sys
from functools import partial
from importlib import import_module

from debate_train.commands.options import refuse_misuse
from debate_train.interrupts import leave_on_interrupt


def _run(name: str, module: str) -> int:
    """Run the command of a module, which is imported when an interrupt ends it without a trace."""
    leave_on_interrupt()
    # Libraries take seconds to import, which help and a mistyped option need not wait for.
    refuse_misuse(name, sys.argv[1:])
    # GNU's OpenMP threads, which torch has on Linux, spin where they wait for each other. Beside
    # other work the one they wait for may have no core: two threads on two cores with two other
    # processes took over seven times as long as one. A short spin costs idle cores a tenth at most.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    # What modules make is kept to the end: the garbage collector has nothing to find in it, now or
    # later.
    gc.disable()
    command = import_module(f"debate_train.commands.{module}")
    gc.freeze()
    gc.enable()
    return int(command.main())


# Of the console scripts, each returns its exit code.
rollout = partial(_run, "rollout", "rollout")
preflight = partial(_run, "preflight", "preflight")
evaluate = partial(_run, "eval", "evaluate")
ask = partial(_run, "ask", "ask")


def train() -> int:
    """Run `debate-train`; listing recipes needs no library."""
    return _run("train", "recipe_list" if sys.argv[1:2] == ["recipes"] else "cli")


if __name__ == "__main__":
    sys.exit(train())
