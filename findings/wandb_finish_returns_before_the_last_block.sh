#!/usr/bin/env bash
# wandb 0.31.0, offline: one would expect a run's file to be whole once `run.finish()` has returned,
# so that it can be copied, read or sent. About one time in forty its last block is written some
# milliseconds later: the file has a multiple of 4,096 bytes and ends within a record (a reader
# that begins then reports corrupt data). After `wandb.teardown()` the file is whole.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet wandb==0.31.0
WANDB_MODE=offline WANDB_SILENT=true "$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
import time
from pathlib import Path

import wandb

folder = Path(sys.argv[1])


def sizes(name: str, teardown: bool) -> tuple[int, int]:
    """Return the bytes of a run's file when its end was reported, and half a second later."""
    settings = wandb.Settings(console="off")
    run = wandb.init(project="p", id=name, dir=folder, settings=settings)
    for step in range(60):
        run.log({"step": step, "text": "y" * 1000})
    run.finish()
    if teardown:
        wandb.teardown()
    (file,) = folder.glob(f"wandb/offline-run-*-{name}/*.wandb")
    reported = file.stat().st_size
    time.sleep(0.5)
    return reported, file.stat().st_size


print("wandb", wandb.__version__)
for attempt in range(500):
    reported, later = sizes(f"finished{attempt}", teardown=False)
    if reported != later:
        print(f"run {attempt}: {reported:,} bytes after finish(), {later:,} half a second later")
        break
else:
    sys.exit("every file was whole when finish() returned")
for attempt in range(40):
    reported, later = sizes(f"ended{attempt}", teardown=True)
    assert reported == later, "a file grew after teardown()"
print("40 runs with teardown(): each file was whole")
PYTHON
