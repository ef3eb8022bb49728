"""Weights & Biases: a real run of it, offline when no key is set."""

import netrc
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import wandb
import yaml

from debate_train.monitoring.tracking import Identity, Logged, Service, Start, shareable_page

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
        self._start = start
        place = start.folder / "wandb"
        self._identity = Identity(place)
        self._places = {n: str(place.resolve() / x) for n, x in _PLACES.items()}
        self._places = {n: x for n, x in self._places.items() if n not in os.environ}
        os.environ.update(self._places)
        try:
            self._run = self._started()
        except BaseException:
            self._leave_places()
            raise
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")
        if not self.offline:
            print(f"W&B: {self._run.url}", file=sys.stderr)

    def _started(self) -> Any:
        start, mode = self._start, "online" if _is_online() else "offline"
        arguments: dict[str, Any] = {
            **start.shown,
            "id": self._identity.id,
            "dir": str(start.folder),
            "config": start.recipe,
        }
        try:
            return wandb.init(**arguments, **_settings(mode))
        except Exception as error:
            if mode == "offline":
                raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            wandb.teardown()  # The process that serves wandb would still hold the run's ID.
            run = wandb.init(**arguments, **_settings("offline"))
            print(f"W&B cannot be reached ({reason}): the run is kept offline", file=sys.stderr)
            return run

    @property
    def offline(self) -> bool:
        """Whether the run stays on this machine until `wandb sync`."""
        return bool(self._run.settings._offline)

    def log(self, row: Logged) -> None:
        """Send one row; rows that an earlier part of this run sent are not sent again."""
        if self._identity.is_sent(row):
            return
        self._run.log(row.values(wandb) | {"step": row.step}, step=row.number)
        self._identity.note(row)

    def summarise(self, values: Mapping[str, object]) -> None:
        """Set final values of the run."""
        self._run.summary.update(dict(values))

    def keep(self, report: Path | None, checkpoint: Path | None) -> None:
        """Send the recipe, the report and, where that is wanted, the last checkpoint."""
        recipe = wandb.Artifact(f"recipe-{self._identity.id}", type="recipe")
        with recipe.new_file("recipe.yaml") as file:
            said = {key: value for key, value in self._start.recipe.items() if key != "weights"}
            file.write(yaml.safe_dump(said, sort_keys=False, allow_unicode=True))
        self._run.log_artifact(recipe)
        if report is not None:
            page = wandb.Artifact(f"report-{self._identity.id}", type="report")
            with page.new_file("report.html", encoding="utf-8") as file:
                text = report.read_text(encoding="utf-8")
                file.write(shareable_page(text, self._start.resolved, self._start.folder))
            self._run.log_artifact(page)
        if checkpoint is not None and self._start.checkpoints:
            model = wandb.Artifact(f"checkpoint-{self._identity.id}", type="model")
            model.add_dir(str(checkpoint), skip_cache=True)
            self._run.log_artifact(model)

    def close(self, failed: bool) -> None:
        """End the run."""
        try:
            self._run.finish(exit_code=1 if failed else 0)
            if self.offline:
                folder = shlex.quote(str(self._start.folder / "wandb"))
                print(f"W&B: to send the run: wandb sync {folder}/offline-run-*", file=sys.stderr)
        finally:
            self._leave_places()

    def _leave_places(self) -> None:
        for name in self._places:
            os.environ.pop(name, None)


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


def _settings(mode: str) -> dict[str, Any]:
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
