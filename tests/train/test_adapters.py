"""Two roles with adapters of their own on one base: what each learns, keeps and is served with."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from peft import get_peft_model_state_dict, set_peft_model_state_dict

from debate_protocol.types import role_of
from debate_train.batches.packs import pack
from debate_train.batches.row_types import Batch
from debate_train.batches.rows import build_batch
from debate_train.models.loaded_model import (
    LoadedModel,
    Lora,
    export_weights,
    trained_adapters,
    with_adapter,
)
from debate_train.playing import start_debates
from debate_train.recipe import Recipe
from debate_train.running.open_engines import open_engine
from train.test_policies import logps_of
from train.two_adapters import BOTH, CLIPPED, NAMES, ONE, REINFORCE, settings

pytestmark = pytest.mark.numeric

Tensors = Mapping[str, torch.Tensor]


def tensors_of(loaded: LoadedModel, adapter: str) -> Tensors:
    found = get_peft_model_state_dict(loaded.model, adapter_name=adapter)
    return {name: tensor.clone() for name, tensor in found.items()}


def spread(loaded: LoadedModel) -> None:
    """Draw the matrices that begin as zeros, so that adapters differ from the base."""
    for name, parameter in loaded.model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)


def alone(asked: Recipe, loaded: LoadedModel, adapter: str) -> LoadedModel:
    """Return a model of its own with one of the adapters, under no name."""
    only = asked.model.model_copy(update={"lora": Lora(rank=2, alpha=4)})
    one = with_adapter(only.load(asked.seed), asked.seed)
    set_peft_model_state_dict(one.model, dict(tensors_of(loaded, adapter)))
    return one


def of_adapter(batch: Batch, adapter: str) -> Batch:
    rows = tuple(replace(row, adapter=None) for row in batch.rows if row.adapter == adapter)
    return replace(batch, rows=rows, sampled_tokens=sum(int(row.mask.sum()) for row in rows))


def close(found: Tensors, expected: Tensors) -> bool:
    return all(
        torch.allclose(found[name], expected[name], rtol=1e-12, atol=1e-12) for name in expected
    )


@pytest.mark.parametrize(
    ("roles", "loss", "trained"),
    [
        (BOTH, REINFORCE, NAMES),
        (ONE, REINFORCE, ("second",)),
        (BOTH, {**CLIPPED, "kl": {"weight": 0.3, "reference": "base"}}, NAMES),
        (BOTH, {**CLIPPED, "kl": {"weight": 0.3, "reference": "phase_start"}}, NAMES),
    ],
    ids=["both", "one frozen", "towards the base", "towards the start"],
)
def test_two_adapters_take_the_two_steps_of_two_models(
    float64: None, base: str, roles: dict[str, Any], loss: dict[str, Any], trained: tuple[str, ...]
) -> None:
    asked = Recipe.model_validate(settings(base, roles, loss=loss))
    loaded = with_adapter(asked.model.load(asked.seed), asked.seed)
    spread(loaded)
    start = {name: tensors_of(loaded, name) for name in NAMES}
    training = trained_adapters(asked.model.lora, asked.debate)
    assert training == trained
    singles = {name: alone(asked, loaded, name) for name in NAMES}
    sessions = {n: asked.trainer.open(singles[n], asked.loss, 2) for n in NAMES}
    engine = open_engine(asked, loaded)
    trainer = asked.trainer.open(replace(loaded, training=training), asked.loss, 2)
    engine.load(trainer.weights(0))
    source = asked.data.open(asked.seed)
    for step in range(2):
        debates = start_debates(asked, source.batch(step), f"train/{step}")
        played = asked.rollout.play(debates, engine)
        for debate in played:
            for turn in debate.turns:
                assert turn.reply is not None and turn.reply.weight_version == step
                adapter = role_of(debate.protocol, turn.agent).adapter
                assert adapter is not None
                expected = logps_of(singles[adapter].model, turn)
                sampled = torch.tensor(turn.reply.logps)
                torch.testing.assert_close(sampled, expected, rtol=1e-12, atol=1e-12)
        found = asked.advantage.compute(played, asked.reward(played), {})
        batch = build_batch(played, found.turns, asked.advantage.streams, loaded.tokenizer)
        assert {row.adapter for row in batch.rows} == set(trained)
        before = {name: tensors_of(loaded, name) for name in NAMES}
        metrics = trainer.step(batch)
        for name in trained:
            own = sessions[name].step(of_adapter(batch, name))
            for key in ("loss", "optim/entropy", "optim/grad_norm", "optim/ratio_max"):
                assert metrics[f"{key}/{name}"] == pytest.approx(own[key], rel=1e-12, abs=1e-15)
            assert close(tensors_of(loaded, name), tensors_of(singles[name], "default"))
            assert not close(tensors_of(loaded, name), before[name])
        assert metrics["loss"] == pytest.approx(sum(metrics[f"loss/{name}"] for name in trained))
        engine.load(trainer.weights(step + 1))
    for name in set(NAMES) - set(trained):
        assert all(map(torch.equal, tensors_of(loaded, name).values(), start[name].values()))
    engine.close()


def test_one_engine_with_two_adapters_replies_as_two_engines(float64: None, base: str) -> None:
    asked = Recipe.model_validate(settings(base, BOTH))
    loaded = with_adapter(asked.model.load(asked.seed), asked.seed)
    spread(loaded)
    engine = open_engine(asked, loaded)
    engine.load(export_weights(loaded, 1))
    questions = asked.data.open(asked.seed).batch(0)
    (together,) = asked.rollout.play(start_debates(asked, questions[:1], "x"), engine)
    unnamed = Recipe.model_validate(settings(base, {"ours": {"temperature": 0.75}, "theirs": {}}))
    for agent, name in enumerate(NAMES):
        one = alone(asked, loaded, name)
        own = asked.rollout.engine.open(one.model, one.tokenizer)
        own.load(export_weights(one, 1))
        (single,) = asked.rollout.play(start_debates(unnamed, questions[:1], "x"), own)
        said, expected = (
            next(t.reply for t in debate.turns if t.key == (agent, 0))
            for debate in (together, single)
        )
        assert said is not None and expected is not None
        assert said.token_ids == expected.token_ids
        assert said.logps == pytest.approx(expected.logps, rel=1e-12)
        own.close()
    engine.close()


def test_pack_holds_rows_of_one_adapter_on_every_rank(random_batch: Any) -> None:
    batch = random_batch(lengths=(8, 23, 14, 30, 9))
    owners = ("first", "second", "first", "first", "second")
    rows = tuple(replace(row, adapter=owner) for row, owner in zip(batch.rows, owners, strict=True))
    batch = replace(batch, rows=rows)
    given = pack(batch, [row.mask[row.sampled_positions] for row in rows], 24, ranks=2)
    order = [[one.adapter for one in own] for own in given]
    # The ranks meet in every pack, so each has the same adapters in the same order.
    assert order[0] == order[1] == sorted(order[0])
    for one in (one for own in given for one in own):
        assert {owners[row] for row in one.rows_A.tolist()} <= {one.adapter}
    counted = sorted({row for own in given for one in own for row in one.rows_A.tolist()})
    assert counted == [0, 1, 2, 3, 4]
