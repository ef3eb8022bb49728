"""Debates of later steps while this one trains: which weights play which, failures, and ends."""

import json
import os
import signal
import threading
import time
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from arithmetic import UNIT, in_float64
from debate_protocol.types import Branch, Question, Reply, Transcript, Turn
from debate_rollout.drivers import LockStep, play
from debate_rollout.engine import Weights
from debate_rollout.engines import ScriptedEngine
from debate_rollout.engines.scripted import Delay
from debate_rollout.routing import HeardEngine, RoutedEngine
from debate_train.commands.cli import main
from debate_train.data import SignsPuzzle
from debate_train.errors import UsageError
from debate_train.models.scratch import word_tokenizer
from debate_train.playing import start_debates
from debate_train.playing.lookahead import read_lookahead, write_lookahead
from debate_train.playing.rollouts import Rollouts, copied
from debate_train.recipe import Recipe
from debate_train.trainers.torch_session import TorchTrainerSession

SOURCE = SignsPuzzle(batch_size=1).open()
PUZZLE = Recipe.model_validate(
    {
        "name": "t",
        "steps": 1,
        "model": {"type": "scratch"},
        "data": {"type": "signs_puzzle", "batch_size": 1},
        "debate": {"num_agents": 2, "max_rounds": 1, "style": "compact", "personas": "none"},
        "reward": {"type": "verifiable"},
    }
)


class WatchedEngine:
    """A scripted engine that notes loads, and fails when it is called twice at once."""

    def __init__(self, delay=None, pause_s=0.0):
        config = ScriptedEngine(delay=delay)
        self._engine = config.open(None, word_tokenizer(), script=self._say)
        self._is_asleep = False
        self._busy = threading.Lock()
        self._pause_s = pause_s
        self.capabilities = self._engine.capabilities | {"sleeps"}
        self.renderer = self._engine.renderer
        self.context_window = None
        self.loaded = []
        self.num_sleeps = 0

    def _say(self, request):
        time.sleep(self._pause_s)
        return SOURCE.demonstrate(request)

    def generate(self, requests):
        return self._exclusively(self._engine.generate, requests)

    def submit(self, request):
        return self._exclusively(self._engine.submit, request)

    def collect(self, timeout_s):
        return self._exclusively(self._engine.collect, timeout_s)

    def load(self, weights):
        self.loaded.append(weights.version)
        self._is_asleep = False
        self._exclusively(self._engine.load, weights)

    def sleep(self):
        self.num_sleeps += 1
        self._is_asleep = True

    def cancel(self, ticket):
        self._engine.cancel(ticket)

    def close(self):
        self._engine.close()

    def num_open_tickets(self):
        return len(self._engine._outcomes)

    def _exclusively(self, call, argument):
        assert not self._is_asleep
        assert self._busy.acquire(blocking=False), "the engine was called twice at once"
        try:
            return call(argument)
        finally:
            self._busy.release()


def play_step(step, engine, **options):
    runs = start_debates(PUZZLE, SOURCE.batch(step), f"train/{step}")
    return play(runs, engine, max_tokens=64, **options)


def make_rollouts(engine, depth, stop, player=play_step):
    """Make rollouts whose only border is at `stop`."""
    return Rollouts(player, engine, lambda version: Weights(version, {}), depth, lambda _: stop)


def versions_in(transcripts):
    turns = chain.from_iterable(transcript.turns for transcript in transcripts)
    return {turn.reply.weight_version for turn in turns if turn.reply}


