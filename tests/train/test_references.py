"""Reference policies: the model acts as them for a while, and is itself again after."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from debate_train.batches.packs import Pack
from debate_train.batches.row_types import Batch
from debate_train.checkpoints.policy_files import save_policy
from debate_train.errors import ModelError
from debate_train.losses import Dpo, Grpo, Kl, PpoClip
from debate_train.models.loaded_model import LoadedModel
from debate_train.trainers import DeepSpeedTrainer, TorchTrainer
from debate_train.trainers.references import AdapterOff, KeptReference, open_reference, values_of
from debate_train.trainers.torch_session import score, trainable

pytestmark = pytest.mark.numeric

MakeModel = Callable[..., LoadedModel]
MakeBatch = Callable[..., Batch]


@pytest.fixture
def pack(random_batch: MakeBatch) -> Pack:
    return TorchTrainer().packs(random_batch(), PpoClip())[0][0]


def logps(loaded: LoadedModel, pack: Pack) -> Tensor:
    with torch.no_grad():
        return score(loaded.model, pack, PpoClip())


def move(loaded: LoadedModel, by: float = 0.1) -> None:
    with torch.no_grad():
        for parameter in trainable(loaded.model).values():
            parameter.add_(by)


def test_kept_reference_acts_as_the_policy_was_and_leaves_the_model_as_it_is(
    tiny: MakeModel, pack: Pack
) -> None:
    loaded = tiny()
    before = logps(loaded, pack)
    kept = open_reference("phase_start", loaded.model)
    move(loaded)
    after = logps(loaded, pack)
    assert (after - before).abs().max() > 0.01
    storage = [p.data_ptr() for p in loaded.model.parameters()]
    for _ in range(2):
        with kept.acting():
            assert torch.equal(logps(loaded, pack), before)
        assert torch.equal(logps(loaded, pack), after)
    assert [p.data_ptr() for p in loaded.model.parameters()] == storage


def test_kept_reference_gives_the_model_back_when_scoring_fails(
    tiny: MakeModel, pack: Pack
) -> None:
    loaded = tiny()
    kept = open_reference("phase_start", loaded.model)
    move(loaded)
    after = logps(loaded, pack)
    with pytest.raises(RuntimeError, match="lost"), kept.acting():
        raise RuntimeError("lost")
    assert torch.equal(logps(loaded, pack), after)


def test_kept_reference_keeps_what_is_written_to_it(tiny: MakeModel, pack: Pack) -> None:
    loaded, other = tiny(), tiny(seed=1)
    after, wanted = logps(loaded, pack), logps(other, pack)
    kept = KeptReference(trainable(loaded.model))
    with kept.acting(), torch.no_grad():
        for name, parameter in kept.parameters.items():
            parameter.copy_(trainable(other.model)[name])
    assert torch.equal(logps(loaded, pack), after)
    with kept.acting():
        assert torch.equal(logps(loaded, pack), wanted)


def test_base_is_the_model_without_its_adapter(tiny: MakeModel, pack: Pack) -> None:
    loaded = tiny(lora_rank=2)
    bare = logps(tiny(), pack)
    move(loaded)
    base = open_reference("base", loaded.model)
    assert isinstance(base, AdapterOff)
    assert values_of("base", loaded) is None
    with base.acting():
        assert torch.equal(logps(loaded, pack), bare)
    assert (logps(loaded, pack) - bare).abs().max() > 0.01
    assert all(p.requires_grad == ("lora_" in n) for n, p in loaded.model.named_parameters())


# A scratch model's weights follow from its seed; the fixture makes them larger.
def test_base_of_a_full_model_is_the_model_as_the_recipe_makes_it(tiny: MakeModel) -> None:
    loaded = tiny()
    move(loaded)
    read = values_of("base", loaded)
    assert read is not None and loaded.again is not None
    for name, parameter in loaded.again().named_parameters():
        assert torch.equal(read(name), parameter)
        assert not torch.equal(trainable(loaded.model)[name], parameter)


@pytest.mark.parametrize("lora_rank", [0, 2])
@pytest.mark.parametrize("loss", [PpoClip, Dpo])
def test_reference_in_a_directory_is_the_policy_that_stands_there(
    tiny: MakeModel, pack: Pack, tmp_path: Path, lora_rank: int, loss: type[PpoClip] | type[Dpo]
) -> None:
    other = tiny(lora_rank=lora_rank)
    move(other, 0.05)
    save_policy(tmp_path, other)
    loaded = tiny(lora_rank=lora_rank)
    named = (
        PpoClip(kl=Kl(weight=0.1, reference=tmp_path))
        if loss is PpoClip
        else Dpo(reference=tmp_path)
    )
    session = TorchTrainer().open(loaded, named, 1)
    own = logps(loaded, pack)
    assert session._reference is not None
    with session._reference.acting():
        assert torch.equal(logps(loaded, pack), logps(other, pack))
    assert torch.equal(logps(loaded, pack), own)
    # The directory brings it back: a checkpoint does not keep it.
    saved = tmp_path / "saved"
    saved.mkdir()
    session.save(saved)
    assert not list(saved.glob("reference*"))


def test_reference_that_is_no_such_policy_is_refused(tiny: MakeModel, tmp_path: Path) -> None:
    loss = Grpo(kl=Kl(weight=0.1, reference=tmp_path / "phase_strat"))
    with pytest.raises(ModelError, match=r"phase_strat', which is no directory; expected phase_st"):
        TorchTrainer().open(tiny(), loss, 1)
    save_policy(tmp_path, tiny(lora_rank=2))
    for other in (tiny(), tiny(lora_rank=1)):
        with pytest.raises(ModelError, match="with another policy"):
            TorchTrainer().open(other, Grpo(kl=Kl(weight=0.1, reference=tmp_path)), 1)


@pytest.mark.parametrize("kind", [TorchTrainer, DeepSpeedTrainer])
def test_reference_that_a_checkpoint_does_not_hold_is_refused(
    tiny: MakeModel, tmp_path: Path, kind: type[TorchTrainer] | type[DeepSpeedTrainer]
) -> None:
    TorchTrainer().open(tiny(), PpoClip(), 1).save(tmp_path)
    session = kind().open(tiny(), PpoClip(kl=Kl(weight=0.1)), 1)
    with pytest.raises(ModelError, match="found the reference phase_start, of which checkpoint"):
        session.load(tmp_path)
    session.close()
