#!/usr/bin/env bash
# tensorboard 2.21.0: a run that stopped after step 3 goes on from step 2, and its second event file
# says so (SessionLog.START at step 2, as torch's purge_step writes it). One would expect
# EventAccumulator, by which scripts read event files, to give steps 2 and 3 once, as the page does.
# For scalars as TF 2 and torch's new_style=True write them (tensors) it gives both values of these
# steps, with the default purge_orphaned_data=True; for those of the old style the later ones alone.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tensorboard==2.21.0 'setuptools<81'
"$folder/venv/bin/python" - "$folder" 2>/dev/null <<'PYTHON'
import sys
from importlib.metadata import version
from pathlib import Path

from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.scalar.summary_v2 import scalar_pb
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_ndarray

PARTS = (("first", 1, {1: 4.0, 2: 3.0, 3: 2.0}), ("second", 2, {2: 3.5, 3: 2.5}))


def old_style(value: float) -> Summary:
    return Summary(value=[Summary.Value(tag="loss", simple_value=value)])


def write(folder: Path, scalar) -> str:
    for part, first_step, losses in PARTS:
        writer = EventFileWriter(str(folder), filename_suffix=f".{part}")
        start = SessionLog(status=SessionLog.START)
        writer.add_event(Event(step=first_step, session_log=start, wall_time=first_step))
        for step, loss in losses.items():
            writer.add_event(Event(step=step, summary=scalar(loss), wall_time=10 + step))
        writer.close()
    return str(folder)


folder = Path(sys.argv[1])
tensors = write(folder / "tensors", lambda value: scalar_pb("loss", value))
plain = write(folder / "plain", old_style)
read = event_accumulator.EventAccumulator(tensors).Reload().Tensors("loss")
page = plugin_event_accumulator.EventAccumulator(tensors).Reload().Tensors("loss")
plain_read = event_accumulator.EventAccumulator(plain).Reload().Scalars("loss")
seen = [(event.step, float(make_ndarray(event.tensor_proto))) for event in read]
on_page = [(event.step, float(make_ndarray(event.tensor_proto))) for event in page]
old = [(event.step, event.value) for event in plain_read]
expected = [(1, 4.0), (2, 3.5), (3, 2.5)]
print("tensorboard", version("tensorboard"))
print("expected:", expected)
print("seen, scalars as tensors:", seen)
print("seen, of the old style:  ", old)
print("on the page:             ", on_page)
assert on_page == old == expected, "this has changed"
assert seen == [(1, 4.0), (2, 3.0), (3, 2.0), (2, 3.5), (3, 2.5)], "this has changed"
PYTHON
