"""Characters and the tokens that hold them."""

import codecs
import time
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from debate_rollout.engine import EngineConfigError
from debate_rollout.rendering import TokenText, piece_bytes, token_text

TOKENIZERS = ("byte_bpe", "word_level", "sentencepiece_style")


def reference(pieces: Sequence[bytes]) -> TokenText:
    """Decode all bytes at once; note the byte at which each character begins."""
    data = b"".join(pieces)
    invalid: list[tuple[int, int]] = []

    def note(error: UnicodeError) -> tuple[str, int]:
        assert isinstance(error, UnicodeDecodeError)
        invalid.append((error.start, error.end))
        return "�", error.end

    codecs.register_error("note", note)
    text = data.decode("utf-8", errors="note")
    begins, at = [], 0
    ends = dict(invalid)
    for character in text:
        begins.append(at)
        at = ends.get(at, at + len(character.encode()))
    starts, offset = [], 0
    for piece in pieces:
        starts.append(sum(begin <= offset for begin in begins) - 1)
        offset += len(piece)
    for k in reversed(range(len(pieces))):
        if not pieces[k]:
            starts[k] = starts[k + 1] if k + 1 < len(pieces) else len(text)
    return TokenText(text, tuple(starts))


def test_token_text_places_every_byte_when_an_emoji_is_split(byte_bpe: Any) -> None:
    # 🙃 is f0 9f 99 83; "a" is one byte before, "b" one after. One token a byte: the four bytes
    # of the emoji all start inside character 1.
    alphabet = byte_bpe.convert_tokens_to_ids(["a", "ð", "Ł", "Ļ", "ĥ", "b"])
    assert token_text(byte_bpe, alphabet) == TokenText("a🙃b", (0, 1, 1, 1, 1, 2))


def test_token_text_replaces_and_goes_on_when_bytes_are_not_utf8(byte_bpe: Any) -> None:
    # f0 9f is half an emoji, then "a": one replacement character for the two bytes, then "a".
    # A lone 83 at the end is a replacement character of its own.
    ids = byte_bpe.convert_tokens_to_ids(["ð", "Ł", "a", "ĥ"])
    assert token_text(byte_bpe, ids) == TokenText("�a�", (0, 0, 1, 2))


def test_token_text_gives_no_text_when_tokens_are_special_or_unknown(byte_bpe: Any) -> None:
    a, end = byte_bpe.convert_tokens_to_ids(["a", "<|im_end|>"])
    assert token_text(byte_bpe, [end, a, 10**6, end]) == TokenText("a", (0, 0, 1, 1))
    half = byte_bpe.convert_tokens_to_ids("ð")
    assert token_text(byte_bpe, [a, half, end]) == TokenText("a�", (0, 1, 2))


def test_token_text_reads_words_when_spelled_in_the_byte_alphabet(word_level: Any) -> None:
    ids = word_level.encode("Agent 42 🙂 漢 </comparison>", add_special_tokens=False)
    # " Agent" 6 characters, " 42" 3, " 🙂" 2, " 漢" 2.
    expected = TokenText(" Agent 42 🙂 漢 </comparison>", (0, 6, 9, 11, 13))
    assert token_text(word_level, ids) == expected


def test_token_text_strips_the_first_space_when_sentencepiece_does(
    sentencepiece_style: Any,
) -> None:
    ids = sentencepiece_style.encode("e 🙂", add_special_tokens=False)
    # ▁ e ▁ f0 9f 99 82: the first ▁ has no character of its own.
    assert token_text(sentencepiece_style, ids) == TokenText("e 🙂", (0, 0, 1, 2, 2, 2, 2))


def test_token_text_refuses_tokens_without_bytes(word_piece: Any) -> None:
    with pytest.raises(EngineConfigError, match="decodes by WordPiece; expected a fast tokenizer"):
        token_text(word_piece, [0])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_token_text_equals_the_tokenizers_own_decoding_when_text_is_valid(
    name: str, request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(name)
    for text in ("Agent 42 the answer is 🙂 漢字 x", "  two  spaces", "", "🤖👩‍🚀"):
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        own = tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        found = token_text(tokenizer, ids)
        assert found.text == own
        assert len(found.starts) == len(ids)
        assert list(found.starts) == sorted(found.starts)


def test_token_text_starts_another_character_when_bytes_spell_a_surrogate(byte_bpe: Any) -> None:
    # ed a0 would begin U+D800, which no text may hold: two replacement characters, one a byte.
    ids = byte_bpe.convert_tokens_to_ids(["í", "ł"])
    pieces = piece_bytes(byte_bpe)
    assert [pieces[i] for i in ids] == [b"\xed", b"\xa0"]
    assert token_text(byte_bpe, ids) == TokenText("��", (0, 1))


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(ids=st.lists(st.integers(0, 310), max_size=40))
def test_token_text_equals_decoding_all_bytes_when_ids_are_arbitrary(
    byte_bpe: Any, ids: list[int]
) -> None:
    pieces = piece_bytes(byte_bpe)
    assert token_text(byte_bpe, ids) == reference([pieces[i] for i in ids])
    own = byte_bpe.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert token_text(byte_bpe, ids).text == own


@pytest.mark.parametrize("name", TOKENIZERS)
def test_token_text_is_linear_when_a_reply_is_long(
    name: str, request: pytest.FixtureRequest
) -> None:
    tokenizer = request.getfixturevalue(name)
    # Continuation bytes only where there are bytes: the worst case for windows.
    bad = "ĥ" if name == "byte_bpe" else tokenizer.convert_ids_to_tokens(len(tokenizer) - 1)
    ids = [tokenizer.convert_tokens_to_ids(bad)] * 20_000
    begin = time.process_time()
    assert len(token_text(tokenizer, ids).starts) == 20_000
    assert time.process_time() - begin < 5  # quadratic time would be minutes
