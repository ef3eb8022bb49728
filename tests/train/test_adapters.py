"""Two roles with adapters of their own on one base: what each learns, keeps and is served with."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import load_file

from debate_protocol.types import role_of
from debate_train.batches.packs import pack
from debate_train.batches.row_types import Batch
from debate_train.batches.rows import build_batch
from debate_train.commands.cli import main
from debate_train.models import PretrainedModel
from debate_train.models.loaded_model import (
    LoadedModel,
    Lora,
    export_weights,
    trained_adapters,
    with_adapter,
)
from debate_train.playing import start_debates
from debate_train.recipe import Recipe
from debate_train.recipe.refusals import Launch, run_errors
from debate_train.running.open_engines import open_engine
from train.small_runs import end_of
from train.test_policies import logps_of
from train.two_adapters import BOTH, CLIPPED, MEANS, NAMES, ONE, REINFORCE, settings

Tensors = Mapping[str, torch.Tensor]
OPTIMIZER = "optimizer-00000.safetensors"


def recipe_of_roles(base: str, roles: dict[str, Any], **sections: Any) -> Recipe:
    return Recipe.model_validate(settings(base, roles, **sections))


def tensors_of(loaded: LoadedModel, adapter: str) -> Tensors:
    tensors = get_peft_model_state_dict(loaded.model, adapter_name=adapter)
    return {name: tensor.clone() for name, tensor in tensors.items()}


def with_spread_adapters(recipe: Recipe) -> LoadedModel:
    """Load the recipe's model; draw the matrices that begin as zeros, so that adapters differ."""
    loaded = with_adapter(recipe.model.load(recipe.seed), recipe.seed)
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return loaded


def single_adapter(recipe: Recipe, loaded: LoadedModel, adapter: str) -> LoadedModel:
    """Load a second model with only this adapter, under no name."""
    unnamed = recipe.model.model_copy(update={"lora": Lora(rank=2, alpha=4)})
    single = with_adapter(unnamed.load(recipe.seed), recipe.seed)
    set_peft_model_state_dict(single.model, dict(tensors_of(loaded, adapter)))
    return single


def rows_of_adapter(batch: Batch, adapter: str) -> Batch:
    rows = tuple(replace(row, adapter=None) for row in batch.rows if row.adapter == adapter)
    return replace(batch, rows=rows, sampled_tokens=sum(int(row.mask.sum()) for row in rows))


def are_close(tensors: Tensors, expected: Tensors) -> bool:
    return all(
        torch.allclose(tensors[name], expected[name], rtol=1e-12, atol=1e-12) for name in expected
    )


