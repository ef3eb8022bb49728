"""The debates of each step: played when they are wanted, or ahead of training."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, cast

from pydantic import TypeAdapter

from debate_protocol.forms import DebateForm
from debate_protocol.transcripts.files import TranscriptError, from_json, json_line, to_json
from debate_protocol.types import TRAINED, Branch, Reply, Transcript, Turn, roles_of
from debate_rollout.engine import (
    Capability,
    Engine,
    EngineSettings,
    Finished,
    Request,
    SleepingEngine,
    Weights,
)
from debate_rollout.routing import ForwardingEngine
from debate_train.checkpoints.run_directory import written
from debate_train.checkpoints.whole_files import whole_file
from debate_train.errors import RunFailure, UsageError
from debate_train.evaluation import Opponents
from debate_train.evaluation.settings import Evaluation, Setup
from debate_train.playing.step_debates import StepDebates, metrics_of

if TYPE_CHECKING:
    from torch import Tensor


_LOOKAHEAD = "lookahead.jsonl"
"""A line for each step, then one for each of its debates: the transcript and all replies."""
_REPLY: TypeAdapter[Reply | None] = TypeAdapter(Reply | None)


def write_lookahead(directory: Path, played: Mapping[int, Sequence[Transcript]]) -> None:
    """Write the debates of these steps."""
    with (directory / _LOOKAHEAD).open("wb") as file:
        for step in sorted(played):
            head = {"step": step, "debates": len(played[step]), "metrics": metrics_of(played[step])}
            file.write(json_line(head))
            for transcript in played[step]:
                replies = [turn.reply for turn in transcript.sampled_turns()]
                records = [None if reply is None else asdict(reply) for reply in replies]
                file.write(json_line({"transcript": to_json(transcript), "replies": records}))


def read_lookahead(directory: Path) -> dict[int, Sequence[Transcript]]:
    """Return the debates by step; none where nothing was written.

    Raises:
        UsageError: The file is not what was written.
    """
    path = directory / _LOOKAHEAD
    if not path.exists():
        return {}
    try:
        with path.open("rb") as file:
            lines = (json.loads(line) for line in file)
            return {
                head["step"]: StepDebates(
                    [_transcript(next(lines)) for _ in range(head["debates"])], head["metrics"]
                )
                for head in lines
            }
    except (OSError, ValueError, LookupError, TypeError, StopIteration, TranscriptError) as error:
        raise UsageError(
            f"checkpoint {directory}: {_LOOKAHEAD} cannot be read ({error}); expected what a run "
            "with pipeline.max_staleness above 0 wrote; remove this checkpoint to go on from the "
            "one before"
        ) from error


def _transcript(line: Mapping[str, Any]) -> Transcript:
    replies = iter(line["replies"])  # In the order of Transcript.sampled_turns.

    def with_reply(turn: Turn) -> Turn:
        record = next(replies)
        return replace(
            turn,
            reply=_REPLY.validate_python(record),
            branches=tuple(Branch(one.guide, with_reply(one.turn)) for one in turn.branches),
            continuations=tuple(with_reply(one) for one in turn.continuations),
        )

    transcript = from_json(line["transcript"])
    return replace(transcript, turns=tuple(with_reply(turn) for turn in transcript.turns))


_SLICE_S = 0.2
"""Longest wait for a reply before a look at whether it is still wanted."""
_PATIENCE_S = 60.0
"""How long a call of a batch engine may take to end when nobody wants its replies any more."""


class _GivenUp(BaseException):
    """Nobody wants what is played any more; no `Exception`, as those are tried again."""


class Prefetcher:
    """Plays steps in order, each with exactly the weights of max(first, step - max_staleness).

    The engine belongs to the thread, weights included, but for `paused`.

    Args:
        play: Plays the debates of a step with an engine.
        engine: Samples.
        steps: To be played, `first` before all others.
        max_staleness: Most steps between the weights and the step that is played with them.
        known: Steps that were played before a checkpoint.
    """

    def __init__(
        self,
        play: Callable[[int, Engine], Sequence[Transcript]],
        engine: Engine,
        steps: range,
        max_staleness: int,
        known: Mapping[int, Sequence[Transcript]],
    ) -> None:
        self._play, self.steps, self._max_staleness = play, steps, max_staleness
        self._stop, self._in_use = threading.Event(), threading.Lock()
        self._engine = StoppableEngine(engine, self._stop)
        self._served: int | None = None
        self._newest = steps.start
        self.played: dict[int, Future[tuple[Sequence[Transcript], float]]] = {}
        """Debates of the steps that are not complete, and the seconds that playing them took."""
        for step, transcripts in known.items():
            self.played[step] = Future()
            self.played[step].set_result((transcripts, 0.0))
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="debate-train-rollouts", daemon=True)
        self._thread.start()

    def complete(self, step: int) -> None:
        """Drop the debates of a step whose update is made; the newest weights are those after."""
        self._newest = max(self._newest, step + 1)
        self.played = {other: found for other, found in self.played.items() if other > step}

    def offer(self, version: int, weights: Callable[[int], Weights]) -> None:
        """Let the steps be played that need these weights, with a copy of them."""
        last = version + self._max_staleness
        first = version if version == self.steps.start else last
        due = range(first, min(last + 1, self.steps.stop))
        new = [step for step in due if step not in self.played]
        if new:
            copy = copied(weights(version))
            for step in new:
                self.played[step] = Future()
                self._jobs.put(partial(self._play_with, copy, step, self.played[step]))

    def take(self, step: int) -> tuple[Sequence[Transcript], float]:
        """Wait for a step; return its debates and the seconds that playing them took.

        Raises:
            BaseException: What playing it ended with.
        """
        return self.played[step].result()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Wait for the end of the step that is played; no other begins while this is open."""
        with self._in_use:
            self._served = None
            yield

    def in_flight(self) -> dict[int, Sequence[Transcript]]:
        """Wait for all steps whose weights are older than the newest; return those not complete.

        Those that failed are left out. Later ones can be played again with the newest weights.
        """
        last = self._newest - 1 + self._max_staleness
        due = {step: found for step, found in self.played.items() if step <= last}
        if self._newest == self.steps.start:
            due = {step: found for step, found in due.items() if found.done()}
        return {step: found.result()[0] for step, found in due.items() if not found.exception()}

    def close(self) -> None:
        """Give up what is under way and end the thread.

        A call of a batch engine is waited for, but not for ever.
        """
        self._stop.set()
        self._jobs.put(None)
        self._thread.join(_PATIENCE_S)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # With its weights.

    def _play_with(
        self, weights: Weights, step: int, played: Future[tuple[Sequence[Transcript], float]]
    ) -> None:
        try:
            with self._in_use:
                if self._served != weights.version:
                    self._engine.load(weights)
                    self._served = weights.version
                began = time.perf_counter()
                transcripts = self._play(step, self._engine)
                played.set_result((transcripts, time.perf_counter() - began))
        except BaseException as error:
            self._stop.set()  # What comes after a step that failed is not played.
            played.set_exception(error)


