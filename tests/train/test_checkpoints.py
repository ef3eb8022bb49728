"""Checkpoints: whole or not there, the last few kept, and nothing in them runs."""

import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from debate_train.checkpoints import Checkpoints, load_policy, save_policy
from debate_train.errors import ModelError
from debate_train.losses import PpoClip
from debate_train.models import LoadedModel, ScratchModel
from debate_train.trainers import TorchTrainer

MakeModel = Callable[..., LoadedModel]


def saver(text: str) -> Callable[[Path], None]:
    return lambda directory: (directory / "weights").write_text(text) and None


def test_last_checkpoints_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "c", keep=2)
    assert checkpoints.latest() is None
    for step in (5, 10, 120, 1000):
        checkpoints.write(step, {"step": step}, saver(str(step)))
    assert [p.name for p in checkpoints.complete()] == ["step-000120", "step-001000"]
    found = checkpoints.latest()
    assert found is not None
    assert (found[0].name, found[1]) == ("step-001000", {"step": 1000})
    assert {p.name for p in (tmp_path / "c").iterdir()} == {"step-000120", "step-001000"}


def test_checkpoint_of_the_same_step_replaces_the_first(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.write(3, {"phase": 0}, saver("old"))
    path = checkpoints.write(3, {"phase": 1}, saver("new"))
    assert (path / "weights").read_text() == "new"
    assert json.loads((path / "state.json").read_text()) == {"phase": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["step-000003"]


def test_checkpoint_that_fails_half_way_is_never_seen(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=1)
    checkpoints.write(3, {"step": 3}, saver("whole"))

    def fails(directory: Path) -> None:
        (directory / "weights").write_text("half")
        raise OSError("no space left on device")

    for step in (3, 4):
        with pytest.raises(OSError, match="no space"):
            checkpoints.write(step, {"step": step}, fails)
    found = Checkpoints(tmp_path, keep=1).latest()
    assert found is not None
    assert (found[0] / "weights").read_text() == "whole"
    # What was left aside goes with the next one that is written.
    checkpoints.write(5, {"step": 5}, saver("next"))
    assert [p.name for p in tmp_path.iterdir()] == ["step-000005"]


def test_policy_comes_back_as_it_was(tiny: MakeModel, tmp_path: Path) -> None:
    loaded, other = tiny(), tiny(seed=1)
    save_policy(tmp_path, loaded)
    load_policy(tmp_path, other)
    own = other.model.state_dict()
    assert all(torch.equal(tensor, own[n]) for n, tensor in loaded.model.state_dict().items())
    files = {p.name for p in tmp_path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= files
    assert not any(p.suffix in (".bin", ".pt", ".pkl") for p in tmp_path.iterdir())


def test_weights_of_another_model_end_in_one_message(tiny: MakeModel, tmp_path: Path) -> None:
    save_policy(tmp_path, tiny())
    for other in (
        ScratchModel(hidden_size=8, layers=1, heads=1, kv_heads=1, head_dim=8).load(0),
        ScratchModel(hidden_size=16, layers=2, heads=2, kv_heads=1, head_dim=8, ffn_size=16).load(
            0
        ),
        tiny(lora_rank=2),
    ):
        with pytest.raises(ModelError, match="weights of another model"):
            load_policy(tmp_path, other)


def test_adapter_of_another_rank_ends_in_one_message(tiny: MakeModel, tmp_path: Path) -> None:
    save_policy(tmp_path, tiny(lora_rank=2))
    for other in (tiny(lora_rank=3), tiny()):
        with pytest.raises(ModelError, match="weights of another model"):
            load_policy(tmp_path, other)


class Attack:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return (os.system, ("touch attacked",))


def test_nothing_in_a_checkpoint_runs(
    tiny: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = TorchTrainer().open(tiny(), PpoClip(), 5)
    trainer.save(tmp_path)
    torch.save({"optimizer": Attack()}, tmp_path / "trainer.pt")
    with pytest.raises(pickle.UnpicklingError):
        trainer.load(tmp_path)
    assert not (tmp_path / "attacked").exists()