@settings(derandomize=True, max_examples=60, deadline=None)
@given(
    depth=st.integers(0, 4),
    first=st.integers(0, 3),
    num_steps=st.integers(0, 7),
    kind=st.sampled_from(["plain", "routed", "heard"]),
    evaluated_after=st.sets(st.integers(0, 10)),
)
def test_each_step_is_played_with_exactly_its_weights(
    depth, first, num_steps, kind, evaluated_after
):
    engine = WatchedEngine()
    wrap = {
        "plain": lambda: engine,
        "routed": lambda: RoutedEngine(engine, {}),
        "heard": lambda: HeardEngine(engine, lambda replies: None),
    }
    stop = first + num_steps
    rollouts = make_rollouts(wrap[kind](), depth, stop)
    if depth == 0:
        engine.load(Weights(first, {}))
    with rollouts.open():
        for step in range(first, stop):
            assert versions_in(rollouts.take(step)) == {max(first, step - depth)}
            rollouts.refresh(step + 1)
            if step in evaluated_after:
                with rollouts.serving(step + 1) as serving:
                    num_loads = len(engine.loaded)
                    assert versions_in(play_step(99, serving)) == {step + 1}
                    assert len(engine.loaded) == num_loads
    with rollouts.serving(stop) as serving:
        assert versions_in(play_step(99, serving)) == {stop}
    assert engine.num_sleeps == (num_steps if depth == 0 else 0)


def wait_until(condition):
    deadline = time.monotonic() + 120
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def test_no_step_waits_for_weights_that_are_old_enough():
    engine = WatchedEngine()
    rollouts = make_rollouts(engine, 2, 10)

    def steps_played():
        return [step for step, result in rollouts._ahead.played.items() if result.done()]

    with rollouts.open():
        rollouts.take(0)
        # Steps 0, 1 and 2 are played with version 0, and step 3 has to wait for version 1.
        wait_until(lambda: len(steps_played()) == 3)
        time.sleep(0.05)
        assert steps_played() == [0, 1, 2]
        assert engine.loaded == [0]


def test_failure_is_raised_at_its_step_when_earlier_ones_are_still_to_train():
    def fail_at_2(step, engine):
        if step == 2:
            raise RuntimeError("the server went away")
        return play_step(step, engine)

    rollouts = make_rollouts(WatchedEngine(), 3, 6, fail_at_2)
    num_taken = 0
    with pytest.raises(RuntimeError, match="the server went away"), rollouts.open():
        for step in range(6):
            rollouts.take(step)
            num_taken += 1
            rollouts.refresh(step + 1)
    assert num_taken == 2


@pytest.mark.parametrize("options", [{"driver": LockStep()}, {}], ids=["lock-step", "free"])
def test_closing_is_prompt_when_replies_take_long(options):
    engine = WatchedEngine(Delay(median_s=300, spread=0))

    def play_slowly(step, serving):
        return [] if step == 0 else play_step(step, serving, **options)

    rollouts = make_rollouts(engine, 1, 3, play_slowly)
    with rollouts.open():
        rollouts.take(0)
        wait_until(engine.num_open_tickets)
        began = time.monotonic()
    assert time.monotonic() - began < 5
    assert engine.num_open_tickets() == 0  # cancelled, not left to the engine
    names = [thread.name for thread in threading.enumerate()]
    assert "debate-train-rollouts" not in names


def test_weights_are_copied_when_training_goes_on():
    head = torch.ones(2, 2)
    weights = copied(Weights(3, {"embed": head, "head": head, "slice": head[:1]}))
    head.zero_()
    assert all(tensor.sum() == tensor.numel() for tensor in weights.tensors.values())
    assert weights.tensors["embed"] is weights.tensors["head"]
    assert weights.tensors["slice"].shape == (1, 2)


# Whole runs: nothing but the age of the weights changes

