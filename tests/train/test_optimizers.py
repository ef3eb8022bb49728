"""Optimizers by name: the published steps, exact resumes, and what is refused."""

import sys

import pytest
import torch
from pydantic import ValidationError

from debate_train.errors import ModelError, RecipeError
from debate_train.losses import PpoClip
from debate_train.recipe.model_shape import Shape
from debate_train.recipe.plan import memory
from debate_train.trainers import DeepSpeedTrainer, TorchTrainer
from debate_train.trainers.torch_session import trainable


def make_trainer(optimizer, learning_rate=0.1):
    return TorchTrainer.model_validate({"learning_rate": learning_rate, "optimizer": optimizer})


def of_torch(name, **arguments):
    return {"type": "torch", "name": name, "args": arguments}


@pytest.mark.parametrize(("device", "is_fused"), [("cpu", True), ("meta", False)])
@pytest.mark.parametrize("kind", ["adamw", "adam"])
def test_optimizers_are_fused_where_torch_has_it(kind, device, is_fused):
    # On CUDA torch itself would choose lists of tensors, with 8 more bytes a parameter.
    parameter = torch.nn.Parameter(torch.zeros(2, device=device))
    optimizer = make_trainer({"type": kind}).make_optimizer({"weight": parameter})
    assert optimizer.param_groups[0]["fused"] is is_fused


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        # Gradient 2 twice: m/(1 - 0.9^t) = 2, v/(1 - 0.8^t) = 4, a step is 0.1 · 2/(2 + eps);
        # before it the weight shrinks by 1 - 0.1 · 0.5: 1 -> 0.95 - 0.1 -> 0.8075 - 0.1.
        ({"beta2": 0.8, "weight_decay": 0.5}, [0.85, 0.7075]),
        # eps 2: a step is 0.1 · 2/(2 + 2).
        ({"type": "adamw", "beta2": 0.8, "eps": 2.0}, [0.95, 0.9]),
        # The decay adds to the gradient, which is 2 + 4 · 1 = 6 first: 1 - 0.1 · 6/6.
        ({"type": "adam", "weight_decay": 4.0}, [0.9]),
        # 1 - 0.1 · 2, then the velocity 0.5 · 2 + 2 = 3: 0.8 - 0.3.
        (of_torch("SGD", momentum=0.5), [0.8, 0.5]),
        # 1 - 0.1 · (2 + 0.5 · 1), then 0.75 - 0.1 · (2 + 0.5 · 0.75).
        (of_torch("SGD", weight_decay=0.5), [0.75, 0.5125]),
        # Looks ahead: 2 + 0.5 · 2 = 3, then 2 + 0.5 · 3 = 3.5.
        (of_torch("SGD", momentum=0.5, nesterov=True), [0.7, 0.35]),
        # Gradient over the root of the sum of squares: 2/2, then 2/√8.
        (of_torch("Adagrad"), [0.9, 0.9 - 0.1 / 2**0.5]),
    ],
    ids=["adamw", "eps", "adam", "momentum", "decay", "nesterov", "adagrad"],
)
def test_optimizer_makes_the_published_steps(optimizer, expected):
    parameter = torch.nn.Parameter(torch.ones(1, dtype=torch.float64))
    stepper = make_trainer(optimizer).make_optimizer({"weight": parameter})
    for value in expected:
        parameter.grad = torch.full((1,), 2.0, dtype=torch.float64)
        stepper.step()
        assert parameter.item() == pytest.approx(value, abs=2e-9)


@pytest.mark.parametrize(
    "optimizer",
    [
        {"type": "adam", "weight_decay": 0.1},
        of_torch("SGD"),
        of_torch("SGD", momentum=0.9, nesterov=True),
        of_torch("NAdam"),  # keeps a product of momenta beside its count
        of_torch("Adafactor"),  # keeps rows and columns
        of_torch("Adagrad"),  # has its state from the start
        of_torch("AdamW", betas=[0.9, 0.95], amsgrad=True),
        of_torch("Muon"),
        {"type": "adamw_8bit"},
        {"type": "muon", "weight_decay": 0.1},
    ],
    ids=lambda optimizer: optimizer.get("name", optimizer["type"]),
)
def test_optimizer_goes_on_exactly_when_resumed(optimizer, tiny, random_batch, tmp_path):
    if optimizer["type"] == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    lora_rank = 2 if optimizer.get("name") == "Muon" else 0  # which takes matrices only
    config = make_trainer(optimizer, learning_rate=1e-2)
    whole = tiny(lora_rank=lora_rank)
    resumed = tiny(lora_rank=lora_rank)
    first = config.open(whole, PpoClip(), 4)
    for seed in range(2):
        first.step(random_batch(seed))
    first.save(tmp_path)
    second = config.open(resumed, PpoClip(), 4)
    second.load(tmp_path)
    for session in (first, second):
        for seed in (2, 3):
            session.step(random_batch(seed))
    for name, parameter in trainable(whole.model).items():
        assert torch.equal(parameter, trainable(resumed.model)[name])


@pytest.mark.parametrize("other", [of_torch("SGD", momentum=0.9), of_torch("Adafactor")])
def test_optimizer_refuses_the_state_of_another(other, tiny, random_batch, tmp_path):
    adamw = make_trainer({"type": "adamw"}).open(tiny(), PpoClip(), 4)
    adamw.step(random_batch())
    adamw.save(tmp_path)
    session = make_trainer(other).open(tiny(), PpoClip(), 4)
    with pytest.raises(ModelError, match=r"found exp_avg, exp_avg_sq of .* expected the opt"):
        session.load(tmp_path)
    # torch's own keeps the same under the same names.
    make_trainer(of_torch("AdamW")).open(tiny(), PpoClip(), 4).load(tmp_path)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (of_torch("AdamX"), "does not have; .* did you mean 'Adam"),
        (of_torch("LBFGS"), "LBFGS, which makes no step"),
        (of_torch("SparseAdam"), "SparseAdam, which makes no"),
        (of_torch("RMSprop", beta=1), "unexpected keyword argument 'beta'"),
        (of_torch("RMSprop", lr=1), "found lr; expected trainer.learning_rate"),
        ({"momentum": 0.9}, "momentum"),
    ],
)
def test_trainer_refuses_optimizers_that_make_no_step(optimizer, message):
    with pytest.raises(ValidationError, match=message):
        make_trainer(optimizer)


