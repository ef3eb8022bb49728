"""The tinker trainer and engine on a stand-in, which gives the real server's recorded answers."""

import base64
import json
import threading
from collections.abc import Callable
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tinker import types

from debate_rollout.engine import EngineConfigError, Request, Sampling, Weights, WeightsError
from debate_rollout.engines.sampling import plain_logps
from debate_rollout.engines.tinker import SERVED, TinkerEngine, connect
from debate_rollout.engines.tinker_sampler import length_step, seed_31_bits
from debate_rollout.testing import Bench, Refresh, check_engine, turn_request
from debate_train import train
from debate_train.batches.row_types import Batch
from debate_train.commands.cli import main
from debate_train.errors import ModelError, RecipeError, RunFailure, UsageError
from debate_train.losses import ImportanceSampling, PpoClip, Reinforce, Sft
from debate_train.models import PretrainedModel
from debate_train.models.loaded_model import LoadedModel, Lora
from debate_train.recipe.files import load_recipe
from debate_train.recipe.recipe import Recipe
from debate_train.trainers import TinkerTrainer, TorchTrainer, tinker_policy, tinker_rows
from debate_train.trainers.optimizers import AdamW
from debate_train.trainers.tinker_policy import TinkerPolicy
from debate_train.trainers.tinker_probe import PROBE_ROW
from debate_train.trainers.tinker_rows import PLAIN, Reduction, SentRow, datums
from train import tinker_recording
from train.tinker_stand_in import StandIn, tie

pytestmark = pytest.mark.numeric
URL = "http://127.0.0.1:8765"
CLOSE = 1e-5  # float32, and another order of the same sums
RANK = 2
LINEAR = AdamW(eps=1e3)
"""With an eps far above any gradient a step of Adam is the gradient times rate / eps."""

Serve = Callable[..., StandIn]
Open = Callable[..., tuple[Any, Any]]


@pytest.fixture(scope="module")
def start(repository: Path) -> str:
    return str(repository / "recipes" / "data" / "quickstart_start")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, start: str) -> Serve:
    """Put a stand-in in the place of the server."""

    def start_server(rank: int = RANK, **settings: Any) -> StandIn:
        server = StandIn(start, rank, **settings)
        monkeypatch.setattr(tinker_rows, "ROWS_AT_ONCE", 4)
        monkeypatch.setattr(tinker_policy, "connect", lambda url: server)
        monkeypatch.setattr(TinkerPolicy, "unload", lambda self, model_id: server.unload(model_id))
        monkeypatch.setattr(TinkerPolicy, "download", lambda self: peft_names(server, self.client))
        return server

    return start_server


def peft_names(server: StandIn, adapter: Any) -> dict[str, torch.Tensor]:
    tensors = {}
    parameters = dict(server.model.named_parameters(remove_duplicate=False))
    for name, parameter in parameters.items():
        if ".lora_" in name:
            first = next(n for n, p in server.parameters.items() if p is parameter)
            tensors[name.replace(".default.", ".")] = adapter.weights[first].clone()
    return tensors


@pytest.fixture
def opened(start: str) -> Open:
    def open_trainer(loss: Any, seed: int = 5, **changes: Any) -> tuple[Any, Any]:
        settings: dict[str, Any] = {"base_url": URL, "learning_rate": 1e-2}
        trainer = TinkerTrainer(**(settings | changes))
        lora = Lora(rank=RANK, alpha=32)
        loaded = trainer.load_model(PretrainedModel(name=start, lora=lora), seed)
        return trainer.open(loaded, loss, 10), loaded

    return open_trainer


@pytest.fixture
def batch(random_batch: Any) -> Batch:
    """Rows at temperature 1."""
    made: Batch = random_batch()
    rows = [replace(row, temperatures=np.ones_like(row.temperatures)) for row in made.rows]
    return replace(made, rows=tuple(rows))


def torch_twin(start: str, adapter: dict[str, torch.Tensor]) -> LoadedModel:
    from peft import set_peft_model_state_dict

    loaded = PretrainedModel(name=start, lora=Lora(rank=RANK, alpha=32)).load(0)
    set_peft_model_state_dict(loaded.model, adapter)
    tie(loaded.model)
    return loaded


# The stand-in beside the real server.


