#!/usr/bin/env bash
# trl 1.16.0, GRPOTrainer with log_completions and logging_steps=5: one would expect the files of
# completions to hold every completion that training paid, as the rewards that are logged beside
# them are means over all five steps. Each file holds the last step's alone: of 40 completions that
# the reward function was asked about, 8 are in files, and there is no column with their total.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 trl==1.16.0 transformers==5.19.0 pandas==3.0.0
TRL_EXPERIMENTAL_SILENCE=1 "$folder/venv/bin/python" - "$folder" 2>/dev/null <<'PYTHON' | tail -n 2
import sys
from importlib.metadata import version
from pathlib import Path

import pandas
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

folder = Path(sys.argv[1])
words = ["<pad>", "<eos>", "<unk>", *"abcdefgh"]
vocabulary = {word: index for index, word in enumerate(words)}
tokenizer_model = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
tokenizer_model.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=tokenizer_model, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=16, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, pad_token_id=0, eos_token_id=1,
    )
)
paid = []


def number_of_a(completions: list[str], **columns: object) -> list[float]:
    paid.extend(completions)
    return [float(completion.count("a")) for completion in completions]


trainer = GRPOTrainer(
    model=model,
    reward_funcs=number_of_a,
    train_dataset=Dataset.from_dict({"prompt": ["a b", "c d", "e f", "g h"] * 4}),
    processing_class=tokenizer,
    args=GRPOConfig(
        output_dir=str(folder / "run"), max_steps=5, logging_steps=5, log_completions=True,
        per_device_train_batch_size=8, num_generations=4, max_completion_length=6,
        save_strategy="no", report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
    ),
)
trainer.train()
files = sorted((folder / "run").rglob("*.parquet"))
tables = [pandas.read_parquet(path) for path in files]
num_rows = sum(len(table) for table in tables)
columns = sorted(set().union(*(table.columns for table in tables)))
print(f"trl {version('trl')}: {len(paid)} completions paid, {num_rows} in {len(files)} file(s)")
print("columns:", ", ".join(columns))
assert (len(paid), num_rows, len(files)) == (40, 8, 1), "what was seen has changed"
assert not {"reward", "total_reward"} & set(columns), "what was seen has changed"
PYTHON