@pytest.mark.parametrize(
    "optimizer", [of_torch("Adafactor"), of_torch("Muon"), {"type": "adamw_8bit"}]
)
def test_sharded_trainer_refuses_optimizers_that_need_whole_parameters(optimizer):
    with pytest.raises(ValidationError, match="zero_stage 1, which cuts parameters"):
        DeepSpeedTrainer.model_validate({"zero_stage": 1, "optimizer": optimizer})
    DeepSpeedTrainer.model_validate({"zero_stage": 0, "optimizer": optimizer})


def test_optimizer_refuses_parameters_that_it_cannot_train(tiny):
    with pytest.raises(RecipeError, match="found Muon, which does not take the model's trained"):
        make_trainer(of_torch("Muon")).open(tiny(), PpoClip(), 1)


def test_8_bit_optimizer_says_what_to_install_when_it_is_missing(monkeypatch, tiny):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(RecipeError, match=r"no bitsandbytes .*pip install 'bitsandbytes"):
        make_trainer({"type": "adamw_8bit"}).open(tiny(), PpoClip(), 1)


@pytest.mark.parametrize(
    ("optimizer", "bytes_each"),
    [
        ({}, 8.0),
        (of_torch("SGD"), 0.0),
        (of_torch("SGD", momentum=0.9), 4.0),
        ({"type": "adamw_8bit"}, 2 + 8 / 256),  # a byte, and a float for 256, of both moments
        (of_torch("Rprop"), 8.0),
        (of_torch("AdamW", amsgrad=True), 12.0),
        (of_torch("Adafactor"), 0.0),
    ],
)
def test_plan_counts_what_the_optimizer_keeps(optimizer, bytes_each):
    shape = Shape(1000, 100, 4, layers=1, hidden=1, queries=1, keys=1, ffn=1)
    moments = make_trainer(optimizer).optimizer.state_layout().bytes_each
    assert moments == bytes_each
    one_rank = memory(shape, 0, 1, 0, reference=False, moments=moments)
    assert one_rank.optimizer == 100 * bytes_each
    # From stage 1 on float32 masters, too, and all divided by the ranks.
    four_ranks = memory(shape, 1, 4, 0, reference=False, moments=moments)
    assert four_ranks.optimizer == 25 * (bytes_each + 4)


def test_muon_steps_matrices_and_leaves_tables_and_vectors_to_adamw():
    shapes = {
        "model.embed_tokens.weight": (7, 4),
        "model.layers.0.mlp.up_proj.weight": (6, 4),
        "model.layers.0.mlp.down_proj.weight": (4, 6),
        "model.norm.weight": (4,),
        "lm_head.weight": (7, 4),
    }
    parameters = {n: torch.nn.Parameter(torch.ones(shape)) for n, shape in shapes.items()}
    expected = {n: torch.nn.Parameter(torch.ones(shape)) for n, shape in shapes.items()}
    muon = torch.optim.Muon(
        [parameter for name, parameter in expected.items() if "proj" in name],
        lr=0.1,
        weight_decay=0.3,
        momentum=0.8,
        adjust_lr_fn="match_rms_adamw",
    )
    adamw = torch.optim.AdamW(
        [parameter for name, parameter in expected.items() if "proj" not in name],
        lr=0.1,
        betas=(0.7, 0.9),
        eps=1e-6,
        weight_decay=0.3,
    )
    settings = {"momentum": 0.8, "beta1": 0.7, "beta2": 0.9, "eps": 1e-6, "weight_decay": 0.3}
    optimizer = make_trainer({"type": "muon", **settings}).make_optimizer(parameters)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (step + 1))
    generator = torch.Generator().manual_seed(0)
    for step in range(3):
        for group in (*muon.param_groups, *adamw.param_groups):
            group["lr"] = 0.1 / (step + 1)
        for name, shape in shapes.items():
            parameters[name].grad = torch.randn(shape, generator=generator)
            expected[name].grad = parameters[name].grad.clone()
        for stepper in (optimizer, muon, adamw, schedule):
            stepper.step()
    for name, parameter in parameters.items():
        torch.testing.assert_close(parameter, expected[name], rtol=0, atol=0)
        assert int(optimizer.state[parameter]["step"]) == 3


@pytest.mark.parametrize("size", [1e-3, 1e3])
def test_step_of_muon_is_as_large_as_one_of_adamw(size):
    # Of the size that AdamW's steps have over many gradients (Liu et al. 2025), about 0.2 of the
    # rate for each weight, whatever the gradient's size.
    weight = torch.nn.Parameter(torch.zeros(32, 128))
    weight.grad = size * torch.randn(32, 128, generator=torch.Generator().manual_seed(0))
    make_trainer({"type": "muon"}).make_optimizer({"mlp": weight}).step()
    # Entries of an orthogonal 32 x 128 matrix have a root mean square of 1/√128, times
    # 0.2 · √128. torch's iteration leaves singular values of about 0.7 to 1.2.
    root_mean_square = weight.detach().square().mean().sqrt().item()
    assert root_mean_square == pytest.approx(0.1 * 0.2, rel=0.25)
