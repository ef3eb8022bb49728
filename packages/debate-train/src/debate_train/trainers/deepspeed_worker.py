"""Both sides of the `deepspeed` trainer: what every rank holds, and the session of rank 0."""

import copy
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed
from pydantic import ValidationError
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from debate_rollout.engine import Weights
from debate_train.batches.forward import check_packing
from debate_train.batches.packs import Pack
from debate_train.batches.row_types import Batch, let_speak
from debate_train.checkpoints.policy_files import load_policy, save_policy, write_tensors
from debate_train.checkpoints.trainer_state import (
    Counts,
    ParameterState,
    StoredTrainerState,
    scalars_of,
    set_schedule,
    tensors_of,
    write_trainer_state,
)
from debate_train.interrupts import RecipeError, RunFailure
from debate_train.losses import Loss
from debate_train.models.loaded_model import (
    LoadedModel,
    export_weights,
    freeze_others,
    tokens_of_adapters,
    with_names,
)
from debate_train.trainers import references
from debate_train.trainers.deepspeed import with_bucket
from debate_train.trainers.processes import Call, Open, Processes, broadcast, join, lost
from debate_train.trainers.torch_session import (
    Skips,
    StepStats,
    Update,
    UpdateLoop,
    gradient_checkpointing,
    row_logps,
    trainable,
    use_liger_kernel,
)

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine
    from transformers import PreTrainedModel

    from debate_train.trainers.deepspeed import DeepSpeedTrainer


_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


def remover_of_additions(model: nn.Module) -> Callable[[], None]:
    """Return a call that removes the hooks and attributes that the model gets from now on.

    DeepSpeed's `destroy` leaves the engine's hooks on the modules and bound methods on the
    parameters. Through them a phase that is over would keep its float32 weights and moments, 12
    bytes a parameter, until the end of the run, and its hooks would run in the next phase.
    """
    before = {id(place): set(place) for place in _places(model)}

    def remove() -> None:
        for place in _places(model):
            for key in set(place) - before.get(id(place), set()):
                del place[key]

    return remove


def _places(model: nn.Module) -> Iterator[dict[str, object]]:
    for module in model.modules():
        yield from (getattr(module, name) for name in _HOOKS)
    for parameter in model.parameters():
        yield parameter.__dict__


def without_values(model: nn.Module) -> nn.Module:
    """Return a copy of the model whose parameters have shapes and no memory."""
    empty = {
        id(p): nn.Parameter(p.detach().to("meta"), requires_grad=p.requires_grad)
        for p in model.parameters()
    }
    return copy.deepcopy(model, empty)


def shard(
    model: nn.Module, config: dict[str, object], processes: Processes, whole: nn.Module | None
) -> None:
    """Give a model rank 0's values, of which each rank keeps its shards.

    One parameter at a time is held whole, so a rank needs its shards and the largest parameter.

    Args:
        model: the same on every rank, with or without values of its own.
        config: DeepSpeed's configuration.
        processes: the ranks.
        whole: on rank 0, the model with the values.

    Raises:
        RunFailure: This rank's model has other parameters than rank 0's.
        ValidationError: DeepSpeed refuses the configuration.
    """
    from deepspeed.runtime.zero import Init

    described = processes.share(None if whole is None else _described(whole, config))
    shapes = {name: one.shape for one in described.values() for name in one.names}
    own = {name: p.shape for name, p in model.named_parameters(remove_duplicate=False)}
    if own != shapes:
        name = min(n for n in own.keys() | shapes.keys() if own.get(n) != shapes.get(n))
        raise RunFailure(
            f"the model of this rank is another than rank 0's: {name} has shape {own.get(name)} "
            f"here and {shapes.get(name)} there; expected the same files on every machine"
        )
    # One place for all: what is freed between shards that stay would be lost to the allocator.
    buffer = torch.empty(
        max(one.shape.numel() * one.dtype.itemsize for one in described.values()),
        dtype=torch.uint8,
    )
    values = {} if whole is None else dict(whole.named_parameters())
    placed: dict[str, nn.Parameter] = {}
    first: Any = None
    for owner, one in described.items():
        value = buffer[: one.shape.numel() * one.dtype.itemsize].view(one.dtype).view(one.shape)
        if owner in values:
            value.copy_(values[owner].detach())
        # Views share a count of changes, which would be that of all parameters; data has its own.
        parameter = nn.Parameter(value.data, requires_grad=one.is_trained)
        if first is None:
            first = parameter
            Init(module=nn.ParameterList([parameter]), config_dict_or_path=config)
        else:
            first.convert_to_zero_parameters(param_list=[parameter])
        placed |= dict.fromkeys(one.names, parameter)
    buffers: dict[str, Tensor] = processes.share(
        None
        if whole is None
        else {n: b.cpu() for n, b in whole.named_buffers(remove_duplicate=False)}
    )
    for path, module in model.named_modules():
        for key, _ in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, key, placed[f"{path}.{key}".lstrip(".")])
        for key, _ in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            # The empty parameter is where passes compute; its shards may lie elsewhere.
            setattr(module, key, buffers[f"{path}.{key}".lstrip(".")].to(first.device))


