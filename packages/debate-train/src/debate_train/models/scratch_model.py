"""A small model with random weights, made where it is trained."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from debate_protocol.config import Config
from debate_train.models.loaded_model import LoadedModel, Lora

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


class ScratchModel(Config):
    """A small Qwen3-shaped model with random weights and a word-level tokenizer."""

    type: Literal["scratch"] = "scratch"
    hidden_size: int = Field(64, ge=8)
    """Width of the residual stream."""
    layers: int = Field(2, ge=1)
    """Transformer layers."""
    heads: int = Field(4, ge=1)
    """Attention heads of a layer."""
    kv_heads: int = Field(2, ge=1)
    """Heads of keys and values, which divide the attention heads."""
    head_dim: int = Field(16, ge=2)
    """Width of a head."""
    ffn_size: int = Field(192, ge=8)
    """Width inside of the feed-forward layers."""
    context_window: int = Field(512, ge=16)
    """Most tokens of a sequence."""
    initializer_range: float = Field(0.1, gt=0)
    """Standard deviation of the random weights; 0.02, usual at larger sizes, learns slower here."""
    extra_words: tuple[str, ...] = ()
    """Words that the tokenizer knows beside its own, each one token; several words with a space
    between them are one token, too."""
    dtype: Literal["float32"] = "float32"
    """Type of the weights."""
    lora: None = None
    """All weights are trained."""

    @property
    def source(self) -> None:
        """It is made here."""
        return None

    @property
    def template_kwargs(self) -> Mapping[str, bool | int | str]:
        """Its chat template takes none."""
        return {}

    def folder(self) -> None:
        """Its weights are on no disk."""
        return None

    def with_lora(self, lora: Lora) -> None:
        """It is small: every parameter is trained."""
        return None

    def load(self, seed: int, *, with_values: bool = True) -> LoadedModel:
        """Build the model; equal seeds give equal weights. It is small: it always has values."""
        from transformers import Qwen3Config, Qwen3ForCausalLM

        tokenizer = self.load_tokenizer()
        config = Qwen3Config(
            vocab_size=len(tokenizer),
            hidden_size=self.hidden_size,
            intermediate_size=self.ffn_size,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            head_dim=self.head_dim,
            max_position_embeddings=self.context_window,
            initializer_range=self.initializer_range,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )

        def made() -> Qwen3ForCausalLM:
            import torch

            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                return Qwen3ForCausalLM(config)

        return LoadedModel(made(), tokenizer, again=made)

    def load_tokenizer(self) -> "PreTrainedTokenizerFast":
        """Build the word-level tokenizer."""
        from debate_train.models.word_tokenizer import word_tokenizer

        return word_tokenizer(self.extra_words)