def test_stand_in_gives_the_recorded_answers(serve: Serve) -> None:
    recording = json.loads(tinker_recording.RECORDING.read_text())
    assert recording["reduction"] == [True, True]
    server = serve(tinker_recording.RANK)
    adapter = server.create_lora_training_client("", tinker_recording.RANK, seed=3)
    for name, parameter in server.parameters.items():
        if ".lora_A." in name:
            content = base64.b64decode(recording["start"][name.replace(".default.", ".")])
            values = np.frombuffer(content, np.float32).reshape(parameter.shape)
            adapter.weights[name] = torch.from_numpy(values.copy())
    answers = tinker_recording.answers(adapter)
    assert answers.keys() == recording["answers"].keys()
    for name, recorded in recording["answers"].items():
        if isinstance(recorded, float):
            assert answers[name] == recorded == 0
            continue
        for key in ("logprobs", "losses"):
            for row, recorded_row in zip(answers[name][key], recorded[key], strict=True):
                assert row == pytest.approx(recorded_row, abs=CLOSE, rel=CLOSE), (name, key)
        assert answers[name]["grad_norm"] == pytest.approx(recorded["grad_norm"], rel=3e-5), name


# The trainer.


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    "loss",
    [
        ImportanceSampling(),
        ImportanceSampling(aggregation="token_mean_batch", old_policy="trainer"),
        PpoClip(aggregation="token_mean_group"),
        Reinforce(aggregation="token_sum"),
        Sft(aggregation="sequence_mean"),
    ],
    ids=lambda loss: f"{loss.type}-{loss.aggregation}",
)
def test_step_is_torchs_when_the_server_averages_or_sums(
    serve: Serve, opened: Open, start: str, batch: Batch, loss: Any, reduction: str
) -> None:
    serve(reduction=reduction)
    settings: dict[str, Any] = {"optimizer": LINEAR, "learning_rate": 1.0}
    trainer, loaded = opened(loss, **settings)
    is_mean = reduction == "mean"
    assert loaded.remote.reduction == Reduction(is_mean, is_mean)
    before = loaded.remote.download()
    metrics = trainer.step(batch)
    after = loaded.remote.download()
    twin = torch_twin(start, before)
    reference = TorchTrainer(max_grad_norm=float("inf"), **settings).open(twin, loss, 10)
    expected = reference.step(batch)
    assert metrics["optim/grad_norm"] == pytest.approx(expected["optim/grad_norm"], rel=CLOSE)
    # A sum of signed terms: its rounding is that of the terms, of about 1 each.
    assert metrics["loss"] == pytest.approx(expected["loss"], abs=10 * CLOSE)
    from peft import get_peft_model_state_dict

    state = get_peft_model_state_dict(twin.model)
    # B begins at 0, so it is the step itself.
    expected_steps = {name: step for name, step in state.items() if ".lora_B." in name}
    largest = max(float(step.abs().max()) for step in expected_steps.values())
    for name, step in expected_steps.items():
        assert float((after[name] - step).abs().max()) < 2 * CLOSE * largest, name
    assert trainer.score(batch) == pytest.approx(reference.score(batch), rel=CLOSE)


def test_several_updates_are_torchs_when_a_batch_makes_them(
    serve: Serve, opened: Open, start: str, batch: Batch
) -> None:
    serve()
    settings: dict[str, Any] = {"epochs": 2, "minibatch_size": 3, "learning_rate": 1e-3}
    trainer, loaded = opened(PpoClip(), **settings)
    twin = torch_twin(start, loaded.remote.download())
    settings |= {"optimizer": AdamW(), "max_grad_norm": float("inf")}
    reference = TorchTrainer(**settings).open(twin, PpoClip(), 10)
    for _ in range(2):
        metrics = trainer.step(batch)
        expected = reference.step(batch)
    for name in ("loss", "optim/clip_fraction", "optim/ratio_max", "optim/kl_sample_train_v2"):
        assert metrics[name] == pytest.approx(expected[name], rel=1e-3, abs=1e-4), name
    lengths = np.array([len(row.sampled_positions) for row in batch.rows])
    errors = np.abs(np.array(trainer.score(batch)) - np.array(reference.score(batch))) / lengths
    assert errors.max() < CLOSE
    assert metrics["optim/updates"] == 4
    assert metrics["tinker/trained_tokens"] == 4 * sum(map(len, batch.rows))


