"""Both sides of the `deepspeed` trainer: each rank's engine, and the session of rank 0."""

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
from debate_train.errors import RecipeError, RunFailure
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


T = TypeVar("T")

StoredParameter = tuple[Tensor, dict[str, Tensor] | None]
"""A parameter's value, and its moments if it has any."""

_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass(frozen=True, slots=True)
class _ParameterInfo:
    """A description of a parameter of rank 0's model, for the other ranks."""

    names: tuple[str, ...]
    """Names of the parameter in the model; several where weights are tied."""
    shape: torch.Size
    dtype: torch.dtype
    is_trained: bool


def remover_of_additions(model: nn.Module) -> Callable[[], None]:
    """Build a function to remove the hooks and attributes that the model gets from now on.

    DeepSpeed's `destroy` leaves the engine's hooks on the modules and bound methods on the
    parameters. Through them a finished phase would keep float32 weights and moments, 12 bytes a
    parameter, until the end of the run, and the hooks would run in the next phase.
    """
    keys_before = {id(attributes): set(attributes) for attributes in _attributes(model)}

    def remove() -> None:
        for attributes in _attributes(model):
            for key in set(attributes) - keys_before.get(id(attributes), set()):
                del attributes[key]

    return remove


def _attributes(model: nn.Module) -> Iterator[dict[str, object]]:
    for module in model.modules():
        for name in _HOOKS:
            yield getattr(module, name)
    for parameter in model.parameters():
        yield parameter.__dict__


def without_values(model: nn.Module) -> nn.Module:
    """Copy the model with parameters of the same shapes and no memory."""
    # `deepcopy` takes these as the copies it has already made.
    empty_parameters = {}
    for parameter in model.parameters():
        empty_parameters[id(parameter)] = nn.Parameter(
            parameter.detach().to("meta"),
            requires_grad=parameter.requires_grad,
        )
    return copy.deepcopy(model, empty_parameters)


def shard(
    model: nn.Module, config: dict[str, object], processes: Processes, whole: nn.Module | None
) -> None:
    """Replace a model's parameters by shards of rank 0's.

    Parameters are whole one by one, so a rank needs memory for shards and a single parameter.

    Args:
        model: the same on every rank, with or without values.
        config: DeepSpeed's configuration.
        processes: the ranks.
        whole: on rank 0, the model with the values.

    Raises:
        RunFailure: This rank's model has other parameters than rank 0's.
        ValidationError: DeepSpeed refuses the configuration.
    """
    from deepspeed.runtime.zero import Init

    infos = processes.share(None if whole is None else _describe_parameters(whole, config))
    expected_shapes = {name: info.shape for info in infos.values() for name in info.names}
    local_shapes = {name: p.shape for name, p in model.named_parameters(remove_duplicate=False)}
    if local_shapes != expected_shapes:
        names = sorted(local_shapes.keys() | expected_shapes.keys())
        different = [n for n in names if local_shapes.get(n) != expected_shapes.get(n)]
        name = different[0]
        raise RunFailure(
            f"the model of this rank is another than rank 0's: {name} has shape "
            f"{local_shapes.get(name)} here and {expected_shapes.get(name)} there; expected the "
            "same files on every machine"
        )

    # One buffer for all: blocks that are freed between shards that stay are lost to the allocator.
    sizes_bytes = [info.shape.numel() * info.dtype.itemsize for info in infos.values()]
    buffer = torch.empty(max(sizes_bytes), dtype=torch.uint8)
    values = {} if whole is None else dict(whole.named_parameters())
    sharded: dict[str, nn.Parameter] = {}
    first: Any = None
    for (first_name, info), size_bytes in zip(infos.items(), sizes_bytes, strict=True):
        value = buffer[:size_bytes].view(info.dtype).view(info.shape)
        if first_name in values:
            value.copy_(values[first_name].detach())
        # Views share a count of changes, which would be that of all parameters; data has its own.
        parameter = nn.Parameter(value.data, requires_grad=info.is_trained)
        if first is None:
            # `Init` sets up DeepSpeed's conversion, which the first parameter then carries.
            first = parameter
            Init(module=nn.ParameterList([parameter]), config_dict_or_path=config)
        else:
            first.convert_to_zero_parameters(param_list=[parameter])
        sharded |= dict.fromkeys(info.names, parameter)
    local_buffers = None
    if whole is not None:
        named_buffers = whole.named_buffers(remove_duplicate=False)
        local_buffers = {name: tensor.cpu() for name, tensor in named_buffers}
    buffers: dict[str, Tensor] = processes.share(local_buffers)
    for path, module in model.named_modules():
        for key, _ in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            setattr(module, key, sharded[f"{path}.{key}".lstrip(".")])
        for key, _ in list(module.named_buffers(recurse=False, remove_duplicate=False)):
            # The empty parameter is on the device of forward passes; its shards may be elsewhere.
            setattr(module, key, buffers[f"{path}.{key}".lstrip(".")].to(first.device))


