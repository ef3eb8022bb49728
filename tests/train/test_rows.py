"""Rows of tokens: merged turns, masks, and denominators that hold for the whole step."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch

from arithmetic import UNIT
from debate_protocol.types import Protocol, Question, Reply, Transcript, Turn, TurnKey
from debate_rewards.reward import Credit, Score
from debate_train.advantages import Advantage, Grouped, Stream, TurnAdvantages
from debate_train.batches.row_types import Batch, weigh
from debate_train.batches.rows import build_batch
from debate_train.losses import (
    Aggregation,
    Dapo,
    Grpo,
    ImportanceSampling,
    Kl,
    Loss,
    PpoClip,
    Reinforce,
    Sft,
)
from debate_train.models.loaded_model import LoadedModel
from debate_train.models.scratch import word_tokenizer

pytestmark = pytest.mark.numeric

TOKENIZER = word_tokenizer()
GENERATOR = {"generator": Stream()}
OPENING = "<|user|> make 4 Q 6 5 1 6 <|end|><|assistant|>"
NEWS = "<|user|> Agent 1 : + + - <|end|><|assistant|>"
FIRST = "<solution> - + </solution> <comparison> N/A </comparison>"  # 4 + 3 tokens
SECOND = "<solution> + </solution> <comparison> Agent 1 = Agent 2 </comparison>"  # 3 + 7 tokens


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER.encode(text, add_special_tokens=False))


def turn(agent: int, round: int, prompt: tuple[int, ...], text: str) -> Turn:
    said = ids(text)
    logps = tuple(-3.0 - 0.125 * k - agent for k in range(len(said)))
    reply = Reply(TOKENIZER.decode(said), "stop", prompt, said, logps, 0.5 + agent, 4 + round)
    return Turn(agent, round, reply.text, reply=reply)


def debate(*turns: Turn) -> Transcript:
    return Transcript("d", Question("q", "?"), Protocol(num_agents=3, max_rounds=2), turns)


GROWN = (*ids(OPENING), *ids(FIRST), *ids(NEWS))
MERGED = debate(
    turn(0, 0, ids(OPENING), FIRST),
    turn(1, 0, ids(OPENING), SECOND),
    turn(0, 1, GROWN, SECOND),
)
GIVEN: TurnAdvantages = {
    TurnKey(0, 0): [Advantage("generator", 1.0), Advantage("judge", -2.0)],
    TurnKey(1, 0): [Advantage("generator", -0.5)],
    TurnKey(0, 1): [Advantage("generator", 0.25), Advantage("judge", 0.75)],
}


def split(transcript: Transcript) -> tuple[list[Transcript], list[TurnAdvantages]]:
    """Each turn as a debate of its own: the same ids, none merged."""
    alone = [dataclasses.replace(transcript, turns=(one,)) for one in transcript.turns]
    return alone, [{t.key: GIVEN[t.key]} for one in alone for t in one.turns]


def test_versions_are_those_of_each_token_when_weights_changed_within_a_reply() -> None:
    mixed = dataclasses.replace(
        turn(0, 0, ids(OPENING), FIRST).reply, version_spans=((3, 0, 2), (4, 2, 7))
    )
    spoken = Turn(0, 0, mixed.text, reply=mixed)
    (row,) = build_batch([debate(spoken)], [{}], {"generator": Stream()}, TOKENIZER).rows
    assert row.over_tokens("versions").tolist() == [-1] * 10 + [3] * 2 + [4] * 5


def test_turns_that_extend_each_other_share_a_row() -> None:
    batch = build_batch([MERGED], [GIVEN], {"generator": Stream(), "judge": Stream()}, TOKENIZER)
    long, short = batch.rows
    told, said, news, again = len(ids(OPENING)), len(ids(FIRST)), len(ids(NEWS)), len(ids(SECOND))
    assert (told, said, news, again) == (10, 7, 9, 10)
    assert tuple(long.tokens) == (*GROWN, *ids(SECOND))
    assert tuple(short.tokens) == (*ids(OPENING), *ids(SECOND))
    assert long.mask.tolist() == [0] * 10 + [1] * 7 + [0] * 9 + [1] * 10
    assert long.over_tokens("segments").tolist() == [0] * 10 + [1] * 7 + [0] * 9 + [2] * 10
    assert long.over_tokens("versions").tolist() == [-1] * 10 + [4] * 7 + [-1] * 9 + [5] * 10
    assert long.over_tokens("temperatures").tolist() == [1] * 10 + [0.5] * 7 + [1] * 9 + [0.5] * 10
    assert short.over_tokens("temperatures").tolist() == [1] * 10 + [1.5] * 10
    # Generator on the solution (4 of 7, 3 of 10 tokens), judge on the comparison.
    credit = [1.0] * 4 + [-2.0] * 3
    assert (
        long.over_tokens("advantages").tolist()
        == [0] * 10 + credit + [0] * 9 + [0.25] * 3 + [0.75] * 7
    )
    assert (
        long.over_tokens("streams").tolist()
        == [0] * 10 + [1] * 4 + [2] * 3 + [0] * 9 + [1] * 3 + [2] * 7
    )
    assert long.over_tokens("sampler_logps")[10:17].tolist() == [-3.0 - 0.125 * k for k in range(7)]
    assert not long.over_tokens("sampler_logps")[17:26].any()
    assert (batch.sampled_tokens, batch.turns) == (27, 3)
    assert [(row.agent, row.debate) for row in batch.rows] == [(0, 0), (1, 0)]


def test_turn_whose_prompt_does_not_extend_the_last_starts_a_row() -> None:
    fresh = debate(turn(0, 0, ids(OPENING), FIRST), turn(0, 1, ids(OPENING + NEWS), SECOND))
    batch = build_batch([fresh], [{}], GENERATOR, TOKENIZER)
    assert [len(row) for row in batch.rows] == [10 + 7, 19 + 10]
    assert all(set(row.over_tokens("segments")) == {0, 1} for row in batch.rows)


def test_turn_without_tokens_leaves_no_row() -> None:
    lost = Turn(0, 0, "", failure="context_overflow", reply=Reply("", "context_overflow"))
    batch = build_batch([debate(lost)], [{}], {**GENERATOR, "judge": Stream()}, TOKENIZER)
    assert (batch.rows, batch.sampled_tokens, batch.turns) == ((), 0, 0)
    after = debate(lost, turn(0, 1, ids(OPENING), FIRST))
    assert len(build_batch([after], [{}], GENERATOR, TOKENIZER).rows) == 1


def test_failed_turn_carries_its_value_on_every_token() -> None:
    failed = debate(turn(0, 0, ids(OPENING), "<comparison> N/A </comparison> no"))
    given: TurnAdvantages = {TurnKey(0, 0): [Advantage("generator", -1.0)]}
    (row,) = build_batch([failed], [given], GENERATOR, TOKENIZER).rows
    assert row.over_tokens("advantages").tolist() == [0] * 10 + [-1] * 4


def test_stream_of_weight_0_is_left_out_and_weights_multiply() -> None:
    streams = {"generator": Stream(weight=2.0), "judge": Stream(weight=0.0)}
    batch = build_batch([MERGED], [GIVEN], streams, TOKENIZER)
    assert batch.streams == ("generator",)
    assert batch.rows[0].over_tokens("advantages")[10:17].tolist() == [2.0] * 4 + [0.0] * 3


def test_overlapping_maps_add_on_a_token() -> None:
    streams = {"generator": Stream(), "judge": Stream(weight=0.5, sections=("solution",))}
    batch = build_batch([MERGED], [GIVEN], streams, TOKENIZER)
    assert (
        batch.rows[0].over_tokens("advantages")[10:17].tolist()
        == [1.0 + 0.5 * -2.0] * 4 + [0.0] * 3
    )
    assert batch.rows[0].over_tokens("streams")[10:17].tolist() == [3] * 4 + [0] * 3


def weighted_sum(batch: Batch, aggregation: Aggregation) -> float:
    """Σ of advantages as a loss with these denominators weighs them."""
    ready, weights = weigh(batch, aggregation)
    pairs = [(w, row.advantages) for w, row in zip(weights, ready.rows, strict=True)]
    return sum(float(w.astype(np.float64) @ credit.astype(np.float64)) for w, credit in pairs)


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
def test_streams_are_means_over_the_tokens_they_cover(
    aggregation: Aggregation, expected: float
) -> None:
    # Weights, credits and their products are rounded to float32; together they are below 4.
    streams = {"generator": Stream(), "judge": Stream(weight=2.0)}
    for transcripts, given in (([MERGED], [GIVEN]), split(MERGED)):
        batch = build_batch(transcripts, given, streams, TOKENIZER)
        assert weighted_sum(batch, aggregation) == pytest.approx(expected, abs=3 * 4 * UNIT)


def test_sequence_mean_counts_only_turns_that_a_stream_covers() -> None:
    mute = debate(
        turn(0, 0, ids(OPENING), FIRST), turn(1, 0, ids(OPENING), "<solution> + </solution>")
    )
    given: TurnAdvantages = {
        TurnKey(0, 0): [Advantage("judge", 3.0)], TurnKey(1, 0): [Advantage("judge", 5.0)],
    }  # fmt: skip
    streams = {"judge": Stream()}
    batch = build_batch([mute], [given], streams, TOKENIZER)
    # The second turn has no comparison: one turn speaks, its mean is 3.
    assert weighted_sum(batch, "sequence_mean") == pytest.approx(3.0)


GradientOf = Callable[..., tuple[dict[str, float], Mapping[str, torch.Tensor]]]


LOSSES: Sequence[Loss] = [
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
def test_loss_and_gradient_are_equal_merged_or_split_in_any_micro_batches(
    tiny: Callable[..., LoadedModel], gradient_of: GradientOf, loss: Loss
) -> None:
    loaded, reference = tiny(), tiny(seed=1) if loss.reference_policy else None
    streams = {"generator": Stream(), "judge": Stream(weight=0.5)}

    def built(transcripts: list[Transcript], given: list[TurnAdvantages]) -> Batch:
        return build_batch(transcripts, given, streams, TOKENIZER)

    whole = built([MERGED], [GIVEN])
    apart = built(*split(MERGED))
    assert (len(whole.rows), len(apart.rows)) == (2, 3)
    # A turn in a debate of its own no longer shows the prompt that its agent began with.
    assert {row.group for row in whole.rows} == {0}
    rows = tuple(dataclasses.replace(row, group=0) for row in apart.rows)
    apart = dataclasses.replace(apart, rows=rows)
    metrics, gradient = gradient_of(loaded, whole, loss, reference)
    largest = max(float(g.abs().max()) for g in gradient.values())
    assert largest > 1e-3
    for batch, budget in ((whole, 1), (apart, 10**6), (apart, 60), (apart, 1)):
        again, found = gradient_of(loaded, batch, loss, reference, tokens_per_micro_batch=budget)
        assert again == pytest.approx(metrics, abs=1e-13, rel=1e-12)
        scale = max(1.0, largest)
        for name, expected in gradient.items():
            torch.testing.assert_close(found[name], expected, rtol=0, atol=1e-13 * scale)


def test_a_token_weighs_the_product_that_the_notation_states() -> None:
    both = debate(turn(0, 0, ids(OPENING), FIRST), turn(1, 0, ids(OPENING), SECOND))
    credits = [
        Credit(agent, 0, stream, value, component=component, weight=weight)
        for stream, component, weight, values in (
            ("generator", "a", 0.25, (1.0, 0.0)),  # Baseline 1/2: +-1/8.
            ("generator", "b", 2.0, (0.0, 1.0)),  # Baseline 1/2: -+1; with the other -+7/8.
            ("judge", "", 1.0, (3.0, 1.0)),  # Baseline 2: +-1.
        )
        for agent, value in enumerate(values)
    ]
    advantage = Grouped(
        streams={
            "generator": Stream(weight=2.0, sections={"solution": 3.0}),
            "judge": Stream(weight=0.5),
        }
    )
    found = advantage([both], [Score(tuple(credits), (None,) * 3, {})])
    batch = build_batch([both], found, advantage.streams, TOKENIZER)
    ready, weights = weigh(batch, "token_mean_batch")
    # Solutions of 4 and 3 tokens, of which the stream's mean is over 7; comparisons of 3 and 7.
    solution, comparison = 2 / 7 * 3 * 7 / 8, 0.5 / 10
    expected = ([-solution] * 4 + [comparison] * 3, [solution] * 3 + [-comparison] * 7)
    for row, weight, values in zip(ready.rows, weights, expected, strict=True):
        product = weight.astype(np.float64) * row.advantages
        # Each of the two numbers is rounded to float32, and the sum over streams.
        assert product == pytest.approx(values, rel=4 * UNIT, abs=0)
