"""Optimizers by name: the published steps, going on exactly, and what is refused."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

from debate_train.batches.row_types import Batch
from debate_train.errors import ModelError, RecipeError
from debate_train.losses import PpoClip
from debate_train.models.loaded_model import LoadedModel
from debate_train.recipe.plan import memory
from debate_train.trainers import DeepSpeedTrainer, TorchTrainer
from debate_train.trainers.torch_session import trainable

MakeModel = Callable[..., LoadedModel]
MakeBatch = Callable[..., Batch]


def trainer(optimizer: dict[str, Any], learning_rate: float = 0.1) -> TorchTrainer:
    return TorchTrainer.model_validate({"learning_rate": learning_rate, "optimizer": optimizer})


@pytest.mark.parametrize(("device", "is_fused"), [("cpu", True), ("meta", False)])
@pytest.mark.parametrize("kind", ["adamw", "adam"])
def test_optimizers_are_fused_where_torch_has_it(kind: str, device: str, is_fused: bool) -> None:
    # On CUDA torch itself would choose lists of tensors, with 8 more bytes a parameter.
    parameter = torch.nn.Parameter(torch.zeros(2, device=device))
    made = trainer({"type": kind}).make_optimizer({"weight": parameter})
    assert made.param_groups[0]["fused"] is is_fused


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        # Gradient 2 twice: m/(1 - 0.9^t) = 2, v/(1 - 0.8^t) = 4, a step is 0.1 · 2/(2 + eps);
        # before it the weight shrinks by 1 - 0.1 · 0.5: 1 -> 0.95 - 0.1 -> 0.8075 - 0.1.
        ({"beta2": 0.8, "weight_decay": 0.5}, (0.85, 0.7075)),
        # eps 2: a step is 0.1 · 2/(2 + 2).
        ({"type": "adamw", "beta2": 0.8, "eps": 2.0}, (0.95, 0.9)),
        # The decay adds to the gradient, which is 2 + 4 · 1 = 6 first: 1 - 0.1 · 6/6.
        ({"type": "adam", "weight_decay": 4.0}, (0.9, None)),
        # 1 - 0.1 · 2, then the velocity 0.5 · 2 + 2 = 3: 0.8 - 0.3.
        ({"type": "torch", "name": "SGD", "args": {"momentum": 0.5}}, (0.8, 0.5)),
        # 1 - 0.1 · (2 + 0.5 · 1), then 0.75 - 0.1 · (2 + 0.5 · 0.75).
        ({"type": "torch", "name": "SGD", "args": {"weight_decay": 0.5}}, (0.75, 0.5125)),
        # Looks ahead: 2 + 0.5 · 2 = 3, then 2 + 0.5 · 3 = 3.5.
        (
            {"type": "torch", "name": "SGD", "args": {"momentum": 0.5, "nesterov": True}},
            (0.7, 0.35),
        ),
        # Gradient over the root of the sum of squares: 2/2, then 2/√8.
        ({"type": "torch", "name": "Adagrad"}, (0.9, 0.9 - 0.1 / 2**0.5)),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_optimizer_makes_the_published_steps(
    optimizer: dict[str, Any], expected: tuple[float, float | None]
) -> None:
    parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    made = trainer(optimizer).make_optimizer({"weight": parameter})
    for value in expected:
        parameter.grad = torch.full((1,), 2.0, dtype=torch.float64)
        made.step()
        if value is not None:
            assert parameter.item() == pytest.approx(value, abs=2e-9)


GOES_ON: list[dict[str, Any]] = [
    {"type": "adam", "weight_decay": 0.1},
    {"type": "torch", "name": "SGD"},
    {"type": "torch", "name": "SGD", "args": {"momentum": 0.9, "nesterov": True}},
    {"type": "torch", "name": "NAdam"},  # keeps a product of momenta beside its count
    {"type": "torch", "name": "Adafactor"},  # keeps rows and columns
    {"type": "torch", "name": "Adagrad"},  # has its state from the start
    {"type": "torch", "name": "ASGD"},
    {"type": "torch", "name": "AdamW", "args": {"betas": [0.9, 0.95], "amsgrad": True}},
    {"type": "torch", "name": "Muon"},
    {"type": "adamw_8bit"},
    {"type": "muon", "weight_decay": 0.1},
]


@pytest.mark.parametrize("optimizer", GOES_ON, ids=lambda o: o.get("name", o["type"]))
def test_optimizer_goes_on_exactly_when_resumed(
    optimizer: dict[str, Any], tiny: MakeModel, random_batch: MakeBatch, tmp_path: Path
) -> None:
    if optimizer["type"] == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    rank = 2 if optimizer.get("name") == "Muon" else 0  # which takes matrices alone
    config = trainer(optimizer, learning_rate=1e-2)
    whole = tiny(lora_rank=rank)
    opened = config.open(whole, PpoClip(), 4)
    for seed in range(2):
        opened.step(random_batch(seed))
    opened.save(tmp_path)
    for seed in (2, 3):
        opened.step(random_batch(seed))
    other = tiny(lora_rank=rank)
    resumed = config.open(other, PpoClip(), 4)
    resumed.load(tmp_path)
    for seed in (2, 3):
        resumed.step(random_batch(seed))
    found = trainable(other.model)
    assert all(torch.equal(p, found[name]) for name, p in trainable(whole.model).items())


def test_optimizer_refuses_the_state_of_another(
    tiny: MakeModel, random_batch: MakeBatch, tmp_path: Path
) -> None:
    opened = trainer({"type": "adamw"}).open(tiny(), PpoClip(), 4)
    opened.step(random_batch())
    opened.save(tmp_path)
    for optimizer in (
        {"type": "torch", "name": "SGD", "args": {"momentum": 0.9}},
        {"type": "torch", "name": "Adafactor"},
    ):
        other = trainer(optimizer).open(tiny(), PpoClip(), 4)
        with pytest.raises(ModelError, match=r"found exp_avg, exp_avg_sq of .* expected the opt"):
            other.load(tmp_path)
    same = trainer({"type": "torch", "name": "AdamW"}).open(tiny(), PpoClip(), 4)
    same.load(tmp_path)  # keeps the same under the same names


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": {"type": "torch", "name": "AdamX"}}, "does not have; .* did you mean 'Adam"),
        ({"optimizer": {"type": "torch", "name": "LBFGS"}}, "LBFGS, which makes no step"),
        ({"optimizer": {"type": "torch", "name": "SparseAdam"}}, "SparseAdam, which makes no"),
        (
            {"optimizer": {"type": "torch", "name": "RMSprop", "args": {"beta": 1}}},
            "unexpected keyword argument 'beta'",
        ),
        (
            {"optimizer": {"type": "torch", "name": "RMSprop", "args": {"lr": 1}}},
            "found lr; expected trainer.learning_rate",
        ),
        ({"optimizer": {"momentum": 0.9}}, "momentum"),
    ],
)
def test_trainer_refuses_optimizers_that_make_no_step(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        TorchTrainer.model_validate(settings)


@pytest.mark.parametrize("name", ["Adafactor", "Muon"])
def test_sharded_trainer_refuses_optimizers_that_need_whole_parameters(name: str) -> None:
    optimizer = {"type": "torch", "name": name}
    for settings in ({"optimizer": optimizer}, {"optimizer": {"type": "adamw_8bit"}}):
        with pytest.raises(ValidationError, match="zero_stage 1, which cuts parameters"):
            DeepSpeedTrainer.model_validate({"zero_stage": 1, **settings})
        DeepSpeedTrainer.model_validate({"zero_stage": 0, **settings})


def test_optimizer_refuses_parameters_that_it_cannot_train(tiny: MakeModel) -> None:
    with pytest.raises(RecipeError, match="found Muon, which does not take the model's trained"):
        trainer({"type": "torch", "name": "Muon"}).open(tiny(), PpoClip(), 1)


def test_8_bit_optimizer_says_what_to_install_when_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, tiny: MakeModel
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(RecipeError, match=r"no bitsandbytes .*pip install 'bitsandbytes"):
        trainer({"type": "adamw_8bit"}).open(tiny(), PpoClip(), 1)


@pytest.mark.parametrize(
    ("optimizer", "each"),
    [
        ({}, 8.0),
        ({"type": "torch", "name": "SGD"}, 0.0),
        ({"type": "torch", "name": "SGD", "args": {"momentum": 0.9}}, 4.0),
        ({"type": "adamw_8bit"}, 2 + 8 / 256),  # a byte, and a float for 256, of both
        ({"type": "torch", "name": "Rprop"}, 8.0),
        ({"type": "torch", "name": "AdamW", "args": {"amsgrad": True}}, 12.0),
        ({"type": "torch", "name": "Adafactor"}, 0.0),
    ],
)
def test_plan_counts_what_the_optimizer_keeps(optimizer: dict[str, Any], each: float) -> None:
    from debate_train.recipe.model_shape import Shape

    shape = Shape(1000, 100, 4, layers=1, hidden=1, queries=1, keys=1, ffn=1)
    kept = trainer(optimizer).optimizer.state_layout().bytes_each
    assert kept == each
    assert memory(shape, 0, 1, 0, reference=False, moments=kept).optimizer == 100 * each
    # From stage 1 on float32 masters, too, and all in as many parts as ranks.
    assert memory(shape, 1, 4, 0, reference=False, moments=kept).optimizer == 25 * (each + 4)


def test_muon_steps_matrices_and_leaves_tables_and_vectors_to_adamw() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "model.embed_tokens.weight": (7, 4),
        "model.layers.0.mlp.up_proj.weight": (6, 4),
        "model.layers.0.mlp.down_proj.weight": (4, 6),
        "model.norm.weight": (4,),
        "lm_head.weight": (7, 4),
    }
    ours, alone = (
        {n: torch.nn.Parameter(torch.ones(shape)) for n, shape in shapes.items()} for _ in range(2)
    )
    matrices = [p for n, p in alone.items() if "proj" in n]
    others = [p for n, p in alone.items() if "proj" not in n]
    muon = torch.optim.Muon(
        matrices, lr=0.1, weight_decay=0.3, momentum=0.8, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=0.1, betas=(0.7, 0.9), eps=1e-6, weight_decay=0.3)
    settings = {"momentum": 0.8, "beta1": 0.7, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.3}
    made = trainer({"type": "muon", **settings}).make_optimizer(ours)
    schedule = torch.optim.lr_scheduler.LambdaLR(made, lambda step: 1 / (step + 1))
    for number in range(3):
        for group in (*muon.param_groups, *adamw.param_groups):
            group["lr"] = 0.1 / (number + 1)
        for name, shape in shapes.items():
            ours[name].grad = torch.randn(shape, generator=generator)
            alone[name].grad = ours[name].grad.clone()
        for optimizer in (made, muon, adamw, schedule):
            optimizer.step()
    for name in shapes:
        torch.testing.assert_close(ours[name], alone[name], rtol=0, atol=0)
        assert int(made.state[ours[name]]["step"]) == 3


def test_step_of_muon_is_as_large_as_one_of_adamw() -> None:
    # Of the size that AdamW's steps have over many gradients (Liu et al. 2025), about 0.2 of the
    # rate for each weight, whatever the gradient's own size.
    for size in (1e-3, 1e3):
        weight = torch.nn.Parameter(torch.zeros(32, 128))
        generator = torch.Generator().manual_seed(0)
        weight.grad = size * torch.randn(32, 128, generator=generator)
        trainer({"type": "muon"}, learning_rate=0.1).make_optimizer({"mlp": weight}).step()
        # Entries of an orthogonal 32 x 128 matrix have a root mean square of 1/√128, times
        # 0.2 · √128. torch's iteration leaves singular values of about 0.7 to 1.2.
        found = weight.detach().square().mean().sqrt().item()
        assert found == pytest.approx(0.1 * 0.2, rel=0.25)
