"""Steps of SDRL: which questions debate, and which second turns are trained on."""

from typing import Any

import numpy as np
import pytest

from arithmetic import UNIT
from debate_protocol.types import Protocol, Question, Transcript, Turn, TurnKey
from debate_rewards.reward import Credit, Score
from debate_train.advantages import Grouped, Stream
from debate_train.batches.row_types import weigh
from debate_train.batches.rows import build_batch
from debate_train.losses import Dapo
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import StepDebates, play_step
from debate_train.recipe import Recipe
from debate_train.trainers import TorchTrainer
from train.drawn_steps import Batches, counts, engine, recipe

pytestmark = pytest.mark.numeric

STREAMS = {"generator": Stream()}


def gen(agent: int, round: int, value: float | None) -> Credit:
    return Credit(agent, round, "generator", value)


def test_turns_without_an_advantage_leave_where_the_recipe_says() -> None:
    keys = [TurnKey(a, 0) for a in range(2)] + [TurnKey(a, 1) for a in range(2, 4)]
    turns = tuple(Turn(*key, "x") for key in keys)
    mixed, equal = (
        Transcript(name, Question(name, "?"), Protocol(4, max_rounds=2), turns) for name in "ab"
    )
    scores = [
        Score((gen(0, 0, 1.0), gen(1, 0, 1.0), gen(2, 1, 1.0), gen(3, 1, -1.0))),
        Score((gen(0, 0, 1.0), gen(1, 0, -1.0), gen(2, 1, 1.0), gen(3, 1, None))),
    ]
    config = Grouped(baseline="question_round", leave_out_zeros=(1,), streams=STREAMS)
    compared = config.compute([mixed, equal], scores, {})
    # First turns of `a` are 0, too, and stay. Of `b` the second turn with a value is alone, so 0,
    # and the other has no value.
    kept = [[t.key for t in one.turns] for one in compared.trained_turns([mixed, equal])]
    assert kept == [keys, keys[:2]]
    everywhere = config.model_copy(update={"leave_out_zeros": (0, 1)})
    kept = [
        [t.key for t in one.turns]
        for one in everywhere.compute([mixed, equal], scores, {}).trained_turns([mixed, equal])
    ]
    assert kept == [keys[2:], keys[:2]]
    silent = Grouped(baseline="question_round", streams=STREAMS).compute([equal], scores[1:], {})
    assert silent.trained_turns([equal]) == [equal]


def self_debate(go_on: int, wanted: int = 3) -> Recipe:
    rules = [{"type": "informative"}, {"type": "at_most", "go_on": go_on}]
    asked = {"type": "self_debate", "style": "compact", "contract": "three_section"}
    said = recipe().model_dump(exclude_unset=True)
    said["debate"] = asked | {"first_turns": 2, "second_turns": 3}
    said["rollout"] |= {"debates_per_question": 1, "select": {"type": "in_order", "rules": rules}}
    said["data"]["batch_size"] = wanted
    return Recipe.model_validate(said)


def turns(debates: StepDebates) -> dict[str, int]:
    return {debate.question.id: len(debate.turns) for debate in debates}


def test_debates_of_a_step_are_counted_when_all_its_questions_are_drawn() -> None:
    source = Batches("h1 s1 e1", "s2 h2 s3", "s4 s5")
    asked: list[int] = []
    sampler = engine()
    plain = sampler.generate

    def generate(requests: Any, **rest: Any) -> Any:
        asked.append(len(requests))
        return plain(requests, **rest)

    sampler.generate = generate
    debates = play_step(self_debate(2), source, 0, sampler)
    # Two of the three questions have 3 second turns each beside 2 first ones. They are sampled
    # in one call, after all first turns: s4, a surplus, gets none.
    assert sorted(turns(debates)) == ["s1", "s2", "s3"]
    assert sorted(turns(debates).values()) == [2, 5, 5]
    assert asked[-1] == 2 * 3 and sum(asked[:-1]) == 2 * counts(debates)["drawn"]
    assert counts(debates)["rounds"] == len(asked) - 1


