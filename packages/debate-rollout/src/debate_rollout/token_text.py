"""Decoded text with the character at which every sampled token starts."""

import codecs
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = ["TokenText", "token_text"]

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_WINDOW = 24
"""Most tokens the fallback decodes again while a character is incomplete; keeps it linear."""


@dataclass(frozen=True, slots=True)
class TokenText:
    """Decoded token ids.

    `starts[k]` is the index in `text` of the character that holds the first byte of token k.
    A special token has no text: it starts where the next token does, or at the end of the text.
    """

    text: str
    starts: tuple[int, ...]


def token_text(tokenizer: "PreTrainedTokenizerFast", ids: Sequence[int]) -> TokenText:
    """Decode ids to text and token starts, in time linear in the number of tokens.

    Byte-level and sentencepiece-style tokenizers are decoded through the bytes of each token, so
    that a character split across tokens keeps its place; bytes that are not UTF-8 become
    replacement characters. Other tokenizers are decoded piece by piece.

    Args:
        tokenizer: A Hugging Face tokenizer.
        ids: Sampled ids; ids outside the vocabulary have no text.

    Returns:
        The text, special tokens left out, and one start a token.
    """
    pieces = piece_bytes(tokenizer)
    if pieces is None:
        return _decode_by_windows(tokenizer, ids)
    decoded = _decode_bytes([pieces[i] for i in ids])
    if pieces.strips_first_space and decoded.text.startswith(" "):
        return TokenText(decoded.text[1:], tuple(max(0, start - 1) for start in decoded.starts))
    return decoded


class PieceBytes:
    """The bytes of every token of a vocabulary, found on first use; special tokens have none."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerFast", kind: str, strips_first_space: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._of_piece = _byte_level_piece if kind == "byte_level" else _sentencepiece_piece
        self._known = dict.fromkeys(special_ids(tokenizer), b"")
        self.strips_first_space = strips_first_space

    def __getitem__(self, token: int) -> bytes:
        known = self._known.get(token)
        if known is None:
            piece = self._tokenizer.convert_ids_to_tokens(token)
            known = b"" if piece is None else self._of_piece(piece)
            self._known[token] = known
        return known


_PIECES: WeakKeyDictionary[object, PieceBytes | None] = WeakKeyDictionary()


def piece_bytes(tokenizer: "PreTrainedTokenizerFast") -> PieceBytes | None:
    """Return the bytes of each token, or None for a tokenizer whose tokens have none."""
    if tokenizer not in _PIECES:
        _PIECES[tokenizer] = _read_decoder(tokenizer)
    return _PIECES[tokenizer]


def special_ids(tokenizer: "PreTrainedTokenizerFast") -> frozenset[int]:
    """Return the ids that never show as text: declared special tokens."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}


def _read_decoder(tokenizer: "PreTrainedTokenizerFast") -> PieceBytes | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    if decoder is None:
        return None
    steps = _steps(json.loads(decoder.__getstate__()))
    types = [step["type"] for step in steps]
    if types == ["ByteLevel"]:
        return PieceBytes(tokenizer, "byte_level", False)
    if types == ["Metaspace"] and steps[0]["replacement"] == "▁":
        return PieceBytes(tokenizer, "sentencepiece", steps[0]["prepend_scheme"] != "never")
    if "ByteFallback" in types and set(types) <= {"Replace", "ByteFallback", "Fuse", "Strip"}:
        strips = any(step["type"] == "Strip" and step["start"] > 0 for step in steps)
        return PieceBytes(tokenizer, "sentencepiece", strips)
    return None


def _steps(decoder: dict[str, Any]) -> list[dict[str, Any]]:
    if decoder["type"] != "Sequence":
        return [decoder]
    return [step for inner in decoder["decoders"] for step in _steps(inner)]


@cache
def _byte_of_character() -> dict[str, int]:
    """Return the byte-level BPE alphabet: printable Latin-1 stands for itself, the rest from 256.

    Source: GPT-2 (Radford et al. 2019), byte-level BPE.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + k): byte for k, byte in enumerate(others)
    }


def _byte_level_piece(piece: str) -> bytes:
    alphabet = _byte_of_character()
    try:
        return bytes([alphabet[character] for character in piece])
    except KeyError:  # an added token, spelled as plain text
        return piece.encode("utf-8", errors="replace")


def _sentencepiece_piece(piece: str) -> bytes:
    if match := _BYTE_PIECE.fullmatch(piece):
        return bytes([int(match[1], 16)])
    return piece.replace("▁", " ").encode("utf-8", errors="replace")


def _decode_bytes(pieces: Sequence[bytes]) -> TokenText:
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    parts: list[str] = []
    starts: list[int] = []
    length = 0
    for piece in pieces:
        start = length
        if piece and decoder.getstate()[0]:
            # The character before is open: does this byte go on with it, or begin another?
            first = decoder.decode(piece[:1])
            parts.append(first)
            length += len(first)
            still_open = decoder.getstate()[0]  # Two characters if it can only be a surrogate.
            start = length + len(still_open.decode("utf-8", errors="replace")) - 1
            piece = piece[1:]
        starts.append(start)
        text = decoder.decode(piece)
        parts.append(text)
        length += len(text)
    parts.append(decoder.decode(b"", final=True))
    following = length + len(parts[-1])
    for k in reversed(range(len(pieces))):
        if not pieces[k]:
            starts[k] = following
        following = starts[k]
    return TokenText("".join(parts), tuple(starts))


def _decode_by_windows(tokenizer: "PreTrainedTokenizerFast", ids: Sequence[int]) -> TokenText:
    """Decode by the difference each token makes to the text of a short window before it."""
    special = special_ids(tokenizer)
    parts: list[str] = []
    starts: list[int] = []
    length = 0
    context: list[int] = []
    pending: list[int] = []
    for token in ids:
        starts.append(length)
        if token in special or tokenizer.convert_ids_to_tokens(token) is None:
            continue
        pending.append(token)
        before = _plain(tokenizer, context)
        after = _plain(tokenizer, [*context, *pending])
        if after.endswith("�") and len(pending) < _WINDOW:
            continue
        parts.append(after[len(before) :])
        length += len(parts[-1])
        context, pending = pending, []
    if pending:
        before = _plain(tokenizer, context)
        parts.append(_plain(tokenizer, [*context, *pending])[len(before) :])
    return TokenText("".join(parts), tuple(starts))


def _plain(tokenizer: "PreTrainedTokenizerFast", ids: list[int]) -> str:
    if not ids:
        return ""
    text: str = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text
