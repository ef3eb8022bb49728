"""What `--plan` needs of a model, from its configuration alone."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from debate_train.errors import UsageError
from debate_train.models import ModelConfig
from debate_train.models.loaded_model import Lora
from debate_train.models.model_files import reason_of
from debate_train.models.policy import lora_config

if TYPE_CHECKING:
    from transformers import PreTrainedConfig


@dataclass(frozen=True, slots=True)
class Shape:
    """What the arithmetic needs of a model."""

    parameters: int
    trained: int
    weight_bytes: int
    """Bytes of one weight."""
    layers: int
    hidden: int
    queries: int
    """Features of all query heads of a layer."""
    keys: int
    """Features of all key heads of a layer."""
    ffn: int
    """Features of the MLP, or of all experts that a token passes."""
    experts: int = 0
    """Experts that a token is routed to."""

    vocabulary: int = 0
    norms_heads: bool = False
    """Whether queries and keys of each head are normed, as in Qwen3."""
    adapter: int = 0
    """Features between the two matrices of all LoRA adapters of a layer; 0 is none."""
    wide_adapters: bool = False
    """Whether adapters are float32 beside weights of half precision."""

    @property
    def bytes(self) -> int:
        """Bytes of one copy of the weights."""
        return self.weight_bytes * self.parameters

    @property
    def trained_bytes(self) -> int:
        """Bytes of one trained weight, which its gradient has, too."""
        return 4 if self.wide_adapters else self.weight_bytes

    def activation_bytes(self, recompute: bool = False) -> int:
        """Return the bytes of a token at the peak of a backward pass, without the output head.

        Recomputed layers keep what enters them, and one layer at a time all it needs. The layer
        whose gradient is computed holds gradients of its MLP and residuals beside.
        """
        width, layer = self.weight_bytes, self._layer_bytes()
        kept = self.layers * (width * self.hidden if recompute else layer)
        # The last norm, and the hidden states that actions are drawn from.
        kept += self._norm_bytes(self.hidden) + 2 * width * self.hidden
        return kept + self._bytes_at_work(recompute)

    def peak_bytes(self, tokens: int, recompute: bool = False) -> int:
        """Return the bytes at the peak of a pack's passes, with the output head.

        The head's gradient is done before the first layer is at work.
        """
        at_work = self._bytes_at_work(recompute)
        kept = self.activation_bytes(recompute) - at_work
        return kept * tokens + max(at_work * tokens, self.head_bytes(tokens))

    def head_bytes(self, tokens: int) -> int:
        """Return the bytes at the peak of the output head's passes over so many actions."""
        from debate_train.packed_rows.fused_head import CHUNK_LOGITS

        chunk = min(CHUNK_LOGITS, tokens * self.vocabulary)
        # Logits of one chunk and their slopes, while the next one's logits are computed. A gradient
        # of the head is added up in float32.
        gradient = 0 if self.adapter else 4 * self.vocabulary * self.hidden
        return 3 * self.weight_bytes * chunk + gradient

    def _bytes_at_work(self, recompute: bool) -> int:
        """Return what a layer needs of a token while its gradient is computed."""
        gradients = 2 * self.weight_bytes * (self.ffn + self.hidden)
        return gradients + (self._layer_bytes() if recompute else 0)

    def _layer_bytes(self) -> int:
        """Return the bytes that a layer keeps of a token for its backward pass."""
        width, heads = self.weight_bytes, self.queries + self.keys
        layer = 2 * (self._norm_bytes(self.hidden) + width * self.hidden)
        layer += self._norm_bytes(heads) if self.norms_heads else 0
        # Rotated queries and keys, values, the attention's output; the vectors of a gated MLP.
        layer += 2 * width * heads + 4 * width * self.ffn
        layer += 2 * self.experts * width * self.hidden  # What enters and leaves each expert.
        if not self.wide_adapters:
            return layer + width * self.adapter
        # Each adapter keeps its own float32 copy of what enters it: three of the first norm's
        # output, two of the second's, in place of those in half precision.
        copies = 4 * (5 * self.hidden + self.queries + self.ffn + self.adapter)
        return layer + copies - width * (2 * self.hidden + self.ffn)

    def _norm_bytes(self, features: int) -> int:
        """Return the bytes that an RMSNorm keeps: its float32 input, and what weights multiply."""
        return (4 + (0 if self.adapter else self.weight_bytes)) * features

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of keys and values that an engine keeps of a token."""
        return 2 * self.layers * self.keys * self.weight_bytes


def shape_of(model: ModelConfig, wide_adapters: bool = False) -> Shape:
    """Return a model's shape from its configuration; loads no weights.

    Args:
        model: what is trained.
        wide_adapters: whether the trainer leaves LoRA adapters in float32.

    Raises:
        UsageError: There is no configuration, or none that a model can be built from.
    """
    if model.source is None:
        return _shape(model.load(0).model.config, model, wide_adapters)
    config = model.load_config()
    try:
        return _shape(config, model, wide_adapters)
    except Exception as error:
        raise UsageError(
            f"model.name: found a configuration of {model.name!r} that no model can be planned "
            f"from ({reason_of(error)}); expected that of a causal language model with attention "
            "layers"
        ) from error


def _shape(config: "PreTrainedConfig", model: ModelConfig, wide_adapters: bool) -> Shape:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    parameters = trained = sum(p.numel() for p in built.parameters())
    text = config.get_text_config()
    norms_heads = any(name.endswith("q_norm") for name, _ in built.named_modules())
    adapter = 0
    if model.lora is not None:
        one, features = _adapter(built, model.lora)
        trained = one * max(1, len(model.lora.adapters))
        parameters += trained
        adapter = features // text.num_hidden_layers
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    key_heads = getattr(text, "num_key_value_heads", None) or heads
    experts, ffn = _mlp(text)
    return Shape(
        parameters=parameters,
        trained=trained,
        weight_bytes=4 if model.dtype == "float32" else 2,
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
        queries=heads * size,
        keys=key_heads * size,
        ffn=ffn,
        experts=experts,
        vocabulary=text.vocab_size,
        norms_heads=norms_heads,
        adapter=adapter,
        wide_adapters=wide_adapters and adapter > 0 and model.dtype != "float32",
    )


def _adapter(built: object, lora: Lora) -> tuple[int, int]:
    """Return parameters and inner features of an adapter; peft knows which layers get one."""
    import torch
    from peft import get_peft_model

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(built, lora_config(lora))
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    features = sum(p.shape[0] for name, p in trained.items() if ".lora_A." in name)
    return sum(p.numel() for p in trained.values()), features


def _mlp(text: "PreTrainedConfig") -> tuple[int, int]:
    """Return the experts that a token passes, none in a dense model, and all their features."""
    experts = getattr(text, "num_experts_per_tok", None) or 0
    if not experts:
        return 0, text.intermediate_size
    one = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
    shared = getattr(text, "shared_expert_intermediate_size", None) or 0
    shared += (getattr(text, "n_shared_experts", None) or 0) * one
    return experts, experts * one + shared
