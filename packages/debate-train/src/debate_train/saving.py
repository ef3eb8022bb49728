"""When and from what a checkpoint is written: also of a run that fails or is stopped."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from debate_train.checkpointing.random_states import (
    RandomStates,
    random_states,
    save_random_states,
)
from debate_train.errors import RunFailure
from debate_train.interrupts import Stopped
from debate_train.playing.rollouts import Rollouts
from debate_train.ranks.processes import own_place
from debate_train.timing import timed
from debate_train.trainers import Trainer

if TYPE_CHECKING:
    from debate_train.phases import RunParts


class Interrupted(Exception):
    """The run was asked to stop."""


class Saving:
    """Writes the checkpoints of a run, each of its last complete step.

    A step is complete once its update is made. What is recorded of it afterwards is recorded
    before a checkpoint of it is written, or carried by that.
    """

    def __init__(self, parts: "RunParts") -> None:
        self._parts, self._state = parts, parts.state
        self._counted = time.perf_counter()
        self.saved, self._saved_at = parts.state.step, time.monotonic()
        self._random: RandomStates | None = None
        self.unrecorded: Callable[[], None] | None = None
        """Records the last complete step, where that is still to be done."""
        self.seconds_between: dict[str, float] = {}
        """Of checkpoints since the last step."""

    def checkpoint(self, name: str, trainer: Trainer, rollouts: Rollouts) -> None:
        """Write a checkpoint, the phase's wall time so far included."""
        now = time.perf_counter()
        state, parts = self._state, self._parts
        state.seconds[name] = state.seconds.get(name, 0.0) + now - self._counted
        self._counted = now

        def save(directory: Path) -> None:
            rollouts.save(directory)
            trainer.save(directory)
            save_random_states(directory, self._random)

        with parts.interrupts.guarded(), timed(self.seconds_between, "checkpoint"):
            parts.directory.count_into(state)
            parts.checkpoints.write(state, save)
        self.saved, self._saved_at = state.step, time.monotonic()

    def is_due(self, minutes: float) -> bool:
        """Return whether the last checkpoint is that old, or the best policy is in none.

        Args:
            minutes: 0 leaves the first out.
        """
        is_old = 0 < minutes <= (time.monotonic() - self._saved_at) / 60
        return is_old or self.is_best_unsaved

    @property
    def is_best_unsaved(self) -> bool:
        """Whether the policy is the best so far and no checkpoint holds it."""
        best, step = self._state.best, self._state.step
        return best is not None and best.step == step != self.saved

    def take_random_states(self) -> None:
        """Note the random states that a checkpoint of the last complete step is to hold."""
        self._random = random_states()

    @contextmanager
    def of_phase(self, name: str, trainer: Trainer, rollouts: Rollouts) -> Iterator[None]:
        """Write a checkpoint of the last complete step however the steps within this end."""
        self._counted = time.perf_counter()
        try:
            yield
        except (Interrupted, Stopped):
            if self._state.step != self.saved:
                self.checkpoint(name, trainer, rollouts)
            raise Interrupted from None
        except BaseException:
            if self._state.step != self.saved:
                self._save_what_is_whole(name, trainer, rollouts)
            raise

    def _save_what_is_whole(self, name: str, trainer: Trainer, rollouts: Rollouts) -> None:
        """Save what can be saved of a run that fails; another failure does not hide the first."""
        step, note = self._state.step, self._parts.progress.note
        if trainer.completed != step - self._state.phase_start:
            where = (
                "in the trainer, and without its other processes"
                if own_place().size > 1
                else f"within the update after step {step}, of which"
            )
            note(
                f"the run ended {where} no checkpoint can be written; the last is of step "
                f"{self.saved}"
            )
            return
        try:
            if self.unrecorded is not None:
                with suppress(RunFailure):  # What cannot be written is carried by the checkpoint.
                    self.unrecorded()
            self.checkpoint(name, trainer, rollouts)
        except Exception as error:
            note(f"no checkpoint of step {step}: {error}")
        else:
            note(f"a checkpoint of step {step} is written; go on with --resume")
