"""What ranks other than 0 do: hold their share of the trainer and serve rank 0's calls.

Rank 0 reads data, plays, scores, packs and writes; it knows its trainer only as a `Trainer`. The
trainer's session shares each call with the followers, and all ranks make it together.
"""

import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from debate_train.errors import UsageError
from debate_train.interrupts import SIGNALS
from debate_train.ranks.processes import LostProcessError, Processes, join, own_place

if TYPE_CHECKING:
    from debate_train.losses import Loss
    from debate_train.models import ModelConfig
    from debate_train.models.loaded_model import LoadedModel
    from debate_train.trainers.deepspeed.settings import DeepSpeedSettings


_GRACE_S = 20.0
"""How long rank 0 may take to end the run for what every rank has met."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Load this model; its trained values come from rank 0."""

    model: "ModelConfig"
    seed: int
    with_values: bool = True
    """False where rank 0's values will be shared out as shards, so that none is held whole here."""


@dataclass(frozen=True, slots=True)
class Open:
    """Open a phase's trainer."""

    config: "DeepSpeedSettings"
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


def lead(command: Begin | Open | Call) -> None:
    """On rank 0: have the followers, if there are any, do this, too."""
    if own_place().size > 1:
        join().share(command)


def dismiss() -> None:
    """On rank 0: end the followers; does nothing when they cannot be reached any more."""
    if own_place().size == 1:
        return
    try:
        processes = join()
        if not processes.broken:
            processes.share(Stop())
    except (LostProcessError, KeyboardInterrupt):
        pass


def follow() -> int:
    """On other ranks: serve until rank 0 ends the run; return the exit code.

    Interrupts are rank 0's affair: it ends the run after a checkpoint. The exit code is 0 however
    the run ended, unless this process failed: launchers end all others at the first failure, and
    rank 0 may still be writing.
    """
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    place = own_place()
    try:
        processes = join()
        _be_quiet()
        try:
            _Follower(processes).serve()
        except UsageError as error:
            _leave_to_rank_0(processes, error)
            return 0
    except LostProcessError as error:
        print(f"debate-train: {error}", file=sys.stderr)
    except Exception as error:
        traceback.print_exc()
        print(f"debate-train: rank {place.rank} of {place.size} failed: {error}", file=sys.stderr)
    else:
        return 0
    sys.stderr.flush()
    # The group's other members may hang in a call; leaving in an orderly way would wait for them.
    os._exit(1)


def _leave_to_rank_0(processes: Processes, error: UsageError) -> None:
    """A wrong recipe fails on every rank, and rank 0 says so; where it does not, this one does."""

    def fail() -> None:
        place = processes.place
        print(f"debate-train: rank {place.rank} of {place.size}: {error}", file=sys.stderr)
        sys.stderr.flush()
        os._exit(1)

    timer = threading.Timer(_GRACE_S, fail)
    timer.daemon = True
    timer.start()
    with suppress(LostProcessError):
        if not isinstance(processes.share(), Stop):
            fail()
    timer.cancel()


class _Follower:
    def __init__(self, processes: Processes) -> None:
        self._processes = processes
        self._begin: Begin | None = None
        self._loaded: LoadedModel | None = None
        self._worker: object = None

    def serve(self) -> None:
        while True:
            command: Begin | Open | Call | Stop = self._processes.share()
            if isinstance(command, Stop):
                return
            self._do(command)

    def _do(self, command: Begin | Open | Call) -> None:
        from debate_train.trainers.deepspeed.worker import DeepSpeedWorker

        if isinstance(command, Begin):
            from debate_train.checkpointing.random_states import seed_all

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


def _be_quiet() -> None:
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
