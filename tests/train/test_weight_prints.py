"""Comparable arms: what a run began with, and a KL reference that a resume does not move."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from debate_train.checkpoints.policy_files import weight_prints
from debate_train.commands.cli import main
from debate_train.trainers import torch_session
from debate_train.trainers.references import KeptReference
from debate_train.trainers.torch_session import TorchTrainerSession
from train.conftest import MakeModel
from train.small_runs import RECIPE


def test_weights_have_one_hash_wherever_they_are_and_others_another(tiny: MakeModel) -> None:
    first = weight_prints(tiny())
    assert list(first) == ["start"] and first == weight_prints(tiny())
    moved = tiny()
    with torch.no_grad():  # The last of a tensor's values, by the least that float32 holds.
        last = next(iter(moved.model.parameters())).flatten()[-1:]
        last.copy_(torch.nextafter(last, last + 1))
    assert weight_prints(moved) != first != weight_prints(tiny(seed=1))


def test_adapters_start_and_their_base_is_frozen(tiny: MakeModel) -> None:
    first, second = tiny(lora_rank=2), tiny(lora_rank=2)
    name, adapter = next((n, p) for n, p in second.model.named_parameters() if "lora_A" in n)
    with torch.no_grad():
        adapter.add_(1)
    found, other = weight_prints(first), weight_prints(second)
    assert list(found) == ["start", "frozen"] and name
    assert found["frozen"] == other["frozen"] and found["start"] != other["start"]


def hash_of(reference: Any) -> str:
    assert isinstance(reference, KeptReference)
    digest = hashlib.sha256()
    for name, value in sorted(reference._other_values.items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


def test_reference_is_the_phases_start_before_and_after_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second phase begins at step 2: its reference is neither the run's start nor the end."""
    references: list[tuple[str, bool]] = []
    step = TorchTrainerSession.step

    def noted(session: Any, *arguments: Any) -> Any:
        now = {name: p.detach().clone() for name, p in session._model.named_parameters()}
        kept = session._reference._other_values
        is_now = all(torch.equal(now[name], value) for name, value in kept.items())
        references.append((hash_of(session._reference), is_now))
        return step(session, *arguments)

    monkeypatch.setattr(torch_session.TorchTrainerSession, "step", noted)
    recipe = tmp_path / "small.yaml"
    recipe.write_text(
        RECIPE.replace("steps: 3", "steps: 2").replace(
            "loss: {type: ppo_clip}", "loss: {type: ppo_clip, kl: {weight: 0.1}}"
        )
        + "checkpoint: {every: 1, keep_last: 9}\nphases: {first: {}, second: {steps: 3}}\n"
    )
    run = [str(recipe), f"--output={tmp_path / 'run'}", "evaluation.questions=0"]
    assert main(run) == 0
    whole, references[:] = list(references), []
    # At a phase's first step the policy is the reference, later it has moved.
    assert [is_now for _, is_now in whole] == [True, False, True, False, False]
    first, second = whole[0][0], whole[2][0]
    assert first != second
    assert [found for found, _ in whole] == [first] * 2 + [second] * 3
    began = json.loads((tmp_path / "run/environment.json").read_text())["weights"]
    for path in (tmp_path / "run/checkpoints").glob("step-*"):
        if path.name > "step-000003":  # Within the second phase, after its first step.
            (path / "state.json").write_text("{}")
    assert main([*run, "--resume"]) == 0
    assert references == whole[3:]
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert environment["weights"] == began and len(environment["resumed"]) == 1
