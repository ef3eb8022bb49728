"""Sizes of a model for memory and arithmetic, without loading weights."""

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from debate_train.errors import UsageError
from debate_train.models import ModelConfig
from debate_train.models.loaded_model import Lora, lora_config
from debate_train.models.model_files import reason_of

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

FLOAT32_BYTES = 4
HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a model.

    Attributes:
        parameters: All weights, adapters included.
        trained: Trained weights.
        weight_bytes: Bytes of a weight.
        layers: Transformer layers.
        hidden: Width of the residual stream.
        queries: Features of all query heads of a layer.
        keys: Features of all key heads of a layer.
        ffn: Features of the MLP, or of all experts passed by a token.
        experts: Experts passed by a token.
        vocabulary: Logits of a token.
        norms_heads: Whether queries and keys of each head are normed, as in Qwen3.
        adapter: Features between the two matrices of all LoRA adapters of a layer; 0 without LoRA.
        wide_adapters: Whether adapters are float32 beside weights of half precision.
    """

    parameters: int
    trained: int
    weight_bytes: int
    layers: int
    hidden: int
    queries: int
    keys: int
    ffn: int
    experts: int = 0
    vocabulary: int = 0
    norms_heads: bool = False
    adapter: int = 0
    wide_adapters: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of a copy of the weights."""
        return self.weight_bytes * self.parameters

    @property
    def trained_bytes(self) -> int:
        """Bytes of a trained weight and a gradient."""
        return FLOAT32_BYTES if self.wide_adapters else self.weight_bytes

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of a token's keys and values in an engine's cache."""
        return 2 * self.layers * self.keys * self.weight_bytes

    def activation_bytes(self, recompute: bool = False) -> int:
        """Compute the bytes of a token at the peak of a backward pass, without the output head.

        Recomputed layers save their input, and a single layer at a time all activations. The layer
        under differentiation also has gradients of the MLP and residuals.
        """
        return self._saved_bytes(recompute) + self._backward_bytes(recompute)

    def peak_bytes(self, tokens: int, recompute: bool = False) -> int:
        """Compute the bytes at the peak of a pack's passes, with the output head.

        The head's gradient is done before the backward pass of the first layer begins, so only the
        larger of the two counts.
        """
        backward_bytes = self._backward_bytes(recompute) * tokens
        return self._saved_bytes(recompute) * tokens + max(backward_bytes, self._head_bytes(tokens))

    def _saved_bytes(self, recompute: bool) -> int:
        """Compute the bytes of a token saved by the forward pass."""
        hidden_bytes = self.weight_bytes * self.hidden
        layer_bytes = hidden_bytes if recompute else self._layer_bytes()
        # The last norm, and the hidden states that actions are drawn from.
        last_bytes = self._norm_bytes(self.hidden) + 2 * hidden_bytes
        return self.layers * layer_bytes + last_bytes

    def _backward_bytes(self, recompute: bool) -> int:
        """Compute the bytes of a token in the layer under differentiation."""
        gradient_bytes = 2 * self.weight_bytes * (self.ffn + self.hidden)
        return gradient_bytes + (self._layer_bytes() if recompute else 0)

    def _head_bytes(self, tokens: int) -> int:
        from debate_train.batches.forward import GPU_CHUNK_LOGITS

        # Logits of one chunk and their slopes, while the next chunk's logits are computed.
        num_logits = min(GPU_CHUNK_LOGITS, tokens * self.vocabulary)
        logit_bytes = 3 * self.weight_bytes * num_logits
        # A gradient of the head is added up in float32; under adapters the head is frozen.
        gradient_bytes = 0 if self.adapter else FLOAT32_BYTES * self.vocabulary * self.hidden
        return logit_bytes + gradient_bytes

    def _layer_bytes(self) -> int:
        """Compute the bytes of a token saved in a layer for the backward pass."""
        width = self.weight_bytes
        head_features = self.queries + self.keys
        num_bytes = 2 * (self._norm_bytes(self.hidden) + width * self.hidden)
        if self.norms_heads:
            num_bytes += self._norm_bytes(head_features)
        # Rotated queries and keys, values, the attention's output.
        num_bytes += 2 * width * head_features
        # The vectors of a gated MLP.
        num_bytes += 4 * width * self.ffn
        # The input and output of each expert.
        num_bytes += 2 * self.experts * width * self.hidden
        return num_bytes + width * self.adapter

    def _norm_bytes(self, features: int) -> int:
        """Compute the bytes saved by an RMSNorm: the float32 input and the normed values.

        A frozen norm needs the normed values for no gradient.
        """
        normed_bytes = 0 if self.adapter else self.weight_bytes
        return (FLOAT32_BYTES + normed_bytes) * features


def shape_of(model: ModelConfig, wide_adapters: bool = False) -> Shape:
    """Compute a model's shape from the configuration; loads no weights.

    Args:
        model: The model.
        wide_adapters: Whether the trainer leaves LoRA adapters in float32.

    Raises:
        UsageError: The configuration is missing or builds no model.
    """
    if model.source is None:
        return _shape(model.load(0).model.config, model, wide_adapters)
    config = model.load_config()
    try:
        return _shape(config, model, wide_adapters)
    except Exception as error:
        raise UsageError(
            f"model.name: found a configuration of {model.name!r} that no model can be planned "
            f"from ({reason_of(error)}); expected a causal language model with attention layers"
        ) from error


def _shape(config: "PreTrainedConfig", model: ModelConfig, wide_adapters: bool) -> Shape:
    import torch
    from transformers import AutoModelForCausalLM

    # On the meta device a model has parameters without memory.
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    num_parameters = sum(parameter.numel() for parameter in built.parameters())
    num_trained = num_parameters
    text_config = config.get_text_config()
    norms_heads = any(name.endswith("q_norm") for name, _ in built.named_modules())
    adapter = 0
    if model.lora is not None:
        num_adapter_parameters, num_features = _measure_adapter(built, model.lora)
        num_trained = num_adapter_parameters * max(1, len(model.lora.adapters))
        num_parameters += num_trained
        adapter = num_features // text_config.num_hidden_layers
    num_heads = text_config.num_attention_heads
    num_key_heads = getattr(text_config, "num_key_value_heads", None) or num_heads
    head_dim = getattr(text_config, "head_dim", None) or text_config.hidden_size // num_heads
    num_experts, ffn = _measure_mlp(text_config)
    return Shape(
        parameters=num_parameters,
        trained=num_trained,
        weight_bytes=FLOAT32_BYTES if model.dtype == "float32" else HALF_BYTES,
        layers=text_config.num_hidden_layers,
        hidden=text_config.hidden_size,
        queries=num_heads * head_dim,
        keys=num_key_heads * head_dim,
        ffn=ffn,
        experts=num_experts,
        vocabulary=text_config.vocab_size,
        norms_heads=norms_heads,
        adapter=adapter,
        wide_adapters=wide_adapters and adapter > 0 and model.dtype != "float32",
    )


def _measure_adapter(model: object, lora: Lora) -> tuple[int, int]:
    """Count parameters and inner features of an adapter; peft selects the adapted layers."""
    import torch
    from peft import get_peft_model

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, lora_config(lora))
    num_parameters = 0
    num_features = 0
    for name, parameter in adapted.named_parameters():
        if parameter.requires_grad:
            num_parameters += parameter.numel()
            if ".lora_A." in name:
                num_features += parameter.shape[0]
    return num_parameters, num_features


def _measure_mlp(text_config: "PreTrainedConfig") -> tuple[int, int]:
    """Count the experts passed by a token (0 in a dense model), and all their features."""
    num_experts = getattr(text_config, "num_experts_per_tok", None) or 0
    if not num_experts:
        return 0, text_config.intermediate_size
    expert_size = getattr(text_config, "moe_intermediate_size", None)
    expert_size = expert_size or text_config.intermediate_size
    shared_size = getattr(text_config, "shared_expert_intermediate_size", None) or 0
    shared_size += (getattr(text_config, "n_shared_experts", None) or 0) * expert_size
    return num_experts, num_experts * expert_size + shared_size
