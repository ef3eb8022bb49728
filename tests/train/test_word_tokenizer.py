"""The quickstart's tokenizer: one token a word, and text that comes back as it was said."""

import pytest

from debate_rollout.rendering import Renderer, token_text
from debate_train.models.scratch import LARGEST, SMALLEST, WORDS, word_tokenizer

TOKENIZER = word_tokenizer()
TURN = (
    "<solution> - - + </solution>\n<evaluation> Agent 1 6 + 5 11 - 1 10 ok </evaluation>\n"
    "<comparison> Agent 2 > Agent 1\nAgent 0 = Agent 2 </comparison>"
)


def encode(text: str) -> list[int]:
    ids: list[int] = TOKENIZER.encode(text, add_special_tokens=False)
    return ids


def test_every_word_is_one_token_and_no_other_is_known() -> None:
    numbers = [str(n) for n in range(SMALLEST, LARGEST + 1)]
    for word in (*WORDS, *numbers, "<solution>", "</consensus_reason>"):
        (token,) = encode(word)
        assert token != TOKENIZER.unk_token_id
        assert TOKENIZER.decode([token]) == f" {word}"
    assert encode("perhaps 51") == [TOKENIZER.unk_token_id] * 2
    assert len(set(TOKENIZER.get_vocab().values())) == len(TOKENIZER) == 6 + 1 + 10 + 16 + 91


def test_turn_is_decoded_as_it_was_said_but_for_a_space_before_words() -> None:
    # Solution 5, line break, evaluation 12, line break, <c> with 5 words, line break, 5, </c>: 13
    ids = encode(TURN)
    text = token_text(TOKENIZER, ids).text
    assert len(ids) == 5 + 1 + 12 + 1 + 13
    assert text.split() == TURN.split()
    assert text.replace(" ", "") == TURN.replace(" ", "")
    assert encode(text) == ids
    assert TOKENIZER.decode(ids) == text


@pytest.mark.parametrize(
    ("spaced", "plain"),
    [
        ("Agent   1", "Agent 1"),
        ("  Agent 1  ", "Agent 1"),
        ("Agent\t1", "Agent 1"),
        ("Agent 1 \n\n  Agent 2", "Agent 1\nAgent 2"),
    ],
)
def test_white_space_is_one_space_or_one_line_break(spaced: str, plain: str) -> None:
    assert encode(spaced) == encode(plain)


def test_chat_template_marks_roles_and_can_be_extended() -> None:
    renderer = Renderer(TOKENIZER)
    messages = [{"role": "user", "content": "Agent 0\nmake 4 Q 6 5 1 6"}]
    text = TOKENIZER.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert text == "<|user|>Agent 0\nmake 4 Q 6 5 1 6<|end|><|assistant|>"
    ids = renderer.encode(text)
    # <|user|>, Agent, 0, line break, make, 4, Q, 6, 5, 1, 6, <|end|>, <|assistant|>
    assert len(ids) == 13
    assert TOKENIZER.unk_token_id not in ids
    assert renderer.end_ids == (TOKENIZER.eos_token_id,)


def test_several_words_can_be_one_token() -> None:
    tokenizer = word_tokenizer(["Agent 1", "+ 5", "+ 5 11", "Agent: 2.5"])

    def tokens(text: str) -> list[str]:
        found: list[str] = tokenizer.tokenize(text)
        return [token.replace("Ġ", " ").strip() for token in found]

    # The longest first, whole words only, and never over a line break.
    assert tokens("Agent 1 + 5 11 + 5 12") == ["Agent 1", "+ 5 11", "+ 5", "12"]
    assert tokens("Agent 11 + 50") == ["Agent", "11", "+", "50"]
    assert tokens("Agent\n1 +  5") == ["Agent", "Ċ", "1", "+ 5"]
    assert tokens("Agent: 2.5 Agent:") == ["Agent: 2.5", "<unk>"]
    assert tokens("Agent: 2x5") == ["<unk>", "<unk>"]  # The dot is no pattern's.
    shorter = tokenizer.encode(TURN, add_special_tokens=False)
    text = token_text(tokenizer, shorter).text
    assert len(encode(TURN)) - len(shorter) == 4  # "Agent 1" twice, and "+ 5 11" saves two.
    assert text == token_text(TOKENIZER, encode(TURN)).text
    assert tokenizer.encode(text, add_special_tokens=False) == shorter
