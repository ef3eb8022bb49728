"""Debates that a thread plays ahead of training, and how a checkpoint keeps them.

`lookahead.jsonl` has a line for each step and then one for each of its debates: the transcript and
what is not a number of each reply. Token ids and log-probabilities of all replies stand one after
another in `lookahead.safetensors`.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file, save_file

from debate_protocol.transcripts.files import TranscriptError, from_json, json_line, to_json
from debate_protocol.types import Branch, Reply, Transcript, Turn
from debate_rollout.engine import Capability, Engine, Finished, Request, StreamingEngine, Weights
from debate_train.interrupts import UsageError
from debate_train.playing.rollout_settings import StepDebates, metrics_of

if TYPE_CHECKING:
    from torch import Tensor


_LINES, _TENSORS = "lookahead.jsonl", "lookahead.safetensors"
_NUMBERS = {"prompt_ids": np.int32, "token_ids": np.int32, "logps": np.float64}


def write_lookahead(directory: Path, played: Mapping[int, Sequence[Transcript]]) -> None:
    """Write the debates of these steps."""
    numbers: dict[str, list[float]] = {name: [] for name in _NUMBERS}
    with (directory / _LINES).open("wb") as file:
        for step in sorted(played):
            head = {"step": step, "debates": len(played[step]), "metrics": metrics_of(played[step])}
            file.write(json_line(head))
            for transcript in played[step]:
                replies = [turn.reply for turn in transcript.sampled_turns()]
                for reply in replies:
                    if reply is not None:
                        for name, found in numbers.items():
                            found += getattr(reply, name)
                records = [None if reply is None else _record(reply) for reply in replies]
                file.write(json_line({"transcript": to_json(transcript), "replies": records}))
    arrays = {name: np.array(found, _NUMBERS[name]) for name, found in numbers.items()}
    save_file(arrays, directory / _TENSORS)


def read_lookahead(directory: Path) -> dict[int, Sequence[Transcript]]:
    """Return the debates by step; none where nothing was written.

    Raises:
        UsageError: A file is missing, or is not what was written.
    """
    path = directory / _LINES
    if not path.exists():
        return {}
    try:
        numbers = _Numbers(load_file(directory / _TENSORS))
        with path.open("rb") as file:
            lines = [json.loads(line) for line in file]
        played: dict[int, Sequence[Transcript]] = {}
        while lines:
            head = lines.pop(0)
            own, lines = lines[: head["debates"]], lines[head["debates"] :]
            if len(own) < head["debates"]:
                raise ValueError(f"step {head['step']} has {len(own)} debates")
            metrics = {str(k): float(v) for k, v in head.get("metrics", {}).items()}
            debates = [_transcript(line, numbers) for line in own]
            played[head["step"]] = StepDebates(debates, metrics)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, TranscriptError) as error:
        raise UsageError(
            f"checkpoint {directory}: {_LINES} cannot be read ({error}); expected what a run with "
            "pipeline.max_staleness above 0 wrote; remove this checkpoint to go on from the one "
            "before"
        ) from error
    return played


def _record(reply: Reply) -> dict[str, object]:
    """Return all of a reply but its numbers, and how many of those it has."""
    return {
        "text": reply.text,
        "finish": reply.finish,
        "temperature": reply.temperature,
        "weight_version": reply.weight_version,
        "version_spans": reply.version_spans,
        "counted": reply.counted,
        "counts": [len(getattr(reply, name)) for name in _NUMBERS],
    }


class _Numbers:
    """Arrays that are read from the front."""

    def __init__(self, arrays: Mapping[str, Any]) -> None:
        self._arrays = {name: arrays[name] for name in _NUMBERS}
        self._at = dict.fromkeys(_NUMBERS, 0)

    def reply(self, record: Mapping[str, Any]) -> Reply:
        """Return the next reply."""
        found: dict[str, tuple[Any, ...]] = {}
        for name, count in zip(_NUMBERS, record["counts"], strict=True):
            at = self._at[name]
            found[name] = tuple(self._arrays[name][at : at + count].tolist())
            if len(found[name]) < count:
                raise ValueError(f"{_TENSORS} has too few {name}")
            self._at[name] = at + count
        return Reply(
            text=record["text"],
            finish=record["finish"],
            temperature=record["temperature"],
            weight_version=record["weight_version"],
            version_spans=tuple((v, start, end) for v, start, end in record["version_spans"]),
            counted=tuple(counted) if (counted := record.get("counted")) else None,
            **found,
        )


def _transcript(line: Mapping[str, Any], numbers: _Numbers) -> Transcript:
    replies = iter(line["replies"])  # In the order of Transcript.sampled_turns.

    def with_reply(turn: Turn) -> Turn:
        record = next(replies)
        return replace(
            turn,
            reply=None if record is None else numbers.reply(record),
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


class PlayerAhead:
    """Plays steps in order, each with exactly the weights of max(first, step - max_staleness).

    The engine belongs to the thread, weights included, but for `paused`.

    Args:
        play: Plays the debates of a step with an engine.
        engine: Samples.
        steps: To be played; the first is that of `first`.
        max_staleness: Most steps between the weights and the step that is played with them.
    """

    def __init__(
        self,
        play: Callable[[int, Engine], Sequence[Transcript]],
        engine: Engine,
        steps: range,
        max_staleness: int,
    ) -> None:
        self._play, self.steps, self._max_staleness = play, steps, max_staleness
        self._stop = threading.Event()
        self._engine = StoppableEngine(engine, self._stop)
        self._thread = threading.Thread(target=self._run, name="debate-train-rollouts", daemon=True)
        # All below is guarded by this condition, which is notified of every change.
        self._changed = threading.Condition()
        self._played: dict[int, tuple[Sequence[Transcript], float]] = {}
        self._failure: tuple[int, BaseException] | None = None
        self._weights: dict[int, Weights] = {}
        self._newest = steps.start
        self._is_paused = self._is_playing = False
        self._served: int | None = None

    def known(self, played: Mapping[int, Sequence[Transcript]]) -> None:
        """Take steps that were played before a checkpoint; before `start` only."""
        self._played |= {step: (transcripts, 0.0) for step, transcripts in played.items()}

    def start(self) -> None:
        """Begin to play."""
        self._thread.start()

    def complete(self, step: int) -> None:
        """Drop the debates of a step whose update is made; the newest weights are those after."""
        with self._changed:
            self._newest = max(self._newest, step + 1)
            for old in [one for one in self._played if one <= step]:
                del self._played[old]

    def offer(self, version: int, weights: Callable[[int], Weights]) -> None:
        """Copy these weights if a step is still to be played with them."""
        is_needed = version + self._max_staleness < self.steps.stop
        copy = copied(weights(version)) if version == self.steps.start or is_needed else None
        if copy is not None:
            with self._changed:
                self._weights[version] = copy
                self._changed.notify_all()

    def take(self, step: int) -> tuple[Sequence[Transcript], float]:
        """Wait for a step; return its debates and the seconds that playing them took.

        Raises:
            BaseException: What playing it ended with.
        """
        with self._changed:
            self._changed.wait_for(lambda: step in self._played or self._failed_at(step))
            if step not in self._played:
                assert self._failure is not None
                raise self._failure[1]
            # Kept until the step is complete: a checkpoint before it needs these debates.
            return self._played[step]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Wait for the end of the step that is played; no other begins while this is open."""
        with self._changed:
            self._is_paused = True
            self._changed.wait_for(lambda: not self._is_playing)
        try:
            yield
        finally:
            with self._changed:
                self._is_paused, self._served = False, None
                self._changed.notify_all()

    def with_old_weights(self) -> dict[int, Sequence[Transcript]]:
        """Wait for all steps whose weights are older than the newest; return those not complete.

        Steps that failed, and those after them, are left out.
        """
        last = min(self._newest - 1 + self._max_staleness, self.steps[-1])
        due = range(self._newest, last + 1) if self._newest > self.steps.start else range(0)
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or all(step in self._played for step in due)
            )
            # Later ones can be played again with the newest weights, however fast these were.
            return {step: found for step, (found, _) in self._played.items() if step <= last}

    def close(self) -> None:
        """Give up what is under way and end the thread.

        A call of a batch engine is waited for, but not for ever.
        """
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join(_PATIENCE_S)

    def _failed_at(self, step: int) -> bool:
        return self._failure is not None and self._failure[0] <= step

    def _run(self) -> None:
        left = [step for step in self.steps if step not in self._played]
        for place, step in enumerate(left):
            try:
                weights = self._begin(step, left[place + 1 :])
                if weights is not None:
                    self._engine.load(weights)
                del weights
                began = time.perf_counter()
                transcripts = self._play(step, self._engine)
                seconds = time.perf_counter() - began
            except BaseException as error:
                self._end(failure=(step, error))
                return
            self._end(played=(step, (transcripts, seconds)))

    def _begin(self, step: int, later: Sequence[int]) -> Weights | None:
        """Wait for a step's turn; return the weights to load, None where they serve already."""
        version = self._version(step)
        keep_from = self._version(later[0]) if later else version + 1
        with self._changed:
            self._changed.wait_for(
                lambda: self._stop.is_set() or (version in self._weights and not self._is_paused)
            )
            if self._stop.is_set():
                raise _GivenUp
            self._is_playing = True
            found = None if self._served == version else self._weights[version]
            self._served = version
            for old in [one for one in self._weights if one < keep_from]:
                del self._weights[old]
            return found

    def _version(self, step: int) -> int:
        return max(self.steps.start, step - self._max_staleness)

    def _end(
        self,
        played: tuple[int, tuple[Sequence[Transcript], float]] | None = None,
        failure: tuple[int, BaseException] | None = None,
    ) -> None:
        with self._changed:
            if played is not None:
                self._played[played[0]] = played[1]
            self._failure = failure
            self._is_playing = False
            self._changed.notify_all()


