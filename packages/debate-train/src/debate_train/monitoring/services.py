"""The services that follow a run: W&B and TensorBoard.

What may leave the machine is decided here: `shareable` and `shareable_page`.
"""

import json
import netrc
import os
import re
import secrets
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

_SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
_SHORTEST_SECRET = 8
_PATH = re.compile(r"(?:\bfile://|(?<![\w:/.~-]))(?:/[^\s/:\"']+)+/(?P<name>[^\s/:\"']+)")
"""A path from the root with at least two parts; of addresses those of files alone."""


def shareable(value: object, environment: Mapping[str, str]) -> object:
    """Return `value` with secrets as `[secret]`, and of absolute paths the last part alone.

    A secret is the value of a variable whose name speaks of a key, token, password or the like.
    """
    if isinstance(value, Mapping):
        return {key: shareable(item, environment) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shareable(item, environment) for item in value]
    if isinstance(value, str):
        return _PATH.sub(r"…/\g<name>", _without_secrets(value, environment))
    return value


def _without_secrets(text: str, environment: Mapping[str, str]) -> str:
    found = [
        secret
        for name, secret in environment.items()
        if _SECRET_NAME.search(name) and len(secret) >= _SHORTEST_SECRET
    ]
    for secret in sorted(found, key=len, reverse=True):
        text = text.replace(secret, "[secret]")
    return text


def shareable_page(text: str, resolved: Mapping[str, object], folder: Path) -> str:
    """Return a page of a run without secrets, paths that its recipe names, its own, the user's."""
    home, text = os.path.expanduser("~"), _without_secrets(text, os.environ)
    named = {path: "…/" + path.rsplit("/", 1)[1] for path in _paths(resolved)}
    named |= {str(folder.resolve()): "…"} | ({home: "~"} if home.count("/") > 1 else {})
    for path in sorted(named, key=len, reverse=True):
        text = text.replace(path, named[path])
    return text


