"""The commands as they are typed: an interrupt while Python still imports ends them in one line."""

from debate_train.interrupts import leave_on_interrupt


def train() -> int:
    """Run `debate-train`; return its exit code."""
    leave_on_interrupt()
    from debate_train.commands.cli import main

    return main()


def rollout() -> int:
    """Run `debate-rollout`; return its exit code."""
    leave_on_interrupt()
    from debate_train.commands.rollout_cli import main

    return main()


def preflight() -> int:
    """Run `debate-preflight`; return its exit code."""
    leave_on_interrupt()
    from debate_train.preflight.command import main

    return main()


def evaluate() -> int:
    """Run `debate-eval`; return its exit code."""
    leave_on_interrupt()
    from debate_train.evaluating.command import main

    return main()


def ask() -> int:
    """Run `debate-ask`; return its exit code."""
    leave_on_interrupt()
    from debate_train.asking.command import main

    return main()