def test_probe_refuses_a_server_that_adds_up_otherwise(
    serve: Serve, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve()
    norms = iter([0.0, 1.0, 1.7, 1.0])
    from train.tinker_stand_in import Adapter, SimpleNamespace, done

    def step(self: Any, adam: Any) -> Any:
        return done(SimpleNamespace(metrics={"grad_norm": next(norms)}))

    monkeypatch.setattr(Adapter, "optim_step", step)
    _, loaded = opened(PpoClip())
    with pytest.raises(RunFailure, match="expected those of a mean or of a sum"):
        _ = loaded.remote.reduction
    assert server.num_made == 1


def test_older_sampling_client_is_noticed_when_it_samples(
    serve: Serve, opened: Open, batch: Batch
) -> None:
    serve()
    trainer, _ = opened(PpoClip())

    def sample(weights: Weights) -> None:
        prompt = types.ModelInput.from_ints([7, 8, 9])
        parameters = types.SamplingParams(max_tokens=2, seed=1)
        weights.tensors[SERVED].client.sample(prompt, 1, parameters).result()

    older = trainer.weights(0)
    assert trainer.weights(1).tensors[SERVED] is older.tensors[SERVED]  # Nothing was trained.
    sample(older)
    trainer.step(batch)
    trainer.step(batch)
    sample(trainer.weights(2))
    trainer.step(batch)  # In order: only the newest client has sampled.
    sample(older)
    with pytest.raises(RunFailure, match="a client of older weights has sampled"):
        trainer.step(batch)


def test_gradient_left_in_a_place_is_dropped_before_a_run(
    serve: Serve, opened: Open, batch: Batch
) -> None:
    def second_loss(leave_gradient: bool) -> float:
        server = serve()
        if leave_gradient:
            killed = server.create_lora_training_client("", RANK, seed=1)
            sent = SentRow(PROBE_ROW, np.full(8, 50.0), np.full(8, -4.0, np.float32))
            killed.forward_backward(datums([sent], PLAIN), "importance_sampling")
            server.unload(killed.model_id)
            assert server.places[0].num_rows == 4
        trainer, _ = opened(PpoClip())
        trainer.step(batch)
        return float(trainer.step(batch)["loss"])

    assert second_loss(leave_gradient=True) == second_loss(leave_gradient=False)


def test_resume_is_bit_equal_and_takes_the_place_of_the_killed_run(
    serve: Serve, opened: Open, batch: Batch, tmp_path: Path
) -> None:
    server = serve()
    trainer, loaded = opened(PpoClip(), warmup_steps=3)
    trainer.step(batch)
    trainer.save(tmp_path)
    unbroken = trainer.step(batch)
    tensors = loaded.remote.download()
    place = loaded.remote.client.place
    resumed, again = opened(PpoClip(), warmup_steps=3)
    resumed.load(tmp_path)
    assert resumed.completed == 1
    metrics = resumed.step(batch)
    for name in ("loss", "optim/grad_norm", "optim/learning_rate"):
        assert metrics[name] == unbroken[name]
    for name, tensor in again.remote.download().items():
        assert torch.equal(tensor, tensors[name])
    assert again.remote.client.place == place
    assert len(server.adapters) == 1
    resumed.save(tmp_path)  # Names can be used once: this run has others.
    assert len(server.states) == 2


def test_next_phase_has_a_new_optimizer(serve: Serve, opened: Open, batch: Batch) -> None:
    serve()
    trainer, loaded = opened(PpoClip())
    trainer.step(batch)
    weights = loaded.remote.download()
    second = TinkerTrainer(base_url=URL).open(loaded, PpoClip(), 10)
    second.score(batch)
    assert loaded.remote.client.optimizer["step"] == 0
    for name, tensor in loaded.remote.download().items():
        assert torch.equal(tensor, weights[name])


def test_checkpoint_of_another_trainer_is_refused(
    serve: Serve, opened: Open, tmp_path: Path
) -> None:
    serve()
    trainer, loaded = opened(PpoClip())
    with pytest.raises(ModelError, match="found no counts"):
        trainer.load(tmp_path)
    with pytest.raises(ModelError, match="expected a checkpoint of trainer tinker"):
        loaded.remote.load(tmp_path)
    state = {"path": "tinker://a/weights/b", "base_model": "x", "rank": 2, "model_id": "a"}
    (tmp_path / "tinker.json").write_text(json.dumps(state))
    with pytest.raises(ModelError, match="found an adapter of x, rank 2; expected one of"):
        loaded.remote.load(tmp_path)


def test_another_base_is_refused(serve: Serve, opened: Open) -> None:
    serve(base_model="Qwen/Qwen3-8B")
    _, loaded = opened(PpoClip())
    with pytest.raises(RecipeError, match=r"does not have; expected one of Qwen/Qwen3-8B"):
        loaded.remote.prints()


def test_rows_are_refused_when_the_server_would_not_check_them(
    serve: Serve, opened: Open, batch: Batch
) -> None:
    serve()
    trainer, _ = opened(PpoClip())
    row = batch.rows[0]
    broken = replace(row, advantages=np.full_like(row.advantages, np.nan))
    with pytest.raises(RunFailure, match="that are not finite; expected finite ones"):
        trainer.step(replace(batch, rows=(broken,)))
    long = replace(row, tokens=np.full(700, 7, np.int32))
    with pytest.raises(RunFailure, match="a row of 700 tokens; expected at most 640"):
        trainer.step(replace(batch, rows=(long,)))


# The engine.


def test_engine_conforms(serve: Serve, opened: Open, start: str, batch: Batch) -> None:
    serve()
    untrained, loaded = opened(PpoClip())
    engine = TinkerEngine().open(loaded.model, loaded.tokenizer)
    engine.load(untrained.weights(0))
    refreshes = []
    for version, seed in enumerate((6, 7), start=1):
        trainer, trained = opened(PpoClip(), seed=seed)
        trainer.step(batch)
        twin = torch_twin(start, trained.remote.download())
        refreshes.append(Refresh(trainer.weights(version), plain_logps(twin.model)))
    results = check_engine(Bench(engine, refreshes=refreshes, temperatures=(1.0, 0.0)))
    for name in ("stop string inside a token", "same seed, same reply", "LoRA refresh"):
        assert results[name] == "passed"


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Sampling(4, temperature=0.6), "temperature: found 0.6; expected 1, or 0"),
        (Sampling(4, min_p=0.1), "min_p: found 0.1"),
    ],
)
def test_engine_refuses_what_the_server_does_otherwise(
    serve: Serve, opened: Open, sampling: Sampling, message: str
) -> None:
    serve()
    trainer, loaded = opened(PpoClip())
    engine = TinkerEngine().open(loaded.model, loaded.tokenizer)
    request = Request(turn_request(), sampling, (7, 8, 9))
    with pytest.raises(EngineConfigError, match="has no weights yet"):
        engine.generate([Request(turn_request(), Sampling(4), (7, 8))])
    engine.load(trainer.weights(0))
    with pytest.raises(EngineConfigError, match=message):
        engine.generate([request])
    with pytest.raises(WeightsError, match="expected the adapter of a trainer of type tinker"):
        engine.load(Weights(1, {"a": torch.zeros(1)}))


