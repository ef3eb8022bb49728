"""Debates of a step: which questions debate, in which forms, and which turns are trained on."""

from collections import Counter
from itertools import count

import numpy as np
import pytest

from arithmetic import UNIT
from debate_protocol.forms import Judged
from debate_protocol.types import Question, Reply, Transcript, TurnRequest
from debate_rewards import JudgedReward
from debate_rollout.engines import ScriptedEngine
from debate_rollout.rendering import TokenText
from debate_train.advantages import Grouped, Stream
from debate_train.batches.row_types import weigh
from debate_train.batches.rows import build_batch, stream_credit, turn_tokens
from debate_train.data import SignsPuzzle
from debate_train.losses import Dapo
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import named_debates, play_step
from debate_train.recipe import Recipe
from debate_train.recipe.scripted_debates import play_debate
from debate_train.trainers import TorchTrainer
from train.contexts import Trainer, context, trained
from train.drawn_steps import Batches, counts, engine
from train.drawn_steps import recipe as drawn_recipe

STREAMS = {"generator": Stream()}


# Self-debates: a rule selects which questions go on


def make_self_debate(num_debating, batch_size=3):
    rules = [{"type": "informative"}, {"type": "at_most", "go_on": num_debating}]
    settings = drawn_recipe().model_dump(exclude_unset=True)
    settings["data"]["batch_size"] = batch_size
    settings["debate"] = {
        "type": "self_debate",
        "style": "compact",
        "contract": "three_section",
        "first_turns": 2,
        "second_turns": 3,
    }
    settings["rollout"] |= {
        "debates_per_question": 1,
        "select": {"type": "in_order", "rules": rules},
    }
    return Recipe.model_validate(settings)


def count_turns(debates):
    return {debate.question.id: len(debate.turns) for debate in debates}


@pytest.mark.numeric
def test_debates_of_a_step_are_counted_when_all_its_questions_are_drawn():
    sampler = engine()
    call_sizes = []
    generate = sampler.generate

    def counting_generate(requests, **rest):
        call_sizes.append(len(requests))
        return generate(requests, **rest)

    sampler.generate = counting_generate
    source = Batches("h1 s1 e1", "s2 h2 s3", "s4 s5")
    debates = play_step(make_self_debate(2), source, 0, sampler)
    # Two of the three questions have 3 second turns each beside 2 first ones. They are sampled
    # in one call, after all first turns: s4, a surplus, gets none.
    assert sorted(count_turns(debates)) == ["s1", "s2", "s3"]
    assert sorted(count_turns(debates).values()) == [2, 5, 5]
    *first_turns, second_turns = call_sizes
    assert second_turns == 2 * 3
    assert sum(first_turns) == 2 * counts(debates)["drawn"]
    assert counts(debates)["rounds"] == len(first_turns)


@pytest.mark.numeric
def test_every_selected_question_may_be_among_those_that_debate():
    # Questions of a later round of drawing are as likely to debate as those of the first: 1 of 3,
    # over 60 steps. Binomial(60, 1/3): standard deviation 3.7, five of them 18.
    num_debates = Counter()
    for step in range(60):
        source = Batches(*["h1 s1 h2", "s2 h3 s3", "s4 h4 h5"] * (step + 1))
        for name, num_turns in count_turns(
            play_step(make_self_debate(1), source, step, engine())
        ).items():
            num_debates[name] += num_turns > 2
    assert num_debates.total() == 60
    assert sorted(num_debates) == ["s1", "s2", "s3"]
    assert all(abs(count - 20) < 18 for count in num_debates.values())


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("num_debating", "batches", "expected"),
    [
        (2, ("h1", "s1", "e1"), {"s1": 5}),
        (2, ("h1", "h2", "e1"), {}),
        (0, ("h1", "s1", "e1"), {"s1": 2}),
    ],
)
def test_a_step_without_enough_debates_plays_those_it_has(num_debating, batches, expected):
    debates = play_step(make_self_debate(num_debating), Batches(*batches), 0, engine())
    assert count_turns(debates) == expected
    assert counts(debates)["missing"] == 3 - len(expected)


@pytest.fixture
def two_questions():
    """Play two questions; the second turns to `t1` are all right, so that none is trained on."""
    recipe = make_self_debate(2, batch_size=2)
    debates = play_step(recipe, Batches("h1 s1 t1", "h2", "h3"), 0, engine())
    advantage = Grouped(baseline="prompt", scale="std", leave_out_zeros=(1,), streams=STREAMS)
    advantages = advantage.compute(debates, recipe.reward(debates), {})
    trained_turns = advantages.trained_turns(debates)
    return build_batch(trained_turns, advantages.turns, STREAMS, word_tokenizer())


