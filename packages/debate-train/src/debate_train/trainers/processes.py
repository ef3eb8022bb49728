"""The processes of a run: rank 0 broadcasts calls, and workers make them on their shards.

Messages are pickles between processes of the same run, over a separate gloo group with a timeout
of days: workers wait while rank 0 plays debates. Tensors in messages are on the CPU: a tensor on a
GPU would be restored on the sender's GPU in every process.
"""

import atexit
import logging
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from debate_train.errors import RecipeError, RunFailure, UsageError
from debate_train.interrupts import SIGNALS

if TYPE_CHECKING:
    from debate_train.losses import Loss
    from debate_train.models import ModelConfig
    from debate_train.models.loaded_model import LoadedModel
    from debate_train.trainers.deepspeed import DeepSpeedTrainer


T = TypeVar("T")

_MESSAGE_TIMEOUT = timedelta(days=30)
# Seconds in which rank 0 may end the run for an error that every rank has met.
_GRACE_S = 20.0
# The range of ports for jobs of srun.
_FIRST_PORT = 20000
_NUM_PORTS = 10000


class LostProcessError(RunFailure):
    """Another process of the run has ended."""


@dataclass(frozen=True, slots=True)
class Place:
    """Rank of this process in the run, as the launcher set it."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank among the processes of this machine."""
    local_size: int = 1


def own_place() -> Place:
    """Read this process's rank from the environment; without a launcher it is 0 of 1.

    Raises:
        RecipeError: The environment is only half set.
    """
    # DeepSpeed reads the same variables later, so those of srun are translated in place.
    if "WORLD_SIZE" not in os.environ:
        for name, value in slurm_place(os.environ).items():
            os.environ.setdefault(name, value)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Place()
    required = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in required if name not in os.environ]
    if missing:
        raise RecipeError(
            f"environment: found WORLD_SIZE={size} without {', '.join(missing)}; expected a "
            "launcher that sets them: debate-train --nproc, srun, torchrun or deepspeed"
        )
    # torchrun sets the first name, DeepSpeed's launcher the second.
    local_size = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or "1"
    return Place(
        rank=int(os.environ["RANK"]),
        size=size,
        local_rank=int(os.environ["LOCAL_RANK"]),
        local_size=int(local_size),
    )


def slurm_place(environment: Mapping[str, str]) -> dict[str, str]:
    """Translate the variables of `srun` into a launcher's; empty for a lone task.

    A batch script has the variables of a job without a step: it is a lone task.

    Raises:
        RecipeError: The tasks are distributed so that rank 0 may be on any node.
    """
    size = environment.get("SLURM_STEP_NUM_TASKS", "1")
    if size == "1":
        return {}
    if environment.get("SLURM_DISTRIBUTION") == "arbitrary" and "MASTER_ADDR" not in environment:
        raise RecipeError(
            "environment: found srun --distribution=arbitrary, where rank 0 need not be on the "
            "first node; expected another distribution, or MASTER_ADDR set to the node of rank 0"
        )
    # Such as `gpu[03-06,09],login1`: the first node, whose first task is rank 0.
    first_node = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?", environment["SLURM_STEP_NODELIST"])
    assert first_node is not None
    # Such as `2(x3),1`: two tasks on each of three nodes, one on the fourth.
    local_sizes: list[str] = []
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment["SLURM_STEP_TASKS_PER_NODE"])
    for num_tasks, num_nodes in counts:
        local_sizes += [num_tasks] * int(num_nodes or 1)
    # All tasks must choose the same port; two jobs on one node should choose different ones.
    step = int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])
    return {
        "WORLD_SIZE": size,
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": local_sizes[int(environment["SLURM_NODEID"])],
        "MASTER_ADDR": first_node[1] + (first_node[2] or ""),
        "MASTER_PORT": str(_FIRST_PORT + step % _NUM_PORTS),
    }


