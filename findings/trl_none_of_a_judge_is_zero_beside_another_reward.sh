#!/usr/bin/env bash
# trl 1.16.0, GRPOTrainer: a judge gives three replies of a group 1 and has no verdict on the
# fourth, None, which is documented to leave the judge out of that reply's reward. With no other
# reward, all advantages are 0. Beside a second reward, by which the four are equal, one would
# expect the same. But the reply without a verdict is compared with the sums of those that have
# one: the judge's silence costs it -1.5, as much as the verdict "wrong" (RLOOTrainer sums alike).
# The other setting of multi_objective_aggregation, "normalize_then_sum", leaves all advantages at
# 0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet torch==2.13.0 trl==1.16.0 transformers==5.19.0 pandas==3.0.0
TRL_EXPERIMENTAL_SILENCE=1 "$folder/venv/bin/python" - "$folder" 2>/dev/null <<'PYTHON' | tail -n 5
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


def silent_on_fourth(completions: list[str], **columns: object) -> list[float | None]:
    return [1.0, 1.0, 1.0, None] * (len(completions) // 4)


def wrong_on_fourth(completions: list[str], **columns: object) -> list[float]:
    return [1.0, 1.0, 1.0, 0.0] * (len(completions) // 4)


def same_format(completions: list[str], **columns: object) -> list[float]:
    return [1.0] * len(completions)


def advantages(name: str, rewards: list, aggregation: str = "sum_then_normalize") -> list[float]:
    """Train one step on two groups of four, and read the first group's advantages."""
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        train_dataset=Dataset.from_dict({"prompt": ["a b", "c d"]}),
        processing_class=tokenizer,
        args=GRPOConfig(
            output_dir=str(folder / name), max_steps=1, logging_steps=1, log_completions=True,
            per_device_train_batch_size=8, num_generations=4, max_completion_length=6,
            multi_objective_aggregation=aggregation,
            save_strategy="no", report_to="none", use_cpu=True, bf16=False, disable_tqdm=True,
        ),
    )
    trainer.train()
    (file,) = (folder / name).rglob("*.parquet")
    return pandas.read_parquet(file)["advantage"].round(1).tolist()[:4]


alone = advantages("alone", [silent_on_fourth])
beside = advantages("beside", [silent_on_fourth, same_format])
wrong = advantages("wrong", [wrong_on_fourth, same_format])
normalized = advantages("normalized", [silent_on_fourth, same_format], "normalize_then_sum")
print(f"trl {version('trl')}: advantages of four replies, where a judge is silent on the last")
print(f"  judge alone: expected 0, seen {alone}")
print(f"  beside a reward that is the same for all: expected 0, seen {beside}")
print(f"  the same with normalize_then_sum: expected 0, seen {normalized}")
print(f"  with the verdict 0 for the last: {wrong}")
assert alone == normalized == [0.0] * 4, "what was seen has changed"
assert beside == wrong == [0.5, 0.5, 0.5, -1.5], "what was seen has changed"
PYTHON