class StoppableEngine(ForwardingEngine):
    """An engine whose calls end soon after `stop` is set, by an exception that nothing catches."""

    def __init__(self, engine: Engine, stop: threading.Event) -> None:
        super().__init__(engine)
        self._stop = stop

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer a batch; one that is under way is not cut short."""
        self._check()
        replies = super().generate(requests)
        self._check()
        return replies

    def load(self, weights: Weights) -> None:
        """Serve other weights."""
        self._check()
        super().load(weights)

    def close(self) -> None:
        """Do nothing: the engine is only lent."""

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return what has ended, in waits that are short."""
        until = time.monotonic() + timeout_s
        while True:
            self._check()
            began = time.monotonic()
            wait_s = max(0.0, min(_SLICE_S, until - began))
            found = super().collect(wait_s)
            now = time.monotonic()
            # An engine that did not wait has nothing to wait for.
            if found or now >= until or now - began < wait_s / 2:
                return found

    def _check(self) -> None:
        if self._stop.is_set():
            raise _GivenUp


def copied(weights: Weights) -> Weights:
    """Return copies in CPU memory; tensors under two names are copied once."""
    copies: dict[tuple[object, ...], Tensor] = {}
    tensors = {}
    for name, tensor in weights.tensors.items():
        identity = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if identity not in copies:
            copies[identity] = tensor.detach().to("cpu", copy=True)
        tensors[name] = copies[identity]
    return replace(weights, tensors=tensors)