class Processes:
    """The joined process group. With a single process every call returns the argument."""

    def __init__(self, process: Place) -> None:
        self.place = process
        # After a collective call has failed, ranks are at different calls, and none can be made.
        self.broken = False
        self._control: Any = None
        _init_distributed(process)
        if process.size > 1:
            import torch.distributed

            self._control = torch.distributed.new_group(backend="gloo", timeout=_MESSAGE_TIMEOUT)

    def share(self, value: T | None = None) -> T:
        """Broadcast rank 0's value to every rank."""
        values = [value]
        if self.place.size > 1:
            self._call("broadcast_object_list", values)
        assert values[0] is not None
        return values[0]

    def deal(self, values: Sequence[T] | None = None) -> T:
        """Scatter rank 0's values to the ranks."""
        if self.place.size == 1:
            assert values is not None
            return values[0]
        received: list[Any] = [None]
        self._call("scatter_object_list", received, None if values is None else list(values))
        value: T = received[0]
        return value

    def gather(self, value: T) -> list[T]:
        """Gather the values of all ranks, ordered by rank."""
        values: list[Any] = [value] * self.place.size
        if self.place.size > 1:
            self._call("all_gather_object", values, value)
        return values

    def _call(self, collective: str, *arguments: object) -> None:
        import torch.distributed

        try:
            getattr(torch.distributed, collective)(*arguments, group=self._control)
        except RuntimeError as error:
            self.broken = True
            raise lost(self.place, error) from error


def lost(process: Place, error: BaseException) -> LostProcessError:
    """Build the error for a collective call after the loss of a peer."""
    first_line = str(error).strip().partition("\n")[0] or type(error).__name__
    # gloo's messages: `[…/pair.cc:LINE] REASON. ADVICE`.
    after_file = first_line.rpartition("pair.cc:")[2]
    reason = after_file.partition("] ")[2].partition(". ")[0] or first_line
    return LostProcessError(
        f"rank {process.rank} of {process.size}: found another process of the run gone ({reason}); "
        "expected all of them until the end: unless it was killed, its own message says why; go "
        "on from the run's last checkpoint with --resume"
    )


@cache
def join() -> Processes:
    """Join this run's process group, once; all ranks must."""
    # Threads of gloo that outlive the interpreter may abort the process.
    atexit.register(_leave)
    return Processes(own_place())


def _leave() -> None:
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def end_at_once(code: int) -> None:
    """End this process with an exit code if it is part of a group; otherwise return.

    Unfinished calls of peers could hold up an orderly end, or abort it.
    """
    if join.cache_info().currsize and join().place.size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def own_device(process: Place, visible: int) -> int:
    """Choose the number of this process's GPU among the `visible` ones.

    A scheduler may show each process a single GPU (`srun --gpus-per-task 1`), number 0 to all of
    them.

    Raises:
        RecipeError: There are more processes on this machine than GPUs.
    """
    if visible == 1 and (os.environ.get("CUDA_VISIBLE_DEVICES") or process.local_size == 1):
        return 0
    # A launcher may leave the local size unset; then the rank alone says that there are more.
    num_processes = max(process.local_size, process.local_rank + 1)
    if num_processes > visible:
        raise RecipeError(
            f"processes: found {num_processes} on a machine with "
            f"{visible} visible GPUs; expected at most one for each GPU"
        )
    return process.local_rank


def _init_distributed(process: Place) -> None:
    """Start the default group without compiling anything on a CPU."""
    import torch

    has_gpu = torch.cuda.is_available()
    device = own_device(process, torch.cuda.device_count()) if has_gpu else 0
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if has_gpu else "cpu")
    if process.size == 1:
        # Port 0 is whichever is free when it is opened: nobody can take it in between.
        defaults = {
            "RANK": "0",
            "LOCAL_RANK": "0",
            "WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "0",
        }
        for name, value in defaults.items():
            os.environ.setdefault(name, value)

    import deepspeed
    import deepspeed.comm.torch

    # Its logger writes to standard output, and repeats what our metrics say of skipped steps.
    deepspeed.utils.logger.setLevel(logging.ERROR)
    if has_gpu:
        torch.cuda.set_device(device)
    else:
        # init_distributed would compile a C++ op for minutes, to share memory within a machine.
        torch_backend: Any = sys.modules["deepspeed.comm.torch"]
        torch_backend.build_shm_op = lambda: None
    # DeepSpeed calls collectives by names that torch is about to drop, several times a step.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    deepspeed.init_distributed(
        dist_backend="nccl" if has_gpu else "gloo", auto_mpi_discovery=False, verbose=False
    )


