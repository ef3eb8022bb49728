"""Models and rows small enough that a step takes milliseconds; processes of one group."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from debate_rollout.engines.vllm.server_process import free_port
from debate_train.batches.packs import Pack, make_pack
from debate_train.batches.row_types import Batch, Row
from debate_train.commands.cli import main
from debate_train.losses import Loss
from debate_train.models import ScratchModel
from debate_train.models.loaded_model import LoadedModel, Lora, with_adapter
from train.made_rows import row_of
from train.small_runs import AHEAD, RECIPE, End, Run, end_of

MakeModel = Callable[..., LoadedModel]
MakeBatch = Callable[..., Batch]
PackOf = Callable[..., Pack]
GradientOf = Callable[..., tuple[dict[str, float], dict[str, Any]]]


@pytest.fixture(scope="session")
def tiny() -> MakeModel:
    """Make a model of a few thousand parameters, sharp enough that no token is like another."""

    def make(seed: int = 0, lora_rank: int = 0) -> LoadedModel:
        import torch

        config = ScratchModel(
            hidden_size=16, layers=1, heads=2, kv_heads=1, head_dim=8, ffn_size=16
        )
        loaded = config.load(seed)
        with torch.no_grad():
            for parameter in loaded.model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(0.25 / parameter.std())
        if lora_rank:
            loaded = dataclasses.replace(loaded, lora=Lora(rank=lora_rank, alpha=2 * lora_rank))
        return with_adapter(loaded, seed)

    return make


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a model of two layers."""
    folder = tmp_path_factory.mktemp("base")
    small = ScratchModel(
        hidden_size=8, layers=2, heads=1, kv_heads=1, head_dim=8, ffn_size=8, initializer_range=0.5
    ).load(3)
    small.model.save_pretrained(folder)
    small.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def random_batch() -> MakeBatch:
    """Make rows of random tokens, with random credit on all but their first three tokens."""

    def make(seed: int = 0, lengths: Sequence[int] = (8, 23, 14, 30, 9)) -> Batch:
        rng = np.random.default_rng(seed)
        rows = tuple(_row(rng, length, debate) for debate, length in enumerate(lengths))
        return Batch(rows, ("generator",), sum(lengths) - 3 * len(lengths), len(lengths))

    return make


@pytest.fixture(scope="session")
def pack_of() -> PackOf:
    """Make one pack of rows of tokens; `sampled` marks the actions, in the order of rows."""

    def make(tokens: Any, sampled: Any, temperatures: Any = None, share: Any = "none") -> Pack:
        mask = np.asarray(sampled, np.float32)
        warmth = np.ones_like(mask) if temperatures is None else np.asarray(temperatures)
        rows = tuple(
            row_of(row, mask[b], advantages=mask[b], temperatures=warmth[b], debate=b)
            for b, row in enumerate(tokens)
        )
        # Temperatures stay as exact as they are given.
        rows = tuple(
            dataclasses.replace(r, temperatures=warmth[b][r.sampled_positions])
            for b, r in enumerate(rows)
        )
        weights = [row.mask[row.sampled_positions] for row in rows]
        return make_pack(Batch(rows, ("generator",), 1, 1), weights, range(len(rows)), share)

    return make


@pytest.fixture(scope="session")
def gradient_of() -> GradientOf:
    """Make the forward and backward passes of one update; return metrics and gradients by name.

    `reference` is the model whose parameters the reference policy has.
    """
    from debate_train.trainers import TorchTrainer
    from debate_train.trainers.references import KeptReference
    from debate_train.trainers.torch_session import Update, UpdateLoop, trainable

    def find(
        loaded: LoadedModel,
        batch: Batch,
        loss: Loss,
        reference: LoadedModel | None = None,
        **settings: Any,
    ) -> tuple[dict[str, float], dict[str, Any]]:
        kept = None
        if reference is not None:
            kept = KeptReference(trainable(reference.model))
            kept.parameters = trainable(loaded.model)
        loaded.model.zero_grad()
        learning = UpdateLoop(
            loaded.model,
            loss,
            kept,
            1,
            backward=lambda share: share.backward(),  # type: ignore[no-untyped-call]
            update=lambda: Update(0.0, False),
        )
        stats, _ = learning.learn(TorchTrainer(**settings).plan(batch, loss)[0])
        own = trainable(loaded.model)
        gradient = {name: p.grad.clone() for name, p in own.items() if p.grad is not None}
        return stats.metrics(batch.sampled_tokens), gradient

    return find


@pytest.fixture(scope="session")
def processes() -> Callable[..., list[str]]:
    """Run a script in processes of one group; return what each printed, by rank.

    pytest-timeout alone ends what hangs, so that a test may allow its processes more.
    """

    def run(size: int, arguments: Sequence[object], **environment: str) -> list[str]:
        shared = {
            **os.environ,
            **environment,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "WORLD_SIZE": str(size),
            "LOCAL_WORLD_SIZE": str(size),
            "DS_ACCELERATOR": "cpu",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
        }
        running = [
            subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                env=shared | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(size)
        ]
        try:
            printed = [process.communicate() for process in running]
        finally:
            for process in running:
                process.kill()
        for process, (_, errors) in zip(running, printed, strict=True):
            assert process.returncode == 0, errors[-3000:]
        return [out for out, _ in printed]

    return run


def _row(rng: np.random.Generator, length: int, debate: int) -> Row:
    return row_of(
        rng.integers(6, 120, length),
        np.arange(length) >= 3,
        advantages=rng.normal(size=length),
        sampler_logps=rng.normal(-4.0, 0.5, length),
        temperatures=0.8,
        debate=debate,
    )


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run the command on a recipe of three short steps, always in the same directory."""
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return lambda *more: main([str(path), "--output", str(tmp_path / "run"), *more])


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> End:
    """What `run` ends with when nothing stops it."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "small.yaml").write_text(RECIPE)
    assert main([str(folder / "small.yaml"), "--output", str(folder / "run")]) == 0
    return end_of(folder / "run")


@pytest.fixture(scope="session")
def whole_ahead(tmp_path_factory: pytest.TempPathFactory) -> End:
    """What a run with rollouts ahead ends with that nothing stops."""
    folder = tmp_path_factory.mktemp("ahead")
    (folder / "small.yaml").write_text(RECIPE)
    assert main([str(folder / "small.yaml"), "--output", str(folder / "run"), *AHEAD]) == 0
    return end_of(folder / "run")
