"""The models within reach of the page's script, and their tensors."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from debate_report.json_values import as_list, as_mapping, finite
from debate_report.playing.small_weights import MAX_WEIGHT_BYTES, NotPlayableError, WeightFile

# What `sampler.js` computes: settings of a checkpoint that would change it.
EXPECTED_SETTINGS: Mapping[str, object] = {
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "use_sliding_window": False,
}
MAX_WINDOW = 4096


@dataclass(frozen=True, slots=True)
class Architecture:
    """The sizes of a Qwen3 model, and the shape of each tensor."""

    sizes: Mapping[str, int | float | bool]
    shapes: Mapping[str, tuple[int, ...]]

    @property
    def num_parameters(self) -> int:
        """Count the weights."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    def check(self, weights: WeightFile) -> None:
        """Refuse weights of other names or shapes.

        Raises:
            NotPlayableError: A tensor is missing or has another shape.
        """
        for name, shape in self.shapes.items():
            if weights.shapes.get(name) != shape:
                raise NotPlayableError(
                    f"{name}: found shape {weights.shapes.get(name)}, expected {shape}"
                )


def read_architecture(config: Mapping[str, object]) -> Architecture:
    """Read a checkpoint's `config.json`.

    Raises:
        NotPlayableError: The page's script computes no such model, or it is too large.
    """
    for name, expected in EXPECTED_SETTINGS.items():
        if config.get(name) != expected:
            raise NotPlayableError(f"{name}: found {config.get(name)!r}, expected {expected!r}")
    if any(kind != "full_attention" for kind in as_list(config.get("layer_types"))):
        raise NotPlayableError("layer_types: expected full_attention in all layers")
    rope = as_mapping(config.get("rope_parameters"))
    if rope.get("rope_type") != "default":
        raise NotPlayableError(f"rope_type: found {rope.get('rope_type')!r}, expected 'default'")

    hidden = _size(config, "hidden_size")
    ffn = _size(config, "intermediate_size")
    heads = _size(config, "num_attention_heads")
    kv_heads = _size(config, "num_key_value_heads")
    head_dim = _size(config, "head_dim")
    layers = _size(config, "num_hidden_layers")
    vocabulary = _size(config, "vocab_size")
    is_tied = config.get("tie_word_embeddings") is True
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, hidden)}
    for layer in range(layers):
        prefix = f"model.layers.{layer}"
        shapes |= {
            f"{prefix}.input_layernorm.weight": (hidden,),
            f"{prefix}.self_attn.q_proj.weight": (heads * head_dim, hidden),
            f"{prefix}.self_attn.k_proj.weight": (kv_heads * head_dim, hidden),
            f"{prefix}.self_attn.v_proj.weight": (kv_heads * head_dim, hidden),
            f"{prefix}.self_attn.q_norm.weight": (head_dim,),
            f"{prefix}.self_attn.k_norm.weight": (head_dim,),
            f"{prefix}.self_attn.o_proj.weight": (hidden, heads * head_dim),
            f"{prefix}.post_attention_layernorm.weight": (hidden,),
            f"{prefix}.mlp.gate_proj.weight": (ffn, hidden),
            f"{prefix}.mlp.up_proj.weight": (ffn, hidden),
            f"{prefix}.mlp.down_proj.weight": (hidden, ffn),
        }
    shapes["model.norm.weight"] = (hidden,)
    if not is_tied:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    architecture = Architecture(
        sizes={
            "hidden": hidden,
            "ffn": ffn,
            "heads": heads,
            "kv_heads": kv_heads,
            "head_dim": head_dim,
            "layers": layers,
            "vocabulary": vocabulary,
            "window": min(_size(config, "max_position_embeddings"), MAX_WINDOW),
            "rms_eps": _positive(config, "rms_norm_eps"),
            "rope_theta": _positive(rope, "rope_theta"),
            "tied": is_tied,
        },
        shapes=shapes,
    )
    num_bytes = 4 * architecture.num_parameters
    if num_bytes > MAX_WEIGHT_BYTES:
        raise NotPlayableError(f"found {num_bytes:,} bytes, expected at most {MAX_WEIGHT_BYTES:,}")
    return architecture


def _size(config: Mapping[str, object], name: str) -> int:
    size = config.get(name)
    # Many layers of nothing would be small, too.
    if not isinstance(size, int) or not 1 <= size <= MAX_WEIGHT_BYTES:
        raise NotPlayableError(f"{name}: found {size!r}, expected a whole number above 0")
    return size


def _positive(config: Mapping[str, object], name: str) -> float:
    value = finite(config.get(name))
    if value is None or value <= 0:
        raise NotPlayableError(f"{name}: found {config.get(name)!r}, expected a number above 0")
    return value
