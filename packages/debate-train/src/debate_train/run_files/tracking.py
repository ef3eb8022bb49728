"""Weights & Biases: a real run of it, offline when no key is set."""

import netrc
import os
import re
import secrets
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol
from urllib.parse import urlsplit

from pydantic import Field

from debate_protocol.config import Config
from debate_train.run_files.run_directory import RunDirectory

_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_SHORTEST_SECRET = 8
_HOST = "api.wandb.ai"
_GROUPED = {"loss": "optim/loss", "tokens_per_s": "time/tokens_per_s"}


class Tracker(Protocol):
    """Where metrics go besides the run directory."""

    def log(self, phase: str, step: int, metrics: Mapping[str, object]) -> None:
        """Send one row."""
        ...

    def summarise(self, values: Mapping[str, object]) -> None:
        """Set final values of the run."""
        ...

    def close(self, *, failed: bool = False) -> None:
        """End the run; a second call does nothing."""
        ...


class Tracking(Config):
    """Whether and where a run is tracked."""

    wandb: bool = True
    """Whether there is a Weights & Biases run, offline where no key is set."""
    project: str = "debate"
    """Project of the run."""
    entity: str | None = None
    """User or team of the run; null is the account's own."""
    group: str | None = None
    """Group of the run; null is none."""
    tags: tuple[str, ...] = ()
    """Tags of the run."""
    name: str | None = None
    """Shown name of the run; the recipe's by default."""
    notes: str | None = None
    """What is said about the run."""
    peak_tflops: float | None = Field(None, gt=0)
    """Peak of one training device in 10^12 FLOP/s, of which `time/mfu` is a share; null takes that
    of GPUs whose datasheet is known, and measures no share on others."""

    def open(
        self, run_directory: RunDirectory, name: str, resolved: Mapping[str, object]
    ) -> Tracker:
        """Start the tracked run, or go on with it when the run directory is resumed.

        It is offline without a key (`WANDB_API_KEY` or a login in `.netrc`), and in the mode that
        `WANDB_MODE` names if that is set. An online run that cannot be started is kept offline;
        `wandb sync` sends it later.

        Args:
            run_directory: Its `wandb` folder takes all files.
            name: Shown name of the run, unless `tracking.name` says another.
            resolved: The recipe; values that equal a secret of the environment are blotted out.
        """
        mode = _mode()
        if not self.wandb or mode == "disabled":
            return NoTracking()
        return WandbRun(self, run_directory, name=name, resolved=resolved, mode=mode)


class NoTracking:
    """Sends nothing."""

    def log(self, phase: str, step: int, metrics: Mapping[str, object]) -> None:
        """Do nothing."""

    def summarise(self, values: Mapping[str, object]) -> None:
        """Do nothing."""

    def close(self, *, failed: bool = False) -> None:
        """Do nothing."""


class WandbRun:
    """A run of Weights & Biases; row k of it is row k of `metrics.jsonl`, drawn over its `step`."""

    def __init__(
        self,
        config: Tracking,
        run_directory: RunDirectory,
        *,
        name: str,
        resolved: Mapping[str, object],
        mode: Literal["online", "offline"],
    ) -> None:
        import wandb

        folder = run_directory.path / "wandb"
        folder.mkdir(exist_ok=True)
        identity = folder / "run-id.txt"
        run_id = identity.read_text().strip() if identity.exists() else secrets.token_hex(4)
        identity.write_text(run_id + "\n")
        arguments: dict[str, Any] = {
            "project": config.project,
            "entity": config.entity,
            "group": config.group,
            "tags": config.tags,
            "name": config.name or name,
            "notes": config.notes,
            "id": run_id,
            "dir": str(run_directory.path),
            "config": without_secrets(resolved, os.environ),
        }
        try:
            self._run = wandb.init(**arguments, **_settings(mode))
        except wandb.Error as error:
            if mode == "offline":
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            print(f"W&B cannot be reached ({reason}); kept offline in {folder}", file=sys.stderr)
            self._run = wandb.init(**arguments, **_settings("offline"))
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        if not self.offline:
            print(f"W&B: {self._run.url}", file=sys.stderr)
        self._rows = len(run_directory.metrics())
        self._open = True

    @property
    def offline(self) -> bool:
        """Whether the run stays on this machine until `wandb sync`."""
        return bool(self._run.settings._offline)

    def log(self, phase: str, step: int, metrics: Mapping[str, object]) -> None:
        """Send one row; rows that an earlier part of this run sent are not sent again."""
        row = {grouped(key): value for key, value in metrics.items() if value is not None}
        number, self._rows = self._rows, self._rows + 1
        self._send(lambda: self._run.log({**row, "phase": phase, "step": step}, step=number))

    def summarise(self, values: Mapping[str, object]) -> None:
        """Set final values of the run."""
        self._send(lambda: self._run.summary.update(dict(values)))

    def close(self, *, failed: bool = False) -> None:
        """End the run; a second call does nothing."""
        self._send(lambda: self._run.finish(exit_code=1 if failed else 0))
        self._open = False

    def _send(self, send: Callable[[], object]) -> None:
        """Send something; once that fails nothing more is sent, and the run goes on without."""
        if not self._open:
            return
        try:
            send()
        except Exception as error:  # Of any kind: a run of days is worth more than its curves.
            self._open = False
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            print(
                f"warning: W&B is off from here on ({reason}); metrics.jsonl has all rows",
                file=sys.stderr,
            )


def grouped(name: str) -> str:
    """Return what W&B calls a metric: each has a group before its first `/`, which is a panel."""
    return _GROUPED.get(name, name)


def without_secrets(value: object, environment: Mapping[str, str]) -> object:
    """Return `value` with every secret of the environment replaced by `[secret]`.

    A secret is the value of a variable whose name speaks of a key, token, password or the like.
    """
    found = [
        text
        for name, text in environment.items()
        if _SECRET_NAME.search(name) and len(text) >= _SHORTEST_SECRET
    ]
    return _blot(value, sorted(found, key=len, reverse=True))


def _blot(value: object, found: list[str]) -> object:
    if isinstance(value, Mapping):
        return {key: _blot(item, found) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_blot(item, found) for item in value]
    if isinstance(value, str):
        for secret in found:
            value = value.replace(secret, "[secret]")
    return value


def _mode() -> Literal["online", "offline", "disabled"]:
    asked = os.environ.get("WANDB_MODE", "").strip().lower()
    if asked in ("disabled", "dryrun", "offline", "online", "run", "shared"):
        if asked == "disabled":
            return "disabled"
        return "offline" if asked in ("dryrun", "offline") else "online"
    return "online" if _has_key() else "offline"


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        logins = netrc.netrc(path).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    own_server = urlsplit(os.environ.get("WANDB_BASE_URL", "")).netloc
    return _HOST in logins or own_server in logins or any("wandb" in host for host in logins)


def _settings(mode: str) -> dict[str, Any]:
    import wandb

    wanted = {
        "silent": True,
        "console": "off",
        "save_code": False,
        "disable_git": True,
        "init_timeout": 30,
        # Command lines, host and user names and paths stay here; environment.json has the rest.
        "host": "",
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
    }
    # The names with x_ are not promised by wandb: leave out what this version does not know.
    known = {key: value for key, value in wanted.items() if key in wandb.Settings.model_fields}
    return {"mode": mode, "resume": "allow", "settings": wandb.Settings(**known)}
