#!/usr/bin/env bash
# transformers 5.19.0 reads a GGUF file that says how its rotary positions are scaled (the key
# rope.scaling.*, the tensor rope_freqs.weight, as files of Llama 3.1 to 3.3 have it) as if it did
# not. One would expect other logits beyond the first positions, or an error. The logits are those
# of the file without them, to the bit. It also fills a tensor that the file lacks at random and
# names it only in `missing_keys`.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 transformers==5.19.0 gguf==0.19.0 accelerate==1.15.0
"$folder/venv/bin/python" - "$folder" 2>/dev/null <<'PYTHON'
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

folder = Path(sys.argv[1])
SHAPES = {
    "token_embd.weight": (259, 64), "output_norm.weight": (64,),
    "blk.0.attn_q.weight": (64, 64), "blk.0.attn_k.weight": (32, 64),
    "blk.0.attn_v.weight": (32, 64), "blk.0.attn_output.weight": (64, 64),
    "blk.0.ffn_gate.weight": (96, 64), "blk.0.ffn_up.weight": (96, 64),
    "blk.0.ffn_down.weight": (64, 96), "blk.0.attn_norm.weight": (64,),
    "blk.0.ffn_norm.weight": (64,),
}


def write(name: str, *, scaled: bool = False, without: str = "") -> None:
    values = np.random.default_rng(0)
    writer = gguf.GGUFWriter(folder / name, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    writer.add_block_count(1)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(259)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([chr(0x100 + i) for i in range(259)])
    writer.add_token_merges([])
    for tensor, shape in SHAPES.items():
        array = values.normal(0, 0.1, shape).astype(np.float32)
        if tensor != without:
            writer.add_tensor(tensor, array)
    if scaled:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)
        writer.add_tensor("rope_freqs.weight", np.full(8, 8.0, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(name: str):
    return AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, output_loading_info=True)


write("plain.gguf")
write("scaled.gguf", scaled=True)
write("lacking.gguf", without="blk.0.attn_q.weight")
ids = torch.arange(1, 100)[None]
plain, scaled = load("plain.gguf")[0], load("scaled.gguf")[0]
with torch.no_grad():
    same = torch.equal(plain(ids).logits, scaled(ids).logits)
_, info = load("lacking.gguf")
print("transformers", transformers.__version__, "gguf 0.19.0")
print("scaled rotary positions in the configuration:", scaled.config.rope_parameters)
print("expected: other logits with scaled positions; seen: equal to the bit =", same)
print("expected: a file without a tensor is refused; seen: missing_keys =", info["missing_keys"])
assert same and info["missing_keys"], "this has changed"
PYTHON
