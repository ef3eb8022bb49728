"""Runs of two adapters: phases, checkpoints, evaluations, and what is refused before."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import set_peft_model_state_dict
from safetensors.torch import load_file

from debate_protocol.types import DebateRun, Protocol, Reply, Transcript, TurnRequest
from debate_rollout.testing import turn_request
from debate_train.checkpoints.policy_files import save_policy
from debate_train.commands.cli import main
from debate_train.models import PretrainedModel
from debate_train.models.loaded_model import Lora, with_adapter
from debate_train.playing.shared_turns import SharedTurns
from debate_train.recipe import Recipe
from debate_train.recipe.check import check
from train.small_runs import end_of
from train.two_adapters import BOTH, CLIPPED, NAMES, ONE, settings

Tensors = Mapping[str, torch.Tensor]


PHASES = {
    "second": {"debate": {"roles": {"ours": {"train": False}}}},
    "first": {"debate": {"roles": {"theirs": {"train": False}}}},
    "both": {"pipeline": {"max_staleness": 1}, "loss": CLIPPED, "steps": 3},
}


def adapters_in(folder: Path) -> dict[str, Tensors]:
    return {name: load_file(folder / name / "adapter_model.safetensors") for name in NAMES}


def alike(one: Tensors, other: Tensors) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_phases_train_one_adapter_after_the_other_and_resume_exactly(
    base: str, tmp_path: Path
) -> None:
    roles = {"ours": {"adapter": "first"}, "theirs": {"adapter": "second"}}
    file = tmp_path / "recipe.yaml"
    every = {"every": 1, "keep_last": 99}
    asked = settings(base, roles, phases=PHASES, checkpoint=every, recording={"debates": 0})
    file.write_text(json.dumps(asked))
    whole, again = tmp_path / "whole", tmp_path / "again"
    assert main([str(file), "--output", str(whole)]) == 0
    at = {step: whole / f"checkpoints/step-{step:06d}" for step in range(1, 8)}
    held = {step: adapters_in(folder) for step, folder in at.items()}
    # Two steps of the second adapter, two of the first, three of both.
    for step, changed in ((1, {"second"}), (2, {"first"}), (3, {"first"}), (4, set(NAMES))):
        now, then = held[step + 1], held[step]
        assert {name for name in NAMES if not alike(now[name], then[name])} == changed
    assert all("lora_B" not in n or not t.any() for n, t in held[2]["first"].items())
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    measured = [{n for n in NAMES if f"optim/grad_norm/{n}" in row} for row in rows]
    assert measured == [{"second"}] * 2 + [{"first"}] * 2 + [set(NAMES)] * 3
    for kept in (3, 5):  # Within the second phase, and the third, which plays ahead.
        shutil.copytree(whole, again)
        for step in range(kept + 1, 8):
            shutil.rmtree(again / f"checkpoints/step-{step:06d}")
        assert main([str(file), "--resume", "--output", str(again)]) == 0
        last = at[7].relative_to(whole)
        for path in (f"{name}/adapter_model.safetensors" for name in NAMES):
            assert (again / last / path).read_bytes() == (at[7] / path).read_bytes()
        assert end_of(again, "optimizer-00000.safetensors") == end_of(
            whole, "optimizer-00000.safetensors"
        )
        shutil.rmtree(again)
    # Each folder is a policy of its own: the base with this adapter merged.
    merged = PretrainedModel(name=str(at[7] / "second"), dtype="float32").load(0)
    ids = torch.tensor([[5, 6, 7, 8]])
    loaded = with_adapter(Recipe.model_validate(asked).model.load(0), 0)
    set_peft_model_state_dict(loaded.model, dict(held[7]["second"]), adapter_name="second")
    loaded.model.set_adapter("second")
    torch.testing.assert_close(merged.model(ids).logits, loaded.model(ids).logits)


def test_new_run_from_two_trained_adapters_is_refused_with_what_it_may_start_from(
    base: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    lora = Lora(rank=2, alpha=4, adapters=NAMES)
    loaded = PretrainedModel(name=base, dtype="float32", lora=lora).load(0)
    save_policy(kept, with_adapter(loaded, 0))
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(settings(str(kept), BOTH)))
    for further in (["--check"], ["--output", str(tmp_path / "run")]):
        assert main([str(file), *further]) == 2
        said = capsys.readouterr().err
        assert f"model.name: {str(kept)!r} holds no config.json; expected" in said
        assert "one of its adapters (first, second), each a policy of its own" in said
        assert "Traceback" not in said
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "problem"),
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
        (
            {"model": {"type": "pretrained", "name": "x", "lora": {"adapters": ["a", "a"]}}},
            "found 'a' 2 times; expected each once",
        ),
        (
            {"model": {"type": "pretrained", "name": "x", "lora": {"adapters": ["a.b"]}}},
            "String should match pattern",
        ),
    ],
)
def test_unknown_adapters_are_refused(base: str, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError) as refused:
        Recipe.model_validate(settings(base, BOTH) | change)
    assert problem in str(refused.value)


def test_check_names_adapters_and_what_cannot_train_several(base: str) -> None:
    found = check(Recipe.model_validate(settings(base, BOTH)))
    said = "\n".join([*found.lines, *found.warnings])
    assert "role theirs: 1 agent, the trained policy, adapter second, trained on" in said
    assert not found.errors and "model.lora.adapters" not in said
    # Of an actor's two turns, its critic's one and a direct reply those of the trained are rows.
    asked = settings(base, {}, rollout={"max_tokens": 6, "direct_per_question": 1})
    for roles, samples in (
        ({"actor": {"adapter": "first"}, "critic": {"adapter": "second"}}, 2 * 4),
        ({"actor": {"adapter": "first"}, "critic": {"adapter": "second", "train": False}}, 2 * 3),
        ({"actor": {"adapter": "first", "train": False}, "critic": {"adapter": "second"}}, 2 * 1),
    ):
        form = {"type": "actor_critic", "contract": "boxed", "max_rounds": 2, "roles": roles}
        said = str(check(Recipe.model_validate(asked | {"debate": form})))
        assert f"= 8 turns; {samples} samples (one for each turn" in said
    sharded = {"type": "deepspeed", "zero_stage": 0}
    (error,) = check(Recipe.model_validate(settings(base, BOTH, trainer=sharded))).errors
    assert error == (
        "trainer.type: found deepspeed, which trains 1 adapter by its name at a time, with first "
        "and second; expected torch"
    )
    found = check(Recipe.model_validate(settings(base, ONE, trainer=sharded)))
    assert not found.errors
    said = "\n".join(found.warnings)
    assert "model.lora.adapters: found 'first', which no role that is trained on names" in said


def test_adapter_with_the_name_of_a_part_of_the_model_is_refused(base: str) -> None:
    model = PretrainedModel(name=base, dtype="float32", lora=Lora(adapters=("a", "layers")))
    with pytest.raises(ValueError, match="found 'layers', which names a part of the model"):
        with_adapter(model.load(0), 0)


def test_evaluations_share_no_turn_between_adapters() -> None:
    shared = SharedTurns()
    for name in (*NAMES, None):
        turns = shared.over(debate_of(replace(turn_request(), adapter=name)))
        assert next(turns), name  # Asked again, as another adapter says another thing.
        with pytest.raises(StopIteration):
            turns.send([Reply("so")])


def debate_of(one: TurnRequest) -> DebateRun:
    yield [one]
    return Transcript("q", one.question, Protocol(1), ())
