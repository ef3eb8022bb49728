#!/usr/bin/env bash
# trl 1.16.0 on peft 0.21.2 and transformers 5.19.0, second stage of training (such as GRPO behind
# SFT): `model` is what AutoModelForCausalLM reads from the folder of an adapter, and `peft_config` a
# new adapter. TRL refuses a PeftModel with a peft_config; one would expect this model to be refused,
# too, or the policy to begin as the first stage ended, for a new adapter of B = 0 adds nothing. But
# transformers puts the adapter inside of a plain model, the refusal does not see it, and peft puts
# the new adapter in the place of the first, under the same name: training begins from the base
# model, and what is saved holds nothing of the first stage. peft's warning speaks of "multiple
# adapters".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 trl==1.16.0 transformers==5.19.0 peft==0.21.2
TRL_EXPERIMENTAL_SILENCE=1 "$folder/venv/bin/python" - "$folder" 2>/dev/null <<'PYTHON' | tail -n 6
import sys
from importlib.metadata import version
from pathlib import Path

import torch
from datasets import Dataset
from peft import AutoPeftModelForCausalLM, LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
)
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

folder = Path(sys.argv[1])
base, first = folder / "base", folder / "first"
words = ["<pad>", "<eos>", "<unk>", *"abcdefgh"]
vocabulary = {word: index for index, word in enumerate(words)}
tokenizer_model = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
tokenizer_model.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer_model, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
torch.manual_seed(0)
LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, pad_token_id=0, eos_token_id=1,
    )
).save_pretrained(base)
ids = torch.arange(3, 11)[None]


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(input_ids=ids).logits


def distance(policy: torch.Tensor, reference: torch.Tensor) -> float:
    return round((policy - reference).abs().max().item(), 4)


# The first stage: an adapter that changes the policy. peft would begin it with B = 0.
layers = ["q_proj", "v_proj", "o_proj"]
base_model = LlamaForCausalLM.from_pretrained(base)
of_base = logits(base_model)
trained = LoraConfig(task_type="CAUSAL_LM", target_modules=layers, init_lora_weights=False)
first_model = get_peft_model(base_model, trained)
of_first = logits(first_model)
first_model.save_pretrained(first)
tokenizer.save_pretrained(first)
assert distance(logits(AutoPeftModelForCausalLM.from_pretrained(first)), of_first) == 0
assert distance(of_first, of_base) > 0.01

settings = {"use_cpu": True, "bf16": False, "report_to": "none"}
data = Dataset.from_dict({"prompt": ["a b", "c d"], "completion": ["e", "f"]})
new_adapter = LoraConfig(task_type="CAUSAL_LM", target_modules=layers)
trainers = {
    "SFTTrainer": lambda model: SFTTrainer(
        model=model, peft_config=new_adapter, train_dataset=data, processing_class=tokenizer,
        args=SFTConfig(output_dir=str(folder / "sft"), **settings),
    ),
    "GRPOTrainer": lambda model: GRPOTrainer(
        model=model, peft_config=new_adapter, train_dataset=data, processing_class=tokenizer,
        reward_funcs=lambda completions, **columns: [0.0] * len(completions),
        args=GRPOConfig(output_dir=str(folder / "grpo"), **settings),
    ),
}
print(f"trl {version('trl')}, peft {version('peft')}, transformers {version('transformers')}:")
seen = []
for name, open_trainer in trainers.items():
    try:
        open_trainer(AutoPeftModelForCausalLM.from_pretrained(first))
        refusal = "none"
    except ValueError:
        refusal = "ValueError"
    read_model = AutoModelForCausalLM.from_pretrained(first)
    assert distance(logits(read_model), of_first) == 0
    policy = logits(open_trainer(read_model).model)
    seen.append((refusal, distance(policy, of_first) > 0.01, distance(policy, of_base)))
    print(f"  {name}, a PeftModel and peft_config: {refusal}")
    print(
        f"  {name}, AutoModelForCausalLM's model: expected distance to the first stage 0.0, seen "
        f"{distance(policy, of_first)}; to the base {distance(policy, of_base)}"
    )
assert seen == [("ValueError", True, 0.0)] * 2, f"what was seen has changed: {seen}"
print("the first stage is gone")
PYTHON