def _describe_parameters(whole: nn.Module, config: dict[str, Any]) -> dict[str, _ParameterInfo]:
    """Describe the parameters as rank 0 has tied them, keyed by their first names."""
    names: dict[int, list[str]] = {}
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    infos = {}
    for name, parameter in whole.named_parameters():
        infos[name] = _ParameterInfo(
            names=tuple(names[id(parameter)]),
            shape=parameter.shape,
            dtype=torch.bfloat16 if config["bf16"]["enabled"] else parameter.dtype,
            is_trained=parameter.requires_grad,
        )
    return infos


def prepare_for_packs(engine: "DeepSpeedEngine") -> None:
    """Let forward passes begin below the top module, as packs do.

    A hook there repeats the engine's preparation: start the record of the order of parameters, and
    count micro-batches; without the count their gradients would replace each other.
    """
    model = engine.module
    optimizer = engine.optimizer
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model

    def begin(*_: object) -> None:
        optimizer.clear_backward_seen_flag()
        optimizer.parameter_offload.get_param_coordinator().reset_step()

    inner.base_model.register_forward_pre_hook(begin)


class EngineState:
    """Masters, moments and scalars of an engine's optimizer."""

    def __init__(
        self,
        config: "DeepSpeedTrainer",
        processes: Processes,
        engine: "DeepSpeedEngine",
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._config = config
        self._processes = processes
        self._engine = engine
        self._layout = config.optimizer.state_layout()
        self._stage = config.zero_stage
        self._has_moments = False
        # DeepSpeed replaces some optimizers by another of the same class, on its own tensors.
        inner = getattr(engine.optimizer, "optimizer", None)
        self.optimizer = inner if isinstance(inner, torch.optim.Optimizer) else optimizer

    def scalars(self) -> tuple[int, dict[str, int | float]]:
        """Read the number of steps, 0 without state, and the other scalars by name."""
        # All parameters are stepped together, so the first one's scalars are everyone's.
        states = [state for state in self.optimizer.state.values() if tensors_of(state)]
        if not states:
            return 0, {}
        scalars = scalars_of(states[0])
        # An optimizer that counts no steps has made at least one, as it has state.
        steps = int(scalars.pop("step", 1))
        return steps, scalars

    def of(self, parameter: nn.Parameter) -> ParameterState:
        """Gather the whole master and moments of a parameter."""
        from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

        if self._stage == 0:
            return ParameterState(tensors_of(self.optimizer.state[parameter]))
        master = safe_get_full_fp32_param(parameter)
        moments = {}
        for name in self._layout.moments:
            moments[name] = safe_get_full_optimizer_state(parameter, name)
        # Without bf16 the parameter is its own master, which the policy's files contain.
        return ParameterState(moments=moments, master=master if self._config.bf16 else None)

    def prepare(self, steps: int, scalars: Mapping[str, float]) -> None:
        """Create optimizer state, unless there were no steps, and set the scalars."""
        self._has_moments = steps > 0
        if self._has_moments:
            # An empty step creates the state; it also decays weights and copies masters to them,
            # but `write` overwrites both afterwards.
            self._engine.eval()
            tokens = torch.zeros(1, 1, dtype=torch.long, device=self._engine.device)
            logits = self._engine.module(input_ids=tokens, use_cache=False).logits
            self._engine.backward(logits.sum() * 0, scale_wrt_gas=False)
            self._engine.step()
        for state in self.optimizer.state.values():
            for name, value in {"step": steps, **scalars}.items():
                present = state.get(name)
                if isinstance(present, Tensor):
                    # In place: the tensor is on the device where the optimizer reads it.
                    present.fill_(value)
                elif present is not None:
                    state[name] = type(present)(value)

    def write(
        self, parameter: nn.Parameter, value: Tensor | None, moments: dict[str, Tensor] | None
    ) -> None:
        """Write rank 0's value and moments of a parameter to the shards of all ranks."""
        shape = shape_of(parameter)
        master = self.from_rank_0(value, shape)
        with torch.no_grad(), self.whole(parameter, modifier_rank=0):
            parameter.copy_(master)
        if self._stage > 0:
            self._set_share(parameter, master)
        if not self._has_moments:
            return
        if self._stage == 0:
            # Tensors of any type and shape. Sorted: all ranks must broadcast in the same order.
            for name, tensor in sorted(tensors_of(self.optimizer.state[parameter]).items()):
                if moments:
                    tensor.copy_(moments[name])
                else:
                    tensor.zero_()
                if self._processes.place.size > 1:
                    torch.distributed.broadcast(tensor, 0)
            return
        for moment in self._layout.moments:
            whole = self.from_rank_0(None if moments is None else moments[moment], shape)
            self._set_share(parameter, whole, moment)

    def _set_share(self, parameter: Any, whole: Tensor, moment: str | None = None) -> None:
        """Set this rank's share of a parameter's float32 value, or of a moment."""
        if self._stage < 3:
            parameter.set_full_hp_param(whole, moment)
            return
        # DeepSpeed's own call for whole tensors fails where they do not divide by the ranks.
        size = parameter.ds_tensor.numel()
        start = self._processes.place.rank * size
        values = whole.flatten()[start : start + size]
        # The last rank's shard may be padded with zeros.
        share = torch.zeros(size, dtype=whole.dtype, device=whole.device)
        share[: values.numel()] = values
        parameter._z3_optimizer.set_local_hp_param(share, parameter, moment)

    def from_rank_0(self, value: Tensor | None, shape: torch.Size) -> Tensor:
        """Broadcast rank 0's tensor in float32, on the engine's device."""
        if value is None:
            value = torch.zeros(shape)
        tensor = value.to(self._engine.device, torch.float32).contiguous()
        if self._processes.place.size > 1:
            torch.distributed.broadcast(tensor, 0)
        return tensor

    def whole(
        self, parameter: nn.Parameter, modifier_rank: int | None = None
    ) -> AbstractContextManager[object]:
        """Gather a parameter for a while; writes of the modifier rank go to all ranks."""
        import deepspeed

        gathered: AbstractContextManager[object] = deepspeed.zero.GatheredParameters(
            [parameter], modifier_rank=modifier_rank, enabled=self._stage == 3
        )
        return gathered


def shape_of(parameter: nn.Parameter) -> torch.Size:
    """Look up a parameter's whole shape; DeepSpeed empties sharded parameters."""
    shape: torch.Size = getattr(parameter, "ds_shape", parameter.shape)
    return shape


class DeepSpeedWorker:
    """One rank's engine. All ranks call every method, in the same order.

    At stage 3 rank 0 trains a sharded copy, and `loaded` stays whole: `gather` updates it.
    """

    def __init__(
        self, config: "DeepSpeedTrainer", loaded: LoadedModel, loss: Loss, total_steps: int
    ) -> None:
        self._processes = join()
        import deepspeed

        self._config = config
        self._loaded = loaded
        self._loss = loss
        self._is_sharded = config.zero_stage == 3
        self._model: PreTrainedModel = loaded.model
        self._engine: DeepSpeedEngine
        settings = config.deepspeed_config()
        try:
            if self._is_sharded:
                is_rank_0 = self._processes.place.rank == 0
                whole = loaded.model if is_rank_0 else None
                if is_rank_0:
                    self._model = without_values(loaded.model)
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
            parameters = trainable(self._model)
            self._optimizer = config.make_optimizer(parameters)
            num_trained = sum(getattr(p, "ds_numel", p.numel()) for p in parameters.values())
            if config.zero_stage == 0:
                self._optimizer.register_step_pre_hook(self._clip)
            self._engine, _, _, _ = deepspeed.initialize(
                model=self._model,
                model_parameters=list(parameters.values()),
                optimizer=self._optimizer,
                config=with_bucket(settings, num_trained),
            )
        except ValidationError as error:
            problems = []
            for problem in error.errors():
                key = ".".join(map(str, problem["loc"]))
                problems.append(f"{key}: {problem['msg']}")
            raise RecipeError(
                f"trainer.deepspeed_args: DeepSpeed does not take them ({'; '.join(problems)}); "
                "expected the names of its configuration"
            ) from error
        self._state = EngineState(config, self._processes, self._engine, self._optimizer)
        self._optimizer = self._state.optimizer
        if self._is_sharded:
            prepare_for_packs(self._engine)
        check_packing(self._model, config.packing)
        self._norm = 0.0
        self.has_updated = False
        self._skips = Skips()
        settle = None
        if self._is_sharded:
            # The engine's `empty_partition_cache` also collects garbage, 0.4 s a call.
            settle = self._engine.optimizer.parameter_offload.partition_all_parameters
        self._reference = references.open_reference(loss.reference_policy, self._model, settle)
        self._schedule = LambdaLR(
            self._optimizer, lambda step: config.rate_factor(step, total_steps)
        )

    def step(
        self, plan: Sequence[Sequence[Sequence[Pack]]] | None = None
    ) -> tuple[StepStats, dict[str, float]]:
        """Make the updates of a batch on packs dealt by rank 0.

        Returns:
            Measurements over all ranks, and metrics of the updates.
        """
        minibatches = self._processes.deal(plan)
        self.has_updated = False  # Until the step begins to change weights.
        num_ranks = self._processes.place.size
        self._engine.train()
        learning_rate = float(self._optimizer.param_groups[0]["lr"])
        update_loop = UpdateLoop(
            model=self._model,
            loss=self._loss,
            reference=self._reference,
            epochs=self._config.epochs,
            # DeepSpeed takes the mean over ranks; weights_A already divide by the whole update.
            backward=lambda share: self._engine.backward(share * num_ranks, scale_wrt_gas=False),
            update=self._update,
        )
        stats, updates = update_loop.learn(minibatches)
        set_schedule(self._schedule, self._schedule.last_epoch + 1)
        merged_stats = StepStats.of_all(self._processes.gather(stats.on_cpu()))
        metrics = self._skips.metrics(updates)
        metrics["optim/learning_rate"] = learning_rate
        return merged_stats, metrics

    def score(self, packs: Sequence[Sequence[Pack]] | None = None) -> dict[int, float]:
        """Sum the log-probabilities of each row's actions, for the rows of all ranks."""
        local_packs = self._processes.deal(packs)
        self._engine.eval()
        logps: dict[int, float] = {}
        # A row is in one pack of one rank, so the ranks' rows do not overlap.
        for rank_logps in self._processes.gather(row_logps(self._model, local_packs, self._loss)):
            logps |= rank_logps
        return logps

    def _update(self) -> Update:
        self.has_updated = True
        self._engine.step()
        if self._config.zero_stage == 0:
            norm = self._norm
            is_skipped = not norm < float("inf")
        else:
            is_skipped = bool(self._engine.optimizer.overflow)
            engine_norm = self._engine.get_global_grad_norm()
            # `Update` promises a norm that is not finite for a skipped step.
            norm = float("inf") if is_skipped or engine_norm is None else float(engine_norm)
        return Update(
            grad_norm=norm,
            is_skipped=is_skipped,
            adapter_norms=dict.fromkeys(self._loaded.training, norm),
        )

    def _clip(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Clip reduced gradients at stage 0; drop non-finite gradients, to skip the step."""
        parameters: list[nn.Parameter] = []
        for group in optimizer.param_groups:
            parameters += group["params"]
        norm = torch.nn.utils.clip_grad_norm_(parameters, self._config.max_grad_norm)
        self._norm = float(norm)
        if not self._norm < float("inf"):
            for parameter in parameters:
                parameter.grad = None

    def gather(self) -> None:
        """Update rank 0's whole model from the shards."""
        if not self._is_sharded:
            return
        whole = trainable(self._loaded.model) if self._processes.place.rank == 0 else {}
        for name, parameter in trainable(self._model).items():
            with torch.no_grad(), self._state.whole(parameter):
                if name in whole:
                    whole[name].copy_(parameter)

    def counts(self) -> Counts:
        """Collect the counts of a checkpoint."""
        steps, scalars = self._state.scalars()
        names = list(trainable(self._model)) if steps else []
        return Counts(
            schedule_steps=self._schedule.last_epoch,
            optimizer_steps=dict.fromkeys(names, steps),
            skipped_in_a_row=self._skips.in_a_row,
            scalars={name: dict(scalars) for name in names if scalars},
        )

    def states(self) -> Iterator[tuple[str, ParameterState]]:
        """Yield whole masters and moments, parameter by parameter to save memory."""
        if self.counts().optimizer_steps:
            for name, parameter in trainable(self._model).items():
                yield name, self._state.of(parameter)

    def reference_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the reference's parameters, whole, if only a checkpoint can restore them."""
        reference = references.in_checkpoints(self._loss.reference_policy, self._reference)
        if reference is None:
            return
        with reference.acting():
            for name, parameter in reference.parameters.items():
                with self._state.whole(parameter):
                    yield name, parameter.detach().clone()

    def load_reference(self, read: references.Read | None = None) -> None:
        """Write values, read by rank 0, into the reference."""
        if not isinstance(self._reference, references.KeptReference):
            return
        with self._reference.acting():
            for name, parameter in self._reference.parameters.items():
                value = None if read is None else read(name)
                whole = self._state.from_rank_0(value, shape_of(parameter))
                with torch.no_grad(), self._state.whole(parameter, modifier_rank=0):
                    parameter.copy_(whole)

    def prepare_load(self, counts: Counts | None = None) -> None:
        """Restore rank 0's counts, and create optimizer state for `load` to overwrite."""
        stored = self._processes.share(counts)
        steps = max(stored.optimizer_steps.values(), default=0)
        scalars = next(iter(stored.scalars.values()), {})
        self._state.prepare(steps, scalars)
        set_schedule(self._schedule, stored.schedule_steps)
        self._skips.in_a_row = stored.skipped_in_a_row

    def load(self, read: Callable[[str], StoredParameter] | None = None) -> None:
        """Restore values and moments, read by rank 0."""
        for name, parameter in trainable(self._model).items():
            if read is None:
                self._state.write(parameter, None, None)
            else:
                value, moments = read(name)
                self._state.write(parameter, value, moments)

    def close(self) -> None:
        """Free DeepSpeed's memory on this rank."""
        self._reference = None
        if self._config.gradient_checkpointing:
            self._model.gradient_checkpointing_disable()
        self._engine.destroy()
        self._remove_additions()
        if self._is_sharded:
            # PyTorch keeps the classes of DeepSpeed's hooks alive, and these keep the model.
            for parameter in self._model.parameters():
                vars(parameter).clear()
        self._optimizer.state.clear()
        del self._engine, self._model, self._optimizer, self._state, self._schedule
        gc.collect()  # DeepSpeed's objects refer to each other in circles.


class DeepSpeedSession:
    """An open `DeepSpeedTrainer` on rank 0; all ranks follow call by call."""

    def __init__(
        self, config: "DeepSpeedTrainer", loaded: LoadedModel, loss: Loss, total_steps: int
    ) -> None:
        dtypes = {str(p.dtype).removeprefix("torch.") for p in loaded.model.parameters()}
        if problem := config.type_problem(dtypes):
            raise RecipeError(problem)
        self._config = config
        self._loaded = loaded
        self._loss = loss
        self._processes = join()
        self._is_whole = True
        # Before the workers open: a reference that cannot be read is then refused by rank 0 alone.
        read_reference = references.values_of(loss.reference_policy, loaded)
        freeze_others(loaded)
        command = Open(
            config=config,
            loss=loss,
            total_steps=total_steps,
            training=loaded.training,
        )
        broadcast(command)
        self._worker = self._run_on_rank_0(
            lambda: DeepSpeedWorker(config, loaded, loss, total_steps)
        )
        if read_reference is not None:
            self._call("load_reference", read_reference)

    def step(self, batch: Batch) -> dict[str, float]:
        """Make the updates of a batch; skip and count updates with a non-finite gradient."""
        started = time.perf_counter()
        batch = with_names(batch, self._loaded)
        packing_started = time.perf_counter()
        plan = self._config.plan(batch, self._loss, self._processes.place.size)
        packing_ended = time.perf_counter()
        self._is_whole = False
        try:
            stats, update_metrics = self._call("step", plan)
        except Exception:
            self._is_whole = not self._worker.has_updated
            raise
        self._is_whole = True
        return {
            **stats.metrics(batch.sampled_tokens, tokens_of_adapters(batch)),
            **update_metrics,
            "time/pack_s": packing_ended - packing_started,
            "time/train_s": time.perf_counter() - started,
        }

    def score(self, batch: Batch) -> list[float]:
        """Sum the log-probabilities of each row's actions."""
        batch = with_names(batch, self._loaded)
        packs = self._config.packs(batch, self._loss, self._processes.place.size)
        logps: dict[int, float] = self._call("score", packs)
        # Rows without actions are in no pack.
        return [logps.get(number, 0.0) for number in range(len(batch.rows))]

    @property
    def completed(self) -> int | None:
        """Number of steps in the weights; `None` within a step, or after a rank was lost."""
        is_whole = self._is_whole and not self._processes.broken
        return self._worker.counts().schedule_steps if is_whole else None

    def weights(self, version: int) -> Weights:
        """Export the policy's weights; they share memory with rank 0's model."""
        # At stage 3 the trained values are shards of a copy, and rank 0's model is out of date.
        self._call("gather")
        return export_weights(self._loaded, version)

    def save(self, directory: Path) -> None:
        """Write the policy, and masters and moments gathered from all shards by name."""
        self._call("gather")
        save_policy(directory, self._loaded)
        counts = self._worker.counts()
        broadcast(Call("states"))
        self._run_on_rank_0(lambda: write_trainer_state(directory, self._worker.states(), counts))
        broadcast(Call("reference_tensors"))
        read_tensors = self._worker.reference_tensors
        self._run_on_rank_0(lambda: write_tensors(directory, references.REFERENCE, read_tensors()))

    def load(self, directory: Path) -> None:
        """Restore the files of `save`, from any trainer, stage and number of processes.

        Only rank 0 reads the checkpoint.
        """
        parameters = trainable(self._loaded.model)
        shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
        stored = StoredTrainerState(directory, shapes, self._config.optimizer.state_layout())
        self._call("prepare_load", stored.counts)
        load_policy(directory, self._loaded)

        def read(name: str) -> StoredParameter:
            state = stored.of(name)
            value = parameters[name].detach()
            if state is None:
                return value, None
            # The policy's files are rounded where float32 masters were trained.
            if state.master is not None:
                value = state.master
            return value, dict(state.moments)

        self._call("load", read)
        if self._loss.reference_policy == "phase_start":
            self._call("load_reference", references.stored_reference(directory))

    def close(self) -> None:
        """Free DeepSpeed's memory on all ranks; the model keeps its weights."""
        if self._processes.broken:
            return
        self._call("gather")
        self._call("close")

    def _call(self, method: str, *arguments: object) -> Any:
        """Call a method of the worker on every rank; only rank 0 passes the arguments."""
        broadcast(Call(method))
        return self._run_on_rank_0(lambda: getattr(self._worker, method)(*arguments))

    def _run_on_rank_0(self, call: Callable[[], T]) -> T:
        """Run rank 0's share of a joint call; after a failure no other joint call is possible."""
        try:
            return call()
        except BaseException as error:
            is_alone = self._processes.place.size == 1
            self._processes.broken = not is_alone
            # A lost peer is a RuntimeError without a class of its own, which names the connection.
            is_lost_peer = isinstance(error, RuntimeError) and "onnection" in str(error)
            if is_lost_peer and not is_alone:
                raise lost(self._processes.place, error) from error
            raise
