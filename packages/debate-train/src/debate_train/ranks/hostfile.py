"""The machines of a hostfile: which they are, and whether each can be reached."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from debate_train.errors import UsageError

_HOST = re.compile(r"(\S+)\s+slots=([1-9]\d*)(\s.*)?", re.ASCII)
_ANSWER_S = 20.0
"""Longest wait for one machine."""


def read_hostfile(path: Path) -> dict[str, int]:
    """Return the machines of a hostfile and their slots, in order.

    Raises:
        UsageError: It cannot be read, or a line does not name a machine, or names one again.
    """
    wanted = "expected lines such as `node1 slots=8`"
    if not path.is_file():
        raise UsageError(f"--hostfile: found no file {path}; {wanted}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile: {path} cannot be read ({error}); {wanted}") from error
    hosts: dict[str, int] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if not line or line.startswith("#"):
            continue
        found = _HOST.fullmatch(line)
        # DeepSpeed hands the name to ssh, which would take it for an option.
        if found is None or found[1].startswith("-"):
            raise UsageError(
                f"--hostfile: {path}:{number}: found {line!r}; expected a machine and its "
                "processes, such as `node1 slots=8`"
            )
        if found[1] in hosts:
            raise UsageError(
                f"--hostfile: {path}:{number}: found {found[1]} a second time; expected one line "
                "for each machine, such as `node1 slots=8`"
            )
        hosts[found[1]] = int(found[2])
    if not hosts:
        raise UsageError(f"--hostfile: {path}: found no machine; {wanted}")
    return hosts


def check_reachable(path: Path, hosts: Sequence[str]) -> None:
    """Log in to every machine at once, as DeepSpeed's launcher will.

    Raises:
        UsageError: A machine does not answer, or asks for a password, or a program is missing.
    """
    for program in ("ssh", "pdsh") if len(hosts) > 1 else ("ssh",):
        if shutil.which(program) is None:
            raise UsageError(
                f"--hostfile: found no program {program} on PATH, which starts processes on other "
                "machines; expected it installed, or one launcher on each machine (torchrun)"
            )
    with ThreadPoolExecutor(min(len(hosts), 32)) as pool:
        for host, reason in zip(hosts, pool.map(_unreachable, hosts), strict=True):
            if reason is not None:
                raise UsageError(
                    f"--hostfile: {path}: {host} cannot be reached ({reason}); expected that "
                    f"`ssh {host}` logs in without a password"
                )


def _unreachable(host: str) -> str | None:
    """Return why a machine cannot be logged in to, None when it can."""
    options = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={_ANSWER_S / 2:.0f}")
    try:
        done = subprocess.run(
            ["ssh", *options, host, "true"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_ANSWER_S,
        )
    except (subprocess.TimeoutExpired, OSError) as error:
        late = isinstance(error, subprocess.TimeoutExpired)
        return f"no answer within {_ANSWER_S:.0f} s" if late else str(error)
    if done.returncode == 0:
        return None
    said = done.stderr.strip().splitlines()
    return said[-1].strip() if said else f"ssh ended with exit code {done.returncode}"
