"""The tinker trainer and engine on SkyRL's server: gradients of torch, resumes, its traps.

`make test-tinker` runs them. They serve the quickstart's own start from .venv-tinker, on loopback;
`TINKER_SERVER=http://127.0.0.1:8765` takes a server that already runs.
"""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from debate_rollout.engines.sampling import plain_logps
from debate_rollout.engines.tinker import SERVED, ServedAdapter, TinkerEngine
from debate_rollout.engines.vllm.server_process import free_port
from debate_rollout.testing import Bench, Refresh, check_engine
from debate_train.batches.row_types import Batch
from debate_train.errors import RecipeError, RunFailure
from debate_train.losses import Dapo, ImportanceSampling, PpoClip, Reinforce, Sft
from debate_train.models import PretrainedModel
from debate_train.models.loaded_model import LoadedModel, Lora
from debate_train.trainers import TinkerTrainer, TorchTrainer
from debate_train.trainers.optimizers import AdamW

pytestmark = pytest.mark.tinker
LORA = Lora(rank=8, alpha=32)
CLOSE = 1e-5  # float32: what two libraries round differently over two layers
FUSED = {".q_proj": (".k_proj", ".v_proj"), ".gate_proj": (".up_proj",)}
"""Projections that share one matrix A on SkyRL's server, which computes each group at once."""
LINEAR = AdamW(eps=1e3)
"""With an eps far above any gradient a step of Adam is the gradient times rate / eps."""


@pytest.fixture(scope="module")
def start(repository: Path) -> Path:
    return repository / "recipes" / "data" / "quickstart_start"


@pytest.fixture(scope="module")
def url(repository: Path, start: Path, tmp_path_factory: Any) -> Iterator[str]:
    given = os.environ.get("TINKER_SERVER")
    if given:
        yield given
        return
    python = repository / ".venv-tinker" / "bin" / "python"
    if not python.exists():
        pytest.skip("needs .venv-tinker, which `make test-tinker` sets up")
    port = free_port()
    folder = tmp_path_factory.mktemp("server")
    command = [str(python), str(repository / ".ci" / "tinker_server.py"), str(start)]
    command += ["--port", str(port), "--state", str(folder), "--rows", "16", "--samples", "32"]
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        _wait_for(f"http://127.0.0.1:{port}/api/v1/healthz", server)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=60)