@dataclass(frozen=True, slots=True)
class _Described:
    names: tuple[str, ...]
    """All places of the parameter; several where weights are tied."""
    shape: torch.Size
    dtype: torch.dtype
    is_trained: bool


def _described(whole: nn.Module, config: dict[str, Any]) -> dict[str, _Described]:
    """Return what is shared out, by its first name: parameters as rank 0 has tied them."""
    rounded = torch.bfloat16 if config["bf16"]["enabled"] else None
    names: dict[int, list[str]] = {}
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {
        name: _Described(tuple(names[id(p)]), p.shape, rounded or p.dtype, p.requires_grad)
        for name, p in whole.named_parameters()
    }


def prepare_for_packs(engine: "DeepSpeedEngine") -> None:
    """Let forward passes begin below the top module, as those of packs do.

    What the engine's own call does before the model's must be done there: start the record of
    which parameters come next, and count micro-batches, whose gradients else replace each other.
    """
    model, optimizer = engine.module, engine.optimizer
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model

    def begin(*_: object) -> None:
        optimizer.clear_backward_seen_flag()
        optimizer.parameter_offload.get_param_coordinator().reset_step()

    inner.base_model.register_forward_pre_hook(begin)


Stored = tuple[Tensor, dict[str, Tensor] | None]
"""A parameter's value, and its moments where it has any."""


