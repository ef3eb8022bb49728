"""Debates of later steps while this one trains: which weights play which, failures, and ends."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from debate_protocol.types import Reply, Transcript, TurnRequest
from debate_rollout.drivers import LockStep, play
from debate_rollout.engine import Engine, Request, Weights
from debate_rollout.engines import ScriptedEngine
from debate_rollout.engines.scripted import Delay
from debate_rollout.routing import HeardEngine, RoutedEngine
from debate_train.data import SignsPuzzle
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import start_debates
from debate_train.playing.rollouts import Play, Rollouts, copied
from debate_train.recipe import Recipe

SOURCE = SignsPuzzle(batch_size=1).open()
FORM = Recipe.model_validate(
    {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 1},
        "debate": {"num_agents": 2, "max_rounds": 1, "style": "compact", "personas": "none"},
        "reward": {"type": "verifiable"},
    }
)


class Watched:
    """A scripted engine that notes loads, and fails when it is called twice at once."""

    def __init__(self, delay: Delay | None = None) -> None:
        config = ScriptedEngine(delay=delay)
        self._engine: Any = config.open(None, word_tokenizer(), script=self._say)
        self.capabilities = self._engine.capabilities | {"sleeps"}
        self.renderer, self.context_window = self._engine.renderer, None
        self.loaded: list[int] = []
        self.sleeps = 0
        self._is_asleep = False
        self.pause_s = 0.0
        self._busy = threading.Lock()

    def _say(self, turn_request: TurnRequest) -> str:
        time.sleep(self.pause_s)
        return SOURCE.demonstrate(turn_request)

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        return self._alone(lambda: self._engine.generate(requests))

    def sleep(self) -> None:
        self.sleeps += 1
        self._is_asleep = True

    def load(self, weights: Weights) -> None:
        self.loaded.append(weights.version)
        self._is_asleep = False
        self._alone(lambda: self._engine.load(weights))

    def submit(self, request: Request) -> int:
        return self._alone(lambda: self._engine.submit(request))

    def collect(self, timeout_s: float) -> Any:
        return self._alone(lambda: self._engine.collect(timeout_s))

    def cancel(self, ticket: int) -> None:
        self._engine.cancel(ticket)

    def close(self) -> None:
        self._engine.close()

    def _alone(self, call: Callable[[], Any]) -> Any:
        assert not self._is_asleep
        assert self._busy.acquire(blocking=False), "the engine was called twice at once"
        try:
            return call()
        finally:
            self._busy.release()


def play_step(step: int, engine: Engine) -> list[Transcript]:
    runs = start_debates(FORM, SOURCE.batch(step), f"train/{step}")
    return play(runs, engine, max_tokens=64)


def ahead(engine: Any, depth: int, stop: int, player: Play = play_step) -> Rollouts:
    """Rollouts whose only border is at `stop`."""
    return Rollouts(player, engine, lambda v: Weights(v, {}), depth, lambda step: stop)


def versions(transcripts: Sequence[Transcript]) -> set[int]:
    return {turn.reply.weight_version for x in transcripts for turn in x.turns if turn.reply}


@given(st.integers(0, 4), st.integers(0, 3), st.integers(0, 7), st.data())
def test_each_step_is_played_with_exactly_its_weights(
    depth: int, first: int, count: int, data: st.DataObject
) -> None:
    engine = Watched()
    ways = [engine, RoutedEngine(engine, {}), HeardEngine(engine, lambda heard: None)]
    rollouts = ahead(data.draw(st.sampled_from(ways)), depth, first + count)
    steps = range(first, first + count)
    looks = data.draw(st.sets(st.sampled_from([*steps, -1])))
    if depth == 0:
        engine.load(Weights(first, {}))
    with rollouts.open():
        for step in steps:
            assert versions(rollouts.take(step)) == {max(first, step - depth)}
            rollouts.refresh(step + 1)
            if step in looks:
                with rollouts.serving(step + 1) as lent:
                    before = len(engine.loaded)
                    (direct,) = play_step(99, lent)[:1]
                    assert versions([direct]) == {step + 1}
                    assert len(engine.loaded) == before
    with rollouts.serving(first + count) as lent:
        assert versions(play_step(99, lent)) == {first + count}
    assert engine.sleeps == (count if depth == 0 else 0)


def played(rollouts: Rollouts) -> list[int]:
    assert rollouts._ahead is not None
    return [step for step, found in rollouts._ahead.played.items() if found.done()]


def test_no_step_waits_for_weights_that_are_old_enough() -> None:
    engine = Watched()
    rollouts = ahead(engine, 2, 10)
    with rollouts.open():
        rollouts.take(0)
        # Steps 0, 1 and 2 are played with version 0, and step 3 has to wait for version 1.
        deadline = time.monotonic() + 120
        while len(played(rollouts)) < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.05)
        assert played(rollouts) == [0, 1, 2]
        assert engine.loaded == [0]


def test_waits_say_what_limits() -> None:
    engine = Watched()
    engine.pause_s = 0.05  # two replies a step: 0.1 s
    rollouts = ahead(engine, 1, 4)
    with rollouts.open():
        for step in range(4):
            rollouts.take(step)
            time.sleep(0.3)  # training takes longer, so nobody waits after the first step
            rollouts.refresh(step + 1)
            assert rollouts.times["time/rollout_s"] >= 0.1
            assert (rollouts.times["time/wait_s"] < 0.1) == (step > 0)


def test_failure_is_raised_at_its_step_when_earlier_ones_are_still_to_train() -> None:
    def fails_at_2(step: int, engine: Engine) -> list[Transcript]:
        if step == 2:
            raise RuntimeError("the server went away")
        return play_step(step, engine)

    rollouts = ahead(Watched(), 3, 6, fails_at_2)
    taken = []
    with pytest.raises(RuntimeError, match="the server went away"), rollouts.open():
        for step in range(6):
            taken.append(len(rollouts.take(step)))
            rollouts.refresh(step + 1)
    assert taken == [1, 1]


@pytest.mark.parametrize("driver", [LockStep(), None])
def test_closing_is_prompt_when_replies_take_long(driver: LockStep | None) -> None:
    engine = Watched(Delay(median_s=300, spread=0))
    open_tickets = engine._engine._outcomes

    def slowly(step: int, lent: Engine) -> list[Transcript]:
        if step == 0:
            return []
        runs = start_debates(FORM, SOURCE.batch(step), f"train/{step}")
        return play(runs, lent, max_tokens=64, **({"driver": driver} if driver else {}))

    rollouts = ahead(engine, 1, 3, slowly)
    with rollouts.open():
        rollouts.take(0)
        deadline = time.monotonic() + 120
        while not open_tickets and time.monotonic() < deadline:
            time.sleep(0.01)
        assert open_tickets
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert not open_tickets  # cancelled, not left to the engine
    assert not [t for t in threading.enumerate() if t.name == "debate-train-rollouts"]


def test_weights_are_copied_when_training_goes_on() -> None:
    head = torch.ones(2, 2)
    weights = copied(Weights(3, {"embed": head, "head": head, "part": head[:1]}))
    head.zero_()
    assert all(tensor.sum() == tensor.numel() for tensor in weights.tensors.values())
    assert weights.tensors["embed"] is weights.tensors["head"]
    assert weights.tensors["part"].shape == (1, 2)
