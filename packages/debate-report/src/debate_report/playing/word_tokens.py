"""The words of a from-scratch model, as the page's script splits and joins them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from debate_protocol.parsing import Contract, neutralised
from debate_report.json_values import as_mapping, as_mappings, read_text
from debate_report.playing.small_weights import NotPlayableError, read_config

# Marks and ends messages; one special token each.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# One space before each word, and none before a line break.
NORMALIZERS = [
    {"type": "Prepend", "prepend": " "},
    {"type": "Replace", "pattern": {"Regex": r"\s*\n\s*"}, "content": "\n "},
    {"type": "Replace", "pattern": {"Regex": r"[^\S\n]+"}, "content": " "},
    {"type": "Replace", "pattern": {"Regex": r" +$"}, "content": ""},
]
# Space and line break in GPT-2's alphabet of bytes; all other characters are read as they are.
SPACE = "Ġ"
LINE_BREAK = "Ċ"


@dataclass(frozen=True, slots=True)
class WordTokens:
    """The vocabulary of a model.

    Attributes:
        words: The text of each token, with the space before it; empty for special tokens.
        special_ids: Special tokens by their names.
        unknown_id: The token of all other words.
        disarmed: Words to open or close a section, as written in texts shown to others.
    """

    words: tuple[str, ...]
    special_ids: Mapping[str, int]
    unknown_id: int
    disarmed: Mapping[str, str]

    def chat_ids(self) -> dict[str, int]:
        """Name the tokens at the beginning and at the end of a message of each role."""
        names = {"user": "<|user|>", "assistant": "<|assistant|>", "end": "<|end|>"}
        return {role: self.special_ids[name] for role, name in names.items()}


def read_word_tokens(folder: Path, contract: Contract) -> WordTokens:
    """Read the word-level tokenizer and the chat template of a checkpoint.

    Raises:
        NotPlayableError: The page's script splits texts otherwise.
    """
    if read_text(folder / "chat_template.jinja") != CHAT_TEMPLATE:
        raise NotPlayableError(
            "chat_template.jinja: found another one than from-scratch models have"
        )
    tokenizer = read_config(folder / "tokenizer.json")
    model = as_mapping(tokenizer.get("model"))
    if model.get("type") != "WordLevel":
        raise NotPlayableError(f"tokenizer: found {model.get('type')!r}, expected 'WordLevel'")
    if as_mapping(tokenizer.get("normalizer")).get("normalizers") != NORMALIZERS:
        raise NotPlayableError("tokenizer: its normalizer is not that of from-scratch models")

    vocabulary = as_mapping(model.get("vocab"))
    special_ids = {}
    for token in as_mappings(tokenizer.get("added_tokens")):
        token_id = token.get("id")
        if isinstance(token_id, int):
            special_ids[str(token.get("content"))] = token_id
    words = [""] * len(vocabulary)
    for spelled, token_id in vocabulary.items():
        if not isinstance(token_id, int) or not 0 <= token_id < len(words):
            raise NotPlayableError(f"tokenizer: {spelled!r} has the number {token_id!r}")
        if token_id not in special_ids.values():
            words[token_id] = spelled.replace(SPACE, " ").replace(LINE_BREAK, "\n")
    _check_splitting(tokenizer, words)
    _check_words(words)
    needed = {"<|user|>", "<|assistant|>", "<|end|>", str(model.get("unk_token"))}
    if not needed <= special_ids.keys():
        raise NotPlayableError("tokenizer: lacks a special token of from-scratch models")
    disarmed = {}
    for word in words:
        shown_word = neutralised(word, contract)
        if shown_word != word:
            disarmed[word.strip()] = shown_word.strip()
    return WordTokens(
        words=tuple(words),
        special_ids=special_ids,
        unknown_id=special_ids[str(model.get("unk_token"))],
        disarmed=disarmed,
    )


def _check_splitting(tokenizer: Mapping[str, object], words: list[str]) -> None:
    """Check that words of several, such as `Agent 1`, go before single words, the longest first."""
    steps = as_mappings(as_mapping(tokenizer.get("pre_tokenizer")).get("pretokenizers"))
    if [step.get("type") for step in steps] != ["Split", "ByteLevel"]:
        raise NotPlayableError("tokenizer: splits texts otherwise than from-scratch models do")
    pattern = str(as_mapping(steps[0].get("pattern")).get("Regex"))
    length_of_pattern = {
        rf" {re.escape(word[1:])}(?!\S)": len(word) for word in words if " " in word[1:]
    }
    *phrase_patterns, line_break, word_pattern = pattern.split("|")
    lengths = [length_of_pattern.pop(phrase, 0) for phrase in phrase_patterns]
    if length_of_pattern or 0 in lengths or lengths != sorted(lengths, reverse=True):
        raise NotPlayableError("tokenizer: splits texts into other words than its own")
    if (line_break, word_pattern) != (r"\n", r" [^\s]+"):
        raise NotPlayableError("tokenizer: splits texts otherwise than at spaces")


def _check_words(words: list[str]) -> None:
    """Refuse words that the page's reader of replies would have to look at more closely."""
    for word in words:
        is_plain = word == "\n" or (word[:1] == " " and word.isascii()) or not word
        if not is_plain or "think" in word.lower() or "`" in word or word.endswith("<"):
            raise NotPlayableError(f"tokenizer: found the word {word!r}, which is not read here")


def as_page_tokens(tokens: WordTokens) -> dict[str, object]:
    """Collect the page's data to split and join texts."""
    return {
        "words": list(tokens.words),
        "unknown": tokens.unknown_id,
        "chat": tokens.chat_ids(),
        "disarmed": dict(tokens.disarmed),
    }
