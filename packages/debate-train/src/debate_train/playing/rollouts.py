"""The debates of each step: played when they are wanted, or ahead of training."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from debate_protocol.types import Transcript
from debate_rollout.engine import Engine, Weights
from debate_train.errors import RunFailure
from debate_train.playing.lookahead import read_lookahead, write_lookahead
from debate_train.playing.playing_ahead import PlayerAhead

Play = Callable[[int, Engine], Sequence[Transcript]]
"""Plays the debates of a step with an engine."""


@dataclass(frozen=True, slots=True)
class Source:
    """What plays, and what it plays with. `sampler` is `engine` unless replies are demonstrated."""

    play: Play
    sampler: Engine
    engine: Engine
    weights: Callable[[int], Weights]
    """Returns the policy's present weights under a version; they may share memory with it."""


class Rollouts:
    """Hands over the debates of steps in order.

    Step s is played with exactly the weights of version max(first, s - depth), `first` being the
    step that `over` began with: results do not depend on how long anything takes. All methods are
    called from the thread that trains.

    Args:
        source: Plays.
        depth: Most steps that are played ahead; 0 plays each when it is wanted.
    """

    def __init__(self, source: Source, depth: int) -> None:
        self._source = source
        self._depth = depth if source.sampler is source.engine else 0
        self._known: dict[int, Sequence[Transcript]] = {}
        self._ahead: PlayerAhead | None = None
        self._are_lost = False
        self.times: dict[str, float] = {}
        """Seconds that playing the last step took, and that training waited for it."""

    @contextmanager
    def over(self, steps: range) -> Iterator[None]:
        """While open, these steps may be taken; closing gives up what is under way."""
        if self._depth == 0 or not steps:
            yield
            return
        ahead = PlayerAhead(self._source.play, self._source.engine, steps, self._depth)
        ahead.known(self._known)
        self._known = {}
        ahead.offer(steps.start, self._source.weights)
        self._ahead = ahead
        try:
            ahead.start()
            yield
        except BaseException:  # For a checkpoint of the last complete step.
            self._are_lost = True
            self._known = ahead.with_old_weights()  # An interrupt may end the wait.
            self._are_lost = False
            raise
        finally:
            self._ahead = None
            ahead.close()

    def take(self, step: int) -> Sequence[Transcript]:
        """Return the debates of a step; waits for them where they are played ahead.

        Raises:
            Exception: What playing this step ended with.
        """
        began = time.perf_counter()
        seconds = None
        if self._ahead is not None:
            transcripts, seconds = self._ahead.take(step)
        elif step in self._known:
            transcripts, seconds = self._known[step], 0.0
        else:
            transcripts = self._source.play(step, self._source.sampler)
        waited = time.perf_counter() - began
        played = waited if seconds is None else seconds
        self.times = {"time/rollout_s": played, "time/wait_s": waited}
        return transcripts

    def complete(self, step: int) -> None:
        """Drop the debates of a step whose update is made: no checkpoint needs them any more."""
        self._known = {other: found for other, found in self._known.items() if other > step}
        if self._ahead is not None:
            self._ahead.complete(step)

    def refresh(self, version: int) -> None:
        """Let later steps be played with the policy's present weights; those before are over."""
        self.complete(version - 1)
        if self._ahead is not None:
            self._ahead.offer(version, self._source.weights)
        elif self._source.sampler is self._source.engine:
            self._source.engine.load(self._source.weights(version))

    @contextmanager
    def serving(self, version: int) -> Iterator[Engine]:
        """Lend the engine with the policy's present weights; nothing is played meanwhile."""
        source = self._source
        with nullcontext() if self._ahead is None else self._ahead.paused():
            if self._depth > 0 or source.sampler is not source.engine:
                source.engine.load(source.weights(version))
            yield source.engine

    def save(self, directory: Path) -> None:
        """Write the debates that were played ahead with weights that will be gone.

        Waits for those under way.

        Raises:
            RunFailure: Nobody waited for them: a run could not go on as this one would have.
        """
        if self._are_lost:
            raise RunFailure("the debates that were begun ahead, which it needs, were given up")
        found = self._known if self._ahead is None else self._ahead.with_old_weights()
        if found:
            write_lookahead(directory, found)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote."""
        self._known = read_lookahead(directory)
