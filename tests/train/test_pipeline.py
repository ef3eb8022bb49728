"""Rollouts ahead of training: which weights play which step, and that nothing else changes."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from debate_protocol.types import Ask, Reply, Transcript
from debate_rollout.drivers import LockStep, play
from debate_rollout.engine import Engine, Request, Weights
from debate_rollout.engines import ScriptedEngine
from debate_rollout.engines.scripted_stream import Delay
from debate_train.cli import main
from debate_train.data import SignsPuzzle
from debate_train.loop import start_debates
from debate_train.playing_ahead import copied
from debate_train.recipe import Recipe
from debate_train.rollouts import Play, Rollouts, Source
from debate_train.trainers.torch_session import TorchTrainerSession
from debate_train.word_tokenizer import word_tokenizer

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
        self.capabilities = self._engine.capabilities
        self.renderer, self.context_window = self._engine.renderer, None
        self.loaded: list[int] = []
        self.pause_s = 0.0
        self._busy = threading.Lock()

    def _say(self, ask: Ask) -> str:
        time.sleep(self.pause_s)
        return SOURCE.demonstrate(ask)

    def generate(self, requests: Sequence[Request]) -> list[Reply]:
        return self._alone(lambda: self._engine.generate(requests))

    def load(self, weights: Weights) -> None:
        self.loaded.append(weights.version)
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
        assert self._busy.acquire(blocking=False), "the engine was called twice at once"
        try:
            return call()
        finally:
            self._busy.release()


def play_step(step: int, engine: Engine) -> list[Transcript]:
    runs = start_debates(FORM, SOURCE.batch(step), f"train/{step}")
    return play(runs, engine, max_tokens=64)


def ahead(engine: Any, depth: int, player: Play = play_step) -> Rollouts:
    return Rollouts(Source(player, engine, engine, lambda v: Weights(v, {})), depth)


def versions(transcripts: Sequence[Transcript]) -> set[int]:
    return {turn.reply.weight_version for x in transcripts for turn in x.turns if turn.reply}


@given(st.integers(0, 4), st.integers(0, 3), st.integers(0, 7), st.data())
def test_each_step_is_played_with_exactly_its_weights(
    depth: int, first: int, count: int, data: st.DataObject
) -> None:
    engine = Watched()
    rollouts = ahead(engine, depth)
    steps = range(first, first + count)
    looks = data.draw(st.sets(st.sampled_from([*steps, -1])))
    if depth == 0:
        engine.load(Weights(first, {}))
    with rollouts.over(steps):
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


def test_no_step_waits_for_weights_that_are_old_enough() -> None:
    engine = Watched()
    rollouts = ahead(engine, 2)
    with rollouts.over(range(10)):
        # Steps 0, 1 and 2 are played with version 0, and step 3 has to wait for version 1.
        deadline = time.monotonic() + 30
        while len(rollouts._ahead._played) < 3 and time.monotonic() < deadline:  # type: ignore[union-attr]
            time.sleep(0.01)
        time.sleep(0.05)
        assert sorted(rollouts._ahead._played) == [0, 1, 2]  # type: ignore[union-attr]
        assert engine.loaded == [0]


def test_waits_say_what_limits() -> None:
    engine = Watched()
    engine.pause_s = 0.05  # two replies a step: 0.1 s
    rollouts = ahead(engine, 1)
    with rollouts.over(range(4)):
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

    rollouts = ahead(Watched(), 3, fails_at_2)
    taken = []
    with pytest.raises(RuntimeError, match="the server went away"), rollouts.over(range(6)):
        for step in range(6):
            taken.append(len(rollouts.take(step)))
            rollouts.refresh(step + 1)
    assert taken == [1, 1]


@pytest.mark.parametrize("driver", [LockStep(), None])
def test_closing_is_prompt_when_replies_take_long(driver: LockStep | None) -> None:
    engine = Watched(Delay(median_s=300, spread=0))
    open_tickets = engine._engine._outcomes

    def slowly(step: int, lent: Engine) -> list[Transcript]:
        runs = start_debates(FORM, SOURCE.batch(step), f"train/{step}")
        return play(runs, lent, max_tokens=64, **({"driver": driver} if driver else {}))

    rollouts = ahead(engine, 1, slowly)
    with rollouts.over(range(3)):
        deadline = time.monotonic() + 30
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


RECIPE = """\
name: overlapped
steps: 5
model: {type: scratch, hidden_size: 32, layers: 1, heads: 2, kv_heads: 1, ffn_size: 32}
data: {type: signs_puzzle, batch_size: 2}
debate: {type: simultaneous, num_agents: 2, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 16}
pipeline: {depth: 2}
reward: {type: v2}
advantage: {center: none, streams: {generator: {weight: 1.0}, judge: {weight: 0.0}}}
loss: {type: ppo_clip, kl: {weight: 0.1}}
trainer: {type: torch, learning_rate: 1.0e-3}
evaluation: {questions: 2, every: 3, direct_samples: 1}
# Never reached: looked at after 5 and 8 steps; nothing is played ahead beyond a look.
gate: {metric: eval/judge/accuracy, at_least: 2, every: 3, max_steps: 8, when_shut: go_on}
recording: {every: 1, debates: 2}
checkpoint: {every: 0, keep_last: 9}
tracking: {wandb: false}
"""
LAST = 8


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("recipe") / "overlapped.yaml"
    path.write_text(RECIPE)
    return str(path)


Train = Callable[..., int]


@pytest.fixture(scope="module")
def train(recipe: str) -> Train:
    return lambda output, *changes: main([recipe, *changes, "--output", str(output)])


def rows(output: Path, *without: str) -> list[dict[str, Any]]:
    """The metrics, without what a clock says."""
    lines = (output / "metrics.jsonl").read_text().splitlines()
    left_out = ("time_s", "tokens_per_s", "time/", *without)
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith(left_out)}
        for line in lines
    ]


def assert_same_debates_and_weights(output: Path, whole: Path) -> None:
    for path in (whole / "transcripts").iterdir():
        assert (output / "transcripts" / path.name).read_bytes() == path.read_bytes()
    last = f"checkpoints/step-{LAST:06d}/model.safetensors"
    expected = load_file(whole / last)
    assert all(torch.equal(t, expected[n]) for n, t in load_file(output / last).items())


@pytest.fixture(scope="module")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("whole") / "run"
    assert train(output) == 0
    return output


def test_staleness_is_bounded_and_logged(whole: Path) -> None:
    found = [row for row in rows(whole) if "loss" in row]
    # Steps 0 to 4, then 5 to 7 after the look at the gate, each with the weights of two before.
    assert [row["rollout/staleness_max"] for row in found] == [0, 1, 2, 2, 2, 0, 1, 2]
    assert [row["rollout/staleness_mean"] for row in found] == [0, 1, 2, 2, 2, 0, 1, 2]
    for step in range(1, LAST + 1):
        tokens = load_file(whole / f"tokens/step-{step}.safetensors")
        sampled = tokens["versions_BT"][tokens["mask_BT"] > 0]
        expected = max(0 if step <= 5 else 5, step - 1 - 2)
        assert set(sampled.tolist()) == {expected}
    # Ratios are to what was really sampled: 1 on fresh samples alone.
    for row, age in zip(found, [0, 1, 2, 2, 2, 0, 1, 2], strict=True):
        is_one = row["optim/ratio_max"] == pytest.approx(1, abs=1e-4)
        assert is_one == (age == 0)


def test_runs_with_one_seed_are_equal_when_rollouts_overlap(
    train: Train, whole: Path, tmp_path: Path
) -> None:
    assert train(tmp_path / "again") == 0
    assert rows(tmp_path / "again") == rows(whole)
    assert_same_debates_and_weights(tmp_path / "again", whole)


def test_frozen_weights_give_the_results_of_depth_0(train: Train, tmp_path: Path) -> None:
    for depth in (0, 1, 3):
        frozen = ("trainer.learning_rate=0", f"pipeline.depth={depth}")
        assert train(tmp_path / str(depth), *frozen) == 0
    on_policy = rows(tmp_path / "0", "rollout/staleness")
    assert len([row for row in on_policy if "loss" in row]) == LAST
    for depth in (1, 3):
        assert rows(tmp_path / str(depth), "rollout/staleness") == on_policy
        assert_same_debates_and_weights(tmp_path / str(depth), tmp_path / "0")


def test_interrupted_run_goes_on_exactly_with_what_was_played_ahead(
    train: Train, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, done = tmp_path / "run", 0
    original = TorchTrainerSession.step
    # Early, when two steps are ahead; twice in a row; before a look at the gate; at its border.
    for stop in (1, 3, 4, 5, 7):
        made = 0

        def step(self: TorchTrainerSession, batch: Any, left: int = stop - done) -> Any:
            nonlocal made
            made += 1
            if made == left:
                os.kill(os.getpid(), signal.SIGINT)
            return original(self, batch)

        with monkeypatch.context() as patch:
            patch.setattr(TorchTrainerSession, "step", step)
            assert train(output, *(["--resume"] if done else [])) == 130
        done = stop
        folder = output / f"checkpoints/step-{stop:06d}"
        lines = (folder / "lookahead.jsonl").read_text() if stop != 5 else ""
        heads = [json.loads(line) for line in lines.splitlines() if '"debates"' in line]
        end = 5 if stop <= 5 else LAST
        ahead = list(range(stop, min(stop + 2, end)))
        assert [head["step"] for head in heads] == ahead
        assert (folder / "lookahead.safetensors").exists() == bool(ahead)
    assert train(output, "--resume") == 0
    assert rows(output) == rows(whole)
    assert_same_debates_and_weights(output, whole)


def test_demonstrations_are_never_stale(train: Train, tmp_path: Path) -> None:
    changes = ("gate=null", "steps=2", "loss={type: sft}", "evaluation.questions=0")
    phase = "phases={a: {rollout: {engine: {type: demonstrations}}}}"
    assert train(tmp_path / "run", *changes, phase) == 0
    assert len(rows(tmp_path / "run")) == 2
