"""The five calls of a step: what goes in, what comes out, and that no seed is used twice."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest

from debate_protocol.tags import Scan, ThinkMode, scan
from debate_protocol.types import Ask, Gate, Question
from debate_rollout.drivers import play
from debate_rollout.engine import Weights
from debate_rollout.engines import ScriptedEngine
from debate_rollout.errors import EngineFailure
from debate_rollout.token_text import TokenText, token_text
from debate_train.checks.check_warnings import warnings_of
from debate_train.data import SignsPuzzle
from debate_train.loop import Work, rollouts_of, train
from debate_train.playing.starts import start_debates
from debate_train.recipe import Recipe
from debate_train.records import step_metrics
from debate_train.rows import Batch
from debate_train.step import Step
from debate_train.word_tokenizer import word_tokenizer

SOURCE = SignsPuzzle(batch_size=3).open()


def recipe(**changes: object) -> Recipe:
    settings: dict[str, object] = {
        "name": "t",
        "steps": 2,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 3},
        "debate": {"num_agents": 3, "max_rounds": 2, "style": "compact", "personas": "none"},
        "reward": {"type": "verifiable"},
        "advantage": {"baseline": "question_round"},
    }
    return Recipe.model_validate(settings | changes)


def first_asks(form: Recipe, step: int) -> list[Ask]:
    asks: list[Ask] = []
    for run in start_debates(form, SOURCE.batch(0), f"train/{step}"):
        yielded = next(run)
        assert not isinstance(yielded, Gate)
        asks += yielded
    return asks


def test_no_two_turns_share_a_seed() -> None:
    form = recipe(rollout={"debates_per_question": 2, "direct_per_question": 1})
    kinds = [(form, 0), (form, 1), (form.model_copy(update={"seed": 1}), 0)]
    seeds = [ask.seed for one, step in kinds for ask in first_asks(one, step)]
    # 3 times 3 questions of two debates of three agents and one single reply.
    assert len(seeds) == 3 * 3 * (2 * 3 + 1)
    assert len(set(seeds)) == len(seeds)
    assert seeds[:21] == [ask.seed for ask in first_asks(form, 0)]


def test_single_replies_stand_beside_the_debates_of_a_question() -> None:
    form = recipe(rollout={"debates_per_question": 1, "direct_per_question": 2})
    asks = first_asks(form, 0)
    assert [ask.agent for ask in asks] == [0, 1, 2, 0, 0] * 3
    assert asks[0].messages == asks[3].messages == asks[4].messages
    assert asks[0].question == asks[4].question != asks[5].question


class Trainer:
    """Notes what it is given."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.versions: list[int] = []

    def step(self, batch: Batch) -> dict[str, float]:
        self.batches.append(batch)
        return {"loss": float(len(self.batches))}

    def weights(self, version: int) -> Weights:
        self.versions.append(version)
        return Weights(version, {})


class Kept:
    """Holds the steps that were recorded, and counts those that ended well."""

    baselines: dict[str, float] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.sampled: list[tuple[int, bool]] = []
        self.trained_steps: list[int] = []
        self.ended = 0

    def learning(self) -> AbstractContextManager[None]:
        return nullcontext()

    def sample(self, step: Step) -> None:
        self.sampled.append((step.number, "loss" in step.metrics))

    def trained(self, step: Step) -> None:
        assert "loss" in step.metrics
        self.trained_steps.append(step.number)

    def record(self, step: Step) -> None:
        self.steps.append(step)

    def after(self, step: Step) -> None:
        self.ended += 1


def work(form: Recipe, trainer: Any) -> Work:
    tokenizer = word_tokenizer()
    player = ScriptedEngine().open(None, tokenizer, script=SOURCE.demonstrate)
    return Work(form, SOURCE, player, player, trainer, tokenizer)


def test_each_step_learns_from_its_own_debates_and_serves_the_new_weights() -> None:
    form, trainer, keeper = recipe(advantage={"baseline": "none"}), Trainer(), Kept()
    both = work(form, trainer)
    train(both, rollouts_of(both), range(4, 6), keeper)
    kept = keeper.steps
    assert keeper.ended == 2
    assert keeper.sampled == [(4, False), (5, False)]  # Before their updates.
    assert keeper.trained_steps == [4, 5]
    assert [step.number for step in kept] == [4, 5]
    assert trainer.versions == [5, 6]
    assert [step.metrics["loss"] for step in kept] == [1.0, 2.0]
    assert all(step.metrics["time/rollout_s"] == step.metrics["time/wait_s"] for step in kept)
    parts = {"time/rollout_s", "time/wait_s", "time/score_s", "time/rows_s", "time/weights_s"}
    assert all({key for key in s.metrics if key.startswith("time/")} == parts for s in kept)
    for step, batch in zip(kept, trainer.batches, strict=True):
        assert [t.question for t in step.transcripts] == SOURCE.batch(step.number)
        assert batch is step.batch
        # Two turns of each agent grow into one row; demonstrations are sampled by the engine here.
        assert (len(batch.rows), batch.turns) == (9, 18)
        assert all(row.advantages.any() for row in batch.rows)
    replies = [t.reply for t in kept[1].transcripts[0].turns]
    assert all(reply is not None and reply.weight_version == 5 for reply in replies)


