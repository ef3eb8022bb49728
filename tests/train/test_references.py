"""Reference policies: the model acts as them for a while, and is itself again after."""

import json

import pytest
import torch

from debate_train.checkpoints.policy_files import save_policy
from debate_train.commands.cli import main
from debate_train.errors import ModelError
from debate_train.losses import Dpo, Grpo, Kl, PpoClip
from debate_train.trainers import DeepSpeedTrainer, TorchTrainer
from debate_train.trainers.references import AdapterOff, open_reference, values_of
from debate_train.trainers.torch_session import TorchTrainerSession, score, trainable
from train.small_runs import RECIPE

pytestmark = pytest.mark.numeric


@pytest.fixture
def logps_of(random_batch):
    pack = TorchTrainer().packs(random_batch(), PpoClip())[0][0]

    def compute(loaded):
        with torch.no_grad():
            ((_, logps),) = score(loaded.model, [pack], PpoClip())
            return logps

    return compute


def move(loaded, by=0.1):
    with torch.no_grad():
        for parameter in trainable(loaded.model).values():
            parameter.add_(by)


def test_phase_start_acts_as_the_policy_was_and_leaves_the_model_as_it_is(tiny, logps_of):
    loaded = tiny()
    before = logps_of(loaded)
    reference = open_reference("phase_start", loaded.model)
    move(loaded)
    after = logps_of(loaded)
    assert (after - before).abs().max() > 0.01
    storage = [parameter.data_ptr() for parameter in loaded.model.parameters()]
    for _ in range(2):
        with reference.acting():
            assert torch.equal(logps_of(loaded), before)
        assert torch.equal(logps_of(loaded), after)
    with pytest.raises(RuntimeError, match="lost"), reference.acting():
        raise RuntimeError("lost")
    assert torch.equal(logps_of(loaded), after)
    assert [parameter.data_ptr() for parameter in loaded.model.parameters()] == storage


def test_base_is_the_model_without_its_adapter(tiny, logps_of):
    loaded = tiny(lora_rank=2)
    move(loaded)
    base = open_reference("base", loaded.model)
    without_adapter = logps_of(tiny())
    assert isinstance(base, AdapterOff)
    assert values_of("base", loaded) is None
    with base.acting():
        assert torch.equal(logps_of(loaded), without_adapter)
    assert (logps_of(loaded) - without_adapter).abs().max() > 0.01
    assert all(p.requires_grad == ("lora_" in n) for n, p in loaded.model.named_parameters())


# A scratch model's weights follow from its seed; the fixture makes them larger.
def test_base_of_a_full_model_is_the_model_as_the_recipe_makes_it(tiny):
    loaded = tiny()
    move(loaded)
    read = values_of("base", loaded)
    for name, parameter in loaded.again().named_parameters():
        assert torch.equal(read(name), parameter)
        assert not torch.equal(trainable(loaded.model)[name], parameter)


@pytest.mark.parametrize("lora_rank", [0, 2])
@pytest.mark.parametrize("kind", ["kl", "dpo"])
def test_reference_in_a_directory_is_its_policy(tiny, logps_of, tmp_path, lora_rank, kind):
    other = tiny(lora_rank=lora_rank)
    move(other, 0.05)
    save_policy(tmp_path, other)
    loaded = tiny(lora_rank=lora_rank)
    if kind == "kl":
        loss = PpoClip(kl=Kl(weight=0.1, reference=tmp_path))
    else:
        loss = Dpo(reference=tmp_path)
    session = TorchTrainer().open(loaded, loss, 1)
    before = logps_of(loaded)
    with session._reference.acting():
        assert torch.equal(logps_of(loaded), logps_of(other))
    assert torch.equal(logps_of(loaded), before)
    # The directory brings it back: a checkpoint does not keep it.
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    session.save(checkpoint)
    assert not list(checkpoint.glob("reference*"))


def test_reference_that_is_no_such_policy_is_refused(tiny, tmp_path):
    misspelt = Grpo(kl=Kl(weight=0.1, reference=tmp_path / "phase_strat"))
    with pytest.raises(ModelError, match=r"phase_strat', which is no directory; expected phase_st"):
        TorchTrainer().open(tiny(), misspelt, 1)
    save_policy(tmp_path, tiny(lora_rank=2))
    for other in (tiny(), tiny(lora_rank=1)):
        with pytest.raises(ModelError, match="with another policy"):
            TorchTrainer().open(other, Grpo(kl=Kl(weight=0.1, reference=tmp_path)), 1)


@pytest.mark.parametrize("trainer_class", [TorchTrainer, DeepSpeedTrainer])
def test_reference_that_a_checkpoint_does_not_hold_is_refused(tiny, tmp_path, trainer_class):
    TorchTrainer().open(tiny(), PpoClip(), 1).save(tmp_path)
    session = trainer_class().open(tiny(), PpoClip(kl=Kl(weight=0.1)), 1)
    with pytest.raises(ModelError, match="found the reference phase_start, of which checkpoint"):
        session.load(tmp_path)
    session.close()


def test_reference_is_the_phases_start_before_and_after_a_resume(tmp_path, monkeypatch):
    """The second phase begins at step 2: its reference is neither the run's start nor the end."""
    references = []
    policy_is_reference = []
    step = TorchTrainerSession.step

    def noted_step(session, *arguments):
        values = session._reference._other_values
        weights = dict(session._model.named_parameters())
        policy_is_reference.append(all(torch.equal(weights[n], v) for n, v in values.items()))
        references.append({name: value.clone() for name, value in values.items()})
        return step(session, *arguments)

    def same(first, second):
        return all(torch.equal(value, second[name]) for name, value in first.items())

    monkeypatch.setattr(TorchTrainerSession, "step", noted_step)
    recipe = tmp_path / "small.yaml"
    recipe.write_text(
        RECIPE.replace("steps: 3", "steps: 2").replace(
            "loss: {type: ppo_clip}", "loss: {type: ppo_clip, kl: {weight: 0.1}}"
        )
        + "checkpoint: {every: 1, keep_last: 9}\nphases: {first: {}, second: {steps: 3}}\n"
    )
    arguments = [str(recipe), f"--output={tmp_path / 'run'}", "evaluation.questions=0"]
    assert main(arguments) == 0
    # At a phase's first step the policy is the reference, later it has moved.
    assert policy_is_reference == [True, False, True, False, False]
    first, second = references[0], references[2]
    assert not same(first, second)
    assert same(references[1], first) and same(references[4], second)
    environment = tmp_path / "run/environment.json"
    weights = json.loads(environment.read_text())["weights"]
    for path in (tmp_path / "run/checkpoints").glob("step-*"):
        if path.name > "step-000003":  # Within the second phase, after its first step.
            (path / "state.json").write_text("{}")
    references.clear()
    assert main([*arguments, "--resume"]) == 0
    assert len(references) == 2 and same(references[0], second)
    assert json.loads(environment.read_text())["weights"] == weights