def are_equal(tensors: Tensors, expected: Tensors) -> bool:
    return all(torch.equal(tensors[name], expected[name]) for name in expected)


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("roles", "loss", "trained"),
    [
        (BOTH, REINFORCE, NAMES),
        (ONE, REINFORCE, ("second",)),
        (BOTH, {**CLIPPED, "kl": {"weight": 0.3, "reference": "base"}}, NAMES),
        (BOTH, {**CLIPPED, "kl": {"weight": 0.3, "reference": "phase_start"}}, NAMES),
        (BOTH, MEANS, NAMES),
        (BOTH, {**MEANS, "aggregation": "sequence_mean"}, NAMES),
    ],
    ids=["both", "one frozen", "towards the base", "towards the start", "token means", "turns"],
)
def test_two_adapters_take_the_two_steps_of_two_models(
    float64: None, base: str, roles: dict[str, Any], loss: dict[str, Any], trained: tuple[str, ...]
) -> None:
    recipe = recipe_of_roles(base, roles, loss=loss)
    own_rate = recipe.trainer.model_copy(update={"learning_rate": 0.01})
    trainers = {"first": recipe.trainer, "second": own_rate}
    trainer_of_both = recipe.trainer.model_copy(update={"learning_rates": {"second": 0.01}})
    loaded = with_spread_adapters(recipe)
    start = {name: tensors_of(loaded, name) for name in NAMES}
    assert trained_adapters(recipe.model.lora, recipe.debate) == trained
    singles = {name: single_adapter(recipe, loaded, name) for name in NAMES}
    sessions = {name: trainers[name].open(singles[name], recipe.loss, 2) for name in NAMES}
    engine = open_engine(recipe, loaded)
    trainer = trainer_of_both.open(replace(loaded, training=trained), recipe.loss, 2)
    engine.load(trainer.weights(0))
    source = recipe.data.open(recipe.seed)
    for step in range(2):
        debates = start_debates(recipe, source.batch(step), f"train/{step}")
        transcripts = recipe.rollout.play(debates, engine)
        for transcript in transcripts:
            for turn in transcript.turns:
                assert turn.reply is not None
                assert turn.reply.weight_version == step
                adapter = role_of(transcript.protocol, turn.agent).adapter
                assert adapter is not None
                expected = logps_of(singles[adapter].model, turn)
                sampled = torch.tensor(turn.reply.logps)
                torch.testing.assert_close(sampled, expected, rtol=1e-12, atol=1e-12)
        advantages = recipe.advantage.compute(transcripts, recipe.reward(transcripts), {})
        streams = recipe.advantage.streams
        batch = build_batch(transcripts, advantages.turns, streams, loaded.tokenizer)
        assert {row.adapter for row in batch.rows} == set(trained)
        before = {name: tensors_of(loaded, name) for name in NAMES}
        metrics = trainer.step(batch)
        assert metrics["optim/learning_rate/second"] == 0.01
        for name in trained:
            single_metrics = sessions[name].step(rows_of_adapter(batch, name))
            for key in ("loss", "optim/entropy", "optim/grad_norm", "optim/ratio_max"):
                expected_metric = pytest.approx(single_metrics[key], rel=1e-12, abs=1e-15)
                assert metrics[f"{key}/{name}"] == expected_metric
            assert are_close(tensors_of(loaded, name), tensors_of(singles[name], "default"))
            assert not are_close(tensors_of(loaded, name), before[name])
        assert metrics["loss"] == pytest.approx(sum(metrics[f"loss/{name}"] for name in trained))
        engine.load(trainer.weights(step + 1))
    for name in set(NAMES) - set(trained):
        assert are_equal(tensors_of(loaded, name), start[name])
    engine.close()


@pytest.mark.numeric
def test_one_engine_with_two_adapters_replies_as_two_engines(float64: None, base: str) -> None:
    recipe = recipe_of_roles(base, BOTH)
    loaded = with_spread_adapters(recipe)
    engine = open_engine(recipe, loaded)
    engine.load(export_weights(loaded, 1))
    questions = recipe.data.open(recipe.seed).batch(0)[:1]
    (together,) = recipe.rollout.play(start_debates(recipe, questions, "x"), engine)
    engine.close()
    unnamed = recipe_of_roles(base, {"ours": {"temperature": 0.75}, "theirs": {}})
    for agent, name in enumerate(NAMES):
        single = single_adapter(recipe, loaded, name)
        single_engine = recipe.rollout.engine.open(single.model, single.tokenizer)
        single_engine.load(export_weights(single, 1))
        debates = start_debates(unnamed, questions, "x")
        (separate,) = recipe.rollout.play(debates, single_engine)
        reply, expected = (
            next(turn.reply for turn in debate.turns if turn.key == (agent, 0))
            for debate in (together, separate)
        )
        assert reply is not None
        assert expected is not None
        assert reply.token_ids == expected.token_ids
        assert reply.logps == pytest.approx(expected.logps, rel=1e-12)
        single_engine.close()


def test_pack_has_rows_of_one_adapter_on_every_rank(random_batch: Any) -> None:
    batch = random_batch(lengths=(8, 23, 14, 30, 9))
    owners = ("first", "second", "first", "first", "second")
    rows = [replace(row, adapter=owner) for row, owner in zip(batch.rows, owners, strict=True)]
    batch = replace(batch, rows=tuple(rows))
    weights = [row.mask[row.sampled_positions] for row in rows]
    first_rank, second_rank = pack(batch, weights, 24, ranks=2)
    # The ranks meet in every pack, so each has the same adapters in the same order.
    order = [pack_of_rows.adapter for pack_of_rows in first_rank]
    assert order == [pack_of_rows.adapter for pack_of_rows in second_rank] == sorted(order)
    packed_rows = set()
    for pack_of_rows in (*first_rank, *second_rank):
        row_numbers = set(pack_of_rows.rows_A.tolist())
        assert {owners[number] for number in row_numbers} <= {pack_of_rows.adapter}
        packed_rows |= row_numbers
    assert packed_rows == {0, 1, 2, 3, 4}


