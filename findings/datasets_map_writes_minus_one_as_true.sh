#!/usr/bin/env bash
# datasets 5.2.0: a boolean column "reward" says which answers are right, and map writes 1 and -1
# for true and false, the usual rewards. One would expect numbers, as an integer column that takes
# 0.5 becomes one of floats. Every row says True, wrong answers too, and nothing warns. map tries
# the old column's type first, and Arrow takes each number but 0 for true. Neither remove_columns
# nor try_original_type=False, which is documented to infer new types, changes that, unless the
# function takes batches; another name for the column does.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet datasets==5.2.0
HF_HOME="$folder/cache" "$folder/venv/bin/python" - <<'PYTHON'
import warnings
from importlib.metadata import version

from datasets import Dataset, disable_progress_bars

disable_progress_bars()
verdicts = Dataset.from_dict({"reward": [True, False, False]})
integers = Dataset.from_dict({"reward": [1, 0]})


def reward_row(row: dict) -> dict:
    return {"reward": 1 if row["reward"] else -1}


def reward_batch(batch: dict) -> dict:
    return {"reward": [1 if verdict else -1 for verdict in batch["reward"]]}


def halve(row: dict) -> dict:
    return {"reward": row["reward"] / 2}


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    mapped = {
        "rows": verdicts.map(reward_row),
        "rows, remove_columns": verdicts.map(reward_row, remove_columns="reward"),
        "rows, try_original_type=False": verdicts.map(reward_row, try_original_type=False),
        "batches": verdicts.map(reward_batch, batched=True),
        "batches, try_original_type=False": verdicts.map(
            reward_batch, batched=True, try_original_type=False
        ),
    }
print(f"datasets {version('datasets')}: expected [1, -1, -1] each time; seen:")
for call, rows in mapped.items():
    print(f"  {call}: {rows['reward'][:]}")
*converted, inferred = (str(rows["reward"][:]) for rows in mapped.values())
halves = integers.map(halve)["reward"][:]
print("halves written over a column of integers:", halves)
assert set(converted) == {"[True, True, True]"}, "what was seen has changed"
assert inferred == "[1, -1, -1]" and halves == [0.5, 0.0], "what was seen has changed"
assert not caught, "there is a warning now"
PYTHON
