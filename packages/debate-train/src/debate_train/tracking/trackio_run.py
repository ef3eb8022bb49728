"""trackio: a run in the database of this machine, which `trackio show` draws."""

from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import trackio

from debate_train.tracking.tracker import Identity, Logged, Start

FOLDER = "trackio"


class TrackioRun:
    """A run of trackio, named after the run and its identity, as names alone may come twice."""

    name = "trackio"

    def __init__(self, start: Start) -> None:
        self._identity = Identity(start.folder / FOLDER)
        with _quietly():
            self._run = trackio.init(
                project=start.project,
                name=f"{start.name}-{self._identity.id}",
                group=start.group,
                config=dict(start.recipe),
                resume="never" if self._identity.is_new else "allow",
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )
        self._run.config["_Username"] = None  # Nobody's name goes with the first row.

    def log(self, row: Logged) -> None:
        """Send one row; rows that an earlier part of this run sent are not sent again."""
        if self._identity.is_sent(row):
            return
        self._run.log(row.values(trackio), step=row.step)
        self._identity.note(row)

    def summarise(self, values: Mapping[str, object]) -> None:
        """Send final values as a last row, as trackio has no summary."""
        self._run.log(dict(values))

    def keep(self, report: Path | None, checkpoint: Path | None) -> None:
        """Keep nothing: the files are in the run directory."""

    def close(self, failed: bool) -> None:
        """Wait until all is written."""
        with _quietly():
            trackio.finish()


def _quietly() -> "redirect_stdout[StringIO]":
    """Keep what trackio prints off standard output, which is that of the command."""
    return redirect_stdout(StringIO())