def test_second_turns_without_an_advantage_leave_before_the_denominator() -> None:
    asked = self_debate(2, wanted=2)
    debates = play_step(asked, Batches("h1 s1 t1", "h2", "h3"), 0, engine())
    scores = asked.reward(debates)
    advantage = Grouped(baseline="prompt", scale="std", leave_out_zeros=(1,), streams=STREAMS)
    compared = advantage.compute(debates, scores, {})
    batch = build_batch(compared.trained_turns(debates), compared.turns, STREAMS, word_tokenizer())
    # First turns are right and wrong, +1 and -1: (1 - 0) / (sqrt(2) + 1e-6). Second turns to s1 are
    # right, wrong and right: mean 1/3, variance (2 * 4/9 + 16/9) / 2 = 4/3. Those to t1 are all
    # right: none of them is a row.
    first, spread = 1 / (2**0.5 + 1e-6), (4 / 3) ** 0.5 + 1e-6
    second = [2 / 3 / spread, -4 / 3 / spread, 2 / 3 / spread]
    by_debate: list[list[float]] = [[], []]
    for row in batch.rows:
        (value,) = set(row.over_tokens("advantages")[row.mask > 0].tolist())
        by_debate[row.debate].append(value)
    assert by_debate[0] == pytest.approx([first, -first, *second], rel=1e-6)
    assert by_debate[1] == pytest.approx([first, -first], rel=1e-6)
    # A token of the step counts 1 / (sampled tokens of the seven rows).
    _, weights = weigh(batch, "token_mean_batch")
    total = sum(int(row.mask.sum()) for row in batch.rows)
    assert batch.sampled_tokens == total and batch.turns == 7
    counted = {float(w) for own in weights for w in own if w}
    assert counted == {float(np.float32(1 / total))}


def test_group_of_a_token_mean_is_a_question_or_its_debate_prompt() -> None:
    asked = self_debate(2, wanted=2)
    debates = play_step(asked, Batches("h1 s1 t1", "h2", "h3"), 0, engine())
    advantage = Grouped(baseline="prompt", scale="std", leave_out_zeros=(1,), streams=STREAMS)
    compared = advantage.compute(debates, asked.reward(debates), {})
    batch = build_batch(compared.trained_turns(debates), compared.turns, STREAMS, word_tokenizer())
    (length,) = {int(row.mask.sum()) for row in batch.rows}
    # Algorithm 1 adds (s1, 2 replies), (s1's debate prompt, 3) and (t1, 2); the replies to t1's
    # debate prompt have no advantage. Eq. 7 is a mean over these three of means over tokens.
    _, weights = weigh(batch, "token_mean_group")
    found = [
        (row.debate, float(own.max()) * length)
        for row, own in zip(batch.rows, weights, strict=True)
    ]
    of_s1 = [weight for debate, weight in found if debate == 0]
    assert of_s1 == pytest.approx([1 / 6, 1 / 6, 1 / 9, 1 / 9, 1 / 9], rel=2 * UNIT)
    assert [w for d, w in found if d] == pytest.approx([1 / 6, 1 / 6], rel=2 * UNIT)
    # On two ranks, a row in each micro-batch: of |A| there is 1/sqrt(2) in the mean of either
    # question, and (2/3 + 4/3 + 2/3)/3 = 8/9 over the spread sqrt(4/3) in that of the prompt.
    packs = TorchTrainer(tokens_per_micro_batch=1, packing="rows").packs(
        batch, Dapo(aggregation="token_mean_group"), ranks=2
    )
    assert len(packs) == 2 and sum(map(len, packs)) >= 7
    total = sum(
        float((pack.weights_A.double() * pack.advantages_A.double().abs()).sum())
        for own in packs
        for pack in own
    )
    first, second = 1 / (2**0.5 + 1e-6), 8 / 9 / ((4 / 3) ** 0.5 + 1e-6)
    assert total == pytest.approx((first + second + first) / 3, rel=3 * UNIT)


def test_every_kept_question_may_be_among_those_that_debate() -> None:
    # Those of a later round of drawing are as likely to debate as those of the first: 1 of 3 kept
    # questions, over 60 steps. Binomial(60, 1/3): standard deviation 3.7, five of them 18.
    found: dict[str, int] = {}
    for step in range(60):
        source = Batches(*["h1 s1 h2", "s2 h3 s3", "s4 h4 h5"] * (step + 1))
        for name, number in turns(play_step(self_debate(1), source, step, engine())).items():
            found[name] = found.get(name, 0) + (number > 2)
    assert sum(found.values()) == 60
    assert sorted(found) == ["s1", "s2", "s3"]
    assert all(abs(count - 20) < 18 for count in found.values())


def test_a_step_without_enough_debates_is_reported_and_plays_those_it_has() -> None:
    debates = play_step(self_debate(2), Batches("h1", "s1", "e1"), 0, engine())
    assert turns(debates) == {"s1": 5}
    assert counts(debates)["missing"] == 2
    assert turns(play_step(self_debate(2), Batches("h1", "h2", "e1"), 0, engine())) == {}
    assert turns(play_step(self_debate(0), Batches("h1", "s1", "e1"), 0, engine())) == {"s1": 2}
