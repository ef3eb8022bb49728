#!/usr/bin/env bash
# torch 2.13.0 on a CPU: set_num_threads reads like a setting of the process. A run that trains in
# one thread and samples in another would expect one call to bound the cores of both. The call
# reaches its own thread and threads that start later. A thread that has computed before keeps its
# number, the main thread too where another thread makes the call: two threads of one process then
# compute with different numbers, and round differently.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 numpy
OMP_NUM_THREADS=2 "$folder/venv/bin/python" - <<'PYTHON'
from concurrent.futures import ThreadPoolExecutor

import torch


def threads() -> int:
    torch.ones(8).sum()
    return torch.get_num_threads()


def set_to(count: int) -> None:
    torch.set_num_threads(count)


seen = {"main thread at first": threads()}
with ThreadPoolExecutor(1) as older, ThreadPoolExecutor(1) as newer:
    older.submit(threads).result()
    set_to(5)
    seen["main thread after it sets 5"] = threads()
    seen["older thread after that"] = older.submit(threads).result()
    seen["newer thread after that"] = newer.submit(threads).result()
    older.submit(set_to, 3).result()
    seen["main thread after the older sets 3"] = threads()
    with ThreadPoolExecutor(1) as newest:
        seen["newest thread after that"] = newest.submit(threads).result()
print(f"torch {torch.__version__}")
for place, count in seen.items():
    print(f"  {place}: {count}")
assert list(seen.values()) == [2, 5, 2, 5, 5, 3], "what was seen has changed"
PYTHON
