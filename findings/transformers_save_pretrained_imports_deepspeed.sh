#!/usr/bin/env bash
# transformers 5.19.0 beside deepspeed 0.19.8: one would expect to save a plain torch model on a CPU
# without any part of DeepSpeed. The first save_pretrained imports all of it, by way of accelerate's
# extract_model_from_parallel, which asks whether the model is an engine of DeepSpeed: more than a
# hundred modules, at the first checkpoint of every run in which the library is only installed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 setuptools wheel numpy
"$folder/venv/bin/pip" install --quiet transformers==5.19.0 accelerate==1.15.0
"$folder/venv/bin/pip" install --quiet --no-build-isolation deepspeed==0.19.8
"$folder/venv/bin/python" - "$folder" 2>/dev/null <<'PYTHON' | tail -n 2
import sys
from importlib.metadata import version

from transformers import LlamaConfig, LlamaForCausalLM

config = LlamaConfig(
    vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
    num_attention_heads=2, num_key_value_heads=2,
)
model = LlamaForCausalLM(config)


def num_deepspeed_modules() -> int:
    return sum(name.partition(".")[0] == "deepspeed" for name in sys.modules)


before = num_deepspeed_modules()
model.save_pretrained(sys.argv[1] + "/model")
after = num_deepspeed_modules()
print(
    f"transformers {version('transformers')}, deepspeed {version('deepspeed')}: "
    f"{before} modules of DeepSpeed before save_pretrained, {after} after"
)
assert before == 0 and after > 100, "what was seen has changed"
PYTHON
