"""Rank 0's side of the `deepspeed` trainer: it packs, leads the other ranks, reads and writes."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from debate_rollout.engine import Weights
from debate_train.adapters import freeze_others, tokens_of_adapters, with_names
from debate_train.batches.row_types import Batch
from debate_train.checkpointing.policy_files import load_policy, save_policy
from debate_train.checkpointing.tensor_files import write_tensors
from debate_train.checkpointing.trainer_state import StoredTrainerState, write_trainer_state
from debate_train.losses import Loss
from debate_train.losses.references import REFERENCE, stored_reference, values_of
from debate_train.models.loaded_model import LoadedModel
from debate_train.models.policy import export_weights
from debate_train.ranks.followers import Call, Open, lead
from debate_train.ranks.processes import join, lost
from debate_train.timing import timed
from debate_train.trainers.deepspeed.state import Stored
from debate_train.trainers.deepspeed.worker import DeepSpeedWorker, check_types
from debate_train.trainers.objective import trainable

if TYPE_CHECKING:
    from debate_train.trainers.deepspeed.settings import DeepSpeedSettings

T = TypeVar("T")


class DeepSpeedSession:
    """An open `DeepSpeedTrainer`; every call is made by all ranks together."""

    def __init__(
        self, config: "DeepSpeedSettings", loaded: LoadedModel, loss: Loss, total_steps: int
    ) -> None:
        check_types(config, loaded)
        self._config, self._loaded, self._loss = config, loaded, loss
        self._processes = join()
        self._is_whole = True
        values = values_of(loss.reference_policy, loaded)
        freeze_others(loaded)
        lead(Open(config, loss, total_steps, loaded.training))
        self._worker = self._made(lambda: DeepSpeedWorker(config, loaded, loss, total_steps))
        if values is not None:
            self._call("load_reference", values)

    def step(self, batch: Batch) -> dict[str, float]:
        """Make the updates of a batch; one with a non-finite gradient is skipped and counted."""
        started = time.perf_counter()
        seconds: dict[str, float] = {}
        batch = with_names(batch, self._loaded)
        with timed(seconds, "pack"):
            plan = self._config.plan(batch, self._loss, self._processes.place.size)
        self._is_whole = False
        try:
            stats, outcome = self._call("step", plan)
        except Exception:
            self._is_whole = not self._worker.has_updated
            raise
        self._is_whole = True
        return {
            **stats.metrics(batch.sampled_tokens, tokens_of_adapters(batch)),
            **outcome,
            **seconds,
            "time/train_s": time.perf_counter() - started,
        }

    def score(self, batch: Batch) -> list[float]:
        """Return the log-probability of each row's actions together."""
        batch = with_names(batch, self._loaded)
        packs = self._config.packs(batch, self._loss, self._processes.place.size)
        found: dict[int, float] = self._call("score", packs)
        return [found.get(number, 0.0) for number in range(len(batch.rows))]

    @property
    def completed(self) -> int | None:
        """Steps that the weights stand after; None in the middle of one, or without the others."""
        is_whole = self._is_whole and not self._processes.broken
        return self._worker.counts().schedule_steps if is_whole else None

    def weights(self, version: int) -> Weights:
        """Return the policy's weights; they share memory with rank 0's model."""
        self._call("gather")
        return export_weights(self._loaded, version)

    def save(self, directory: Path) -> None:
        """Write the policy, and masters and moments gathered from all shards by name."""
        self._call("gather")
        save_policy(directory, self._loaded)
        counts = self._worker.counts()
        lead(Call("states"))
        self._made(lambda: write_trainer_state(directory, self._worker.states(), counts))
        lead(Call("reference_tensors"))
        tensors = self._worker.reference_tensors
        self._made(lambda: write_tensors(directory, REFERENCE, tensors()))

    def load(self, directory: Path) -> None:
        """Go on where `save` was called, whatever trainer, stage and number of processes it had.

        Only rank 0 reads the checkpoint.
        """
        own = trainable(self._loaded.model)
        shapes = {n: tuple(p.shape) for n, p in own.items()}
        stored = StoredTrainerState(directory, shapes, self._config.optimizer.kept())
        self._call("prepare_load", stored.counts)
        load_policy(directory, self._loaded)

        def read(name: str) -> Stored:
            state = stored.of(name)
            value = own[name].detach()
            if state is None:
                return value, None
            return (value if state.master is None else state.master), dict(state.moments)

        self._call("load", read)
        if self._loss.reference_policy == "phase_start":
            self._call("load_reference", stored_reference(directory))

    def close(self) -> None:
        """Free what DeepSpeed holds; the model keeps its weights."""
        if self._processes.broken:
            return
        self._call("gather")
        self._call("close")

    def _call(self, method: str, *own: object) -> Any:
        """Call a method of the worker on every rank; what is `own` is only rank 0's."""
        lead(Call(method))
        return self._made(lambda: getattr(self._worker, method)(*own))

    def _made(self, call: Callable[[], T]) -> T:
        """Make rank 0's part of a call; after a failure nothing more can be made together."""
        try:
            return call()
        except BaseException as error:
            alone = self._processes.place.size == 1
            self._processes.broken = not alone
            if not alone and isinstance(error, RuntimeError) and "onnection" in str(error):
                raise lost(self._processes.place, error) from error
            raise