def test_seeds_fit_and_differ_and_lengths_rise_in_steps() -> None:
    seeds = {seed_31_bits(seed) for seed in (0, 1, -1, 2**31, 2**32, 2**63 - 1)}
    assert len(seeds) == 6 and max(seeds) < 2**31
    lengths = (1, 32, 33, 49, 64, 65, 97, 129, 200)
    assert [length_step(n) for n in lengths] == [32, 32, 48, 64, 64, 96, 128, 192, 256]


# Recipes and keys.


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("model.lora=null", "model.lora: found null; expected {rank: 16, alpha: 32}"),
        ("model.lora.alpha=64", "model.lora.alpha: found 64; expected 32"),
        ("model.lora.adapters=[a,b]", "model.lora.adapters: found a, b; expected none"),
        ("loss.kl.weight=0.1", "loss.kl.weight: found more than 0; expected 0"),
        ("loss.type=dpo", "loss.type: found dpo, which servers"),
        ("loss.dual_clip=3", "loss.dual_clip: found a number; expected null"),
        ("pipeline.max_staleness=1", "pipeline.max_staleness: found 1; expected 0"),
        ("trainer.max_grad_norm=1", "max_grad_norm: found 1; expected none: servers drop it"),
        ("trainer.optimizer.weight_decay=0.1", "decays the other adapters of the server"),
        ("trainer.optimizer.type=muon", "muon"),
        ("rollout.engine.type=transformers", "rollout.engine.type: found transformers with"),
        ("trainer.base_url=http://tinker.example.com", "sends the key unencrypted"),
        (
            "trainer.base_url=https://example.com",
            "found example.com, and TINKER_API_KEY goes to hosts with `tinker`",
        ),
        ("trainer.base_url=https://a:b@tinker.dev", "found a user, a query or a fragment"),
    ],
)
def test_recipe_is_refused_when_the_server_cannot(change: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        load_recipe("quickstart_tinker", [change], model=Recipe)
    assert message in str(refused.value)


def test_tinker_engine_is_refused_beside_another_trainer() -> None:
    with pytest.raises(UsageError, match=r"trainer\.type: found torch with rollout"):
        load_recipe("quickstart", ["rollout.engine.type=tinker"], model=Recipe)


def test_key_goes_to_its_host_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    import tinker

    sent: dict[str, Any] = {}
    monkeypatch.setattr(tinker, "ServiceClient", lambda **settings: sent.update(settings))
    monkeypatch.setenv("TINKER_API_KEY", "tml-secret")
    connect("http://127.0.0.1:8765")
    assert "secret" not in repr(sent)
    connect("https://tinker.thinkingmachines.dev/services/tinker-prod")
    assert sent["api_key"] == "tml-secret"
    for value, problem in (("", "is not set"), ("sk-1", "is no key")):
        monkeypatch.setenv("TINKER_API_KEY", value)
        with pytest.raises(EngineConfigError, match=problem):
            connect("https://tinker.thinkingmachines.dev")


def test_check_asks_the_server_and_plan_bounds_the_tokens(
    capsys: pytest.CaptureFixture[str], start: str
) -> None:
    answer = {"supported_models": [{"model_name": start}, {"model_name": "other"}]}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/api/v1/get_server_capabilities"
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"trainer.base_url=http://127.0.0.1:{server.server_port}"
    try:
        assert main(["quickstart_tinker", url, "--check", f"trainer.base_model={start}"]) == 0
        assert f"has {start}, other" in capsys.readouterr().out
        assert main(["quickstart_tinker", url, "--check", "trainer.base_model=Qwen/Qwen3-8B"]) == 2
        assert "found Qwen/Qwen3-8B; expected one of" in capsys.readouterr().err
    finally:
        server.shutdown()
        server.server_close()
    assert main(["quickstart_tinker", url, "--check"]) == 0
    assert "gave no answer" in capsys.readouterr().err
    assert main(["quickstart_tinker", url, "--plan", "steps=2"]) == 0
    # 2 steps of 320 turns, each of at most 74 tokens.
    assert f"{2 * 320 * 74:,} of replies" in capsys.readouterr().out


# A run.

SMALL = {
    "steps": 3,
    "data": {"batch_size": 2},
    "rollout": {"max_tokens": 12},
    "evaluation": {"questions": 2},
    "model": {"lora": {"rank": RANK}},
    "trainer": {"learning_rate": 1e-2},
    "checkpoint": {"every": 1},
}


class Stopped(Exception):
    pass


def test_run_learns_and_resumes_bit_equal(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    whole = train("quickstart_tinker", SMALL, output=tmp_path / "whole")
    assert whole.finished
    assert not server.adapters  # A run that has ended takes no place.
    serve()

    def stop(end: Any) -> None:
        if end.step == 2:
            raise Stopped

    with pytest.raises(Stopped):
        train("quickstart_tinker", SMALL, output=tmp_path / "broken", on_step_end=stop)
    resumed = train("quickstart_tinker", SMALL, output=tmp_path / "broken", resume=True)
    assert resumed.finished
    timeless = [
        {name: value for name, value in row.items() if not name.startswith(_UNEQUAL)}
        for run in (whole, resumed)
        for row in run.metrics
    ]
    assert timeless[: len(timeless) // 2] == timeless[len(timeless) // 2 :]
    assert whole.checkpoint is not None and resumed.checkpoint is not None
    name = "adapter_model.safetensors"
    assert (whole.checkpoint / name).read_bytes() == (resumed.checkpoint / name).read_bytes()
    again = train("quickstart_tinker", SMALL, output=tmp_path / "broken", resume=True)
    assert again.finished


_UNEQUAL = ("time", "memory", "tokens_per_s", "tinker/", "speed")
"""Seconds and bytes, and tokens counted since the process began."""