class EngineState:
    """Masters, moments and numbers that an engine's optimizer keeps."""

    def __init__(
        self,
        config: "DeepSpeedTrainer",
        processes: Processes,
        engine: "DeepSpeedEngine",
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._config, self._processes, self._engine = config, processes, engine
        self._kept = config.optimizer.state_layout()
        self._stage = config.zero_stage
        self._has_moments = False
        # Of some optimizers DeepSpeed makes another of the same class, on its own parts.
        inner = getattr(engine.optimizer, "optimizer", None)
        self.optimizer = inner if isinstance(inner, torch.optim.Optimizer) else optimizer

    def numbers(self) -> tuple[int, dict[str, int | float]]:
        """Return how many steps were made, 0 where nothing is kept, and other numbers by name.

        All parameters are stepped together, so they are alike.
        """
        states = [state for state in self.optimizer.state.values() if tensors_of(state)]
        numbers = scalars_of(states[0]) if states else {}
        return (int(numbers.pop("step", 1)) if states else 0), numbers

    def of(self, parameter: nn.Parameter) -> ParameterState:
        """Return the whole master and moments of a parameter."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        if self._stage == 0:
            return ParameterState(tensors_of(self.optimizer.state[parameter]))
        master = safe_get_full_fp32_param(parameter)
        moments = {m: safe_get_full_optimizer_state(parameter, m) for m in self._kept.moments}
        return ParameterState(moments, master if self._config.bf16 else None)

    def prepare(self, steps: int, numbers: Mapping[str, float]) -> None:
        """Make optimizer state exist, unless there were no steps, and set its numbers."""
        self._has_moments = steps > 0
        if self._has_moments:
            self._make_moments()
        for state in self.optimizer.state.values():
            for name, value in {"step": steps, **numbers}.items():
                held = state.get(name)
                if isinstance(held, Tensor):  # Where the optimizer reads it.
                    held.fill_(value)
                elif held is not None:
                    state[name] = type(held)(value)

    def write(
        self, parameter: nn.Parameter, value: Tensor | None, moments: dict[str, Tensor] | None
    ) -> None:
        """Write rank 0's value and moments of a parameter, on every rank what it holds of them."""
        shape = shape_of(parameter)
        master = self.from_rank_0(value, shape)
        with torch.no_grad(), self.whole(parameter, modifier_rank=0):
            parameter.copy_(master)
        if self._stage > 0:
            self._set_share(parameter, master)
        if not self._has_moments:
            return
        if self._stage == 0:  # In their own types and places: all ranks have made them alike.
            for name, tensor in sorted(tensors_of(self.optimizer.state[parameter]).items()):
                tensor.copy_(moments[name]) if moments else tensor.zero_()
                if self._processes.place.size > 1:
                    torch.distributed.broadcast(tensor, 0)
            return
        for moment in self._kept.moments:
            whole = self.from_rank_0(None if moments is None else moments[moment], shape)
            self._set_share(parameter, whole, moment)

    def _set_share(self, parameter: Any, whole: Tensor, moment: str | None = None) -> None:
        """Set this rank's share of a parameter's float32 value, or of a moment of it."""
        if self._stage < 3:
            parameter.set_full_hp_param(whole, moment)
            return
        # DeepSpeed's own call for whole tensors fails where they do not divide by the ranks.
        size, rank = parameter.ds_tensor.numel(), self._processes.place.rank
        share = torch.zeros(size, dtype=whole.dtype, device=whole.device)
        own = whole.flatten()[rank * size : (rank + 1) * size]
        share[: own.numel()] = own
        parameter._z3_optimizer.set_local_hp_param(share, parameter, moment)

    def from_rank_0(self, value: Tensor | None, shape: torch.Size) -> Tensor:
        """Return rank 0's tensor in float32, on the engine's device."""
        if value is None:
            value = torch.zeros(shape)
        tensor = value.to(self._engine.device, torch.float32).contiguous()
        if self._processes.place.size > 1:
            torch.distributed.broadcast(tensor, 0)
        return tensor

    def whole(
        self, parameter: nn.Parameter, modifier_rank: int | None = None
    ) -> AbstractContextManager[object]:
        """Hold a parameter whole; what this rank then writes to it goes to all."""
        import deepspeed

        found: AbstractContextManager[object] = deepspeed.zero.GatheredParameters(
            [parameter], modifier_rank=modifier_rank, enabled=self._stage == 3
        )
        return found

    def _make_moments(self) -> None:
        """Make an empty step; it still decays weights and copies masters to them."""
        self._engine.eval()
        tokens = torch.zeros(1, 1, dtype=torch.long, device=self._engine.device)
        nothing = self._engine.module(input_ids=tokens, use_cache=False).logits.sum() * 0
        self._engine.backward(nothing, scale_wrt_gas=False)
        self._engine.step()


def shape_of(parameter: nn.Parameter) -> torch.Size:
    """Return a parameter's shape; one in shards has none of its own."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


class DeepSpeedWorker:
    """One rank's engine. Every method is called by all ranks, in the same order.

    At stage 3 rank 0 trains a copy, and `loaded` stays whole: `gather` brings it up to date.
    """

    def __init__(
        self, config: "DeepSpeedTrainer", loaded: LoadedModel, loss: Loss, total_steps: int
    ) -> None:
        self._processes = join()
        import deepspeed

        self._config, self._loaded, self._loss = config, loaded, loss
        self._is_sharded = config.zero_stage == 3
        leads = self._processes.place.rank == 0
        self._model: PreTrainedModel = loaded.model
        self._engine: DeepSpeedEngine
        settings = config.deepspeed_config()
        try:
            if self._is_sharded:
                whole = loaded.model if leads else None
                self._model = loaded.model if whole is None else without_values(whole)
                let_speak(self._model, next(iter(loaded.training), None))
                shard(self._model, settings, self._processes, whole)
            else:
                freeze_others(loaded)
            self._model.eval()  # Ranks must gather alike, and a model from_config trains.
            if config.use_liger_kernel:
                use_liger_kernel(self._model)
            if config.gradient_checkpointing:
                gradient_checkpointing(self._model, is_sharded=self._is_sharded)
            self._remove_additions = remover_of_additions(self._model)
            named = trainable(self._model)
            parameters: list[nn.Parameter] = list(named.values())
            self._optimizer = config.make_optimizer(named)
            trained = sum(getattr(p, "ds_numel", p.numel()) for p in parameters)
            if config.zero_stage == 0:
                self._optimizer.register_step_pre_hook(self._clip)
            self._engine, _, _, _ = deepspeed.initialize(
                model=self._model,
                model_parameters=parameters,
                optimizer=self._optimizer,
                config=with_bucket(settings, trained),
            )
        except ValidationError as error:
            found = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
            raise RecipeError(
                f"trainer.deepspeed_args: DeepSpeed does not take them ({found}); expected the "
                "names of its configuration"
            ) from error
        self._state = EngineState(config, self._processes, self._engine, self._optimizer)
        self._optimizer = self._state.optimizer
        if self._is_sharded:
            prepare_for_packs(self._engine)
        check_packing(self._model, config.packing)
        self._norm, self.has_updated = 0.0, False
        self._skips = Skips()
        settle = None
        if self._is_sharded:
            # Not the engine's `empty_partition_cache`, which also collects garbage: 0.4 s a call.
            settle = self._engine.optimizer.parameter_offload.partition_all_parameters
        self._reference = references.open_reference(loss.reference_policy, self._model, settle)
        self._schedule = LambdaLR(
            self._optimizer, lambda step: config.rate_factor(step, total_steps)
        )

    def step(
        self, plan: Sequence[Sequence[Sequence[Pack]]] | None = None
    ) -> tuple[StepStats, dict[str, float]]:
        """Make the updates of a batch on rank 0's packs, each rank on its own.

        Returns:
            What was measured, over all ranks, and the outcome of the updates.
        """
        own = self._processes.deal(plan)
        self.has_updated = False  # Until the step begins to change weights.
        size = self._processes.place.size
        self._engine.train()
        rate = float(self._optimizer.param_groups[0]["lr"])
        learning = UpdateLoop(
            self._model,
            self._loss,
            self._reference,
            self._config.epochs,
            # DeepSpeed takes the mean over ranks; weights_A already divide by the whole update.
            backward=lambda share: self._engine.backward(share * size, scale_wrt_gas=False),
            update=self._update,
        )
        stats, made = learning.learn(own)
        set_schedule(self._schedule, self._schedule.last_epoch + 1)
        return StepStats.of_all(self._processes.gather(stats.on_cpu())), {
            **self._skips.metrics(made),
            "optim/learning_rate": rate,
        }

    def score(self, packs: Sequence[Sequence[Pack]] | None = None) -> dict[int, float]:
        """Return the log-probability of each row's actions together, rows of all ranks."""
        own = self._processes.deal(packs)
        self._engine.eval()
        parts = self._processes.gather(row_logps(self._model, own, self._loss))
        return {row: logp for part in parts for row, logp in part.items()}

    def _update(self) -> Update:
        self.has_updated = True
        self._engine.step()
        norm, is_skipped = self._norm, not self._norm < float("inf")
        if self._config.zero_stage > 0:
            is_skipped = bool(self._engine.optimizer.overflow)
            found = self._engine.get_global_grad_norm()
            norm = float("inf") if is_skipped or found is None else float(found)
        return Update(norm, is_skipped, dict.fromkeys(self._loaded.training, norm))

    def _clip(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """At stage 0, after the reduction: clip, or leave the step out by taking the gradients."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm)
        self._norm = float(norm)
        if not self._norm < float("inf"):
            for parameter in parameters:
                parameter.grad = None

    def gather(self) -> None:
        """Bring rank 0's whole model up to date."""
        if not self._is_sharded:
            return
        whole = trainable(self._loaded.model) if self._processes.place.rank == 0 else {}
        for name, parameter in trainable(self._model).items():
            with torch.no_grad(), self._state.whole(parameter):
                if name in whole:
                    whole[name].copy_(parameter)

    def counts(self) -> Counts:
        """Return what has been counted so far."""
        steps, numbers = self._state.numbers()
        names = list(trainable(self._model)) if steps else []
        return Counts(
            schedule_steps=self._schedule.last_epoch,
            optimizer_steps=dict.fromkeys(names, steps),
            skipped_in_a_row=self._skips.in_a_row,
            scalars={name: dict(numbers) for name in names if numbers},
        )

    def states(self) -> Iterator[tuple[str, ParameterState]]:
        """Yield whole masters and moments, parameter by parameter."""
        if self.counts().optimizer_steps:
            for name, parameter in trainable(self._model).items():
                yield name, self._state.of(parameter)

    def reference_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield what of the reference only a checkpoint can bring back, whole."""
        kept = references.in_checkpoints(self._loss.reference_policy, self._reference)
        if kept is None:
            return
        with kept.acting():
            for name, parameter in kept.parameters.items():
                with self._state.whole(parameter):
                    yield name, parameter.detach().clone()

    def load_reference(self, read: references.Read | None = None) -> None:
        """Let a kept reference hold rank 0's values."""
        if not isinstance(self._reference, references.KeptReference):
            return
        with self._reference.acting():
            for name, parameter in self._reference.parameters.items():
                whole = self._state.from_rank_0(read and read(name), shape_of(parameter))
                with torch.no_grad(), self._state.whole(parameter, modifier_rank=0):
                    parameter.copy_(whole)

    def prepare_load(self, counts: Counts | None = None) -> None:
        """Take counts from rank 0, and make optimizer state exist so that it can be overwritten."""
        found = self._processes.share(counts)
        done = max(found.optimizer_steps.values(), default=0)
        self._state.prepare(done, next(iter(found.scalars.values()), {}))
        set_schedule(self._schedule, found.schedule_steps)
        self._skips.in_a_row = found.skipped_in_a_row

    def load(self, read: Callable[[str], Stored] | None = None) -> None:
        """Take values and moments from rank 0, which alone reads them."""
        for name, parameter in trainable(self._model).items():
            value, moments = read(name) if read is not None else (None, None)
            self._state.write(parameter, value, moments)

    def close(self) -> None:
        """Free what DeepSpeed holds."""
        self._reference = None
        if self._config.gradient_checkpointing:
            self._model.gradient_checkpointing_disable()
        self._engine.destroy()
        self._remove_additions()
        if self._is_sharded:  # PyTorch keeps the classes of DeepSpeed's hooks, and these the model.
            for parameter in self._model.parameters():
                vars(parameter).clear()
        self._optimizer.state.clear()
        del self._engine, self._model, self._optimizer, self._state, self._schedule
        gc.collect()  # DeepSpeed's objects hold each other.


T = TypeVar("T")


class DeepSpeedSession:
    """An open `DeepSpeedTrainer`; every call is made by all ranks together."""

    def __init__(
        self, config: "DeepSpeedTrainer", loaded: LoadedModel, loss: Loss, total_steps: int
    ) -> None:
        dtypes = {str(p.dtype).removeprefix("torch.") for p in loaded.model.parameters()}
        if problem := config.type_problem(dtypes):
            raise RecipeError(problem)
        self._config, self._loaded, self._loss = config, loaded, loss
        self._processes = join()
        self._is_whole = True
        values = references.values_of(loss.reference_policy, loaded)
        freeze_others(loaded)
        broadcast(Open(config, loss, total_steps, loaded.training))
        self._worker = self._made(lambda: DeepSpeedWorker(config, loaded, loss, total_steps))
        if values is not None:
            self._call("load_reference", values)

    def step(self, batch: Batch) -> dict[str, float]:
        """Make the updates of a batch; one with a non-finite gradient is skipped and counted."""
        started = time.perf_counter()
        batch = with_names(batch, self._loaded)
        began = time.perf_counter()
        plan = self._config.plan(batch, self._loss, self._processes.place.size)
        packed = time.perf_counter()
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
            "time/pack_s": packed - began,
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
        # At stage 3 the trained values are shards of a copy, and rank 0's model is behind them.
        self._call("gather")
        return export_weights(self._loaded, version)

    def save(self, directory: Path) -> None:
        """Write the policy, and masters and moments gathered from all shards by name."""
        self._call("gather")
        save_policy(directory, self._loaded)
        counts = self._worker.counts()
        broadcast(Call("states"))
        self._made(lambda: write_trainer_state(directory, self._worker.states(), counts))
        broadcast(Call("reference_tensors"))
        tensors = self._worker.reference_tensors
        self._made(lambda: write_tensors(directory, references.REFERENCE, tensors()))

    def load(self, directory: Path) -> None:
        """Go on where `save` was called, whatever trainer, stage and number of processes it had.

        Only rank 0 reads the checkpoint.
        """
        own = trainable(self._loaded.model)
        shapes = {n: tuple(p.shape) for n, p in own.items()}
        stored = StoredTrainerState(directory, shapes, self._config.optimizer.state_layout())
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
            self._call("load_reference", references.stored_reference(directory))

    def close(self) -> None:
        """Free what DeepSpeed holds; the model keeps its weights."""
        if self._processes.broken:
            return
        self._call("gather")
        self._call("close")

    def _call(self, method: str, *own: object) -> Any:
        """Call a method of the worker on every rank; what is `own` is only rank 0's."""
        broadcast(Call(method))
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