RECIPE = """\
name: overlapped
steps: 5
model: {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8}
data: {type: signs_puzzle, batch_size: 1}
debate: {type: simultaneous, num_agents: 2, max_rounds: 2, style: compact, personas: none}
rollout: {max_tokens: 12}
pipeline: {max_staleness: 2}
reward: {type: v2}
advantage: {baseline: none, streams: {generator: {weight: 1.0}, judge: {weight: 0.0}}}
loss: {type: ppo_clip, kl: {weight: 0.1}}
trainer: {type: torch, learning_rate: 1.0e-3}
evaluation: {questions: 1, every: 3, direct_samples: 1}
# Never reached: looked at after 5 and 8 steps; nothing is played ahead beyond a look.
exit_criterion: {metric: eval/judge/accuracy, at_least: 2, every: 3, max_steps: 8, if_missed: go_on}
recording: {every: 1, debates: 2}
checkpoint: {every: 0, keep_last: 9}
tracking: {wandb: false}
"""
LAST = 8
STALENESS = [0, 1, 2, 2, 2, 0, 1, 2]
"""Steps 0 to 4, then 5 to 7 after the look, each with the weights of two before."""


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "overlapped.yaml"
    path.write_text(RECIPE)
    return lambda output, *changes: main([str(path), *changes, "--output", str(output)])


@pytest.fixture(scope="module")
def whole(train, tmp_path_factory):
    output = tmp_path_factory.mktemp("whole") / "run"
    assert train(output) == 0
    return output


