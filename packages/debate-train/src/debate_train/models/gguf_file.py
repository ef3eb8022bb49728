"""Keys and tensors of a GGUF file, compared with the model and tokenizer of transformers.

transformers 5.19 drops unknown keys and tensors without an error, so a file with
scaled rotary positions, biases or another rule to split text would become another model.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from debate_train.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

MAX_NAMES_SHOWN = 3
ARCHITECTURE = "general.architecture"
# transformers' names for architectures that it spells in another way than the files.
CONFIG_NAMES = {
    "qwen2moe": "qwen2_moe",
    "qwen3moe": "qwen3_moe",
    "gpt-oss": "gpt_oss",
    "minimax-m2": "minimax_m2",
}
# Keys that transformers drops, but whose value its configuration may have as a default.
ATTRIBUTE_OF_KEY = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
# Keys that transformers drops, and the value that changes nothing.
NEUTRAL_VALUES: dict[str, object] = {
    "rope.scaling.type": "none",
    "rope.scaling.factor": 1.0,
    "rope.scaling.attn_factor": 1.0,
    "attention.sliding_window": 0,
    "logit_scale": 1.0,
    "embedding_scale": 1.0,
    "residual_scale": 1.0,
}
# Rules to split text that are GPT-2's, which transformers takes for every name it does not know.
GPT2_SPLITS = frozenset({"gpt-2", "phi-2", "mpt", "olmo", "jais", "roberta-bpe"})
# The same after each digit is cut off by itself (llama.cpp, llama-vocab.cpp).
DIGIT_SPLITS = frozenset(
    {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
)
# Experts of a layer are one tensor in the file, which transformers takes apart.
EXPERTS = re.compile(r"\.ffn_\w+_exps\.")


class GgufFile:
    """A GGUF file's keys and names of tensors.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        reader = GGUFReader(path)
        self.name = path.name
        self.values: dict[str, Any] = {
            key: field.contents()
            for key, field in reader.fields.items()
            if not key.startswith(("tokenizer.ggml.tokens", "tokenizer.ggml.merges"))
        }
        self.tensor_names = [tensor.name for tensor in reader.tensors]

    @property
    def architecture(self) -> str:
        """Architecture by the file's own key, such as `llama`."""
        return str(self.values.get(ARCHITECTURE))

    def refuse_dropped_keys(self, config: "PreTrainedConfig") -> None:
        """Refuse a file if the model depends on keys dropped by transformers.

        Args:
            config: The configuration made of the file by transformers.

        Raises:
            ModelError: A key changes the model and is not in the configuration.
        """
        from transformers.integrations import GGUF_CONFIG_MAPPING

        name = CONFIG_NAMES.get(self.architecture, self.architecture)
        attributes = GGUF_CONFIG_MAPPING.get(name, {})
        configured = configured_values(config)
        dropped = [
            f"{key} = {value!r:.40}"
            for key, value in self._model_keys().items()
            if attributes.get(key) is None and not self._is_harmless(key, value, configured)
        ]
        if dropped:
            raise ModelError(
                f"model.name: {self.name!r} has keys that transformers drops: "
                f"{first_names(dropped)}; expected a file whose model does not depend on them, or "
                "the folder that it was made of"
            )
        # Files have no key for it: llama.cpp knows Gemma 2 and 3 of 27B by their number of layers,
        # and transformers gives every Gemma the number of the smaller ones.
        query_scale = getattr(config, "query_pre_attn_scalar", None)
        head_dim = configured.get("attention.key_length")
        if query_scale not in (None, head_dim):
            raise ModelError(
                f"model.name: {self.name!r} has heads of {head_dim}, but transformers divides "
                f"queries by the root of {query_scale}; expected the folder that it was made of"
            )

    def refuse_dropped_tensors(self, model: "PreTrainedModel") -> None:
        """Refuse a file with tensors unused by the model of transformers.

        Raises:
            ModelError: There are such tensors, for example biases or `rope_freqs.weight`.
        """
        from transformers.modeling_gguf_pytorch_utils import (
            TENSOR_PROCESSORS,
            TensorProcessor,
            get_gguf_hf_weights_map,
        )

        processor = TENSOR_PROCESSORS.get(self.architecture, TensorProcessor)(
            config=model.config.to_dict()
        )
        used = get_gguf_hf_weights_map(model, processor)
        unused = [
            name for name in self.tensor_names if name not in used and not EXPERTS.search(name)
        ]
        if unused:
            raise ModelError(
                f"model.name: {self.name!r} has tensors that transformers drops: "
                f"{first_names(unused)}; expected only tensors that a model of architecture "
                f"{self.architecture!r} has there"
            )

    def mend_tokenizer(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        """Complete a tokenizer of transformers: the split rule, and BOS.

        Raises:
            ModelError: The file names an unknown rule to split text.
        """
        from tokenizers import pre_tokenizers
        from transformers.integrations.gguf.gguf_tokenizer_mapping import (
            GGUF_PRE_TOKENIZER_SPLITS,
        )

        backend = tokenizer.backend_tokenizer
        split = self.values.get("tokenizer.ggml.pre")
        is_byte_level = self.values.get("tokenizer.ggml.model") == "gpt2"
        if is_byte_level and split in DIGIT_SPLITS:
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [
                    pre_tokenizers.Digits(individual_digits=True),
                    pre_tokenizers.ByteLevel(add_prefix_space=False),
                ]
            )
        elif is_byte_level and split is not None:
            known = {*GGUF_PRE_TOKENIZER_SPLITS, *GPT2_SPLITS}
            if split not in known:
                raise ModelError(
                    f"model.name: {self.name!r} has tokenizer.ggml.pre = {split!r}, a rule to "
                    f"split text that is not known here; expected one of "
                    f"{', '.join(sorted(known | DIGIT_SPLITS))}"
                )
        if self.values.get("tokenizer.ggml.add_eos_token"):
            raise ModelError(
                f"model.name: {self.name!r} has tokenizer.ggml.add_eos_token = True, which ends "
                "each prompt; expected a model that goes on with a prompt"
            )
        # Files of SentencePiece vocabularies may leave the key out; llama.cpp then adds it.
        is_sentencepiece = self.values.get("tokenizer.ggml.model") == "llama"
        if self.values.get("tokenizer.ggml.add_bos_token", is_sentencepiece):
            begin_with_bos(tokenizer)

    def _model_keys(self) -> Mapping[str, Any]:
        prefix = f"{self.architecture}."
        return {
            key.removeprefix(prefix): value
            for key, value in self.values.items()
            if key.startswith(prefix)
        }

    def _is_harmless(self, key: str, value: object, configured: Mapping[str, object]) -> bool:
        if self.architecture == "gpt-oss" and key.startswith("rope.scaling."):
            return True  # of this architecture alone transformers takes them over
        if configured.get(key) == value:
            return True
        return key in NEUTRAL_VALUES and value == NEUTRAL_VALUES[key]


