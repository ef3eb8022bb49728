"""Checkpoints: whole or not there, the last ones and the best kept, and nothing in them runs."""

import json
import os
import pickle
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

from debate_train.checkpoints import (
    MANIFEST,
    Best,
    Checkpoints,
    KeepBest,
    RunState,
    run_hash,
    seal,
)
from debate_train.checkpoints.policy_files import (
    StoredTensors,
    load_policy,
    save_policy,
)
from debate_train.checkpoints.trainer_state import (
    Counts,
    ParameterState,
    StoredTrainerState,
    load_random_states,
    save_random_states,
    seed_all,
    write_trainer_state,
)
from debate_train.errors import ModelError, RunFailure, UsageError
from debate_train.losses import PpoClip
from debate_train.models import ScratchModel
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers import TorchTrainer
from debate_train.trainers.optimizers import AdamW
from debate_train.trainers.torch_session import trainable

MakeModel = Callable[..., LoadedModel]
RECIPE = "name: a\nmodel: {layers: 2}\nphases: {warm: {}, play: {}}\n"
RUN = run_hash(RECIPE)


def saver(text: str) -> Callable[[Path], None]:
    return lambda directory: (directory / "weights").write_text(text) and None


def with_steps(root: Path, *steps: int, keep_last: int = 9) -> Checkpoints:
    checkpoints = Checkpoints(root, RUN, keep_last)
    for step in steps:
        checkpoints.write(RunState(step=step), saver(f"weights of {step}"))
    return checkpoints


def names(root: Path) -> set[str]:
    return {path.name for path in root.iterdir()}


def test_last_checkpoints_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "c"
    # By number: as text, step-1000000 would come before step-999999.
    checkpoints = with_steps(root, 5, 10, 999_999, 1_000_000, keep_last=2)
    assert [p.name for p in checkpoints.complete()] == ["step-999999", "step-1000000"]
    assert names(root) == {"step-999999", "step-1000000"}
    newest = checkpoints.newest()
    assert (newest.path.name, newest.state.step) == ("step-1000000", 1_000_000)
    assert newest.notes == ()


def test_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = RunState(
        phase=1,
        phase_start=2,
        step=7,
        rows=9,
        exit_criteria={"warm": True},
        before={"eval/format": {"mean": 0.1 + 0.2, "questions": 3}},
        last_eval=("warm", 2, {"eval/format": 1 / 3}),
        best=Best(7, "eval/format", 1 / 3),
        seconds={"warm": 1.5},
    )
    checkpoints = Checkpoints(tmp_path, RUN, 1)
    checkpoints.write(state, saver(""))
    assert checkpoints.newest().state == state


def test_replacement_that_was_stopped_between_its_renames_is_undone(tmp_path: Path) -> None:
    with_steps(tmp_path, 3)
    os.replace(tmp_path / "step-000003", tmp_path / ".replaced-000003")
    (tmp_path / ".writing-000003").mkdir()
    newest = Checkpoints(tmp_path, RUN, 1).newest()
    assert (newest.path / "weights").read_text() == "weights of 3"
    assert names(tmp_path) == {"step-000003"}


def test_checkpoint_that_fails_half_way_leaves_those_before_it(tmp_path: Path) -> None:
    checkpoints = with_steps(tmp_path, 3)

    def fails(directory: Path) -> None:
        (directory / "weights").write_text("half")
        raise OSError(28, "No space left on device")

    for step in (3, 4):
        with pytest.raises(RunFailure, match=f"cannot write .*step-00000{step}: No space left"):
            checkpoints.write(RunState(step=step), fails)
        assert (checkpoints.newest().path / "weights").read_text() == "weights of 3"
        assert names(tmp_path) == {"step-000003"}


def test_best_checkpoint_is_marked_and_outlives_the_last_ones(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, RUN, 1)
    best = Best(2, "eval/format", 0.75)
    for step in (1, 2, 3, 4):
        checkpoints.write(RunState(step=step, best=best if step >= 2 else None), saver(""))
    assert names(tmp_path) == {"step-000002", "step-000004", "best.json"}
    mark = {"checkpoint": "step-000002", "step": 2, "metric": "eval/format", "value": 0.75}
    assert json.loads((tmp_path / "best.json").read_text()) == mark
    checkpoints.write(RunState(step=5, best=Best(5, "eval/format", 0.8)), saver(""))
    assert names(tmp_path) == {"step-000005", "best.json"}


