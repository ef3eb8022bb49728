"""Small GGUF files of a random Llama, as llama.cpp writes them."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import LlamaConfig, LlamaForCausalLM

PARTS = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows as llama.cpp has them: it turns neighbours, transformers a half by the other."""
    rows, width = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, width).swapaxes(1, 2).reshape(rows, width)


def write(
    path: Path,
    *,
    architecture: str = "llama",
    left_out: tuple[str, ...] = (),
    extra_keys: Mapping[str, str | int | float | bool] = {},
    extra_tensors: Mapping[str, np.ndarray] = {},
) -> LlamaForCausalLM:
    """Write a file of a random model; return the model."""
    torch.manual_seed(0)
    tokens = [*sorted(ByteLevel.alphabet()), "ab", "<end>"]
    config = LlamaConfig(
        vocab_size=len(tokens), hidden_size=64, intermediate_size=96, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
        rope_theta=10_000.0, rms_norm_eps=1e-5, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    weights = {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}
    tensors = {
        "token_embd.weight": weights["model.embed_tokens.weight"],
        "output_norm.weight": weights["model.norm.weight"],
    }
    for gguf_name, name in PARTS.items():
        weight = weights[f"model.layers.0.{name}.weight"]
        if gguf_name in ("attn_q", "attn_k"):
            weight = interleaved(weight, 4 if gguf_name == "attn_q" else 2)
        tensors[f"blk.0.{gguf_name}.weight"] = weight
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(64)
    writer.add_feed_forward_length(96)
    if "llama.block_count" not in extra_keys:
        writer.add_block_count(1)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * 257 + [gguf.TokenType.CONTROL])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(257)
    writer.add_bos_token_id(257)
    writer.add_chat_template(TEMPLATE)
    for key, value in extra_keys.items():
        adders = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32}
        adders.get(type(value), writer.add_float32)(key, value)  # type: ignore[operator]
    for name, tensor in {**tensors, **extra_tensors}.items():
        if name not in left_out:
            writer.add_tensor(name, np.ascontiguousarray(tensor))
    for step in ("header", "kv_data", "tensors"):
        getattr(writer, f"write_{step}_to_file")()
    writer.close()
    return model