def _paths(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield from (match[0] for match in _PATH.finditer(value))
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _paths(item)


Cell = str | int | float | None
COLUMNS = (
    *("phase", "step", "debate", "question", "agent", "role", "round"),
    *("text", "credit", "advantage"),
)
"""Of the table of turns."""
TURNS = "transcripts/turns"
"""What the table of turns is called."""


@dataclass(frozen=True, slots=True)
class Logged:
    """One row as trackers take it.

    Attributes:
        number: Of the row in `metrics.jsonl`, from 0.
        phase: Of the run.
        step: Of the whole run, from 1.
        metrics: Each with a group before its first `/`.
        turns: Rows of the table of turns, as `COLUMNS` says; empty on most steps.
    """

    number: int
    phase: str
    step: int
    metrics: Mapping[str, object]
    turns: Sequence[Sequence[Cell]] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """What a service begins with. All but `folder` and `resolved` may leave this machine.

    Attributes:
        folder: The run directory.
        resolved: The recipe as it is.
        recipe: The same without secrets and places on the disk.
        shown: Name, project, group, entity, tags and notes.
        checkpoints: Whether the last checkpoint is sent.
    """

    folder: Path
    resolved: Mapping[str, object] = field(default_factory=dict)
    recipe: Mapping[str, object] = field(default_factory=dict)
    shown: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: bool = False


class Service:
    """One place where a run is tracked; it may raise anything."""

    name = ""
    """As users know it."""

    def log(self, row: Logged) -> None:
        """Send one row."""

    def summarise(self, values: Mapping[str, object]) -> None:
        """Set final values."""

    def keep(self, report: Path | None, checkpoint: Path | None) -> None:
        """Send files; a service that takes none leaves them in the run directory."""

    def close(self, failed: bool) -> None:
        """End the run there."""


_HOST = "api.wandb.ai"
_START_S = 4
"""Seconds in which a server must answer, or the run is kept offline: `WANDB_INIT_TIMEOUT`."""
_FINISH_S = 120
"""Seconds that the end of a run waits for what is still to be sent."""
_PLACES = {"WANDB_DATA_DIR": "data", "WANDB_CACHE_DIR": "cache", "WANDB_ARTIFACT_DIR": "artifacts"}
"""Where wandb keeps copies until they are sent, in the run's folder unless the user says where."""


class WandbRun(Service):
    """A run of Weights & Biases; row k of it is row k of `metrics.jsonl`, drawn over its `step`.

    All its files are in the folder `wandb` of the run, so that `wandb sync` has them.
    """

    name = "W&B"

    def __init__(self, start: Start) -> None:
        import wandb

        self._library, self._start, place = wandb, start, start.folder / "wandb"
        place.mkdir(exist_ok=True)
        identity, self._count = place / "run-id.txt", place / "rows-sent.txt"
        self.id = identity.read_text().strip() if identity.exists() else secrets.token_hex(4)
        identity.write_text(self.id + "\n")
        self._sent = int(self._count.read_text()) if self._count.exists() else 0
        for name, part in _PLACES.items():
            os.environ.setdefault(name, str(place.resolve() / part))
        self._run = self._started()
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        if not self.offline:
            print(f"W&B: {self._run.url}", file=sys.stderr)

    def _started(self) -> Any:
        start, mode = self._start, "online" if _is_online() else "offline"
        own = {"id": self.id, "dir": str(start.folder), "config": start.recipe, **start.shown}
        wandb = self._library
        try:
            return wandb.init(**own, **_settings(wandb, mode))
        except Exception as error:
            if mode == "offline":
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            wandb.teardown()  # The process that serves wandb would still hold the run's ID.
            run = wandb.init(**own, **_settings(wandb, "offline"))
            print(f"W&B cannot be reached ({reason}): the run is kept offline", file=sys.stderr)
            return run

    @property
    def offline(self) -> bool:
        """Whether the run stays on this machine until `wandb sync`."""
        return bool(self._run.settings._offline)

    def log(self, row: Logged) -> None:
        """Send one row; rows that an earlier part of this run sent are not sent again."""
        if row.number < self._sent:
            return
        values: dict[str, object] = {**row.metrics, "phase": row.phase, "step": row.step}
        if row.turns:
            turns = [list(turn) for turn in row.turns]
            values[TURNS] = self._library.Table(columns=list(COLUMNS), data=turns)
        self._run.log(values, step=row.number)
        self._sent = row.number + 1
        self._count.write_text(f"{self._sent}\n")

    def summarise(self, values: Mapping[str, object]) -> None:
        """Set final values of the run."""
        self._run.summary.update(dict(values))

    def keep(self, report: Path | None, checkpoint: Path | None) -> None:
        """Send the recipe, the report and, where that is wanted, the last checkpoint."""
        said = {key: value for key, value in self._start.recipe.items() if key != "weights"}
        text = yaml.safe_dump(said, sort_keys=False, allow_unicode=True)
        self._keep_text("recipe", "recipe.yaml", text)
        if report is not None:
            text = report.read_text(encoding="utf-8")
            page = shareable_page(text, self._start.resolved, self._start.folder)
            self._keep_text("report", "report.html", page)
        if checkpoint is not None and self._start.checkpoints:
            model = self._library.Artifact(f"checkpoint-{self.id}", type="model")
            model.add_dir(str(checkpoint), skip_cache=True)
            self._run.log_artifact(model)

    def _keep_text(self, kind: str, name: str, text: str) -> None:
        artifact = self._library.Artifact(f"{kind}-{self.id}", type=kind)
        with artifact.new_file(name, encoding="utf-8") as file:
            file.write(text)
        self._run.log_artifact(artifact)

    def close(self, failed: bool) -> None:
        """End the run."""
        self._run.finish(exit_code=1 if failed else 0)
        if self.offline:
            folder = shlex.quote(str(self._start.folder / "wandb"))
            print(f"W&B: to send the run: wandb sync {folder}/offline-run-*", file=sys.stderr)


def _is_online() -> bool:
    asked = os.environ.get("WANDB_MODE", "").strip().lower()
    if asked in ("dryrun", "offline", "online", "run", "shared"):
        return asked not in ("dryrun", "offline")
    return _has_key()


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


def _settings(wandb: Any, mode: str) -> dict[str, Any]:
    wanted = {
        "silent": True,
        "console": "off",
        "save_code": False,
        "disable_git": True,
        "init_timeout": float(os.environ.get("WANDB_INIT_TIMEOUT") or _START_S),
        "finish_timeout": _FINISH_S,
        # Command lines, host and user names and paths stay here; environment.json has the rest.
        "host": "",
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
    }
    # The names with x_ are not promised by wandb: leave out what this version does not know.
    known = {key: value for key, value in wanted.items() if key in wandb.Settings.model_fields}
    return {"mode": mode, "resume": "allow", "settings": wandb.Settings(**known)}


class TensorBoardRun(Service):
    """Writes one event file for each start of the run.

    A resumed run says at its start which steps are written again, so that none is drawn twice.
    """

    name = "TensorBoard"

    def __init__(self, start: Start, last: int | None) -> None:
        """`last` is the last step that is kept, None for a run that begins."""
        from torch.utils.tensorboard import SummaryWriter

        begins = 0 if last is None else last + 1
        self._writer: Any = SummaryWriter(str(start.folder / "tensorboard"), purge_step=begins)
        self._step = 0
        shown = json.dumps(start.recipe, indent=1, ensure_ascii=False, default=str)
        self._writer.add_text("recipe", f"```\n{shown}\n```")

    def log(self, row: Logged) -> None:
        """Write one row at its step."""
        self._step = row.step
        for name, value in row.metrics.items():
            if isinstance(value, int | float):
                self._writer.add_scalar(name, value, row.step, new_style=True)
        if row.turns:
            turns = [dict(zip(COLUMNS, turn, strict=True)) for turn in row.turns]
            lines = (json.dumps(turn, ensure_ascii=False) for turn in turns)
            self._writer.add_text(TURNS, "\n".join(f"    {line}" for line in lines), row.step)
        self._writer.flush()

    def summarise(self, values: Mapping[str, object]) -> None:
        """Write final values as a text at the last step."""
        lines = "\n".join(f"- {name}: {value}" for name, value in values.items())
        self._writer.add_text("results", lines, self._step)

    def close(self, failed: bool) -> None:
        """End the file."""
        self._writer.close()
