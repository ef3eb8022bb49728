#!/usr/bin/env bash
# tinker 0.25.0: a Datum converts its loss inputs by name, "weights" to float32. One would expect the
# same mask to reach the server alike from a list and from an array. It does from a list alone: an
# array of integers stays int64. A list of booleans is sent as float32, an array of them is refused.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet tinker==0.25.0 numpy
"$folder/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

import numpy as np
from tinker import types


def wire_type(weights: object) -> str:
    inputs = {"target_tokens": [5, 6], "weights": weights}
    try:
        row = types.Datum(model_input=types.ModelInput.from_ints([4, 5]), loss_fn_inputs=inputs)
    except ValueError:
        return "refused"
    return row.loss_fn_inputs["weights"].dtype


seen = {
    "list of 0 and 1": wire_type([0, 1]),
    "array of 0 and 1": wire_type(np.array([0, 1])),
    "list of False and True": wire_type([False, True]),
    "array of False and True": wire_type(np.array([False, True])),
}
print(f"tinker {version('tinker')}: type of weights as sent")
for given, sent in seen.items():
    print(f"  {given}: {sent}")
assert list(seen.values()) == ["float32", "int64", "float32", "refused"], "what was seen has changed"
PYTHON