def _wait_for(address: str, server: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert server.poll() is None, "the server has ended"
        try:
            urllib.request.urlopen(address, timeout=5)
            return
        except (urllib.error.URLError, TimeoutError):
            time.sleep(1.0)
    raise AssertionError("no server within 300 s")


Open = Callable[..., tuple[Any, LoadedModel]]


@pytest.fixture
def opened(url: str, start: Path) -> Iterator[Open]:
    """Open trainers; their adapters leave the server after the test."""
    policies = []

    def open_trainer(
        loss: Any, steps: int = 10, seed: int = 5, **changes: Any
    ) -> tuple[Any, LoadedModel]:
        settings: dict[str, Any] = {"base_url": url, "learning_rate": 1e-3}
        trainer = TinkerTrainer(**(settings | changes))
        loaded = trainer.load_model(PretrainedModel(name=str(start), lora=LORA), seed)
        policies.append(loaded.remote)
        return trainer.open(loaded, loss, steps), loaded

    yield open_trainer
    for policy in policies:
        policy.leave()


@pytest.fixture
def batch(random_batch: Any) -> Batch:
    """Rows at temperature 1, with sampler log-probabilities near the policy's."""
    rows = random_batch().rows
    return replace(
        random_batch(),
        rows=tuple(replace(r, temperatures=np.ones_like(r.temperatures)) for r in rows),
    )


def torch_twin(start: Path, adapter: dict[str, torch.Tensor]) -> LoadedModel:
    """Load the model here with the server's adapter."""
    from peft import set_peft_model_state_dict

    loaded = PretrainedModel(name=str(start), lora=LORA).load(0)
    result = set_peft_model_state_dict(loaded.model, adapter)
    assert not result.unexpected_keys
    modules = dict(loaded.model.named_modules())
    for first, others in FUSED.items():
        for name, module in modules.items():
            if name.endswith(first):
                for other in others:
                    parallel: Any = modules[name.replace(first, other)]
                    shared: Any = module
                    assert torch.equal(
                        parallel.lora_A["default"].weight, shared.lora_A["default"].weight
                    )
                    parallel.lora_A["default"].weight = shared.lora_A["default"].weight
    return loaded


def adapter_of_torch(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    from peft import get_peft_model_state_dict

    state: dict[str, torch.Tensor] = get_peft_model_state_dict(loaded.model)
    return {name: tensor.detach().clone() for name, tensor in state.items()}


def test_log_probabilities_are_torchs(opened: Open, start: Path, batch: Batch) -> None:
    loss = PpoClip()
    trainer, loaded = opened(loss)
    assert isinstance(loaded.remote, object)
    trainer.step(batch)
    scores = trainer.score(batch)
    twin = torch_twin(start, loaded.remote.download())  # type: ignore[union-attr]
    expected = TorchTrainer().open(twin, loss, 10).score(batch)
    lengths = [len(row.sampled_positions) for row in batch.rows]
    errors = [abs(a - b) / n for a, b, n in zip(scores, expected, lengths, strict=True)]
    print("log-probability of a token, largest difference:", max(errors))
    assert max(errors) < CLOSE


LOSSES = [
    ImportanceSampling(),
    ImportanceSampling(aggregation="token_mean_batch", old_policy="trainer"),
    PpoClip(),
    Dapo(aggregation="token_mean_group"),
    Reinforce(aggregation="token_sum"),
    Sft(aggregation="sequence_mean"),
]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: f"{loss.type}-{loss.aggregation}")
def test_gradient_is_torchs(opened: Open, start: Path, batch: Batch, loss: Any) -> None:
    settings = {"optimizer": LINEAR, "learning_rate": 1.0}
    trainer, loaded = opened(loss, **settings)
    remote: Any = loaded.remote
    # A first step of rate 1 moves B away from 0, where A has no gradient.
    trainer.step(batch)
    before = remote.download()
    # The moments of the first step weigh in the second; a new optimizer has none.
    remote.restart_optimizer()
    measured = trainer.step(batch)
    after = remote.download()

    twin = torch_twin(start, before)
    reference = TorchTrainer(max_grad_norm=float("inf"), **settings).open(twin, loss, 10)
    expected_metrics = reference.step(batch)
    expected = adapter_of_torch(twin)
    steps = {name: after[name] - before[name] for name in before}
    expected_steps = {name: expected[name] - before[name] for name in before}
    largest = max(float(step.abs().max()) for step in expected_steps.values())
    error = max(float((steps[name] - expected_steps[name]).abs().max()) for name in before)
    print(
        f"{loss.type}: largest gradient {largest * 1e3:.3g}, relative difference", error / largest
    )
    assert largest > 1e-6
    assert error / largest < 2 * CLOSE  # of steps read off float32 weights
    assert measured["loss"] == pytest.approx(expected_metrics["loss"], abs=CLOSE, rel=CLOSE)
    assert measured["optim/grad_norm"] == pytest.approx(
        expected_metrics["optim/grad_norm"], rel=1e-4
    )


def test_several_updates_of_adam_are_torchs(opened: Open, start: Path, batch: Batch) -> None:
    loss = PpoClip()
    settings = {"optimizer": AdamW(), "learning_rate": 1e-3, "epochs": 2, "minibatch_size": 3}
    trainer, loaded = opened(loss, **settings)
    remote: Any = loaded.remote
    twin = torch_twin(start, remote.download())
    reference = TorchTrainer(max_grad_norm=float("inf"), **settings).open(twin, loss, 10)
    for _ in range(2):
        measured = trainer.step(batch)
        expected = reference.step(batch)
    scores = np.array(trainer.score(batch))
    lengths = np.array([len(row.sampled_positions) for row in batch.rows])
    errors = np.abs(scores - np.array(reference.score(batch))) / lengths
    print("after 8 updates, a token's log-probability differs by", errors.max())
    assert errors.max() < CLOSE
    assert measured["optim/updates"] == expected["optim/updates"] == 4
    assert measured["loss"] == pytest.approx(expected["loss"], abs=CLOSE)


def test_resumed_run_is_bit_equal(opened: Open, batch: Batch, tmp_path: Path) -> None:
    trainer, loaded = opened(PpoClip())
    trainer.step(batch)
    trainer.save(tmp_path)
    unbroken = trainer.step(batch)
    first: Any = loaded.remote
    expected = first.download()
    # The first run leaves without a word, as a killed one does: its adapter keeps the place.
    resumed, other = opened(PpoClip())
    resumed.load(tmp_path)
    assert resumed.completed == 1
    again = resumed.step(batch)
    for name in ("loss", "optim/grad_norm", "optim/learning_rate", "optim/ratio_max"):
        assert again[name] == unbroken[name]
    second: Any = other.remote
    tensors = second.download()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in expected.items())
    assert (tmp_path / "adapter_model.safetensors").is_file()


