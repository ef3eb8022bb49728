"""The processes of one run: rank 0 broadcasts its calls, and workers make them on their shards.

Messages are pickles between processes of one run, over a
gloo group of its own that may wait for days: workers wait while rank 0 plays debates. Tensors
in them are on the CPU: one on a GPU would be restored on the sender's GPU in every process.
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

from debate_train.interrupts import SIGNALS, RecipeError, RunFailure, UsageError

if TYPE_CHECKING:
    from debate_train.losses import Loss
    from debate_train.models import ModelConfig
    from debate_train.models.loaded_model import LoadedModel
    from debate_train.trainers.deepspeed import DeepSpeedTrainer


T = TypeVar("T")

_WAIT = timedelta(days=30)


class LostProcessError(RunFailure):
    """Another process of the run has ended."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where this process stands among those of the run, as its launcher says."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank among the processes of this machine."""
    local_size: int = 1


def own_place() -> Place:
    """Return this process's place; without a launcher it is alone.

    Raises:
        RecipeError: The environment is only half set.
    """
    if "WORLD_SIZE" not in os.environ:
        for name, value in slurm_place(os.environ).items():
            os.environ.setdefault(name, value)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return Place()
    needed = ("RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    missing = [name for name in needed if name not in os.environ]
    if missing:
        raise RecipeError(
            f"environment: found WORLD_SIZE={size} without {', '.join(missing)}; expected a "
            "launcher that sets them: debate-train --nproc, srun, torchrun or deepspeed"
        )
    local = os.environ.get("LOCAL_WORLD_SIZE") or os.environ.get("LOCAL_SIZE") or "1"
    return Place(int(os.environ["RANK"]), size, int(os.environ["LOCAL_RANK"]), int(local))


def slurm_place(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a launcher would set, from the variables of `srun`; nothing for a lone task.

    A batch script has the variables of its job, but not those of a step: it is alone.

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
    # Such as `gpu[03-06,09],login1` and `2(x3),1`.
    first = re.match(r"([^,\[]+)(?:\[(\d+)[^\]]*\])?", environment["SLURM_STEP_NODELIST"])
    assert first is not None
    tasks = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment["SLURM_STEP_TASKS_PER_NODE"])
    local = [count for count, nodes in tasks for _ in range(int(nodes or 1))]
    job = int(environment["SLURM_JOB_ID"]) + int(environment["SLURM_STEP_ID"])
    return {
        "WORLD_SIZE": size,
        "RANK": environment["SLURM_PROCID"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": local[int(environment["SLURM_NODEID"])],
        "MASTER_ADDR": first[1] + (first[2] or ""),
        "MASTER_PORT": str(20000 + job % 10000),  # The same in all tasks.
    }


class Processes:
    """The process group, joined. With one process every message stays where it is."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.broken = False
        """Whether a collective call has failed, after which no other can be made."""
        self._control: Any = None
        _init_distributed(place)
        if place.size > 1:
            import torch.distributed

            self._control = torch.distributed.new_group(backend="gloo", timeout=_WAIT)

    def share(self, value: T | None = None) -> T:
        """Return rank 0's value on every rank."""
        box = [value]
        if self.place.size > 1:
            self._call("broadcast_object_list", box)
        assert box[0] is not None
        return box[0]

    def deal(self, values: Sequence[T] | None = None) -> T:
        """Return to each rank its own of rank 0's values."""
        if self.place.size == 1:
            assert values is not None
            return values[0]
        box: list[Any] = [None]
        self._call("scatter_object_list", box, None if values is None else list(values))
        own: T = box[0]
        return own

    def gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank."""
        box: list[Any] = [value] * self.place.size
        if self.place.size > 1:
            self._call("all_gather_object", box, value)
        return box

    def _call(self, collective: str, *arguments: object) -> None:
        import torch.distributed

        try:
            getattr(torch.distributed, collective)(*arguments, group=self._control)
        except RuntimeError as error:
            self.broken = True
            raise lost(self.place, error) from error


def lost(place: Place, error: BaseException) -> LostProcessError:
    """Return what to say when a collective call fails because a peer is gone."""
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    # gloo's messages: the place in its source, what happened, and advice.
    reason = text.rpartition("pair.cc:")[2].partition("] ")[2].partition(". ")[0] or text
    return LostProcessError(
        f"rank {place.rank} of {place.size}: found another process of the run gone ({reason}); "
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
    """End this process with an exit code when it was one of several; else return.

    What peers have left unfinished could hold up an orderly end, or abort it.
    """
    if join.cache_info().currsize and join().place.size > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def own_device(place: Place, visible: int) -> int:
    """Return the number of this process's GPU among the `visible` ones.

    A scheduler may show each process its own GPU alone (`srun --gpus-per-task 1`), which is
    number 0 to all of them.

    Raises:
        RecipeError: There are more processes on this machine than GPUs.
    """
    if visible == 1 and (os.environ.get("CUDA_VISIBLE_DEVICES") or place.local_size == 1):
        return 0
    if max(place.local_size, place.local_rank + 1) > visible:
        raise RecipeError(
            f"processes: found {max(place.local_size, place.local_rank + 1)} on a machine with "
            f"{visible} visible GPUs; expected at most one for each GPU"
        )
    return place.local_rank


def _init_distributed(place: Place) -> None:
    """Start the default group without compiling anything on a CPU."""
    import torch

    has_gpu = torch.cuda.is_available()
    device = own_device(place, torch.cuda.device_count()) if has_gpu else 0
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if has_gpu else "cpu")
    if place.size == 1:
        # Port 0 is whichever is free when it is opened: nobody can take it in between.
        alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        for name, value in (alone | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}).items():
            os.environ.setdefault(name, value)

    import deepspeed
    import deepspeed.comm.torch

    # Its logger writes to standard output, and says of a skipped step what our metrics say.
    deepspeed.utils.logger.setLevel(logging.ERROR)
    if has_gpu:
        torch.cuda.set_device(device)
    else:
        # init_distributed would compile a C++ op for minutes, to share memory within a machine.
        module: Any = sys.modules["deepspeed.comm.torch"]
        module.build_shm_op = lambda: None
    # DeepSpeed calls collectives by names that torch is about to drop, several times a step.
    warnings.filterwarnings("ignore", r"`torch\.distributed\.\w+` is deprecated", FutureWarning)
    deepspeed.init_distributed(
        dist_backend="nccl" if has_gpu else "gloo", auto_mpi_discovery=False, verbose=False
    )


_GRACE_S = 20.0
"""How long rank 0 may take to end the run for what every rank has met."""


@dataclass(frozen=True, slots=True)
class Init:
    """Load this model; its trained values come from rank 0."""

    model: "ModelConfig"
    seed: int
    with_values: bool = True
    """False where rank 0's values will be shared out as shards, so that none is held whole here."""


