"""Make a tiny Qwen3-shaped model directory with random weights, for trying recipes on a CPU.

python examples/tiny_model.py DIRECTORY
"""

import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

TEXT = Path(__file__).parents[1] / "recipes/data/gsm8k_50.jsonl"
PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = r"""{% for message in messages -%}
{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
{%- endfor -%}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif -%}
{% if add_generation_prompt and enable_thinking is defined and not enable_thinking -%}
{{ '<think>\n\n</think>\n\n' }}{% endif %}"""


def byte_level_tokenizer() -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer, trained on the questions that ship with the recipes."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(TEXT.read_text(encoding="utf-8").splitlines(), trainer)
    names = {"pad_token": PAD, "eos_token": END, "additional_special_tokens": [START]}
    return PreTrainedTokenizerFast(tokenizer_object=bpe, chat_template=CHAT_TEMPLATE, **names)


def main(directory: str) -> None:
    """Write model and tokenizer as `save_pretrained` does; the weights are always the same."""
    tokenizer = byte_level_tokenizer()
    depth = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    ids = {"bos": None, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
    torch.manual_seed(0)
    config = Qwen3Config(vocab_size=len(tokenizer), max_position_embeddings=40960, **depth, **heads)
    config.update({f"{name}_token_id": token for name, token in ids.items()})
    model = Qwen3ForCausalLM(config)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    print(f"{directory}: {model.num_parameters():,} random parameters, {len(tokenizer):,} tokens")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
