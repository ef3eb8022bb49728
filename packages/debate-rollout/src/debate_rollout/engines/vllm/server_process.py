"""A vLLM server process: the command line, and a supervisor to end it with the run."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from debate_protocol.orphans import end_with_parent
from debate_rollout.engine import EndpointError

LOG_TAIL_CHARACTERS = 3000
"""Characters of a server's log at the end of an error message."""
_GRACE_S = 10.0
"""From the polite signal to the deadly one."""


def server_command(
    model: str, arguments: Mapping[str, object], host: str = "127.0.0.1"
) -> list[str]:
    """Build the command line of a server, without its port."""
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", model]
    command += ["--host", host]
    command += ["--enable-scale-out"]
    command += ["--uvicorn-log-level", "warning"]
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            command.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, dict):
            command += [f"--{flag}", json.dumps(value)]
        elif isinstance(value, list | tuple):
            command += [f"--{flag}", *map(str, value)]
        elif value is not None:
            command += [f"--{flag}", str(value)]
    return command


def free_port() -> int:
    """Find a port of this machine without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """A running server and its log."""

    def __init__(
        self, command: list[str], environment: Mapping[str, str], log: Path, mode: str = "wb"
    ) -> None:
        self.log = log
        self._command = command
        self._environment = environment
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open(mode) as file:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-m", "debate_rollout.engines.vllm.server_process", *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                # The run ends its step after an interrupt, and needs the server for that.
                start_new_session=True,
            )

    def restart(self) -> "ServerProcess":
        """Start the server again; its log goes on."""
        return ServerProcess(self._command, self._environment, self.log, mode="ab")

    @property
    def code(self) -> int | None:
        """Exit code, `None` while it runs."""
        return self._supervisor.poll()

    def ends_within(self, seconds: float) -> None:
        """Wait for its end, at most these seconds."""
        with suppress(subprocess.TimeoutExpired):
            self._supervisor.wait(seconds)

    def wait(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the server is ready.

        Raises:
            EndpointError: When it ends first, or takes longer.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if self.code is not None:
                raise EndpointError(self.error_message("ended while it started"))
            if time.monotonic() > deadline:
                raise EndpointError(self.error_message(f"was not ready after {timeout_s:g} s"))
            time.sleep(0.2)

    def error_message(self, event: str) -> str:
        """Write an error message with the exit code and the end of the log."""
        code = "" if self.code is None else f" (exit code {self.code})"
        text = self.log.read_text(encoding="utf-8", errors="replace")
        tail = text[-LOG_TAIL_CHARACTERS:].strip()
        return f"the vLLM server {event}{code}; the end of its log, {self.log}:\n{tail}"

    def close(self) -> None:
        """End the server and its children."""
        if self._supervisor.stdin is not None:
            self._supervisor.stdin.close()
        try:
            self._supervisor.wait(2 * _GRACE_S)
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()


def supervise(command: list[str]) -> int:
    """Run a command until it ends or standard input closes; return its exit code."""
    server = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        # If this process is killed, no other process knows the server, so the kernel ends it.
        # A function before exec is safe here, as this process has no other thread yet.
        preexec_fn=partial(end_with_parent, os.getpid(), signal.SIGTERM),
    )

    def end_server(*_: object) -> None:
        _signal_group(server.pid, signal.SIGTERM)
        killer = threading.Timer(_GRACE_S, _signal_group, (server.pid, signal.SIGKILL))
        killer.daemon = True
        killer.start()

    def end_server_with_run() -> None:
        # The run has the other end of standard input, which closes even if the run is killed.
        # Not sys.stdin, as this thread would hold its lock while the interpreter ends.
        while os.read(0, 4096):
            pass
        end_server()

    signal.signal(signal.SIGTERM, end_server)
    threading.Thread(target=end_server_with_run, daemon=True).start()
    code = server.wait()
    # A server that was killed leaves workers behind.
    _signal_group(server.pid, signal.SIGKILL)
    return code if code >= 0 else 128 - code


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
