#!/usr/bin/env bash
# peft 0.21.2: unload() is documented as giving the original base model back, without merging.
# Where merge_adapter() was called before, as trainers do to send weights to an engine, one would
# expect unload() to take the adapter out again, or to refuse. It returns the merged weights, with
# no adapter left to subtract and no warning.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 peft==0.21.2 transformers==5.19.0
"$folder/venv/bin/python" - <<'PYTHON'
import copy
import warnings
from importlib.metadata import version

import torch
from peft import LoraConfig, get_peft_model
from torch import nn


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 4, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.project(x)


torch.manual_seed(0)
base = Base()
original = base.project.weight.detach().clone()


def distance_after(*, merged: bool) -> float:
    config = LoraConfig(target_modules=["project"], r=2, init_lora_weights=False)
    model = get_peft_model(copy.deepcopy(base), config)
    if merged:
        model.merge_adapter()
    return (model.unload().project.weight - original).abs().max().item()


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    plain = distance_after(merged=False)
    after_merge = distance_after(merged=True)
print(f"peft {version('peft')}: distance of unload()'s weights from the base model's")
print(f"  without a merge {plain:.4f}, after merge_adapter() {after_merge:.4f}")
print(f"  warnings: {[str(warning.message) for warning in caught]}")
assert plain == 0 and after_merge > 0.01 and not caught, "what was seen has changed"
PYTHON
