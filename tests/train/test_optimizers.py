"""Optimizers by name: the published steps, exact resumes, and what is refused."""

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch.optim.lr_scheduler import LambdaLR

from debate_train.errors import ModelError
from debate_train.losses import PpoClip
from debate_train.models.loaded_model import Lora, with_adapter
from debate_train.trainers import TorchTrainer
from debate_train.trainers.torch_session import trainable


def make_trainer(optimizer, learning_rate=0.1):
    return TorchTrainer.model_validate({"learning_rate": learning_rate, "optimizer": optimizer})


def of_torch(name, **arguments):
    return {"type": "torch", "name": name, "args": arguments}


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        # Gradient 2 twice: m/(1 - 0.9^t) = 2, v/(1 - 0.8^t) = 4, a step is 0.1 · 2/(2 + eps);
        # before it the weight shrinks by 1 - 0.1 · 0.5: 1 -> 0.95 - 0.1 -> 0.8075 - 0.1.
        ({"beta2": 0.8, "weight_decay": 0.5}, [0.85, 0.7075]),
        # eps 2: a step is 0.1 · 2/(2 + 2).
        ({"type": "adamw", "beta2": 0.8, "eps": 2.0}, [0.95, 0.9]),
        # The decay adds to the gradient, which is 2 + 4 · 1 = 6 first: 1 - 0.1 · 6/6.
        (of_torch("Adam", weight_decay=4.0), [0.9]),
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
        of_torch("SGD"),
        of_torch("SGD", momentum=0.9, nesterov=True),
        of_torch("Adafactor"),  # keeps rows and columns
        of_torch("AdamW", betas=[0.9, 0.95], amsgrad=True),
        {"type": "adamw_8bit"},
    ],
    ids=lambda optimizer: optimizer.get("name", optimizer["type"]),
)
def test_optimizer_goes_on_exactly_when_resumed(optimizer, tiny, random_batch, tmp_path):
    if optimizer["type"] == "adamw_8bit":
        pytest.importorskip("bitsandbytes")
    config = make_trainer(optimizer, learning_rate=1e-2)
    whole = tiny()
    resumed = tiny()
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
        (of_torch("SparseAdam"), "SparseAdam, which makes no"),
        (of_torch("RMSprop", lr=1), "found lr; expected trainer.learning_rate"),
    ],
)
def test_trainer_refuses_optimizers_that_make_no_step(optimizer, message):
    with pytest.raises(ValidationError, match=message):
        make_trainer(optimizer)


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


def adapter_parameters(name):
    """Draw a matrix and a vector of an adapter; the same numbers for every name."""
    draw = torch.Generator().manual_seed(0)
    shapes = {"lora_A": (4, 8), "lora_B": (8, 4), "lora_bias": (8,)}
    return {
        f"layers.0.q.{part}.{name}.weight": torch.nn.Parameter(torch.randn(*shape, generator=draw))
        for part, shape in shapes.items()
    }


@pytest.mark.parametrize("optimizer", [{"type": "adamw"}, {"type": "muon"}, of_torch("SGD")])
def test_adapter_with_a_rate_of_its_own_steps_as_if_it_were_alone(optimizer):
    rates = {"actor": 0.1, "critic": 0.02, "judge": 0.0}
    together = {name: adapter_parameters(name) for name in rates}
    named_rates = {"critic": 0.02, "judge": 0.0}
    trainers = {name: make_trainer(optimizer, rate) for name, rate in rates.items()}
    alone = {name: adapter_parameters(name) for name in rates}
    optimizers = [trainers[name].make_optimizer(alone[name]) for name in rates]
    parameters = {name: p for adapter in together.values() for name, p in adapter.items()}
    trainer = make_trainer(optimizer).model_copy(update={"learning_rates": named_rates})
    optimizers.append(trainer.make_optimizer(parameters))
    # The schedule reaches every part: the rate is halved for the second step.
    schedules = [LambdaLR(part, lambda step: 0.5**step) for part in optimizers]
    for _ in range(2):
        for adapter in (*together.values(), *alone.values()):
            for parameter in adapter.values():
                parameter.grad = parameter.detach().clone()
        for part, schedule in zip(optimizers, schedules, strict=True):
            part.step()
            schedule.step()
    for adapter in rates:
        for name, parameter in together[adapter].items():
            assert torch.equal(parameter, alone[adapter][name]), name
    actor = together["actor"]["layers.0.q.lora_A.actor.weight"]
    assert not torch.equal(actor, together["critic"]["layers.0.q.lora_A.critic.weight"])


@pytest.mark.parametrize("optimizer", [{"type": "adamw"}, {"type": "muon"}])
def test_optimizer_of_adapters_with_rates_goes_on_exactly_when_resumed(
    optimizer, tiny, random_batch, tmp_path
):
    trainer = make_trainer(optimizer, 1e-2).model_copy(update={"learning_rates": {"critic": 1e-3}})
    lora = Lora(rank=2, alpha=4, adapters=("actor", "critic"))
    models = [with_adapter(replace(tiny(), lora=lora), 0) for _ in range(2)]
    first, second = (trainer.open(model, PpoClip(), 4) for model in models)
    batches = []
    for seed in range(3):
        batch = random_batch(seed)
        adapters = ("actor", "critic", "actor", "critic", "critic")
        rows = [replace(row, adapter=name) for row, name in zip(batch.rows, adapters, strict=True)]
        batches.append(replace(batch, rows=tuple(rows)))
    for batch in batches[:2]:
        first.step(batch)
    first.save(tmp_path)
    second.load(tmp_path)
    metrics = first.step(batches[2])
    second.step(batches[2])
    assert metrics["optim/learning_rate"] == 1e-2
    assert metrics["optim/learning_rate/critic"] == 1e-3
    for name, parameter in trainable(models[0].model).items():
        assert torch.equal(parameter, trainable(models[1].model)[name])
