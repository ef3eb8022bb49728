"""The from-scratch model of a first run, and a word-level tokenizer."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from debate_protocol.plugins import Config
from debate_train.models.loaded_model import LoadedModel

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast


TAGS = ("solution", "evaluation", "comparison", "consensus", "consensus_reason")
WORDS = ("Agent", ":", ">", "=", "+", "-", "N/A", "YES", "NO", "ok", "no", "valid", "response",
         "evaluation", "make", "Q")  # fmt: skip
SPECIAL_TOKENS = ["<pad>", "<unk>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
SMALLEST = -40
LARGEST = 50
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


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
    """More words of the tokenizer, each one token; a word may hold spaces, such as `Agent 1`."""
    dtype: Literal["float32"] = "float32"
    """Type of the weights."""
    lora: None = None
    """All weights are trained."""

    @property
    def source(self) -> None:
        """None: there is no folder and no hub id."""
        return None

    @property
    def template_kwargs(self) -> Mapping[str, bool | int | str]:
        """The chat template takes no arguments."""
        return {}

    def folder(self) -> None:
        """Name no folder: the weights are on no disk."""
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

        def make_model() -> Qwen3ForCausalLM:
            import torch

            # The run's own random states stay as they are, and a second call draws the same.
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                return Qwen3ForCausalLM(config)

        return LoadedModel(make_model(), tokenizer, again=make_model)

    def load_tokenizer(self) -> "PreTrainedTokenizerFast":
        """Build the word-level tokenizer."""
        return word_tokenizer(self.extra_words)


def word_tokenizer(extra_words: Sequence[str] = ()) -> "PreTrainedTokenizerFast":
    r"""Build a tokenizer for compact debates: a token a word, tag, sign or small number.

    A token is a word with the space before it, or a line break; text is first normalized to one
    space before each word. An extra word may consist of several, such as `Agent 1`: then these are
    a single token wherever they follow each other, the longest first. Tokens are spelled in the
    byte alphabet of GPT-2, as byte-level BPE tokenizers do, to know the bytes of each token.
    Unknown words become `<unk>`.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tags = []
    for name in TAGS:
        tags += [f"<{name}>", f"</{name}>"]
    numbers = [str(number) for number in range(SMALLEST, LARGEST + 1)]
    words = [*tags, *WORDS, *numbers, *extra_words]
    # Ċ and Ġ are line break and space in GPT-2's alphabet.
    spelled = ["Ċ", *(f"Ġ{word.replace(' ', 'Ġ')}" for word in words)]
    vocabulary = {token: token_id for token_id, token in enumerate(SPECIAL_TOKENS + spelled)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Prepend(" "),
            normalizers.Replace(Regex(r"\s*\n\s*"), "\n "),
            normalizers.Replace(Regex(r"[^\S\n]+"), " "),
            normalizers.Replace(Regex(r" +$"), ""),
        ]
    )
    # Alternatives are tried in order: the longest phrase goes first, single words last.
    phrases = sorted((word for word in extra_words if " " in word), key=len, reverse=True)
    phrase_patterns = "".join(rf" {re.escape(phrase)}(?!\S)|" for phrase in phrases)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rf"{phrase_patterns}\n| [^\s]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<|end|>",
        additional_special_tokens=SPECIAL_TOKENS[3:],
        chat_template=CHAT_TEMPLATE,
    )
