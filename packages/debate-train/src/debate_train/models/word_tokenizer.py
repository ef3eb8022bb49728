"""A word-level tokenizer for compact debates: one token a word, tag, sign or small number."""

import re
from collections.abc import Sequence

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

TAGS = ("solution", "evaluation", "comparison", "consensus", "consensus_reason")
WORDS = ("Agent", ":", ">", "=", "+", "-", "N/A", "YES", "NO", "ok", "no", "valid", "response",
         "evaluation", "make", "Q")  # fmt: skip
SMALLEST, LARGEST = -40, 50

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def word_tokenizer(extra_words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    r"""Return the tokenizer; `extra_words` are tokens, too.

    A token is a word with the space before it, or a line break; text is first normalised to one
    space before each word. An extra word may consist of several, such as `Agent 1`: then these are
    one token wherever they follow each other, the longest first. Tokens are spelled in the byte
    alphabet of GPT-2, as byte-level BPE tokenizers do, so that the bytes of each token are known.
    Unknown words become `<unk>`.
    """
    tags = [f"<{slash}{name}>" for name in TAGS for slash in ("", "/")]
    numbers = [str(n) for n in range(SMALLEST, LARGEST + 1)]
    special = ["<pad>", "<unk>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
    words = ["Ċ", *("Ġ" + w.replace(" ", "Ġ") for w in (*tags, *WORDS, *numbers, *extra_words))]
    phrases = sorted((w for w in extra_words if " " in w), key=len, reverse=True)
    whole = "".join(rf" {re.escape(phrase)}(?!\S)|" for phrase in phrases)
    vocabulary = {token: i for i, token in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Prepend(" "),
            normalizers.Replace(Regex(r"\s*\n\s*"), "\n "),
            normalizers.Replace(Regex(r"[^\S\n]+"), " "),
            normalizers.Replace(Regex(r" +$"), ""),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(rf"{whole}\n| [^\s]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<pad>",
        eos_token="<|end|>",
        additional_special_tokens=special[3:],
        chat_template=CHAT_TEMPLATE,
    )
