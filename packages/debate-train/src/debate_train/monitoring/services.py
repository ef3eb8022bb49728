"""Services for following a run: W&B and TensorBoard.

`shareable` and `shareable_page` remove all secrets and paths before data leaves the machine.
"""

import json
import netrc
import os
import re
import secrets
import shlex
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

SECRET_NAME = re.compile(r"key|token|secret|passw|credential|auth", re.IGNORECASE)
# Shorter values, such as "1", would be replaced all over the page.
SHORTEST_SECRET = 8
# A path from the root with at least two parts; of addresses those of files alone.
ABSOLUTE_PATH = re.compile(r"(?:\bfile://|(?<![\w:/.~-]))(?:/[^\s/:\"']+)+/(?P<name>[^\s/:\"']+)")
# Columns of the table of turns, and its name.
COLUMNS = (
    "phase",
    "step",
    "debate",
    "question",
    "agent",
    "role",
    "round",
    "text",
    "credit",
    "advantage",
)
TURNS = "transcripts/turns"

WANDB_HOST = "api.wandb.ai"
# Seconds in which a server must answer, or the run stays offline: `WANDB_INIT_TIMEOUT`.
WANDB_START_S = 4
# Longest wait of a run's end for unsent data, in seconds.
WANDB_FINISH_S = 120
# Files of wandb: bytes of their header, of a block and of a piece's header; kinds of last pieces.
LOG_HEADER = 7
LOG_BLOCK = 32_768
PIECE_HEADER = 7
LAST_PIECES = (1, 4)
# Folders of wandb's copies until they are sent, in the run's folder unless the user names others.
WANDB_FOLDERS = {
    "WANDB_DATA_DIR": "data",
    "WANDB_CACHE_DIR": "cache",
    "WANDB_ARTIFACT_DIR": "artifacts",
}

Cell = str | int | float | None


def shareable(value: object, environment: Mapping[str, str]) -> object:
    """Replace secrets by `[secret]`, and absolute paths by their last part.

    A secret is the value of a variable with a name such as key, token or password.
    """
    if isinstance(value, Mapping):
        return {key: shareable(item, environment) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shareable(item, environment) for item in value]
    if isinstance(value, str):
        return ABSOLUTE_PATH.sub(r"…/\g<name>", _without_secrets(value, environment))
    return value


def _without_secrets(text: str, environment: Mapping[str, str]) -> str:
    secret_values = []
    for name, value in environment.items():
        if SECRET_NAME.search(name) and len(value) >= SHORTEST_SECRET:
            secret_values.append(value)
    # Longest first: a secret may contain another one.
    for secret in sorted(secret_values, key=len, reverse=True):
        text = text.replace(secret, "[secret]")
    return text


def shareable_page(text: str, resolved: Mapping[str, object], folder: Path) -> str:
    """Replace secrets, paths of the recipe and of the run, and the user's home in a page."""
    text = _without_secrets(text, os.environ)
    replacements = {path: "…/" + path.rsplit("/", 1)[1] for path in _paths(resolved)}
    replacements[str(folder.resolve())] = "…"
    home = os.path.expanduser("~")
    if home.count("/") > 1:  # "/root" is also a part of other texts.
        replacements[home] = "~"
    for path in sorted(replacements, key=len, reverse=True):
        text = text.replace(path, replacements[path])
    return text