def test_mark_follows_the_checkpoint_that_is_gone_on_from(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, RUN, 2)
    for step in (1, 2, 3):
        best = Best(2 if step == 3 else step, "eval/format", float(step))
        checkpoints.write(RunState(step=step, best=best), saver(""))
    (tmp_path / "best.json").unlink()  # as if killed before it was written
    assert checkpoints.newest().state.best == Best(2, "eval/format", 3.0)
    assert json.loads((tmp_path / "best.json").read_text())["step"] == 2
    # The best of the older one is itself; it is there, so the mark names it.
    (tmp_path / "step-000003" / "weights").write_text("altered")
    assert checkpoints.newest().state.best == Best(2, "eval/format", 2.0)


class Attack:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return (os.system, ("touch attacked",))


def reseal(path: Path, run: Any = RUN) -> None:
    """Do what a stranger can do who knows the format."""
    (path / MANIFEST).unlink()
    seal(path, run)


def rename_format(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text()) | {"format": "debate-checkpoint/9"}
    (path / MANIFEST).write_text(json.dumps(manifest))


def alter_state(path: Path, state: str) -> None:
    (path / "state.json").write_text(state)
    reseal(path)


def move_out(path: Path) -> None:
    manifest = json.loads((path / MANIFEST).read_text())
    manifest["files"]["../../weights"] = manifest["files"].pop("weights")
    (path / MANIFEST).write_text(json.dumps(manifest))
    shutil.move(path / "weights", path.parent.parent / "weights")


def write_old_format(path: Path) -> None:
    (path / MANIFEST).unlink()
    (path / "trainer.pt").write_bytes(pickle.dumps(Attack()))