PHASES = {
    "second": {"debate": {"roles": {"ours": {"train": False}}}},
    "first": {"debate": {"roles": {"theirs": {"train": False}}}},
    "both": {"pipeline": {"max_staleness": 1}, "loss": CLIPPED, "steps": 3},
}


def test_phases_train_one_adapter_after_the_other_and_resume_exactly(
    base: str, tmp_path: Path
) -> None:
    roles = {"ours": {"adapter": "first"}, "theirs": {"adapter": "second"}}
    every_step = {"every": 1, "keep_last": 99}
    written = settings(base, roles, phases=PHASES, checkpoint=every_step, recording={"debates": 0})
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(written))
    complete, again = tmp_path / "complete", tmp_path / "again"
    assert main([str(file), "--output", str(complete)]) == 0

    adapters: dict[int, dict[str, Tensors]] = {}
    for step in range(1, 8):
        folder = complete / f"checkpoints/step-{step:06d}"
        adapters[step] = {n: load_file(folder / n / "adapter_model.safetensors") for n in NAMES}
    # Two steps of the second adapter, two of the first, three of both.
    for step, changed in ((1, {"second"}), (2, {"first"}), (3, {"first"}), (4, set(NAMES))):
        now, before = adapters[step + 1], adapters[step]
        assert {name for name in NAMES if not are_equal(now[name], before[name])} == changed
    untrained = adapters[2]["first"]
    assert not any(untrained[name].any() for name in untrained if "lora_B" in name)
    rows = [json.loads(line) for line in (complete / "metrics.jsonl").read_text().splitlines()]
    measured = [{name for name in NAMES if f"optim/grad_norm/{name}" in row} for row in rows]
    assert measured == [{"second"}] * 2 + [{"first"}] * 2 + [set(NAMES)] * 3

    for last_step in (3, 5):  # Within the second phase, and the third, which plays ahead.
        shutil.copytree(complete, again)
        for step in range(last_step + 1, 8):
            shutil.rmtree(again / f"checkpoints/step-{step:06d}")
        assert main([str(file), "--resume", "--output", str(again)]) == 0
        files = [f"{name}/adapter_model.safetensors" for name in NAMES]
        assert end_of(again, OPTIMIZER, *files) == end_of(complete, OPTIMIZER, *files)
        shutil.rmtree(again)

    # Each folder is a policy of its own: the base with this adapter merged.
    policy = complete / "checkpoints/step-000007/second"
    merged = PretrainedModel(name=str(policy), dtype="float32").load(0)
    loaded = with_adapter(Recipe.model_validate(written).model.load(0), 0)
    set_peft_model_state_dict(loaded.model, dict(adapters[7]["second"]), adapter_name="second")
    loaded.model.set_adapter("second")
    ids = torch.tensor([[5, 6, 7, 8]])
    torch.testing.assert_close(merged.model(ids).logits, loaded.model(ids).logits)


def pretrained(*adapters: str) -> dict[str, Any]:
    return {"type": "pretrained", "name": "x", "lora": {"adapters": adapters}}


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"debate": {"roles": {"ours": {"adapter": "frist"}, "theirs": {}}}},
            "debate.roles.ours.adapter: found 'frist', expected one of first, second "
            "(model.lora.adapters); did you mean 'first'?",
        ),
        (
            {"model": {"type": "scratch"}, "debate": {"roles": BOTH}},
            "debate.roles.ours.adapter: found 'first', but model.lora.adapters has no names",
        ),
        ({"model": pretrained("a", "a")}, "found 'a' 2 times; expected each once"),
        ({"model": pretrained("a.b")}, "String should match pattern"),
    ],
)
def test_unknown_adapters_are_refused(base: str, sections: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as refusal:
        recipe_of_roles(base, BOTH, **sections)
    assert message in str(refusal.value)


def test_rate_of_an_unknown_adapter_is_refused(base: str) -> None:
    recipe = recipe_of_roles(base, BOTH, trainer={"type": "torch", "learning_rates": {"frist": 1}})
    (error,) = run_errors(recipe, Launch())
    assert error.startswith("trainer.learning_rates: found 'frist', expected one of first, second")
    single = recipe_of_roles(base, {}, trainer=recipe.trainer, model=pretrained())
    (error,) = run_errors(single, Launch())
    assert "model.lora.adapters has no names" in error