def configured_values(config: "PreTrainedConfig") -> dict[str, object]:
    """Collect what a configuration has for keys that transformers may have dropped."""
    values: dict[str, object] = {
        key: getattr(config, attribute)
        for key, attribute in ATTRIBUTE_OF_KEY.items()
        if hasattr(config, attribute)
    }
    if config.model_type == "gpt_oss":
        values["expert_feed_forward_length"] = config.intermediate_size
    num_heads = getattr(config, "num_attention_heads", None)
    if num_heads is None:
        return values  # without attention
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    rotary = getattr(config, "rope_parameters", None) or {}
    # Gemma 3 has a base for layers that see everything, and a base for those with a window.
    global_rotary = rotary.get("full_attention", rotary)
    local_rotary = rotary.get("sliding_attention", rotary)
    rotary_share = global_rotary.get("partial_rotary_factor", 1.0)
    return values | {
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "rope.dimension_count": int(head_dim * rotary_share),
        "rope.freq_base": global_rotary.get("rope_theta"),
        "rope.freq_base_swa": local_rotary.get("rope_theta"),
    }


def begin_with_bos(tokenizer: "PreTrainedTokenizerFast") -> None:
    """Let a tokenizer put its beginning-of-text token before each encoded text."""
    from tokenizers.processors import TemplateProcessing

    token = tokenizer.bos_token
    token_id = tokenizer.bos_token_id
    if token is None or token_id is None or tokenizer.encode("a")[:1] == [token_id]:
        return
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{token} $A", pair=f"{token} $A {token} $B", special_tokens=[(token, token_id)]
    )


def first_names(names: Iterable[str]) -> str:
    """Join the first names, and count the others."""
    ordered = list(names)
    text = ", ".join(ordered[:MAX_NAMES_SHOWN])
    num_more = len(ordered) - MAX_NAMES_SHOWN
    return f"{text} and {num_more} more" if num_more > 0 else text