Play = Callable[[int, Engine], Sequence[Transcript]]
"""Plays the debates of a step with an engine."""


class Rollouts:
    """Hands over the debates of steps in order.

    Step s is played with exactly the weights of version max(first, s - max_staleness), where
    `first` is the first step since the last border: results do not depend on how long anything
    takes. All methods are called from the thread that trains.

    Args:
        play: Plays the debates of a step.
        engine: Samples from the policy.
        weights: Returns the policy's present weights under a version; they may share memory with
            it.
        max_staleness: Most steps that are played ahead; 0 plays each when it is wanted.
        border: The first step after a given one that must not be played before all earlier ones
            are trained, such as the one after an exit criterion is looked at.
        demonstrator: Writes replies in the place of the engine, which is given no weights then.
    """

    def __init__(
        self,
        play: Play,
        engine: Engine,
        weights: Callable[[int], Weights],
        max_staleness: int = 0,
        border: Callable[[int], int] = lambda step: step + 1,
        demonstrator: Engine | None = None,
    ) -> None:
        self._play, self._engine, self._weights = play, engine, weights
        self._demonstrator = demonstrator
        self._max_staleness = max_staleness if demonstrator is None else 0
        self._border = border
        self._known: dict[int, Sequence[Transcript]] = {}
        self._ahead: Prefetcher | None = None
        self._are_lost = False
        self.times: dict[str, float] = {}
        """Seconds that playing the last step took, and that training waited for it."""

    @contextmanager
    def open(self) -> Iterator[None]:
        """While open, steps may be taken; closing gives up what is under way."""
        try:
            yield
        except BaseException:  # For a checkpoint of the last complete step.
            if self._ahead is not None:
                self._are_lost = True
                self._known = self._ahead.in_flight()  # An interrupt may end the wait.
                self._are_lost = False
            raise
        finally:
            self._close()

    def take(self, step: int) -> Sequence[Transcript]:
        """Return the debates of a step; waits for them where they are played ahead.

        Raises:
            Exception: What playing this step ended with.
        """
        began = time.perf_counter()
        if self._max_staleness > 0 and self._ahead is None:
            self._play_ahead(range(step, self._border(step)))
        played = None
        if self._ahead is not None:
            transcripts, played = self._ahead.take(step)
        elif step in self._known:
            transcripts, played = self._known[step], 0.0
        else:
            transcripts = self._play(step, self._demonstrator or self._engine)
            if "sleeps" in self._engine.capabilities and self._demonstrator is None:
                cast(SleepingEngine, self._engine).sleep()  # `refresh` wakes it.
        waited = time.perf_counter() - began
        rollout_s = waited if played is None else played
        self.times = {"time/rollout_s": rollout_s, "time/wait_s": waited}
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
            if version < self._ahead.steps.stop:
                self._ahead.offer(version, self._weights)
            else:
                self._close()
        elif self._max_staleness == 0 and self._demonstrator is None:
            self._engine.load(self._weights(version))

    @contextmanager
    def serving(self, version: int) -> Iterator[Engine]:
        """Lend the engine with the policy's present weights; nothing is played meanwhile."""
        with nullcontext() if self._ahead is None else self._ahead.paused():
            if self._max_staleness > 0 or self._demonstrator is not None:
                self._engine.load(self._weights(version))
            yield self._engine

    def save(self, directory: Path) -> None:
        """Write the debates that were played ahead with weights that will be gone.

        Waits for those under way.

        Raises:
            RunFailure: Nobody waited for them: a run could not go on as this one would have.
        """
        if self._are_lost:
            raise RunFailure("the debates that were begun ahead, which it needs, were given up")
        found = self._known if self._ahead is None else self._ahead.in_flight()
        if found:
            write_lookahead(directory, found)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote."""
        self._known = read_lookahead(directory)

    def _play_ahead(self, steps: range) -> None:
        self._ahead = Prefetcher(self._play, self._engine, steps, self._max_staleness, self._known)
        self._known = {}
        self._ahead.offer(steps.start, self._weights)

    def _close(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.close()


MODE, POLICY = "start", "phase_start"
"""The mode in which the policy meets its start, and how transcripts name that policy."""
FILE = "phase_start.safetensors"
_SERVED: frozenset[Capability] = frozenset(("full_weights", "lora"))


def start_mode(
    evaluation: Evaluation, setup: Setup, debate: DebateForm, engine: EngineSettings
) -> Opponents | None:
    """Return the mode in which a phase is measured against its start, None where it is not.

    That is where one policy plays all roles, in training and in the evaluated debates of several
    rounds, and the engine answers batch by batch, so that loading two sets of weights in turn costs
    little. A mode that the recipe names `start`, or null, takes its place.

    Args:
        evaluation: The recipe's settings.
        setup: What they evaluate.
        debate: The form in training.
        engine: Samples from the policy.
    """
    batches = engine.is_sampled and "streams" not in engine.capabilities
    if MODE in evaluation.modes or evaluation.questions == 0 or not batches:
        return None
    form = setup.form
    roles = (*roles_of(form.protocol()), *roles_of(debate.protocol()))
    is_self_play = all(role.policy == TRAINED and role.adapter is None for role in roles)
    if not (engine.capabilities & _SERVED and is_self_play and form.max_rounds > 1):
        return None
    mode = Opponents(opponent=POLICY, in_turn=True)
    try:
        return mode if len(mode.plays(form)) > 1 else None
    except ValueError:  # A form whose roles nobody else can have.
        return None


@dataclass(frozen=True, slots=True)
class PhaseStart:
    """The start of one phase, and the mode that plays against it."""

    mode: Opponents
    weights: Weights

    @classmethod
    def begun(cls, mode: Opponents, weights: Weights, folder: Path, phase: str) -> "PhaseStart":
        """Keep a copy of the weights, in memory and in the run directory."""
        from safetensors.torch import save_file

        tensors = {
            name: tensor.detach().cpu().clone().contiguous()
            for name, tensor in weights.tensors.items()
        }
        with written(folder / FILE), whole_file(folder / FILE) as unfinished:
            save_file(tensors, unfinished, metadata={"phase": phase})
        return cls(mode, replace(weights, tensors=tensors))

    @classmethod
    def kept(cls, mode: Opponents, like: Weights, folder: Path, phase: str) -> "PhaseStart | None":
        """Return what `begun` kept of this phase; None where nothing can be read.

        Args:
            mode: The mode.
            like: Weights of the same names and shapes.
            folder: The run directory.
            phase: The name of the phase.
        """
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(folder / FILE, framework="pt") as file:
                phase_of = (file.metadata() or {}).get("phase")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError):
            return None
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        if phase_of != phase or shapes != {n: x.shape for n, x in like.tensors.items()}:
            return None
        return cls(mode, replace(like, tensors=tensors))

    def added_to(self, setup: Setup) -> Setup:
        """Return what an evaluation is made with, this mode as its last."""
        return replace(setup, modes={**setup.modes, MODE: self.mode})

    def beside(self, engine: Engine, current: Weights) -> Engine:
        """Return the engine with both policies; `current` are the weights that it serves."""
        return _InTurn(engine, self.weights, current)


class _InTurn(ForwardingEngine):
    """An engine that serves the start where an ask names it; else, and afterwards, the policy."""

    def __init__(self, engine: Engine, start: Weights, current: Weights) -> None:
        super().__init__(engine)
        self._start, self._current = start, current

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        replies: dict[int, Reply] = {}
        old = [n for n, request in enumerate(requests) if request.turn_request.policy == POLICY]
        if old:
            self._engine.load(self._start)
            try:
                found = self._engine.generate([requests[n] for n in old])
            finally:
                self._engine.load(self._current)
            replies |= dict(zip(old, found, strict=True))
        now = [n for n in range(len(requests)) if n not in replies]
        if now:
            found = self._engine.generate([requests[n] for n in now])
            replies |= dict(zip(now, found, strict=True))
        return [replies[n] for n in range(len(requests))]

    def load(self, weights: Weights) -> None:
        self._current = weights
        super().load(weights)