@dataclass(frozen=True, slots=True)
class Open:
    """Open a phase's trainer."""

    config: "DeepSpeedTrainer"
    loss: "Loss"
    total_steps: int
    training: tuple[str, ...] = ()
    """Of adapters with names those that are trained."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call a method of the open trainer's `DeepSpeedWorker`."""

    method: str


@dataclass(frozen=True, slots=True)
class Stop:
    """The run is over."""


def broadcast(command: Init | Open | Call) -> None:
    """On rank 0: have the workers, if there are any, make this call, too."""
    if own_place().size > 1:
        join().share(command)


def stop_workers() -> None:
    """On rank 0: end the workers; does nothing when they cannot be reached any more."""
    if own_place().size == 1:
        return
    try:
        processes = join()
        if not processes.broken:
            processes.share(Stop())
    except (LostProcessError, KeyboardInterrupt):
        pass


def serve() -> int:
    """On other ranks: serve until rank 0 ends the run; return the exit code.

    Interrupts are rank 0's affair: it ends the run after a checkpoint. The exit code is 0 however
    the run ended, unless this process failed: launchers end all others at the first failure, and
    rank 0 may still be writing.
    """
    from transformers.utils import logging as hf_logging

    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    place = own_place()
    try:
        processes = join()
        hf_logging.set_verbosity_error()
        hf_logging.disable_progress_bar()
        try:
            _Worker(processes).serve()
        except UsageError as error:
            # A wrong recipe fails on every rank, and rank 0 says so; where it does not, this does.
            timer = threading.Timer(_GRACE_S, _fail, (place, error))
            timer.daemon = True
            timer.start()
            with suppress(LostProcessError):
                if not isinstance(processes.share(), Stop):
                    _fail(place, error)
            timer.cancel()
    except LostProcessError as error:
        _fail(place, error)
    except Exception as error:
        traceback.print_exc()
        _fail(place, error)
    return 0


def _fail(place: Place, error: Exception) -> None:
    known = str(error) if isinstance(error, LostProcessError) else None
    what = known or f"rank {place.rank} of {place.size} failed: {error}"
    print(f"debate-train: {what}", file=sys.stderr)
    sys.stderr.flush()
    # The group's other members may hang in a call; leaving in an orderly way would wait for them.
    os._exit(1)


class _Worker:
    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._begin: Init | None = None
        self._loaded: LoadedModel | None = None
        self._worker: object = None

    def serve(self) -> None:
        while True:
            command: Init | Open | Call | Stop = self._processes.share()
            if isinstance(command, Stop):
                return
            self._do(command)

    def _do(self, command: Init | Open | Call) -> None:
        from debate_train.trainers.deepspeed_worker import DeepSpeedWorker

        if isinstance(command, Init):
            from debate_train.checkpoints.trainer_state import seed_all

            self._begin = command
            self._loaded = command.model.load(command.seed, with_values=command.with_values)
            # What a library draws differs from rank to rank.
            seed_all(command.seed + self._processes.place.rank)
        elif isinstance(command, Open):
            assert self._begin is not None
            # What a trainer leaves of the model may be shards; rank 0 hands out values anyway.
            with_values = command.config.zero_stage < 3
            loaded, self._loaded = self._loaded, None
            if loaded is None or (with_values and not self._begin.with_values):
                loaded = self._begin.model.load(self._begin.seed, with_values=with_values)
            loaded = replace(loaded, training=command.training)
            self._worker = DeepSpeedWorker(
                command.config, loaded, command.loss, command.total_steps
            )
        else:
            result = getattr(self._worker, command.method)()
            if isinstance(result, Iterator):
                deque(result, maxlen=0)
            if command.method == "close":
                self._worker = None