# First turns are right and wrong, +1 and -1: (1 - 0) / (sqrt(2) + 1e-6). Second turns to s1 are
# right, wrong and right: mean 1/3, variance (2 * 4/9 + 16/9) / 2 = 4/3.
FIRST = 1 / (2**0.5 + 1e-6)
SPREAD = (4 / 3) ** 0.5 + 1e-6


@pytest.mark.numeric
def test_second_turns_without_an_advantage_leave_before_the_denominator(two_questions):
    advantages = {0: [], 1: []}
    for row in two_questions.rows:
        (value,) = set(row.over_tokens("advantages")[row.mask > 0].tolist())
        advantages[row.debate].append(value)
    second = [2 / 3 / SPREAD, -4 / 3 / SPREAD, 2 / 3 / SPREAD]
    assert advantages[0] == pytest.approx([FIRST, -FIRST, *second], rel=1e-6)
    assert advantages[1] == pytest.approx([FIRST, -FIRST], rel=1e-6)
    # A token of the step counts 1 / (sampled tokens of the seven rows).
    num_tokens = sum(int(row.mask.sum()) for row in two_questions.rows)
    assert two_questions.sampled_tokens == num_tokens
    assert two_questions.turns == 7
    weights = np.concatenate(weigh(two_questions, "token_mean_batch")[1])
    assert set(weights[weights != 0]) == {np.float32(1 / num_tokens)}


@pytest.mark.numeric
def test_group_of_a_token_mean_is_a_question_or_its_debate_prompt(two_questions):
    (length,) = {int(row.mask.sum()) for row in two_questions.rows}
    # Algorithm 1 adds (s1, 2 replies), (s1's debate prompt, 3) and (t1, 2); the replies to t1's
    # debate prompt have no advantage. Eq. 7 is a mean over these three of means over tokens.
    shares = {0: [], 1: []}
    weights = weigh(two_questions, "token_mean_group")[1]
    for row, row_weights in zip(two_questions.rows, weights, strict=True):
        shares[row.debate].append(float(row_weights.max()) * length)
    assert shares[0] == pytest.approx([1 / 6, 1 / 6, 1 / 9, 1 / 9, 1 / 9], rel=2 * UNIT)
    assert shares[1] == pytest.approx([1 / 6, 1 / 6], rel=2 * UNIT)
    # On two ranks, a row in each micro-batch: of |A| there is 1/sqrt(2) in the mean of either
    # question, and (2/3 + 4/3 + 2/3)/3 = 8/9 over the spread sqrt(4/3) in that of the prompt.
    trainer = TorchTrainer(tokens_per_micro_batch=1, packing="rows")
    loss = Dapo(aggregation="token_mean_group")
    first_rank, second_rank = trainer.packs(two_questions, loss, ranks=2)
    total = 0.0
    for pack in [*first_rank, *second_rank]:
        total += float((pack.weights_A.double() * pack.advantages_A.double().abs()).sum())
    assert total == pytest.approx((FIRST + 8 / 9 / SPREAD + FIRST) / 3, rel=3 * UNIT)


# Several forms, in turn

STYLE = {"contract": "five_section", "style": "compact", "personas": "none"}
SELF = {"type": "self_debate", "first_turns": 2, "second_turns": 1, **STYLE}
LARGE = {"type": "simultaneous", "num_agents": 5, "max_rounds": 1, **STYLE}


def make_recipe(**changes):
    settings = {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 4},
        "debate": {"num_agents": 3, "max_rounds": 2, **STYLE},
        "rollout": {"other_forms": [LARGE, SELF], "direct_per_question": 1},
        "reward": {"type": "verifiable"},
        "advantage": {"baseline": "question_round"},
    }
    return Recipe.model_validate(settings | changes)


def first_seeds(recipe):
    """Start the debates of a step; return of each its name and the seeds of its first turns."""
    questions = SignsPuzzle(batch_size=4).open().batch(0)
    debates = named_debates(recipe, questions, "train/0")
    return [(name, [request.seed for request in next(run)]) for name, run in debates]