def _paths(value: object) -> Iterator[str]:
    if isinstance(value, str):
        for match in ABSOLUTE_PATH.finditer(value):
            yield match[0]
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _paths(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _paths(item)


@dataclass(frozen=True, slots=True)
class Logged:
    """A row of metrics for trackers.

    Attributes:
        number: Number of the row in `metrics.jsonl`, from 0.
        phase: Phase of the run.
        step: Step of the whole run, from 1.
        metrics: Metrics, each name with a group before the first `/`.
        turns: Rows of the table of turns, with the `COLUMNS`; empty on most steps.
    """

    number: int
    phase: str
    step: int
    metrics: Mapping[str, object]
    turns: Sequence[Sequence[Cell]] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a run in a service. All but `folder` and `resolved` may leave this machine.

    Attributes:
        folder: The run directory.
        resolved: The recipe as it is.
        rows: The rows of earlier parts of a resumed run, without tables of turns.
        recipe: The same without secrets and places on the disk.
        shown: Name, project, group, entity and tags.
        checkpoints: Whether the last checkpoint is sent.
    """

    folder: Path
    resolved: Mapping[str, object] = field(default_factory=dict)
    rows: Sequence[Logged] = ()
    recipe: Mapping[str, object] = field(default_factory=dict)
    shown: Mapping[str, Any] = field(default_factory=dict)
    checkpoints: bool = False


class Service:
    """A place to track a run; every method may raise anything."""

    name = ""
    """As users know it."""

    def log(self, row: Logged) -> None:
        """Send a row."""

    def summarise(self, values: Mapping[str, object]) -> None:
        """Set final values."""

    def keep(self, report: Path | None, checkpoint: Path | None) -> None:
        """Send files, if the service takes files."""

    def close(self, failed: bool) -> None:
        """End the run there."""


class WandbRun(Service):
    """A run of Weights & Biases; row k is row k of `metrics.jsonl`, drawn over `step`.

    All files are in the folder `wandb` of the run, ready for `wandb sync`.
    """

    name = "W&B"

    def __init__(self, start: Start) -> None:
        import wandb

        self._library = wandb
        self._start = start
        folder = start.folder / "wandb"
        folder.mkdir(exist_ok=True)
        # A resumed run continues under its ID.
        id_file = folder / "run-id.txt"
        self.id = id_file.read_text().strip() if id_file.exists() else secrets.token_hex(4)
        id_file.write_text(self.id + "\n")
        for variable, name in WANDB_FOLDERS.items():
            os.environ.setdefault(variable, str(folder.resolve() / name))
        mode = "online" if _is_online() else "offline"
        settings = {
            "id": self.id,
            "dir": str(start.folder),
            "config": start.recipe,
            **start.shown,
        }
        try:
            self._run: Any = wandb.init(**settings, **_init_settings(wandb, mode))
        except Exception as error:
            if mode == "offline":
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            wandb.teardown()  # The process that serves wandb would still hold the run's ID.
            self._run = wandb.init(**settings, **_init_settings(wandb, "offline"))
            print(f"W&B cannot be reached ({reason}): the run is kept offline", file=sys.stderr)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        # Rows that were sent already, by step; a server says only how many it has.
        self._unseen_by_step: Counter[int] | None = None
        if self.offline:
            step_of_rows = _rows_on_disk(folder)
            self._unseen_by_step = Counter(step_of_rows.values())
            self._num_sent = max(step_of_rows, default=-1) + 1
        else:
            self._num_sent = self._run.starting_step
            print(f"W&B: {self._run.url}", file=sys.stderr)
        for row in start.rows:
            self.log(row)

    @property
    def offline(self) -> bool:
        """Whether the run stays on this machine until `wandb sync`."""
        return bool(self._run.settings._offline)

    def log(self, row: Logged) -> None:
        """Send a row, unless an earlier part of this run has sent it."""
        if self._was_sent(row):
            return
        values: dict[str, object] = {**row.metrics, "phase": row.phase, "step": row.step}
        if row.turns:
            turns = [list(turn) for turn in row.turns]
            values[TURNS] = self._library.Table(columns=list(COLUMNS), data=turns)
        # A run that goes on with fewer evaluations has lower numbers than rows that were sent.
        number = max(row.number, self._num_sent)
        self._num_sent = number + 1
        self._run.log(values, step=number)

    def _was_sent(self, row: Logged) -> bool:
        if self._unseen_by_step is None:
            return row.number < self._num_sent
        if not self._unseen_by_step[row.step]:
            return False
        self._unseen_by_step[row.step] -= 1
        return True

    def summarise(self, values: Mapping[str, object]) -> None:
        """Set final values of the run."""
        self._run.summary.update(dict(values))

    def keep(self, report: Path | None, checkpoint: Path | None) -> None:
        """Send the recipe, the report and, if the recipe says so, the last checkpoint."""
        # Hashes of the weights are no key of a recipe.
        recipe = {key: value for key, value in self._start.recipe.items() if key != "weights"}
        text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True)
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


def _rows_on_disk(folder: Path) -> dict[int, int]:
    """Read the number and the step of each row that earlier parts of a run have written.

    wandb writes blocks of 32 KiB: a process that is killed leaves fewer rows than it logged.
    """
    step_of_rows: dict[int, int] = {}
    for file in folder.glob("*run-*/*.wandb"):
        for record in _records(file.read_bytes()):
            if record.HasField("history"):
                for item in record.history.item:
                    if item.key == "step" or list(item.nested_key) == ["step"]:
                        step_of_rows[record.history.step.num] = json.loads(item.value_json)
    return step_of_rows


def _records(content: bytes) -> Iterator[Any]:
    """Yield the whole records of a file of wandb, which is a log of LevelDB.

    After a header of 7 bytes come blocks. A record is one piece in a block, or several; a piece
    is a checksum (4 bytes), a length (2), a kind (1) and the data.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    offset = LOG_HEADER
    data = b""
    while offset + PIECE_HEADER <= len(content):
        room = LOG_BLOCK - offset % LOG_BLOCK
        if room < PIECE_HEADER:
            offset += room
            continue
        length = int.from_bytes(content[offset + 4 : offset + 6], "little")
        kind = content[offset + 6]
        offset += PIECE_HEADER
        data += content[offset : offset + length]
        offset += length
        if offset > len(content):
            return  # The file ends within this piece.
        if kind in LAST_PIECES:
            yield Record.FromString(data)
            data = b""


def _is_online() -> bool:
    mode = os.environ.get("WANDB_MODE", "").strip().lower()
    if mode in ("dryrun", "offline"):
        return False
    if mode in ("online", "run", "shared"):
        return True
    # Without a mode, a key decides: wandb would ask for one on the terminal.
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE"):
        return True
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        logins = netrc.netrc(path).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    server = urlsplit(os.environ.get("WANDB_BASE_URL", "")).netloc
    return WANDB_HOST in logins or server in logins or any("wandb" in host for host in logins)


def _init_settings(wandb: Any, mode: str) -> dict[str, Any]:
    settings = {
        "silent": True,
        "console": "off",
        "save_code": False,
        "disable_git": True,
        "init_timeout": float(os.environ.get("WANDB_INIT_TIMEOUT") or WANDB_START_S),
        "finish_timeout": WANDB_FINISH_S,
        # Command lines, host and user names and paths stay here; environment.json has the rest.
        "host": "",
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
    }
    # wandb does not promise the names with x_: leave out names that this version does not know.
    known_names = wandb.Settings.model_fields
    settings = {name: value for name, value in settings.items() if name in known_names}
    return {"mode": mode, "resume": "allow", "settings": wandb.Settings(**settings)}


class TensorBoardRun(Service):
    """Writes an event file for each start of the run.

    Args:
        start: The start of the run.
        last: The last step to keep; `None` for a new run.
    """

    name = "TensorBoard"

    def __init__(self, start: Start, last: int | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # A resumed run writes later steps again: without a purge they would be drawn twice.
        first_step = 0 if last is None else last + 1
        folder = str(start.folder / "tensorboard")
        self._writer: Any = SummaryWriter(folder, purge_step=first_step)
        self._last_step = 0
        recipe = json.dumps(start.recipe, indent=1, ensure_ascii=False, default=str)
        self._writer.add_text("recipe", f"```\n{recipe}\n```")

    def log(self, row: Logged) -> None:
        """Write a row at the row's step."""
        self._last_step = row.step
        for name, value in row.metrics.items():
            if isinstance(value, int | float):
                # Of the new style, which is a tensor, `EventAccumulator` finds no scalars, and it
                # purges none.
                self._writer.add_scalar(name, value, row.step)
        if row.turns:
            # Indented lines are code, which TensorBoard shows as it is.
            lines = []
            for turn in row.turns:
                cells = dict(zip(COLUMNS, turn, strict=True))
                lines.append(f"    {json.dumps(cells, ensure_ascii=False)}")
            self._writer.add_text(TURNS, "\n".join(lines), row.step)
        self._writer.flush()

    def summarise(self, values: Mapping[str, object]) -> None:
        """Write final values as a text at the last step."""
        lines = "\n".join(f"- {name}: {value}" for name, value in values.items())
        self._writer.add_text("results", lines, self._last_step)

    def close(self, failed: bool) -> None:
        """End the file."""
        self._writer.close()
