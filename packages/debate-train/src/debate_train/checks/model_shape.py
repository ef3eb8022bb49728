"""What `--plan` needs of a model, from its configuration alone."""

import warnings
from dataclasses import dataclass
from typing import Any

from debate_train.errors import UsageError
from debate_train.model_files import reason_of
from debate_train.models import Lora, ModelConfig, PretrainedModel
from debate_train.policy import lora_config


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

    def activation_bytes(self, recompute: bool = False) -> int:
        """Return the bytes that are kept of a token for the backward pass.

        Recomputed layers keep what enters them, and one layer at a time all it needs. That is
        residuals, norms and their inputs (6 h), queries, keys and values before and after
        rotation and the attention's output (3 q + 3 k), the four vectors of a gated MLP, and what
        enters and leaves each expert (2 h).
        """
        layer = (6 + 2 * self.experts) * self.hidden
        layer += 3 * self.queries + 3 * self.keys + 4 * self.ffn
        kept = self.layers * self.hidden + layer if recompute else self.layers * layer
        # The last norm's input and output, and the hidden states that actions are drawn from.
        return self.weight_bytes * (kept + 3 * self.hidden)

    @property
    def cache_bytes_per_token(self) -> int:
        """Bytes of keys and values that an engine keeps of a token."""
        return 2 * self.layers * self.keys * self.weight_bytes


def shape_of(model: ModelConfig) -> Shape:
    """Return a model's shape from its configuration; loads no weights.

    Raises:
        UsageError: There is no configuration, or none that a model can be built from.
    """
    if not isinstance(model, PretrainedModel):
        return _shape(model.load(0).model.config, model)
    config = model.load_config()
    try:
        return _shape(config, model)
    except Exception as error:
        raise UsageError(
            f"model.name: found a configuration of {model.name!r} that no model can be planned "
            f"from ({reason_of(error)}); expected that of a causal language model with attention "
            "layers"
        ) from error


def _shape(config: Any, model: ModelConfig) -> Shape:
    import torch
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    parameters = trained = sum(p.numel() for p in built.parameters())
    if model.lora is not None:
        trained = _adapter(built, model.lora)
        parameters += trained
    text = config.get_text_config()
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
    )


def _adapter(built: Any, lora: Lora) -> int:
    """Return the parameters of an adapter; peft knows which layers of a family get one."""
    import torch
    from peft import get_peft_model

    with torch.device("meta"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(built, lora_config(lora))
    return sum(p.numel() for p in adapted.parameters() if p.requires_grad)


def _mlp(text: Any) -> tuple[int, int]:
    """Return the experts that a token passes, none in a dense model, and all their features."""
    experts = getattr(text, "num_experts_per_tok", None) or 0
    if not experts:
        return 0, text.intermediate_size
    one = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
    shared = getattr(text, "shared_expert_intermediate_size", None) or 0
    shared += (getattr(text, "n_shared_experts", None) or 0) * one
    return experts, experts * one + shared