def test_older_sampling_client_is_noticed(opened: Open, batch: Batch) -> None:
    trainer, _ = opened(PpoClip(), learning_rate=1e-2)
    older: ServedAdapter = trainer.weights(0).tensors[SERVED]
    from tinker import types

    def sample(served: ServedAdapter) -> None:
        prompt = types.ModelInput.from_ints([7, 8, 9])
        served.client.sample(prompt, 1, types.SamplingParams(max_tokens=4, seed=1)).result()

    trainer.step(batch)
    trainer.step(batch)
    newer = trainer.weights(2).tensors[SERVED]
    sample(newer)
    trainer.step(batch)  # In order: the newest client alone has sampled.
    sample(older)
    with pytest.raises(RunFailure, match="a client of older weights has sampled"):
        trainer.step(batch)


def test_gradient_of_a_killed_run_is_dropped(opened: Open, batch: Batch, url: str) -> None:
    def loss_after_two_steps() -> tuple[float, float]:
        trainer, loaded = opened(PpoClip(), learning_rate=1e-2)
        first = trainer.step(batch)
        second = trainer.step(batch)
        policy: Any = loaded.remote
        policy.leave()
        return first["optim/grad_norm"], second["loss"]

    control = loss_after_two_steps()
    _, loaded = opened(PpoClip())
    policy: Any = loaded.remote
    from debate_train.trainers.tinker_probe import PROBE_ROW
    from debate_train.trainers.tinker_rows import PLAIN, SentRow, datums

    sent = SentRow(PROBE_ROW, np.full(8, 50.0), np.full(8, -4.0, np.float32))
    policy.client.forward_backward(datums([sent], PLAIN), "importance_sampling").result()
    policy.leave()
    assert loss_after_two_steps() == control


def test_engine_conforms(opened: Open, start: Path, batch: Batch) -> None:
    untrained, loaded = opened(PpoClip())
    engine = TinkerEngine().open(loaded.model, loaded.tokenizer)
    engine.load(untrained.weights(0))
    refreshes = []
    for version, seed in enumerate((6, 7), start=1):
        trainer, trained = opened(PpoClip(), seed=seed, learning_rate=1e-2)
        trainer.step(batch)
        remote: Any = trained.remote
        twin = torch_twin(start, remote.download())
        refreshes.append(Refresh(trainer.weights(version), plain_logps(twin.model)))
    results = check_engine(Bench(engine, refreshes=refreshes, temperatures=(1.0, 0.0)))
    print(results)
    assert results["LoRA refresh"] == results["same seed, same reply"] == "passed"


def test_another_base_is_refused(url: str, start: Path) -> None:
    trainer = TinkerTrainer(base_url=url, base_model="another/model")
    loaded = trainer.load_model(PretrainedModel(name=str(start), lora=LORA), 0)
    policy: Any = loaded.remote
    with pytest.raises(RecipeError, match="which the server does not have; expected one of"):
        policy.prints()


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-m", "tinker", "-s"]))
