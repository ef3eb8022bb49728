"""A process that was started for another one ends when that one is gone, however it ended."""

import ctypes
import os
import select
import signal
import sys

_DEATH_SIGNAL_OPTION = 1
"""PR_SET_PDEATHSIG of Linux."""


def end_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have Linux send this process a signal when the thread that forked it ends.

    Call it only in a process whose parent forked it from its main thread: the signal comes when
    that *thread* ends.

    Args:
        parent: The parent's process id, from before the fork.
        number: Of the signal.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL_OPTION, number)
    # The parent may have ended before the line above.
    if os.getppid() != parent:
        os._exit(0)


def is_orphan(parent: int) -> bool:
    """Return whether the parent is gone, or nobody can write to standard input any more.

    Each alone can be late: another process may hold the pipe, or adopt this one without an end.
    """
    poll = select.poll()
    poll.register(0, 0)
    hung_up = any(events & (select.POLLHUP | select.POLLERR) for _, events in poll.poll(0))
    return hung_up or os.getppid() != parent