@pytest.mark.numeric
def test_questions_are_debated_in_the_forms_in_turn():
    mixed = first_seeds(make_recipe())
    plain = first_seeds(make_recipe(rollout={"direct_per_question": 1}))
    # Debate and single reply of each question; the first form again for the fourth question.
    assert [len(seeds) for _, seeds in mixed] == [3, 1, 5, 1, 2, 1, 3, 1]
    assert [len(seeds) for _, seeds in plain] == [3, 1] * 4
    for index in (0, 1, 3, 5, 6, 7):
        assert mixed[index] == plain[index]


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("contract", "num_other_replies"), [("five_section", 0), ("answer_line", 5)]
)
def test_a_step_learns_from_all_its_forms(tmp_path, contract, num_other_replies):
    source = SignsPuzzle(batch_size=4).open()
    tokenizer = word_tokenizer(["Answer:"])
    player = ScriptedEngine().open(None, tokenizer, script=source.demonstrate)
    recipe = make_recipe(
        advantage={"baseline": "none"},
        rollout={"other_forms": [LARGE | {"contract": contract}, SELF]},
    )
    trainer = Trainer()
    trained(context(recipe, tmp_path / "run", player, source, tokenizer), trainer)
    (batch,) = trainer.batches
    assert batch.turns == 2 * 6 + 5 + 3
    replies = [tokenizer.decode(row.tokens[row.sampled_positions]) for row in batch.rows]
    assert sum("<solution>" not in reply for reply in replies) == num_other_replies


def test_copies_share_what_comes_before_the_round_that_is_paid() -> None:
    contract = {"name": "speech", "sections": ["solution"]}
    debate = {"type": "judged", "style": "compact", "contract": contract, "max_rounds": 5}
    words = ["<decision>", "</decision>"]
    recipe = Recipe.model_validate(
        {
            "name": "t",
            "steps": 1,
            "model": {"type": "scratch"},
            "data": {"type": "signs_puzzle", "batch_size": 16},
            "debate": {**debate, "diverge": True},
            "rollout": {"debates_per_question": 3},
            "reward": {"type": "judged"},
            "advantage": {"baseline": "prompt"},
            "loss": {"type": "ppo_clip"},
        }
    )
    said = count()  # Nobody says the same thing twice.

    def say(request: TurnRequest) -> str:
        is_judge = request.contract is not None and "decision" in request.contract.sections
        if is_judge:
            return "<decision> Agent 0 </decision>"
        return "<solution> {} {} </solution>".format(*divmod(next(said), 50))

    engine = ScriptedEngine().open(None, word_tokenizer(words), script=say)
    debates = play_step(recipe, SignsPuzzle(batch_size=16).open(), 0, engine)
    parted = set()
    for first in range(0, len(debates), 3):
        copies = debates[first : first + 3]
        (at,) = {one.meta["diverged"] for one in copies}
        parted.add(at)
        for turns in zip(*(one.turns for one in copies), strict=True):
            if turns[0].round < 4:
                assert len({turn.text for turn in turns}) == (1 if turns[0].round < at else 3)
            if turns[0].round <= at:
                assert all(turn.prompt == turns[0].prompt for turn in turns)
        for score in JudgedReward()(copies):
            paid = {credit.round for credit in score.credits if credit.value is not None}
            assert paid == {at}
    assert len(parted) > 2


def paid_text(transcript: Transcript, agent: int) -> str:
    """Return the characters of an agent's last turn that stream `judge` gives an advantage."""
    advantage = Grouped(baseline="none")
    (given,) = advantage([transcript], JudgedReward(judge="truth")([transcript]))
    turn = [turn for turn in transcript.turns if turn.agent == agent][-1]
    text = TokenText(turn.text, tuple(range(len(turn.text))))
    credit = stream_credit(turn_tokens(transcript, turn, text), given[turn.key], advantage.streams)
    values = credit[0][[*advantage.streams].index("judge")]
    return "".join(c for c, value in zip(turn.text, values, strict=True) if value)


@pytest.mark.parametrize(
    ("said", "paid"),
    [
        ("<decision>Agent 0</decision>", "<decision>Agent 0</decision>"),
        ("<decision>neither</decision>", "<decision>neither</decision>"),
        ("I like the first one.", "I like the first one."),
    ],
)
def test_what_a_judge_is_paid_reaches_its_decision(said: str, paid: str) -> None:
    def say(request: TurnRequest) -> Reply:
        return Reply(f"\\boxed{{{request.agent}}}" if request.agent < 2 else said)

    question = Question("q", "?", "0", {"kind": "number"})
    assert paid_text(play_debate(Judged(judges=1).start(question, seed=0), say), 2) == paid