@dataclass(frozen=True, slots=True)
class Init:
    """Load this model; trained values come from rank 0."""

    model: "ModelConfig"
    seed: int
    with_values: bool = True
    """False where rank 0 will deal its values as shards, so that this rank never needs a copy."""


@dataclass(frozen=True, slots=True)
class Open:
    """Open a phase's trainer."""

    config: "DeepSpeedTrainer"
    loss: "Loss"
    total_steps: int
    training: tuple[str, ...] = ()
    """Names of the adapters to train."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method of the open trainer's `DeepSpeedWorker`."""

    method: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over."""


def broadcast(command: Init | Open | Call) -> None:
    """Let the workers, if any, make the same call as rank 0."""
    if own_place().size > 1:
        join().share(command)


def stop_workers() -> None:
    """End the workers from rank 0, unless they cannot be reached any more."""
    if own_place().size == 1:
        return
    try:
        processes = join()
        if not processes.broken:
            processes.share(Stop())
    except (LostProcessError, KeyboardInterrupt):
        pass


def serve() -> int:
    """Serve rank 0's calls on another rank until it ends the run; return the exit code.

    Interrupts are rank 0's affair: it ends the run after a checkpoint. The exit code is 0 however
    the run ended, unless this process failed: launchers end all others at the first failure, and
    rank 0 may still be writing.
    """
    from transformers.utils import logging as hf_logging

    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    process = own_place()
    try:
        processes = join()
        hf_logging.set_verbosity_error()
        hf_logging.disable_progress_bar()
        try:
            _Worker(processes).serve()
        except UsageError as error:
            # A wrong recipe fails on every rank, and rank 0 reports it. If it fails here alone,
            # rank 0 waits for this rank in a collective call, so this rank must report and end.
            timer = threading.Timer(_GRACE_S, _fail, (process, error))
            timer.daemon = True
            timer.start()
            with suppress(LostProcessError):
                if not isinstance(processes.share(), Stop):
                    _fail(process, error)
            timer.cancel()
    except LostProcessError as error:
        _fail(process, error)
    except Exception as error:
        traceback.print_exc()
        _fail(process, error)
    return 0


def _fail(process: Place, error: Exception) -> None:
    message = f"rank {process.rank} of {process.size} failed: {error}"
    if isinstance(error, LostProcessError):
        message = str(error)
    print(f"debate-train: {message}", file=sys.stderr)
    sys.stderr.flush()
    # The group's other members may hang in a call; leaving in an orderly way would wait for them.
    os._exit(1)


class _Worker:
    """The model and trainer of another rank, driven by rank 0's commands."""

    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._init: Init | None = None
        self._loaded: LoadedModel | None = None
        self._worker: object = None

    def serve(self) -> None:
        while True:
            command: Init | Open | Call | Stop = self._processes.share()
            if isinstance(command, Stop):
                return
            if isinstance(command, Init):
                self._load_model(command)
            elif isinstance(command, Open):
                self._open_trainer(command)
            else:
                result = getattr(self._worker, command.method)()
                # Rank 0 runs through the same generator; each item is a collective call.
                if isinstance(result, Iterator):
                    deque(result, maxlen=0)
                if command.method == "close":
                    self._worker = None

    def _load_model(self, command: Init) -> None:
        from debate_train.checkpoints.trainer_state import seed_all

        self._init = command
        self._loaded = command.model.load(command.seed, with_values=command.with_values)
        # Random numbers that a library draws differ from rank to rank.
        seed_all(command.seed + self._processes.place.rank)

    def _open_trainer(self, command: Open) -> None:
        from debate_train.trainers.deepspeed_worker import DeepSpeedWorker

        assert self._init is not None
        # A closed trainer may leave the model in shards, so a later phase loads it again; rank 0
        # deals the trained values anyway.
        with_values = command.config.zero_stage < 3
        loaded = self._loaded
        self._loaded = None
        if loaded is None or (with_values and not self._init.with_values):
            loaded = self._init.model.load(self._init.seed, with_values=with_values)
        self._worker = DeepSpeedWorker(
            command.config,
            replace(loaded, training=command.training),
            command.loss,
            command.total_steps,
        )