class StoppableEngine:
    """An engine whose calls end soon after `stop` is set, by an exception that nothing catches."""

    def __init__(self, engine: Engine, stop: threading.Event) -> None:
        self._engine: Any = engine
        self._stop = stop

    @property
    def capabilities(self) -> frozenset[Capability]:
        """Those of the engine."""
        found: frozenset[Capability] = self._engine.capabilities
        return found

    @property
    def renderer(self) -> Any:
        """That of the engine."""
        return self._engine.renderer

    @property
    def context_window(self) -> int | None:
        """That of the engine."""
        window: int | None = self._engine.context_window
        return window

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        """Answer a batch; one that is under way is not cut short."""
        self._check()
        replies: list[Reply] = self._engine.generate(requests)
        self._check()
        return replies

    def load(self, weights: Weights) -> None:
        """Serve other weights."""
        self._check()
        self._engine.load(weights)

    def close(self) -> None:
        """Do nothing: the engine is only lent."""

    def submit(self, request: Request) -> int:
        """Take a request."""
        self._check()
        ticket: int = self._engine.submit(request)
        return ticket

    def collect(self, timeout_s: float) -> list[Finished]:
        """Return what has ended, in waits that are short."""
        engine: StreamingEngine = self._engine
        until = time.monotonic() + timeout_s
        while True:
            self._check()
            began = time.monotonic()
            wait_s = max(0.0, min(_SLICE_S, until - began))
            found = engine.collect(wait_s)
            now = time.monotonic()
            # An engine that did not wait has nothing to wait for.
            if found or now >= until or now - began < wait_s / 2:
                return found

    def cancel(self, ticket: int) -> None:
        """Give a request up."""
        self._engine.cancel(ticket)

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
