"""Confinement of an answer worker: no secrets, no network, few files, and an end.

No text of a reply or a file is meant to reach an evaluator. This is the second line, against
libraries that evaluate text although they should not:

- the environment has no more than Python needs to start;
- the working folder has been removed, so that no relative path leads to a user's file;
- files cannot be written (`RLIMIT_FSIZE`), and are read only where Python's own modules lie;
- sockets, programs and other processes are refused, and so is text that is compiled, except while
  a module is imported. Linux takes away the network where an unprivileged process may ask for it.

Python's audit hook enforces the last two lines. It cannot be taken off, and it sees every
evaluator, however a library has named it; code that already runs could evade it.
"""

import contextlib
import ctypes
import os
import sys
import sysconfig
import tempfile
from collections.abc import Mapping
from types import FrameType

_PASSED_VARIABLES = (
    "PATH",
    "HOME",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONUSERBASE",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
)
_FIXED_VARIABLES = {
    "LC_ALL": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # A verdict must not depend on the order of a set.
    "PYTHONHASHSEED": "0",
}
_REFUSED_EVENTS = frozenset(
    (
        "ctypes.dlopen",
        "os.chmod",
        "os.exec",
        "os.fork",
        "os.forkpty",
        "os.kill",
        "os.killpg",
        "os.link",
        "os.mkdir",
        "os.posix_spawn",
        "os.putenv",
        "os.remove",
        "os.rename",
        "os.rmdir",
        "os.spawn",
        "os.symlink",
        "os.system",
        "os.truncate",
        "pickle.find_class",
        "socket.__new__",
        "socket.getaddrinfo",
        "socket.gethostbyname",
        "subprocess.Popen",
    )
)
_IMPORTER = "<frozen importlib._bootstrap>"
_SYMPY_CODE_WRITER = os.path.join("sympy", "polys", "monomials.py")
"""Writes functions that multiply powers, from no more than the number of symbols of an answer."""
_NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000
"""CLONE_NEWUSER and CLONE_NEWNET of Linux."""


class ConfinementError(PermissionError):
    """A forbidden act of an answer worker."""


def minimal_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Select the variables with paths of Python's modules, and fix the others."""
    passed = {name: environment[name] for name in _PASSED_VARIABLES if name in environment}
    return passed | _FIXED_VARIABLES


def leave_files_and_network() -> None:
    """Work in a removed folder, and without a network if the system allows it."""
    # The working folder stays where it is when the context removes it.
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).unshare(_NEW_USER_AND_NETWORK)


def refuse_evaluators() -> None:
    """Refuse `_REFUSED_EVENTS`, foreign files, and text as code, for good."""
    sys.dont_write_bytecode = True
    roots = {sys.prefix, sys.base_prefix, *sysconfig.get_paths().values(), *sys.path}
    # With a separator at its end, `/usr/lib` is no beginning of `/usr/library`.
    readable_folders = tuple(os.path.join(os.path.realpath(root), "") for root in roots if root)
    sys.addaudithook(_Hook(readable_folders))


class _Hook:
    """An audit hook; Python calls it at each of its events."""

    def __init__(self, readable_folders: tuple[str, ...]) -> None:
        self._readable_folders = readable_folders

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "compile":
            # Without a text it is a syntax tree, and no reply has syntax trees.
            is_refused = arguments[0] is not None
        elif event == "open":
            is_refused = not self._may_open(*arguments)
        else:
            is_refused = event in _REFUSED_EVENTS
        # Walking the stack is slow, so it comes last.
        is_at_import = event in ("compile", "ctypes.dlopen")
        if is_refused and not (is_at_import and _is_library_at_work()):
            raise ConfinementError(f"refused in a process that compares answers: {event}")

    def _may_open(self, path: object, mode: object, flags: object) -> bool:
        if not isinstance(path, str | bytes):
            return True  # An open descriptor.
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return False
        return os.path.realpath(os.fsdecode(path)).startswith(self._readable_folders)


def _is_library_at_work() -> bool:
    """Check whether a module is being imported, or sympy compiles code of its own."""
    # The first frame below the hook is the code that compiles.
    frame: FrameType | None = sys._getframe(2)
    if frame is not None and frame.f_code.co_filename.endswith(_SYMPY_CODE_WRITER):
        return True
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTER:
            return True
        frame = frame.f_back
    return False


def limit_resources(memory_bytes: int) -> None:
    """Bound this process's memory, and let it write no file and no core dump."""
    try:
        import resource
    except ImportError:
        return  # The time limit holds without it.
    limits = {
        resource.RLIMIT_AS: memory_bytes,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
    }
    for limit, maximum in limits.items():
        # A lower limit that is in force already stays.
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (maximum, maximum))
