#!/usr/bin/env bash
# peft 0.21.2, add_weighted_adapter(["a", "copy"], [0.5, 0.5]) where "copy" has the weights of "a":
# one would expect the mean of two equal adapters to be that adapter, whatever the combination_type:
# the docstring calls "linear" an approximation, and here there is nothing to approximate. "linear"
# changes the base model twice as much, as does "magnitude_prune" at density 1, which prunes nothing;
# "ties" half as much. A and B are each added with the roots of the weights, so the product has the
# cross terms, too: B of one adapter with A of the other. "cat" and "svd" give the mean.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 peft==0.21.2 transformers==5.19.0
"$folder/venv/bin/python" -W ignore - <<'PYTHON'
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
config = LoraConfig(target_modules=["project"], r=2, init_lora_weights=False)
model = get_peft_model(Base(), config, adapter_name="first")
model.add_adapter("copy", config)
layer = model.base_model.model.project
for factors in (layer.lora_A, layer.lora_B):
    factors["copy"].weight.data.copy_(factors["first"].weight)
change = layer.get_delta_weight("first")

seen = {}
for combination in ("cat", "svd", "linear", "magnitude_prune", "ties"):
    model.add_weighted_adapter(
        ["first", "copy"], [0.5, 0.5], combination, combination_type=combination, density=1.0
    )
    mean = layer.get_delta_weight(combination)
    seen[combination] = round((mean.norm() / change.norm()).item(), 4)
print(f"peft {version('peft')}: size of the mean of two equal adapters, in relation to one of them")
for combination, size in seen.items():
    print(f"  {combination}: expected 1.0, seen {size}")
expected = {"cat": 1.0, "svd": 1.0, "linear": 2.0, "magnitude_prune": 2.0, "ties": 0.5}
assert seen == expected, "what was seen has changed"
PYTHON
