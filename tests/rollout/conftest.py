"""Tokenizers trained on the spot and models of a few thousand parameters."""

import importlib.util
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from debate_rollout.engine import Weights

_NEEDS_TORCH = re.compile(
    r"^(from|import) (torch|transformers|tokenizers|peft|safetensors|arithmetic)\b|"
    r"\b(byte_bpe|templated|word_level|sentencepiece_style|word_piece|tiny_model)\b|"
    r"\bimport (TransformersEngine|VllmEngine)\b",
    re.MULTILINE,
)
if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
    import torch
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
else:
    Tokenizer = PreTrainedTokenizerFast = Any
    collect_ignore = [
        file.name
        for file in Path(__file__).parent.glob("test_*.py")
        if _NEEDS_TORCH.search(file.read_text())
    ]


def pytest_report_header() -> str | None:
    """Say what is left out where torch is not installed."""
    left_out = globals().get("collect_ignore")
    return left_out and f"left out, as torch or transformers is missing: {', '.join(left_out)}"


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<pad>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "Agent 0 says: the answer is 42. 🙂🙃 日本語のテキスト 中文文本",
    "<solution>x = 7</solution><comparison>Agent 1 > Agent 2</comparison>",
    "漢字かな交じり文 🤖👩‍🚀 user assistant system What is 2 + 3? 🙂🙂",
] * 4


def wrapped(tokenizer: Tokenizer, template: str | None = CHATML) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=template,
    )


def byte_bpe_backend() -> Tokenizer:
    """A vocabulary too small for most emoji and CJK characters: they split across tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def byte_bpe() -> PreTrainedTokenizerFast:
    return wrapped(byte_bpe_backend())


@pytest.fixture(scope="session")
def templated() -> Callable[[str | None], PreTrainedTokenizerFast]:
    """The byte-level BPE with any chat template."""
    return lambda template: wrapped(byte_bpe_backend(), template)


@pytest.fixture(scope="session")
def word_level() -> PreTrainedTokenizerFast:
    """Whole words spelled in the byte alphabet, as small debate tokenizers have them."""
    words = ["Ċ", "ĠAgent", "Ġ0", "Ġ42", "ĠðŁĻĤ", "Ġæ¼¢", "Ġ</comparison>", "Ġ<solution>"]
    vocabulary = {word: k for k, word in enumerate([*SPECIAL, "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Prepend(" ")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", "merged_with_next"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return wrapped(tokenizer)


@pytest.fixture(scope="session")
def sentencepiece_style() -> PreTrainedTokenizerFast:
    """BPE with a visible space and single bytes as <0xNN>, as Llama 2 and Gemma have it."""
    letters = sorted(set("".join(CORPUS[:2])) - set(" 🙂🙃"))
    pieces = [*SPECIAL, "<unk>", *(f"<0x{b:02X}>" for b in range(256)), "▁", *letters]
    vocabulary = {piece: k for k, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return wrapped(tokenizer)


@pytest.fixture(scope="session")
def word_piece() -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens have no bytes of their own: decoded piece by piece."""
    pieces = [*SPECIAL, "[UNK]", "the", "answer", "is", "##n't", "42", "##42", "漢", "🙂"]
    vocabulary = {piece: k for k, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return wrapped(tokenizer)


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., Any]:
    """Make a Qwen3 of two layers for a tokenizer; sharp enough that sampling is not uniform."""

    def make(tokenizer: Any, seed: int = 0, tied: bool = True, window: int = 128) -> Any:
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(
            Qwen3Config(
                vocab_size=len(tokenizer),
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=32,  # the least that vLLM's CPU attention has
                max_position_embeddings=window,
                tie_word_embeddings=tied,
                initializer_range=0.2,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
        )
        return model.eval()

    return make


@pytest.fixture(scope="session")
def hf_logps() -> Callable[..., list[float]]:
    """Score a reply by one plain forward pass, at its temperature (1 where it was greedy)."""

    def score(model: Any, reply: Any) -> list[float]:
        prompt = reply.prompt_ids
        ids = reply.token_ids
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        logps = (logits.float() / (reply.temperature or 1.0)).log_softmax(-1)
        return [float(logps[k, token]) for k, token in enumerate(ids)]

    return score


@pytest.fixture(scope="session")
def adapter() -> Callable[..., Any]:
    """Make a peft model on a base, with an adapter of rank 8 drawn from a seed, and its weights."""
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

    def make(base: Any, seed: int, rank: int = 8) -> tuple[Any, Weights]:
        config = LoraConfig(
            r=rank, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM"
        )
        trained = get_peft_model(base, config).eval()
        torch.manual_seed(seed)
        for name, parameter in trained.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, std=0.1)
        tensors = get_peft_model_state_dict(trained)
        return trained, Weights(seed, tensors, "lora", config.to_dict())

    return make


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Closes what a test opens."""
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def narrow(tiny_model: Callable[..., Any], byte_bpe: Any) -> Any:
    """A model with the window that stand-ins of vLLM name."""
    return tiny_model(byte_bpe, window=256)
