"""Which token gets which advantage, on whole words and on bytes."""

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from debate_protocol.parsing import parse
from debate_rewards import ConlReward
from debate_rollout.rendering import TokenText, token_text
from debate_train.advantages import Advantage, Stream
from debate_train.batches.rows import TurnTokens, stream_credit, token_sections, turn_tokens
from debate_train.models.scratch import word_tokenizer
from rewards.test_conl import held

pytestmark = pytest.mark.numeric

WORDS = word_tokenizer()
CJK = "<solution>答案🙂</solution><comparison>Agent 1 > Agent 2 🤖好</comparison>"


@pytest.fixture(scope="module")
def byte_bpe() -> PreTrainedTokenizerFast:
    """A vocabulary too small for most emoji and CJK characters: they split across tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<|end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["<solution> </solution><comparison>Agent"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")


def sections(tokenizer: PreTrainedTokenizerFast, said: str) -> list[tuple[str, str]]:
    """(token, section) of a reply, as sampled with an end token after it."""
    ids = [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]
    text = token_text(tokenizer, ids)
    found = token_sections(text, parse(text.text, "three_section"))
    return list(zip(tokenizer.convert_ids_to_tokens(ids), found, strict=True))


def runs(found: list[tuple[str, str]]) -> list[tuple[str, int]]:
    """Sections in order with the number of tokens each holds."""
    out: list[tuple[str, int]] = []
    for _, name in found:
        out = (
            [*out[:-1], (name, out[-1][1] + 1)] if out and out[-1][0] == name else [*out, (name, 1)]
        )
    return out


def test_word_tokens_belong_to_the_section_they_stand_in() -> None:
    said = (
        "<solution> - - + </solution>\n<evaluation> Agent 1 ok </evaluation>\n"
        "<comparison> Agent 2 > Agent 1 </comparison>"
    )
    # <s> - - + </s> = 5; line break, <e>, Agent, 1, ok, </e> = 6; the rest with the end token:
    # line break, <c>, Agent, 2, >, Agent, 1, </c>, <|end|> = 9
    assert runs(sections(WORDS, said)) == [("solution", 5), ("evaluation", 6), ("comparison", 9)]


def test_text_before_a_section_joins_it_and_what_follows_the_last_joins_that() -> None:
    said = "ok valid <solution> + </solution> make Q <comparison> N/A </comparison> no no"
    # ok valid <s> + </s> = 5; make Q <c> N/A </c> no no <|end|> = 8
    assert runs(sections(WORDS, said)) == [("solution", 5), ("comparison", 8)]


def test_sections_out_of_order_keep_their_own_tokens() -> None:
    said = "<comparison> N/A </comparison> <solution> + </solution>"
    assert runs(sections(WORDS, said)) == [("comparison", 3), ("solution", 4)]


@pytest.mark.parametrize(
    "said",
    [
        "ok valid no",
        "<comparison> Agent 1 > Agent 2 </comparison>",
        "<solution> </solution> <comparison> Agent 1 > Agent 2 </comparison>",
    ],
)
def test_all_tokens_are_the_generators_when_no_answer_can_be_read(said: str) -> None:
    assert {name for _, name in sections(WORDS, said)} == {"solution"}


def test_section_without_closing_tag_ends_where_the_next_begins() -> None:
    # <s> + and the token " <comparison>", whose first byte, the space, is still the solution's.
    said = "<solution> + <comparison> Agent 1 >"
    assert runs(sections(WORDS, said)) == [("solution", 3), ("comparison", 4)]


def test_bytes_of_split_characters_stay_in_their_section(byte_bpe: PreTrainedTokenizerFast) -> None:
    found = sections(byte_bpe, CJK)
    assert [name for name, _ in runs(found)] == ["solution", "comparison"]
    own = [token for token, name in found if name == "solution"]
    # 答 and 案 have 3 bytes each, 🙂 has 4, and none of them was merged into one token.
    assert sum(all(ord(c) > 0x7E for c in token) for token in own) == 3 + 3 + 4
    # The corpus taught the token "><": it begins with the byte that closes the solution.
    assert own[-1] == "><"
    assert byte_bpe.decode(byte_bpe.convert_tokens_to_ids(own)) == "<solution>答案🙂</solution><"
    assert found[-1] == ("<|end|>", "comparison")


def test_credit_of_a_line_reaches_every_byte_of_its_characters(
    byte_bpe: PreTrainedTokenizerFast,
) -> None:
    ids = byte_bpe.encode(CJK, add_special_tokens=False)
    text = token_text(byte_bpe, ids)
    start = CJK.index("🤖")
    found = token_sections(text, parse(CJK, "three_section"))
    advantages = [Advantage("judge", 1.0), Advantage("judge", 7.0, (start, start + 1))]
    values, _ = stream_credit(TurnTokens(text, found), advantages, {"judge": Stream()})
    robot = [i for i, value in zip(ids, values[0], strict=True) if value == 7.0]
    assert len(robot) == 4
    assert byte_bpe.decode(robot) == "🤖"


def test_token_belongs_to_the_section_of_its_first_byte() -> None:
    # One token holds "n>x<": it starts in the tag that closes `solution`, and so is its token.
    text = TokenText("<solution>1</solution>x<comparison>N/A</comparison>", (0, 20, 24, 35))
    found = token_sections(text, parse(text.text, "three_section"))
    assert found == ["solution", "solution", "comparison", "comparison"]
    # Starting at character 22, right after the closing tag, it would be the next section's.
    text = TokenText(text.text, (0, 22, 24, 35))
    found = token_sections(text, parse(text.text, "three_section"))
    assert found == ["solution", "comparison", "comparison", "comparison"]


TEXT = TokenText("abcdefgh", (0, 1, 2, 3, 4, 5, 6, 7, 8))
PARTS = ["solution"] * 3 + ["evaluation"] * 2 + ["comparison"] * 4


def credit(advantages: list[Advantage], **streams: Stream) -> tuple[np.ndarray, np.ndarray]:
    values, covers = stream_credit(TurnTokens(TEXT, PARTS), advantages, streams)
    return values, covers


def test_streams_cover_their_sections_and_add_up_where_they_overlap() -> None:
    streams = {
        "generator": Stream(),
        "judge": Stream(sections=("evaluation", "comparison")),
    }
    values, covers = credit([Advantage("generator", 2.0), Advantage("judge", -0.5)], **streams)
    assert values[0].tolist() == [2.0] * 5 + [0.0] * 4
    assert values[1].tolist() == [0.0] * 3 + [-0.5] * 6
    assert (values[0] + values[1]).tolist() == [2.0] * 3 + [1.5] * 2 + [-0.5] * 4
    assert covers.astype(int).tolist() == [[1, 1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1, 1]]


def test_stream_covers_its_sections_also_without_any_advantage() -> None:
    values, covers = credit([], generator=Stream())
    assert not values.any()
    assert covers[0].tolist() == [True] * 5 + [False] * 4


def test_sections_may_weigh_apart() -> None:
    weighed = Stream(sections={"solution": 4.0, "comparison": 0.5})
    values, covers = credit([Advantage("generator", 0.5)], generator=weighed)
    assert values[0].tolist() == [2.0] * 3 + [0.0] * 2 + [0.25] * 4
    assert covers[0].tolist() == [True] * 3 + [False] * 2 + [True] * 4


def test_spans_replace_the_turns_value_and_the_shortest_speaks() -> None:
    advantages = [
        Advantage("judge", 9.0, (6, 7)),
        Advantage("judge", 3.0, (5, 7)),
        Advantage("judge", 1.0),
        Advantage("judge", 0.0, (7, 8)),
    ]
    values, _ = credit(advantages, judge=Stream())
    # Tokens 5..8 are the comparison's; 8 is an end token without text.
    assert values[0].tolist() == [0, 0, 0, 0, 0, 3, 9, 0, 1]


def test_span_reaches_and_covers_tokens_outside_the_streams_sections() -> None:
    values, covers = credit([Advantage("judge", 2.0, (3, 4))], judge=Stream())
    assert values[0].tolist() == [0, 0, 0, 2, 0, 0, 0, 0, 0]
    assert covers[0].tolist() == [False] * 3 + [True, False] + [True] * 4


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        # Of the span (3, 7), two tokens are the evaluation's and two the comparison's.
        ({"evaluation": 3.0, "comparison": 0.5}, [0, 0, 0, 6, 6, 1, 1, 0.5, 0.5]),
        ({"evaluation": 0.0, "comparison": 2.0}, [0, 0, 0, 0, 0, 4, 4, 2, 2]),
        ({"comparison": 2.0}, [0, 0, 0, 2, 2, 4, 4, 2, 2]),  # not named: where the span says
    ],
)
def test_span_counts_with_the_weight_of_its_section(
    sections: dict[str, float], expected: list[float]
) -> None:
    advantages = [Advantage("judge", 1.0), Advantage("judge", 2.0, (3, 7))]
    values, covers = credit(advantages, judge=Stream(sections=sections))
    assert values[0].tolist() == expected
    assert covers[0].tolist() == [value != 0 for value in expected]


def test_sections_of_an_own_contract_are_the_generators_and_the_returns() -> None:
    advantages = [Advantage(name, 1.0) for name in ("generator", "judge", "critic", "return")]
    turn = TurnTokens(TEXT, ["poem"] * 6 + ["comparison"] * 3)
    streams = {a.stream: Stream() for a in advantages}
    values, _ = stream_credit(turn, advantages, streams)
    own = dict(zip(streams, values[:, [0, 8]].tolist(), strict=True))
    assert own == {"generator": [1, 0], "judge": [0, 1], "critic": [0, 0], "return": [1, 1]}


def test_span_of_the_whole_text_reaches_end_tokens() -> None:
    values, _ = credit([Advantage("judge", 2.0, (0, 8))], judge=Stream())
    assert values[0].tolist() == [2.0] * 9


def test_span_of_one_component_leaves_the_others_value_alone() -> None:
    advantages = [
        Advantage("judge", 1.0, None, "peers"),
        Advantage("judge", 5.0, (5, 6), "peers"),
        Advantage("judge", 0.25, None, "truth"),
    ]
    values, _ = credit(advantages, judge=Stream())
    assert values[0].tolist() == [0, 0, 0, 0, 0, 5.25, 1.25, 1.25, 1.25]


@pytest.mark.parametrize("last", [" Agent 2\n", " Agent 2 ok\n", " Agent 2 > Agent 2\n"])
def test_the_price_of_a_line_reaches_the_line_break_in_the_place_of_its_verdict(last: str) -> None:
    said = f"<solution> - </solution>\n<comparison> Agent 1 > Agent 2\n{last} Agent 3 = Agent 4 "
    ids = [*WORDS.encode(f"{said}</comparison>", add_special_tokens=False), WORDS.eos_token_id]
    text = token_text(WORDS, ids)
    parsed = parse(text.text, "three_section")
    priced = [Advantage("judge", -0.5, span) for span in parsed.dropped_lines]
    turn = TurnTokens(text, token_sections(text, parsed))
    values, _ = stream_credit(turn, [Advantage("judge", 1.0), *priced], {"judge": Stream()})
    tokens = zip(WORDS.convert_ids_to_tokens(ids), values[0].tolist(), strict=True)
    found = [token for token, value in tokens if value == -0.5]
    assert len(priced) == 1
    assert WORDS.decode(WORDS.convert_tokens_to_ids(found)).split() == last.split()
    assert "\n" in WORDS.decode(WORDS.convert_tokens_to_ids(found[-1:]))


@pytest.mark.parametrize("judge_credit", ["block", "line"])
def test_each_round_of_a_conversation_teaches_its_own_sections(judge_credit: str) -> None:
    """CoNL: a blind ranking has no signal, a critique and a last ranking have one of their own."""
    transcript = held()
    streams = {name: Stream() for name in ("generator", "critic", "judge")}
    (score,) = ConlReward.model_validate({"judge_credit": judge_credit})([transcript])
    for turn in transcript.turns:
        own = [
            Advantage(c.stream, c.value, c.span)
            for c in score.credits
            if (c.agent, c.round) == turn.key and c.value is not None
        ]
        text = TokenText(turn.text, tuple(range(len(turn.text))))
        values, _ = stream_credit(turn_tokens(transcript, turn, text), own, streams)
        taught = {
            name: "".join(c for c, v in zip(turn.text, row, strict=True) if v)
            for name, row in zip(streams, values, strict=True)
        }
        if turn.round in (0, 2):
            assert taught == {"generator": turn.text, "critic": "", "judge": ""}
        elif turn.round == 1:
            # Of agent 0's critiques the first alone is worth something.
            assert "Agent 1" not in taught["critic"] and "comparison" not in taught["critic"]
            assert ("Agent 2: no." in taught["critic"]) == (turn.agent == 0)
            assert taught["generator"] == taught["judge"] == ""
        else:
            assert taught["judge"].startswith("<comparison>") and not taught["generator"]
