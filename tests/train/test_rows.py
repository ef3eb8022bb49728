"""Rows of a step: merged turns, masks, and which token gets which advantage."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from arithmetic import UNIT, in_float64
from debate_protocol.forms import Simultaneous
from debate_protocol.parsing import parse
from debate_protocol.prompts import Persona
from debate_protocol.types import Protocol, Question, Reply, Transcript, Turn, TurnKey
from debate_rewards import ConlReward
from debate_rewards.reward import Credit, Score
from debate_rollout.drivers import play
from debate_rollout.engines import TransformersEngine
from debate_rollout.rendering import TokenText, token_text
from debate_train.advantages import Advantage, Grouped, Stream
from debate_train.batches.forward import token_logps
from debate_train.batches.packs import make_pack
from debate_train.batches.row_types import Batch, weigh
from debate_train.batches.rows import (
    TurnTokens,
    build_batch,
    stream_credit,
    token_sections,
    turn_tokens,
)
from debate_train.losses import (
    Dapo,
    Grpo,
    ImportanceSampling,
    Kl,
    PpoClip,
    Reinforce,
    Sft,
)
from debate_train.models.scratch import word_tokenizer
from rewards.test_conl import conversation

pytestmark = pytest.mark.numeric

WORDS = word_tokenizer()
GENERATOR = {"generator": Stream()}


def encode(text):
    return tuple(WORDS.encode(text, add_special_tokens=False))


OPENING = encode("<|user|> make 4 Q 6 5 1 6 <|end|><|assistant|>")  # 10 tokens
NEWS = encode("<|user|> Agent 1 : + + - <|end|><|assistant|>")  # 9 tokens
FIRST = "<solution> - + </solution> <comparison> N/A </comparison>"  # 4 + 3 tokens
SECOND = "<solution> + </solution> <comparison> Agent 1 = Agent 2 </comparison>"  # 3 + 7 tokens
GROWN = OPENING + encode(FIRST) + NEWS


def make_turn(agent, round, prompt, text):
    token_ids = encode(text)
    logps = tuple(-3.0 - 0.125 * position - agent for position in range(len(token_ids)))
    reply = Reply(
        WORDS.decode(token_ids),
        "stop",
        prompt,
        token_ids,
        logps,
        temperature=0.5 + agent,
        weight_version=4 + round,
    )
    return Turn(agent, round, reply.text, reply=reply)


def make_debate(*turns):
    return Transcript("d", Question("q", "?"), Protocol(num_agents=3, max_rounds=2), turns)


def build_rows(turns, advantages=None, streams=GENERATOR):
    return build_batch([make_debate(*turns)], [advantages or {}], streams, WORDS).rows


# The second turn of agent 0 goes on from its first: both are one row.
MERGED = make_debate(
    make_turn(0, 0, OPENING, FIRST),
    make_turn(1, 0, OPENING, SECOND),
    make_turn(0, 1, GROWN, SECOND),
)
ADVANTAGES = {
    TurnKey(0, 0): [Advantage("generator", 1.0), Advantage("judge", -2.0)],
    TurnKey(1, 0): [Advantage("generator", -0.5)],
    TurnKey(0, 1): [Advantage("generator", 0.25), Advantage("judge", 0.75)],
}


def build_merged(streams):
    return build_batch([MERGED], [ADVANTAGES], streams, WORDS)


def build_split(streams):
    """Build each turn as a debate of its own: the same token ids, none merged."""
    debates = [replace(MERGED, turns=(turn,)) for turn in MERGED.turns]
    advantages = [{turn.key: ADVANTAGES[turn.key]} for turn in MERGED.turns]
    batch = build_batch(debates, advantages, streams, WORDS)
    # A turn in a debate of its own does not show the prompt that its agent began with.
    return replace(batch, rows=tuple(replace(row, group=0) for row in batch.rows))


def test_turns_that_extend_each_other_share_a_row():
    batch = build_merged({"generator": Stream(), "judge": Stream()})
    long, short = batch.rows
    assert tuple(long.tokens) == GROWN + encode(SECOND)
    assert tuple(short.tokens) == OPENING + encode(SECOND)
    assert long.mask.tolist() == [0] * 10 + [1] * 7 + [0] * 9 + [1] * 10
    # Generator on the solution (4 of 7, 3 of 10 tokens), judge on the comparison.
    first_turn = [1.0] * 4 + [-2.0] * 3
    second_turn = [0.25] * 3 + [0.75] * 7
    expected = {
        "segments": [0] * 10 + [1] * 7 + [0] * 9 + [2] * 10,
        "versions": [-1] * 10 + [4] * 7 + [-1] * 9 + [5] * 10,
        "temperatures": [1] * 10 + [0.5] * 7 + [1] * 9 + [0.5] * 10,
        "advantages": [0] * 10 + first_turn + [0] * 9 + second_turn,
        "streams": [0] * 10 + [1] * 4 + [2] * 3 + [0] * 9 + [1] * 3 + [2] * 7,
    }
    assert {name: long.over_tokens(name).tolist() for name in expected} == expected
    assert short.over_tokens("temperatures").tolist() == [1] * 10 + [1.5] * 10
    sampler_logps = long.over_tokens("sampler_logps").tolist()
    assert sampler_logps[10:17] == [-3.0 - 0.125 * position for position in range(7)]
    assert not any(sampler_logps[17:26])
    assert (batch.sampled_tokens, batch.turns) == (27, 3)
    assert [(row.agent, row.debate) for row in batch.rows] == [(0, 0), (1, 0)]


def test_turn_whose_prompt_does_not_extend_the_last_starts_a_row():
    rows = build_rows([make_turn(0, 0, OPENING, FIRST), make_turn(0, 1, OPENING + NEWS, SECOND)])
    assert [len(row) for row in rows] == [10 + 7, 19 + 10]
    assert all(set(row.over_tokens("segments")) == {0, 1} for row in rows)


def test_versions_are_those_of_each_token_when_weights_changed_within_a_reply():
    turn = make_turn(0, 0, OPENING, FIRST)
    reply = replace(turn.reply, version_spans=((3, 0, 2), (4, 2, 7)))
    (row,) = build_rows([replace(turn, reply=reply)])
    assert row.over_tokens("versions").tolist() == [-1] * 10 + [3] * 2 + [4] * 5


def test_turn_without_tokens_leaves_no_row():
    lost = Turn(0, 0, "", failure="context_overflow", reply=Reply("", "context_overflow"))
    batch = build_batch([make_debate(lost)], [{}], GENERATOR, WORDS)
    assert (batch.rows, batch.sampled_tokens, batch.turns) == ((), 0, 0)
    assert len(build_rows([lost, make_turn(0, 1, OPENING, FIRST)])) == 1


def test_failed_turn_carries_its_value_on_every_token():
    turn = make_turn(0, 0, OPENING, "<comparison> N/A </comparison> no")
    (row,) = build_rows([turn], {turn.key: [Advantage("generator", -1.0)]})
    assert row.over_tokens("advantages").tolist() == [0] * 10 + [-1] * 4


def test_streams_of_one_section_add_on_its_tokens():
    judge = Stream(weight=0.5, sections=("solution",))
    row = build_merged({"generator": Stream(), "judge": judge}).rows[0]
    assert row.over_tokens("advantages")[10:17].tolist() == [1.0 + 0.5 * -2.0] * 4 + [0.0] * 3
    assert row.over_tokens("streams")[10:17].tolist() == [3] * 4 + [0] * 3


def weighted_sum(batch, aggregation):
    """Add up the advantages as a loss with these denominators weighs them."""
    weighed, weights = weigh(batch, aggregation)
    total = 0.0
    for row, row_weights in zip(weighed.rows, weights, strict=True):
        total += float(row_weights.astype(np.float64) @ row.advantages.astype(np.float64))
    return total


@pytest.mark.parametrize("build", [build_merged, build_split])
@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [
        # Covered by the generator: 4 + 3 + 3 = 10 tokens, (4·1 + 3·(-.5) + 3·.25)/10 = .325;
        # by the judge: 3 + 7 + 7 = 17, (3·(-2) + 0 + 7·.75)/17 = -.75/17, weighing 2.
        ("token_mean_batch", 0.325 + 2 * -0.75 / 17),
        # Turn means 1, -.5, .25 and -2, 0, .75 over the covered tokens; three turns in each.
        ("sequence_mean", 0.75 / 3 + 2 * -1.25 / 3),
    ],
)
def test_streams_are_means_over_the_tokens_they_cover(build, aggregation, expected):
    batch = build({"generator": Stream(), "judge": Stream(weight=2.0)})
    # Weights, credits and their products are rounded to float32; together they are below 4.
    assert weighted_sum(batch, aggregation) == pytest.approx(expected, abs=3 * 4 * UNIT)


def test_sequence_mean_counts_only_turns_that_a_stream_covers():
    turns = (
        make_turn(0, 0, OPENING, FIRST),
        make_turn(1, 0, OPENING, "<solution> + </solution>"),
    )
    advantages = {
        TurnKey(0, 0): [Advantage("judge", 3.0)],
        TurnKey(1, 0): [Advantage("judge", 5.0)],
    }
    batch = build_batch([make_debate(*turns)], [advantages], {"judge": Stream()}, WORDS)
    # The second turn has no comparison: one turn speaks, its mean is 3.
    assert weighted_sum(batch, "sequence_mean") == pytest.approx(3.0)


LOSSES = [
    ImportanceSampling(aggregation="token_sum"),
    ImportanceSampling(aggregation="sequence_mean", kl=Kl(weight=0.5)),
    PpoClip(kl=Kl(weight=0.1)),
    Dapo(aggregation="token_mean_group"),
    Grpo(),
    Reinforce(),
    Sft(),
]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.type}-{loss.aggregation}")
def test_loss_and_gradient_are_equal_merged_or_split_in_any_micro_batches(tiny, gradient_of, loss):
    loaded = tiny()
    reference = tiny(seed=1) if loss.reference_policy else None
    streams = {"generator": Stream(), "judge": Stream(weight=0.5)}
    merged = build_merged(streams)
    split = build_split(streams)
    assert (len(merged.rows), len(split.rows)) == (2, 3)
    assert {row.group for row in merged.rows} == {0}
    expected_metrics, expected_gradient = gradient_of(loaded, merged, loss, reference)
    largest = max(float(slope.abs().max()) for slope in expected_gradient.values())
    assert largest > 1e-3
    for batch, budget in ((merged, 1), (split, 10**6), (split, 60), (split, 1)):
        metrics, gradient = gradient_of(
            loaded, batch, loss, reference, tokens_per_micro_batch=budget
        )
        assert metrics == pytest.approx(expected_metrics, abs=1e-13, rel=1e-12)
        for name, slope in expected_gradient.items():
            gap = 1e-13 * max(1.0, largest)
            torch.testing.assert_close(gradient[name], slope, rtol=0, atol=gap)


def test_a_token_weighs_the_product_that_the_notation_states():
    debate = make_debate(make_turn(0, 0, OPENING, FIRST), make_turn(1, 0, OPENING, SECOND))
    credits = (
        # Baseline 1/2: ±1/8.
        Credit(0, 0, "generator", 1.0, component="a", weight=0.25),
        Credit(1, 0, "generator", 0.0, component="a", weight=0.25),
        # Baseline 1/2: ∓1; with the other ∓7/8.
        Credit(0, 0, "generator", 0.0, component="b", weight=2.0),
        Credit(1, 0, "generator", 1.0, component="b", weight=2.0),
        # Baseline 2: ±1.
        Credit(0, 0, "judge", 3.0),
        Credit(1, 0, "judge", 1.0),
    )
    advantage = Grouped(
        streams={
            "generator": Stream(weight=2.0, sections={"solution": 3.0}),
            "judge": Stream(weight=0.5),
        }
    )
    turn_advantages = advantage([debate], [Score(credits, (None,) * 3, {})])
    batch = build_batch([debate], turn_advantages, advantage.streams, WORDS)
    weighed, weights = weigh(batch, "token_mean_batch")
    # Solutions of 4 and 3 tokens, of which the stream's mean is over 7; comparisons of 3 and 7.
    solution = 2 / 7 * 3 * 7 / 8
    comparison = 0.5 / 10
    expected = ([-solution] * 4 + [comparison] * 3, [solution] * 3 + [-comparison] * 7)
    for row, row_weights, values in zip(weighed.rows, weights, expected, strict=True):
        product = row_weights.astype(np.float64) * row.advantages
        # Each of the two numbers is rounded to float32, and the sum over streams.
        assert product == pytest.approx(values, rel=4 * UNIT, abs=0)


# Sections of tokens


@pytest.fixture(scope="module")
def byte_bpe():
    """Train a vocabulary too small for most emoji and CJK characters: they split across tokens."""
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


def tokens_and_sections(tokenizer, reply):
    """Tokenize a reply with the end token that was sampled after it."""
    ids = [*tokenizer.encode(reply, add_special_tokens=False), tokenizer.eos_token_id]
    text = token_text(tokenizer, ids)
    sections = token_sections(text, parse(text.text, "three_section"))
    return tokenizer.convert_ids_to_tokens(ids), sections


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        # <s> - - + </s> = 5; line break, <e>, Agent, 1, ok, </e> = 6; the rest with the end token:
        # line break, <c>, Agent, 2, >, Agent, 1, </c>, <|end|> = 9
        (
            "<solution> - - + </solution>\n<evaluation> Agent 1 ok </evaluation>\n"
            "<comparison> Agent 2 > Agent 1 </comparison>",
            ["solution"] * 5 + ["evaluation"] * 6 + ["comparison"] * 9,
        ),
        # Text before a section joins it, text after the last joins that:
        # ok valid <s> + </s> = 5; make Q <c> N/A </c> no no <|end|> = 8
        (
            "ok valid <solution> + </solution> make Q <comparison> N/A </comparison> no no",
            ["solution"] * 5 + ["comparison"] * 8,
        ),
        # Unclosed: the token " <comparison>" begins with a space, which is still the solution's.
        ("<solution> + <comparison> Agent 1 >", ["solution"] * 3 + ["comparison"] * 4),
        # Without an answer that can be read all tokens are the generator's.
        ("ok valid no", ["solution"] * 4),
        ("<solution> </solution> <comparison> Agent 1 </comparison>", ["solution"] * 7),
    ],
    ids=["in order", "text around", "unclosed", "none", "empty"],
)
def test_word_tokens_belong_to_the_section_they_stand_in(reply, expected):
    assert tokens_and_sections(WORDS, reply)[1] == expected


CJK = "<solution>答案🙂</solution><comparison>Agent 1 > Agent 2 🤖好</comparison>"


def test_bytes_of_split_characters_stay_in_their_section(byte_bpe):
    tokens, sections = tokens_and_sections(byte_bpe, CJK)
    num_solution = sections.count("solution")
    assert sections == ["solution"] * num_solution + ["comparison"] * (len(tokens) - num_solution)
    solution_tokens = tokens[:num_solution]
    # 答 and 案 have 3 bytes each, 🙂 has 4, and none of them was merged into one token.
    num_bytes = sum(all(ord(c) > 0x7E for c in token) for token in solution_tokens)
    assert num_bytes == 3 + 3 + 4
    # The corpus taught the token "><": it begins with the byte that closes the solution.
    solution = byte_bpe.decode(byte_bpe.convert_tokens_to_ids(solution_tokens))
    assert solution == "<solution>答案🙂</solution><"


def test_credit_of_a_line_reaches_every_byte_of_its_characters(byte_bpe):
    ids = byte_bpe.encode(CJK, add_special_tokens=False)
    text = token_text(byte_bpe, ids)
    start = CJK.index("🤖")
    advantages = [Advantage("judge", 1.0), Advantage("judge", 7.0, (start, start + 1))]
    turn = TurnTokens(text, token_sections(text, parse(CJK, "three_section")))
    values, _ = stream_credit(turn, advantages, {"judge": Stream()})
    robot_ids = [token_id for token_id, value in zip(ids, values[0], strict=True) if value == 7.0]
    assert len(robot_ids) == 4
    assert byte_bpe.decode(robot_ids) == "🤖"


@pytest.mark.parametrize(
    ("second_token", "section"),
    # The solution's closing tag ends at character 22: a token from 20 on starts within it.
    [(20, "solution"), (22, "comparison")],
)
def test_token_belongs_to_the_section_of_its_first_byte(second_token, section):
    reply = "<solution>1</solution>x<comparison>N/A</comparison>"
    text = TokenText(reply, (0, second_token, 24, 35))
    sections = token_sections(text, parse(reply, "three_section"))
    assert sections == ["solution", section, "comparison", "comparison"]


# Credit of one turn: a token a character, and an end token without text

LETTERS = TokenText("abcdefgh", (0, 1, 2, 3, 4, 5, 6, 7, 8))
SECTIONS = ["solution"] * 3 + ["evaluation"] * 2 + ["comparison"] * 4


def letter_credit(advantages, **streams):
    return stream_credit(TurnTokens(LETTERS, SECTIONS), advantages, streams)


def test_streams_cover_their_sections_and_overlap():
    values, covers = letter_credit(
        [Advantage("generator", 2.0), Advantage("judge", -0.5)],
        generator=Stream(),
        judge=Stream(sections=("evaluation", "comparison")),
    )
    assert values.tolist() == [[2.0] * 5 + [0.0] * 4, [0.0] * 3 + [-0.5] * 6]
    assert covers.astype(int).tolist() == [[1, 1, 1, 1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1, 1, 1]]


@pytest.mark.parametrize(
    ("advantages", "expected"),
    [
        # A span replaces the turn's value, and of two spans the shortest speaks.
        # Tokens 5..8 are the comparison's; 8 is an end token without text.
        (
            [
                Advantage("judge", 9.0, (6, 7)),
                Advantage("judge", 3.0, (5, 7)),
                Advantage("judge", 1.0),
                Advantage("judge", 0.0, (7, 8)),
            ],
            [0, 0, 0, 0, 0, 3, 9, 0, 1],
        ),
        # A span reaches tokens outside the stream's sections, and the whole text end tokens.
        ([Advantage("judge", 2.0, (3, 4))], [0, 0, 0, 2, 0, 0, 0, 0, 0]),
        ([Advantage("judge", 2.0, (0, 8))], [2.0] * 9),
        # A span of one component leaves the other's value alone.
        (
            [
                Advantage("judge", 1.0, None, "peers"),
                Advantage("judge", 5.0, (5, 6), "peers"),
                Advantage("judge", 0.25, None, "truth"),
            ],
            [0, 0, 0, 0, 0, 5.25, 1.25, 1.25, 1.25],
        ),
    ],
    ids=["shortest", "outside", "whole text", "components"],
)
def test_spans_replace_the_turns_value(advantages, expected):
    values, covers = letter_credit(advantages, judge=Stream())
    assert values[0].tolist() == expected
    # Covered are the comparison and what a span reaches.
    assert covers[0].tolist() == [value != 0 or n > 4 for n, value in enumerate(expected)]


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        # Of the span (3, 7), two tokens are the evaluation's and two the comparison's.
        ({"evaluation": 3.0, "comparison": 0.5}, [0, 0, 0, 6, 6, 1, 1, 0.5, 0.5]),
        ({"evaluation": 0.0, "comparison": 2.0}, [0, 0, 0, 0, 0, 4, 4, 2, 2]),
        ({"comparison": 2.0}, [0, 0, 0, 2, 2, 4, 4, 2, 2]),  # not named: where the span says
    ],
)
def test_span_counts_with_the_weight_of_its_section(weights, expected):
    advantages = [Advantage("judge", 1.0), Advantage("judge", 2.0, (3, 7))]
    values, covers = letter_credit(advantages, judge=Stream(sections=weights))
    assert values[0].tolist() == expected
    assert covers[0].tolist() == [value != 0 for value in expected]


def test_sections_of_an_own_contract_are_the_generators_and_the_returns():
    streams = {name: Stream() for name in ("generator", "judge", "critic", "return")}
    turn = TurnTokens(LETTERS, ["poem"] * 6 + ["comparison"] * 3)
    values, _ = stream_credit(turn, [Advantage(name, 1.0) for name in streams], streams)
    # The first letter is of the poem, the last token of the comparison.
    assert values[:, [0, 8]].tolist() == [[1, 0], [0, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize("last", [" Agent 2\n", " Agent 2 ok\n", " Agent 2 > Agent 2\n"])
def test_the_price_of_a_line_reaches_the_line_break_in_the_place_of_its_verdict(last):
    reply = (
        "<solution> - </solution>\n<comparison> Agent 1 > Agent 2\n"
        f"{last} Agent 3 = Agent 4 </comparison>"
    )
    ids = [*encode(reply), WORDS.eos_token_id]
    text = token_text(WORDS, ids)
    parsed = parse(text.text, "three_section")
    (dropped_line,) = parsed.dropped_lines
    advantages = [Advantage("judge", 1.0), Advantage("judge", -0.5, dropped_line)]
    turn = TurnTokens(text, token_sections(text, parsed))
    values, _ = stream_credit(turn, advantages, {"judge": Stream()})
    priced_ids = [token_id for token_id, value in zip(ids, values[0], strict=True) if value == -0.5]
    assert WORDS.decode(priced_ids).split() == last.split()
    assert "\n" in WORDS.decode(priced_ids[-1:])


@pytest.mark.parametrize("judge_credit", ["block", "line"])
def test_each_round_of_a_conversation_teaches_its_own_sections(judge_credit):
    """CoNL: a blind ranking has no signal, a critique and a last ranking have one of their own."""
    transcript = conversation()
    streams = {name: Stream() for name in ("generator", "critic", "judge")}
    (score,) = ConlReward.model_validate({"judge_credit": judge_credit})([transcript])
    for turn in transcript.turns:
        advantages = [
            Advantage(credit.stream, credit.value, credit.span)
            for credit in score.credits
            if (credit.agent, credit.round) == turn.key and credit.value is not None
        ]
        text = TokenText(turn.text, tuple(range(len(turn.text))))
        values, _ = stream_credit(turn_tokens(transcript, turn, text), advantages, streams)
        letters = np.array(list(turn.text))
        generator, critic, judge = ("".join(letters[row != 0]) for row in values)
        if turn.round in (0, 2):
            assert (generator, critic, judge) == (turn.text, "", "")
        elif turn.round == 1:
            # Of agent 0's critiques only the first is worth something.
            assert "Agent 1" not in critic and "comparison" not in critic
            assert ("Agent 2: no." in critic) == (turn.agent == 0)
            assert generator == judge == ""
        else:
            assert judge.startswith("<comparison>") and not generator


TEMPERATURES = (0.5, 1.0, 1.75)


def logps_at(loaded, row, temperatures):
    batch = Batch((replace(row, temperatures=temperatures),), ("generator",), 1, 1)
    pack = make_pack(batch, [row.mask[row.sampled_positions]], [0], "none")
    with torch.no_grad(), in_float64():
        return token_logps(loaded.model, pack)[0].numpy()


def test_each_turn_is_trained_at_the_temperature_of_its_persona(tiny):
    loaded = tiny()
    loaded.model.double()
    personas = tuple(Persona(name=f"p{t}", temperature=t) for t in TEMPERATURES)
    form = Simultaneous(num_agents=3, max_rounds=2, style="compact", personas=personas)
    engine = TransformersEngine(max_batch=8).open(loaded.model, loaded.tokenizer)
    with in_float64():
        run = form.start(Question("q", "make 4 Q 6 5 1 6"), seed=0)
        transcripts = play([run], engine, max_tokens=12)
    batch = build_batch(transcripts, [{}], {"generator": Stream()}, loaded.tokenizer)
    assert batch.turns == 6
    for row in batch.rows:
        temperature = np.float32(TEMPERATURES[row.agent])
        expected = np.where(row.mask > 0, temperature, np.float32(1))
        assert row.over_tokens("temperatures").tolist() == expected.tolist()
        # Sampler and trainer mean the same distribution, and no other temperature does.
        # Rows keep log-probabilities in float32: rounded once.
        logps = logps_at(loaded, row, row.temperatures)
        np.testing.assert_allclose(row.sampler_logps, logps, rtol=UNIT, atol=1e-12)
        if temperature != 1:
            at_1 = logps_at(loaded, row, np.ones_like(row.temperatures))
            assert np.abs(at_1 - row.sampler_logps).max() > 0.1
