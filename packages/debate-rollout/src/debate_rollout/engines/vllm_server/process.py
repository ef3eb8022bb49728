"""A vLLM server as a process of this run: its command, its log, and an end that comes with ours.

Run as a module, this file is the keeper: it starts the command it is given and ends the whole
group when its standard input closes, which happens however the run ends.
"""

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
from pathlib import Path

from debate_rollout.engine import EndpointError

TAIL_CHARACTERS = 3000
_GRACE_S = 10.0


def server_command(model: str, port: int, arguments: Mapping[str, object]) -> list[str]:
    """Return the command line of a server on this machine."""
    command = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", model,
        "--host", "127.0.0.1", "--port", str(port), "--enable-scale-out",
        "--uvicorn-log-level", "warning",
    ]  # fmt: skip
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
    """Return a port of this machine that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class ServerProcess:
    """A running server and its log."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as file:
            self._keeper = subprocess.Popen(
                [sys.executable, "-m", "debate_rollout.engines.vllm_server.process", *command],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                start_new_session=True,  # an interrupt of the run is not one of the server
            )

    @property
    def code(self) -> int | None:
        """Exit code, None while it runs."""
        return self._keeper.poll()

    def wait(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until the server is ready.

        Raises:
            EndpointError: When it ends first, or takes longer.
        """
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if self.code is not None:
                raise EndpointError(self.obituary("ended while it started"))
            if time.monotonic() > deadline:
                raise EndpointError(self.obituary(f"was not ready after {timeout_s:g} s"))
            time.sleep(0.2)

    def obituary(self, what: str) -> str:
        """Return an error message with the end of the log."""
        code = "" if self.code is None else f" (exit code {self.code})"
        text = self.log.read_text(encoding="utf-8", errors="replace")[-TAIL_CHARACTERS:]
        return f"the vLLM server {what}{code}; the end of its log, {self.log}:\n{text.strip()}"

    def close(self) -> None:
        """End the server and everything it started."""
        if self._keeper.stdin is not None:
            self._keeper.stdin.close()
        try:
            self._keeper.wait(2 * _GRACE_S)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()


def keep(command: list[str]) -> int:
    """Run a command until it ends or standard input closes; return its exit code."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)

    def end(*_: object) -> None:
        _signal_group(child.pid, signal.SIGTERM)
        killer = threading.Timer(_GRACE_S, _signal_group, (child.pid, signal.SIGKILL))
        killer.daemon = True
        killer.start()

    def end_with_the_run() -> None:
        while os.read(0, 4096):  # not sys.stdin, whose lock would outlive the interpreter
            pass
        end()

    signal.signal(signal.SIGTERM, end)
    threading.Thread(target=end_with_the_run, daemon=True).start()
    code = child.wait()
    _signal_group(child.pid, signal.SIGKILL)  # what it left behind
    return code if code >= 0 else 128 - code


def _signal_group(group: int, which: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, which)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