def test_every_turn_is_parsed_and_its_tokens_decoded_once_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []
    decoded: list[tuple[int, ...]] = []

    def scanned(text: str, sections: Sequence[str], think: ThinkMode) -> Scan:
        parsed.append(text)
        return scan(text, sections, think)

    def decoding(tokenizer: Any, ids: Sequence[int]) -> TokenText:
        decoded.append(tuple(ids))
        return token_text(tokenizer, ids)

    monkeypatch.setattr("debate_protocol.parsing.scan", scanned)
    monkeypatch.setattr("debate_rollout.engines.scripted_engine.token_text", decoding)
    monkeypatch.setattr("debate_train.rows.token_text", decoding)
    # Two rewards read the debates, and then rows and metrics do.
    components = {n: {"reward": {"type": n}, "weight": 1.0} for n in ("v2", "verifiable")}
    form, keeper = recipe(reward={"type": "mixed", "components": components}), Kept()
    both = work(form, Trainer())
    train(both, rollouts_of(both), range(1), keeper)
    metrics, problem = step_metrics(keeper.steps[0], form, seconds=1.0)
    turns = [turn for debate in keeper.steps[0].transcripts for turn in debate.turns]
    assert problem is None and any(name.startswith("judge/") for name in metrics)
    assert sorted(parsed) == sorted(turn.text for turn in turns)
    assert sorted(decoded) == sorted(turn.reply.token_ids for turn in turns if turn.reply)


def test_no_weights_are_served_while_replies_are_demonstrated() -> None:
    trainer = Trainer()
    form = recipe()
    shown = work(form, trainer)
    both = replace(shown, engine=ScriptedEngine(replies=("no",)).open())
    train(both, rollouts_of(both), range(2), Kept())
    assert trainer.versions == []
    assert len(trainer.batches) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gate": {"metric": "eval/format", "at_least": 1, "max_steps": 1}}, "found 1, but the"),
        (
            {
                "gate": {"metric": "eval/format", "at_least": 1},
                "evaluation": {"questions": 0},
            },
            "a gate measures on them",
        ),
        ({"gate": {"metric": "eval/judge", "at_least": 1}}, "'eval/judge' is not measured"),
        (
            {"model": {"type": "pretrained", "name": "m"}, "trainer": {"type": "deepspeed"}},
            r"trainer\.bf16: found false with a model in bfloat16",
        ),
    ],
)
def test_recipe_that_cannot_teach_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipe(**changes)


def test_supervised_recipe_may_read_greedy_replies() -> None:
    greedy = {"num_agents": 3, "personas": "none", "temperature": 0}
    form = recipe(debate=greedy, loss={"type": "sft"}, rollout={"top_p": 0.9})
    assert form.debate.temperature_of(0) == 0


@pytest.mark.parametrize(
    ("model", "trainer", "warned"),
    [
        ({}, {}, True),
        ({"dtype": "float32"}, {}, False),
        ({"lora": {}}, {}, False),
        ({}, {"type": "deepspeed", "bf16": True}, False),
    ],
)
def test_full_training_in_half_precision_is_warned_of(
    model: dict[str, object], trainer: dict[str, object], warned: bool
) -> None:
    form = recipe(model={"type": "pretrained", "name": "a/b", **model}, trainer=trainer)
    assert any("lost to rounding" in text for text in warnings_of(form)) == warned


def test_debate_ends_early_when_answers_are_equivalent_but_not_equal() -> None:
    debate = {"num_agents": 3, "max_rounds": 3, "personas": "none", "stop_when_agreed": True}
    form = recipe(debate=debate)
    said = (
        "<solution>\\boxed{%s}</solution><evaluation>N/A</evaluation><comparison>N/A</comparison>"
    )
    answers = ("1/2", "0.5", r"\frac{1}{2}")
    player = ScriptedEngine().open(script=lambda ask: said % answers[ask.agent])
    question = Question("half", "What is 3/6?", answer="1/2")
    (played,) = play(start_debates(form, [question], "train/0"), player, max_tokens=64)
    assert played.meta["ended"] == "agreed"
    assert len(played.turns) == 3


def test_step_counts_when_the_engine_takes_no_weights_after_it() -> None:
    form, keeper = recipe(), Kept()
    both = work(form, Trainer())
    rollouts = rollouts_of(both)

    def refuse(version: int) -> None:
        raise EngineFailure("no answer")

    rollouts.refresh = refuse  # type: ignore[method-assign]
    with pytest.raises(EngineFailure):
        train(both, rollouts, range(2), keeper)
    assert (keeper.trained_steps, keeper.steps, keeper.ended) == ([0], [], 0)