def read_rows(output, *left_out):
    """Read the metrics, without what a clock says."""
    clocks = ("time_s", "tokens_per_s", "time/", "memory/", *left_out)
    rows = []
    for line in (output / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        rows.append({name: value for name, value in row.items() if not name.startswith(clocks)})
    return rows


def step_rows(output):
    return [row for row in read_rows(output) if "loss" in row]


def assert_same_debates_and_weights(output, expected):
    for path in (expected / "transcripts").iterdir():
        assert (output / "transcripts" / path.name).read_bytes() == path.read_bytes()
    weights = f"checkpoints/step-{LAST:06d}/model.safetensors"
    assert (output / weights).read_bytes() == (expected / weights).read_bytes()


def test_staleness_is_bounded_and_logged(whole):
    assert [row["rollout/staleness_max"] for row in step_rows(whole)] == STALENESS
    assert [row["rollout/staleness_mean"] for row in step_rows(whole)] == STALENESS
    for step in range(1, LAST + 1):
        tokens = load_file(whole / f"tokens/step-{step}.safetensors")
        versions = set(tokens["versions_BT"][tokens["mask_BT"] > 0].tolist())
        first = 0 if step <= 5 else 5
        assert versions == {max(first, step - 1 - 2)}


@pytest.mark.numeric
def test_ratios_are_to_what_was_really_sampled(train, tmp_path):
    with in_float64():
        assert train(tmp_path / "run") == 0
    # 1 on fresh samples only: rows keep log-probabilities in float32, and one below 16 in size is
    # rounded by 8 units at most; an update at learning rate 1e-3 moves it by much more.
    for row, staleness in zip(step_rows(tmp_path / "run"), STALENESS, strict=True):
        is_one = row["optim/ratio_max"] == pytest.approx(1, abs=8 * UNIT)
        assert is_one == (staleness == 0), row["optim/ratio_max"] - 1


def test_interrupted_run_goes_on_exactly_with_what_was_played_ahead(
    train, whole, tmp_path, monkeypatch
):
    output = tmp_path / "run"
    train_step = TorchTrainerSession.step
    num_done = 0
    # When two steps are ahead; then twice in a row, before a look at the exit criterion and at it;
    # before the last step.
    for stop in (1, 4, 5, 7):
        steps_left = iter(range(stop - num_done, 0, -1))

        def interrupted_step(session, batch, steps_left=steps_left):
            if next(steps_left) == 1:
                os.kill(os.getpid(), signal.SIGINT)
            return train_step(session, batch)

        with monkeypatch.context() as patch:
            patch.setattr(TorchTrainerSession, "step", interrupted_step)
            assert train(output, *(["--resume"] if num_done else [])) == 130
        num_done = stop
        lookahead = output / f"checkpoints/step-{stop:06d}/lookahead.jsonl"
        border = 5 if stop <= 5 else LAST
        steps_ahead = list(range(stop, min(stop + 2, border)))
        assert lookahead.exists() == bool(steps_ahead)
        if steps_ahead:
            lines = [line for line in lookahead.read_text().splitlines() if '"debates"' in line]
            assert [json.loads(line)["step"] for line in lines] == steps_ahead
    assert train(output, "--resume") == 0
    assert read_rows(output) == read_rows(whole)
    assert_same_debates_and_weights(output, whole)


SIGNS = SignsPuzzle(batch_size=3).open()


def played(form: str) -> list[Transcript]:
    debate = {"type": form, "style": "compact", "max_rounds": 2, "personas": "none"}
    beside = {"guided": True, "continuations": 2} if form == "actor_critic" else {"num_agents": 3}
    recipe = Recipe.model_validate(
        {
            "name": "t",
            "steps": 1,
            "model": {"type": "scratch", "context_window": 4096},
            "data": {"type": "signs_puzzle", "batch_size": 3},
            "debate": debate | beside,
            "reward": {"type": "verifiable"},
        }
    )
    engine = ScriptedEngine().open(None, word_tokenizer(), script=SIGNS.demonstrate)
    return play(start_debates(recipe, SIGNS.batch(0), "train/0"), engine, max_tokens=64)


def replies(transcript: Transcript) -> list[Reply | None]:
    """Replies do not count when transcripts are compared, so they are compared apart."""
    waiting, found = list(transcript.turns), []
    while waiting:
        turn = waiting.pop(0)
        found.append(turn.reply)
        waiting += [b.turn for b in turn.branches] + list(turn.continuations)
    return found


@pytest.mark.parametrize("form", ["simultaneous", "actor_critic"])
def test_transcripts_and_tokens_come_back_when_they_were_played_ahead(
    form: str, tmp_path: Path
) -> None:
    before = {7: played(form), 8: played(form)[:1], 9: []}
    write_lookahead(tmp_path, before)
    after = read_lookahead(tmp_path)
    assert after == before
    for step, transcripts in before.items():
        for was, now in zip(transcripts, after[step], strict=True):
            assert replies(now) == replies(was)
    assert any(reply and reply.token_ids for reply in replies(before[7][0]))
    is_branched = any(turn.branches for turn in before[7][0].turns)
    assert is_branched == (form == "actor_critic")


def test_numbers_of_a_reply_come_back_exactly(tmp_path: Path) -> None:
    reply = Reply(
        "é\ud800",
        "length",
        prompt_ids=(1, 2**31 - 1),
        token_ids=(5, 6, 7),
        logps=(-0.1, -1e-300, -1 / 3),
        temperature=0.7,
        weight_version=4,
        version_spans=((3, 0, 1), (4, 1, 3)),
        counted=(9, 2),
    )
    leaf = Turn(1, 1, "leaf", reply=replace(reply, token_ids=(8,), version_spans=()))
    beside = Branch("4", Turn(0, 0, "no reply", continuations=(leaf,)))
    turn = Turn(0, 0, "cut", reply=reply, branches=(beside,), continuations=(leaf, leaf))
    debate = replace(played("simultaneous")[0], question=Question("q", "?"), turns=(turn,))
    write_lookahead(tmp_path, {0: [debate]})
    (found,) = read_lookahead(tmp_path)[0]
    assert replies(found) == [reply, None, leaf.reply, leaf.reply, leaf.reply]
    assert found.turns[0].token_counts == (9, 2)  # Which replies are not compared by.
    assert found.turns == (turn,)


@pytest.mark.parametrize("harm", ["torn", "another file"])
def test_spoilt_file_ends_in_one_message(harm: str, tmp_path: Path) -> None:
    write_lookahead(tmp_path, {7: played("simultaneous")})
    lines = tmp_path / "lookahead.jsonl"
    text = lines.read_text()
    if harm == "torn":
        lines.write_text(text[: len(text) // 2])
    else:
        lines.write_text('{"loss": 1}\n[]\n')
    with pytest.raises(UsageError, match=r"lookahead\.jsonl cannot be read"):
        read_lookahead(tmp_path)
