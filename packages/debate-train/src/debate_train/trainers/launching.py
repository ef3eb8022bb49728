"""Starting a run's processes with DeepSpeed's launcher, and ending them in good order.

DeepSpeed's launcher answers an interrupt by ending its children. So this process keeps interrupts
to itself, and passes each on to rank 0 through a named pipe; rank 0 writes a checkpoint, and the
launcher sees all processes end by themselves. When this process is killed, rank 0 finds the pipe
closed and does the same.
"""

import base64
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from debate_train.errors import UsageError
from debate_train.interrupts import heeded
from debate_train.trainers.processes import slurm_place

FAILED = 1
BAD_USAGE = 2
INTERRUPTED = 130
_DEVICES = "CUDA_VISIBLE_DEVICES"
_LAUNCHER = "debate_train.trainers.launching"


def command_line(processes: int, arguments: Sequence[str]) -> list[str]:
    """Build DeepSpeed's command line for `debate-train` with these arguments.

    Raises:
        UsageError: Fewer GPUs are visible here than processes are asked for.
    """
    # Its HTTP client takes a second to import, which `debate-train --help` would wait for.
    from debate_rollout.engines.vllm.server_process import free_port

    devices = {"localhost": visible_devices(processes)}
    world_info = base64.urlsafe_b64encode(json.dumps(devices).encode()).decode()
    return [
        sys.executable,
        "-m",
        _LAUNCHER,
        f"--world_info={world_info}",
        "--master_addr=127.0.0.1",
        f"--master_port={free_port()}",
        "--module",
        "--no_local_rank",
        "--log_level=critical",
        "debate_train",
        *arguments,
    ]


def launch(processes: int, arguments: Sequence[str]) -> int:
    """Run `debate-train` in several processes of this machine; return rank 0's exit code.

    Raises:
        UsageError: A launcher has started this process, or too few GPUs are visible.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or slurm_place(os.environ):
        raise UsageError(
            "--nproc: found a launcher's WORLD_SIZE already, or several tasks of srun; expected "
            "either that launcher or --nproc, not both"
        )
    with tempfile.TemporaryDirectory(prefix="debate-train-") as folder:
        pipe_path = Path(folder) / "interrupts"
        os.mkfifo(pipe_path)
        # Read and write, so that neither end ever waits for the other to open it.
        pipe = os.open(pipe_path, os.O_RDWR)
        try:
            command = command_line(processes, [f"--interrupts={pipe_path}", *arguments])
            return _run(command, pipe)
        finally:
            os.close(pipe)


def visible_devices(count: int) -> list[int | str]:
    """List the GPUs of `count` processes on this machine: the first of CUDA_VISIBLE_DEVICES.

    DeepSpeed's launcher replaces that variable by this list. Without the variable, the numbers
    count from 0; where it hides every GPU, -1 for each process keeps them hidden.

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
    if not named:
        return [-1] * count
    # Names may also be UUIDs of GPUs or of their MIG slices.
    return [int(name) if name.isdecimal() else name for name in named[:count]]


def named_devices() -> list[str]:
    """Parse CUDA_VISIBLE_DEVICES as CUDA does, up to the first -1 or empty name."""
    devices = []
    for name in os.environ.get(_DEVICES, "").split(","):
        device = name.strip()
        if not device or device.startswith("-"):
            break
        devices.append(device)
    return devices


def _run(command: Sequence[str], pipe: int) -> int:
    num_interrupts = 0

    def pass_on(*_: object) -> None:
        nonlocal num_interrupts
        num_interrupts += 1
        os.write(pipe, b"i")
        # The first interrupt asks for a checkpoint, the second for the end; the third insists.
        if num_interrupts > 2:
            with suppress(ProcessLookupError):
                os.killpg(launcher.pid, signal.SIGTERM)

    # A session of its own: the terminal's interrupt must not reach the launcher.
    with subprocess.Popen(command, start_new_session=True) as launcher:
        previous_handlers = {number: signal.signal(number, pass_on) for number in heeded()}
        try:
            code = launcher.wait()
        finally:
            for number, handler in previous_handlers.items():
                signal.signal(number, handler)
    if num_interrupts > 1:
        return INTERRUPTED
    # A process that was killed leaves the launcher another code, and no message of its own.
    if code in (0, BAD_USAGE, INTERRUPTED):
        return code
    if code != FAILED:
        print(f"debate-train: a process was killed (exit code {code})", file=sys.stderr)
    return FAILED


def heed_interrupts(pipe: Path) -> None:
    """Turn bytes from the launching process's pipe into interrupts of rank 0."""

    def listen() -> None:
        # Without the flag, opening waits for ever where the starter was killed before.
        descriptor = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        os.set_blocking(descriptor, True)
        with open(descriptor, "rb", buffering=0) as reader:
            while reader.read(1):
                os.kill(os.getpid(), signal.SIGINT)
        # The pipe has no writer any more: the launching process was killed.
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=listen, daemon=True, name="interrupts").start()


def main() -> None:
    """Run DeepSpeed's launching module; its children inherit the setting."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    runpy.run_module("deepspeed.launcher.launch", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
