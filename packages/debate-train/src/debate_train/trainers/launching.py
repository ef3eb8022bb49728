"""Starting a run's processes with DeepSpeed's launcher, and ending them in good order.

DeepSpeed's launcher answers an interrupt by ending its children. So this process keeps interrupts
to itself, and passes each on to rank 0 through a named pipe; rank 0 writes its checkpoint, and the
launcher sees processes that end by themselves. When this process is killed, rank 0 finds the pipe
closed and does the same.
"""

import base64
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from debate_rollout.engines.vllm.control import free_port
from debate_train.interrupts import UsageError, heeded
from debate_train.trainers.processes import slurm_place

_HOST = re.compile(r"([^\s-]\S*)\s+slots=([1-9]\d*)(\s.*)?", re.ASCII)
"""A machine and its processes; ssh would take a name that begins with - for an option."""


def read_hostfile(path: Path) -> dict[str, int]:
    """Return the machines of a hostfile and their slots, in order.

    Raises:
        UsageError: It cannot be read, or a line does not name a machine, or names one again.
    """
    wanted = "expected one line for each machine, such as `node1 slots=8`"
    if not path.is_file():
        raise UsageError(f"--hostfile: found no file {path}; {wanted}")
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--hostfile: {path} cannot be read ({error}); {wanted}") from error
    hosts: dict[str, int] = {}
    for number, line in enumerate(map(str.strip, lines), start=1):
        if line and not line.startswith("#"):
            found = _HOST.fullmatch(line)
            if found is None or found[1] in hosts:
                again = "" if found is None else " a second time"
                raise UsageError(f"--hostfile: {path}:{number}: found {line!r}{again}; {wanted}")
            hosts[found[1]] = int(found[2])
    if not hosts:
        raise UsageError(f"--hostfile: {path}: found no machine; {wanted}")
    return hosts


FAILED, BAD_USAGE, INTERRUPTED = 1, 2, 130
_DEVICES = "CUDA_VISIBLE_DEVICES"
_LAUNCHER = "debate_train.trainers.launching"


@dataclass(frozen=True, slots=True)
class Launch:
    """How many processes, and where."""

    processes: int | None
    """On each machine; None takes the hostfile's slots."""
    hostfile: Path | None = None
    nodes: int | None = None
    """The first so many machines of the hostfile; None takes all."""

    def command(self, arguments: Sequence[str]) -> list[str]:
        """Return DeepSpeed's command line for `debate-train` with these arguments.

        Raises:
            UsageError: Fewer GPUs are visible here than processes are asked for.
        """
        program = ["--module", "--no_local_rank", "--log_level=critical", "debate_train"]
        if self.hostfile is None:
            slots = {"localhost": visible_devices(self.processes or 1)}
            world = base64.urlsafe_b64encode(json.dumps(slots).encode()).decode()
            address = ["--master_addr=127.0.0.1", f"--master_port={free_port()}"]
            start = ["deepspeed.launcher.launch", f"--world_info={world}", *address]
        else:
            start = ["deepspeed.launcher.runner", f"--hostfile={self.hostfile.resolve()}"]
            start += [] if self.nodes is None else [f"--num_nodes={self.nodes}"]
            start += [] if self.processes is None else [f"--num_gpus={self.processes}"]
        return [sys.executable, "-m", _LAUNCHER, *start, *program, *arguments]


def launch(plan: Launch, arguments: Sequence[str]) -> int:
    """Run `debate-train` in several processes; return rank 0's exit code.

    Raises:
        UsageError: The hostfile names no machines, or fewer than are asked for, or this already
            is one of several processes, or too few GPUs are visible.
    """
    hosts = {} if plan.hostfile is None else read_hostfile(plan.hostfile)
    if hosts and plan.nodes is not None and plan.nodes > len(hosts):
        raise UsageError(
            f"--nodes: found {plan.nodes}; expected at most {len(hosts)}, the machines that "
            f"{plan.hostfile} names"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or slurm_place(os.environ):
        raise UsageError(
            "--nproc: found a launcher's WORLD_SIZE already, or several tasks of srun; expected "
            "either that launcher or --nproc, not both"
        )
    with tempfile.TemporaryDirectory(prefix="debate-train-") as folder:
        pipe = Path(folder) / "interrupts"
        os.mkfifo(pipe)
        # Read and write, so that neither end ever waits for the other to open it.
        handle = os.open(pipe, os.O_RDWR)
        try:
            return _run(plan.command([*arguments, f"--interrupts={pipe}"]), handle)
        finally:
            os.close(handle)


def visible_devices(count: int) -> list[int | str]:
    """Return the GPUs of so many processes on this machine: the first of CUDA_VISIBLE_DEVICES.

    DeepSpeed's launcher replaces that variable by what is returned. Where it is not set, the
    numbers count from 0; where it hides every GPU, -1 for each process keeps them hidden.

    Raises:
        UsageError: It names fewer.
    """
    if _DEVICES not in os.environ or os.environ.get("DS_ACCELERATOR") == "cpu":
        return list(range(count))
    named = named_devices()
    if named and len(named) < count:
        raise UsageError(
            f"--nproc: found {count}, but CUDA_VISIBLE_DEVICES={os.environ[_DEVICES]} names "
            f"{len(named)}; expected at most one process for each GPU it names"
        )
    return [int(name) if name.isdecimal() else name for name in named[:count]] or [-1] * count


def named_devices() -> list[str]:
    """Return what CUDA_VISIBLE_DEVICES names; CUDA ends reading at the first -1."""
    names = [name.strip() for name in os.environ.get(_DEVICES, "").split(",")]
    ends = (k for k, name in enumerate(names) if not name or name.startswith("-"))
    return names[: next(ends, len(names))]


def _run(command: Sequence[str], pipe: int) -> int:
    count = 0

    def pass_on(*_: object) -> None:
        nonlocal count
        count += 1
        os.write(pipe, b"i")
        if count > 2:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGTERM)

    # A session of its own: the terminal's interrupt must not reach the launcher.
    with subprocess.Popen(command, start_new_session=True) as launcher:
        old = {n: signal.signal(n, pass_on) for n in heeded()}
        try:
            code = launcher.wait()
        finally:
            for number, handler in old.items():
                signal.signal(number, handler)
    if count > 1:
        return INTERRUPTED
    # A process that was killed leaves the launcher another code, and no message of its own.
    if code in (0, BAD_USAGE, INTERRUPTED):
        return code
    if code != FAILED:
        print(f"debate-train: a process was killed (exit code {code})", file=sys.stderr)
    return FAILED


def heed_interrupts(pipe: Path) -> bool:
    """On rank 0: turn what comes through the launching process's pipe into interrupts.

    Returns:
        False when the launching process is on another machine, which has no such pipe here.
    """
    if not pipe.exists():
        return False

    def listen() -> None:
        with pipe.open("rb", buffering=0) as end:
            while end.read(1):
                os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # Nobody is left to write: the starter was killed.

    threading.Thread(target=listen, daemon=True, name="interrupts").start()
    return True


def main() -> None:
    """Run one of DeepSpeed's launching modules; its children inherit the setting."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    module = sys.argv.pop(1)
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