OTHER_RUNS = [
    run_hash(RECIPE.replace("2", "3")),
    run_hash(RECIPE.replace("warm", "w")),
    run_hash(RECIPE + "seed: 1\n"),
]
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "torn": (lambda p: (p / "weights").write_text("weights"), "weights is not as it was written"),
    "altered": (lambda p: (p / "weights").write_text("weights of 6"), r"SHA-256 differs"),
    "missing": (lambda p: (p / "weights").unlink(), "weights is missing"),
    "more": (lambda p: (p / "model.bin").touch(), "model.bin is not named in its manifest.json"),
    "no manifest": (write_old_format, "it holds no manifest.json: .* another version wrote it"),
    "torn manifest": (
        lambda p: os.truncate(p / MANIFEST, 99),
        "its manifest.json is damaged, or not of",
    ),
    "deep manifest": (
        lambda p: (p / MANIFEST).write_text("[" * 9999),
        "its manifest.json is damaged",
    ),
    "version": (rename_format, "or not of 'debate-checkpoint/4'"),
    **{
        f"run {n}": (lambda p, other=other: reseal(p, other), "run with another recipe")
        for n, other in enumerate(OTHER_RUNS)
    },
    "state": (lambda p: alter_state(p, '{"step": "x"}'), "its state.json cannot be read"),
    "other state": (lambda p: alter_state(p, '{"step": 6}'), "its state.json is of step 6"),
    "outside": (move_out, "weights is missing"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_checkpoint_is_refused_and_the_one_before_is_used(
    tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "checkpoints"
    checkpoints = with_steps(root, 4, 5)
    spoil, reason = DAMAGE[damage]
    spoil(root / "step-000005")
    newest = checkpoints.newest()
    assert newest.path.name == "step-000004"
    (note,) = newest.notes
    assert note.startswith("step-000005 is not used: ")
    assert re.search(reason, note)
    assert note.endswith("it is now called refused-000005")
    assert not (tmp_path / "attacked").exists()
    # It neither counts as one of the last, nor comes back.
    checkpoints = Checkpoints(root, RUN, 1)
    checkpoints.write(RunState(step=5), saver("new"))
    assert [p.name for p in checkpoints.complete()] == ["step-000005"]
    assert checkpoints.newest().notes == ()


def test_all_reasons_are_told_when_none_is_left(tmp_path: Path) -> None:
    root = tmp_path / "checkpoints"
    checkpoints = with_steps(root, 4, 5)
    (root / "step-000004" / "weights").unlink()
    os.truncate(root / "step-000005" / "weights", 3)
    with pytest.raises(UsageError) as caught:
        checkpoints.newest()
    message = str(caught.value)
    assert f"cannot resume {tmp_path}: found no checkpoint to go on from" in message
    assert "step-000005: weights is not as it was written" in message
    assert "step-000004: weights is missing" in message
    assert names(root) == {"step-000004", "step-000005"}  # nothing was changed


FILES = ("model.safetensors", "optimizer-00000.safetensors", "trainer.json", "random.json")


@pytest.mark.parametrize("name", FILES)
def test_trainer_runs_nothing_that_a_stranger_put_into_a_checkpoint(
    tiny: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = TorchTrainer().open(tiny(), PpoClip(), 5)
    trainer.save(tmp_path)
    save_random_states(tmp_path)
    torch.save({"optimizer": Attack()}, tmp_path / name)
    for other in ("trainer.pt", "optimizer.bin", "pytorch_model.bin", "reference.pt"):
        torch.save(Attack(), tmp_path / other)
    with pytest.raises(ModelError):
        trainer.load(tmp_path)
        load_random_states(tmp_path)
    assert not (tmp_path / "attacked").exists()
    # The attack works where files are unpickled.
    torch.load(tmp_path / "trainer.pt", weights_only=False)
    assert (tmp_path / "attacked").exists()


def test_random_states_go_on_where_they_were(tmp_path: Path) -> None:
    def draws() -> list[float]:
        return [random.gauss(0, 1), random.random(), np.random.normal(), float(torch.rand(()))]

    seed_all(3)
    draws()  # leaves a second normal of Python and numpy in store
    save_random_states(tmp_path)
    expected = draws()
    assert draws() != expected
    load_random_states(tmp_path)
    assert draws() == expected
    seed_all(3)
    first = draws()
    seed_all(3)
    assert draws() == first


@pytest.mark.parametrize("name", [".writing-000002", ".removed-000001", ".replaced-000009"])
def test_link_in_the_place_of_a_folder_is_removed_and_what_it_leads_to_stays(
    tmp_path: Path, name: str
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").write_text("mine")
    root = tmp_path / "c"
    checkpoints = with_steps(root, 1, 9)
    (root / name).symlink_to(target)
    checkpoints.write(RunState(step=2), saver("weights of 2"))
    assert names(root) == {"step-000001", "step-000002", "step-000009"}
    assert (target / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("mode", "metric", "value", "is_better"),
    [
        ("max", "eval/format", 0.6, True),
        ("max", "eval/format", 0.5, False),  # equal: the first stays
        ("min", "eval/format", 0.4, True),
        ("min", "eval/format", 0.6, False),
        ("max", "eval/pass@k", 0.1, True),  # of a changed recipe: the old best does not compare
    ],
)
def test_best_is_beaten_by_what_is_better(
    mode: Any, metric: str, value: float, is_better: bool
) -> None:
    rule = KeepBest(metric=metric, mode=mode)
    assert rule.is_better(value, None)
    assert rule.is_better(value, Best(3, "eval/format", 0.5)) == is_better


def assert_same(model, other):
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name])


# The policy


@pytest.mark.numeric
@pytest.mark.parametrize(("file_size", "num_files"), [("5GB", 1), ("4KB", 2)])
def test_policy_comes_back_as_it_was_and_is_read_by_transformers(
    tiny, tmp_path, file_size, num_files
):
    loaded = tiny()
    other = tiny(seed=1)
    save_policy(tmp_path, loaded, file_size=file_size)
    assert len(list(tmp_path.glob("model*.safetensors"))) >= num_files
    assert not {path.suffix for path in tmp_path.iterdir()} & {".bin", ".pt", ".pkl"}
    load_policy(tmp_path, other)
    assert_same(loaded.model, other.model)
    assert_same(loaded.model, AutoModelForCausalLM.from_pretrained(tmp_path))
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == loaded.tokenizer.get_vocab()


def test_policy_keeps_suggested_sampling_that_transformers_does_not_write(tiny, tmp_path):
    loaded = tiny()
    # As many checkpoints of hubs have it: without do_sample.
    loaded.model.generation_config.temperature = 0.6
    with pytest.raises(ValueError, match="GenerationConfig is invalid"):
        loaded.model.save_pretrained(tmp_path / "refused")
    save_policy(tmp_path, loaded)
    read_again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert read_again.generation_config.to_dict() == loaded.model.generation_config.to_dict()


@pytest.mark.numeric
def test_adapter_is_read_by_peft(tiny, random_batch, tmp_path):
    loaded = tiny(lora_rank=2)
    trainer = TorchTrainer(learning_rate=0.1).open(loaded, PpoClip(), 5)
    trainer.step(random_batch())
    trainer.save(tmp_path)
    by_peft = PeftModel.from_pretrained(tiny().model, tmp_path)
    tokens = torch.tensor([[7, 30, 31]])
    with torch.no_grad():
        expected = loaded.model(input_ids=tokens).logits
        assert torch.equal(by_peft(input_ids=tokens).logits, expected)
        assert not torch.equal(tiny().model(input_ids=tokens).logits, expected)


@pytest.mark.numeric
def test_policy_of_experts_comes_back_though_files_name_each_expert(tmp_path):
    config = Qwen3MoeConfig(
        vocab_size=160,
        hidden_size=16,
        intermediate_size=16,
        moe_intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_experts=4,
        num_experts_per_tok=2,
    )
    tokenizer = ScratchModel().load_tokenizer()
    loaded = LoadedModel(Qwen3MoeForCausalLM(config), tokenizer)
    other = LoadedModel(Qwen3MoeForCausalLM(config), tokenizer)
    save_policy(tmp_path, loaded)
    names = StoredTensors(tmp_path.glob("model*.safetensors")).names()
    assert not set(names) <= set(loaded.model.state_dict())
    load_policy(tmp_path, other)
    assert_same(loaded.model, other.model)


SMALL = {"hidden_size": 16, "layers": 1, "heads": 2, "kv_heads": 1, "head_dim": 8, "ffn_size": 16}


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("rank", "other_rank", "other_shape"),
    [(0, 0, {"hidden_size": 8}), (0, 0, {"layers": 2}), (0, 2, None), (2, 3, None), (2, 0, None)],
)
def test_weights_of_another_model_end_in_one_message(tiny, tmp_path, rank, other_rank, other_shape):
    save_policy(tmp_path, tiny(lora_rank=rank))
    if other_shape is None:
        other = tiny(lora_rank=other_rank)
    else:
        other = ScratchModel(**SMALL | other_shape).load(0)
    with pytest.raises(ModelError, match="weights of another model"):
        load_policy(tmp_path, other)


# The trainer's state


@pytest.mark.numeric
def test_state_comes_back_exactly_in_its_own_types(tmp_path):
    master = torch.tensor([1 + 2**-20, 3.0])  # is 1 in bfloat16
    moments = {"exp_avg": torch.randn(2), "exp_avg_sq": torch.rand(2).bfloat16()}
    counts = Counts(schedule_steps=7, optimizer_steps={"w": 5}, skipped_in_a_row=2)
    write_trainer_state(tmp_path, iter([("w", ParameterState(moments, master))]), counts)
    stored = StoredTrainerState(tmp_path, {"w": (2,), "never": (3,)}, AdamW().state_layout())
    state = stored.of("w")
    assert stored.counts == counts
    assert torch.equal(state.master, master)
    for name, moment in moments.items():
        assert torch.equal(state.moments[name], moment)
        assert state.moments[name].dtype == moment.dtype
    assert stored.of("never") is None


@pytest.mark.numeric
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"w": (3,)}, r"exp_avg of w with shape \(2,\)"),
        ({"other": (2,)}, "state of w, which is not trained"),
    ],
)
def test_state_of_other_parameters_is_refused(tmp_path, shapes, message):
    moments = {name: torch.zeros(2) for name in ("exp_avg", "exp_avg_sq")}
    counts = Counts(schedule_steps=1, optimizer_steps={"w": 1})
    write_trainer_state(tmp_path, [("w", ParameterState(moments))], counts)
    with pytest.raises(ModelError, match=message):
        StoredTrainerState(tmp_path, shapes, AdamW().state_layout()).of("w")


@pytest.mark.numeric
def test_state_is_counted_in_json_and_refused_when_a_tensor_is_lost(tiny, random_batch, tmp_path):
    loaded = tiny()
    trainer = TorchTrainer().open(loaded, PpoClip(), 5)
    for seed in range(2):
        trainer.step(random_batch(seed))
    trainer.save(tmp_path)
    counts = json.loads((tmp_path / "trainer.json").read_text())
    assert counts["schedule_steps"] == 2
    assert counts["optimizer_steps"] == dict.fromkeys(trainable(loaded.model), 2)
    path = tmp_path / "optimizer-00000.safetensors"
    tensors = load_file(path)
    del tensors[next(name for name in tensors if name.startswith("exp_avg_sq/"))]
    save_file(tensors, path)
    with pytest.raises(ModelError, match="found no exp_avg_sq of"):
        trainer.load(tmp_path)
