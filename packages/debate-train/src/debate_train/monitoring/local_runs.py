"""Runs on this machine: TensorBoard's event files, and trackio."""

import json
import time
from collections.abc import Mapping
from contextlib import redirect_stdout
from io import StringIO

import numpy as np
import trackio
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.histogram.summary_v2 import histogram_pb
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.plugins.text.summary_v2 import text_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from debate_train.monitoring.tracking import COLUMNS, TURNS, Identity, Logged, Service, Start

TENSORBOARD_FOLDER = "tensorboard"
_BUCKETS = 64


class TensorBoardRun(Service):
    """Writes one event file for each start of the run.

    A file's name has no host name in it, as that of TensorBoard's own writer does. A resumed run
    says at its start which steps are written again, so that none is drawn twice.
    """

    name = "TensorBoard"

    def __init__(self, start: Start, last: object | None) -> None:
        """`last` is the last step that is kept, None for a run that begins."""
        place = start.folder / TENSORBOARD_FOLDER
        place.mkdir(exist_ok=True)
        # The reader takes files in the order of their names; two starts may share a second.
        self._file = (place / f"events.out.tfevents.{time.time_ns():020d}").open("wb")
        self._records = RecordWriter(self._file)
        self._step = 0
        self._write(Event(file_version="brain.Event:2"))
        # The first start of a run says so, too: readers take only later ones for restarts.
        begins = 0 if last is None else int(str(last)) + 1
        self._write(Event(session_log=SessionLog(status=SessionLog.START), step=begins))
        shown = json.dumps(start.recipe, indent=1, ensure_ascii=False, default=str)
        self._write(Event(summary=text_pb("recipe", f"```\n{shown}\n```")))
        self._records.flush()

    def log(self, row: Logged) -> None:
        """Write one row at its step."""
        self._step = row.step
        summary = Summary()
        for name, value in row.metrics.items():
            if isinstance(value, int | float):
                summary.MergeFrom(scalar_pb(name, float(value)))
        for name, values in row.histograms.items():
            summary.MergeFrom(histogram_pb(name, values, buckets=_BUCKETS))
        if row.turns:
            cells = [["" if cell is None else str(cell) for cell in turn] for turn in row.turns]
            summary.MergeFrom(text_pb(TURNS, np.array([list(COLUMNS), *cells], dtype=object)))
        self._write(Event(summary=summary, step=row.step))
        self._records.flush()

    def summarise(self, values: Mapping[str, object]) -> None:
        """Write final values as a text at the last step."""
        lines = "\n".join(f"- {name}: {value}" for name, value in values.items())
        self._write(Event(summary=text_pb("results", lines), step=self._step))

    def close(self, failed: bool) -> None:
        """End the file."""
        self._records.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        self._records.write(event.SerializeToString())


FOLDER = "trackio"


class TrackioRun(Service):
    """A run of trackio, named after the run and its identity, as names alone may come twice."""

    name = "trackio"

    def __init__(self, start: Start) -> None:
        self._identity = Identity(start.folder / FOLDER)
        with _quietly():
            self._run = trackio.init(
                project=start.shown["project"],
                name=f"{start.shown['name']}-{self._identity.id}",
                group=start.shown["group"],
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

    def close(self, failed: bool) -> None:
        """Wait until all is written."""
        with _quietly():
            trackio.finish()


def _quietly() -> "redirect_stdout[StringIO]":
    """Keep what trackio prints off standard output, which is that of the command."""
    return redirect_stdout(StringIO())
