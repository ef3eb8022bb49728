"""Runs that are stopped between two updates lose nothing but the step under way."""

import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from debate_train.playing.rollouts import Prefetcher, Rollouts
from debate_train.running import loop, phases, run_context
from debate_train.trainers.torch_session import TorchTrainerSession
from train.small_runs import AHEAD, End, Run, at_call, end_of, steps


def test_no_checkpoint_is_written_without_the_debates_that_nobody_waited_for(
    run: Run,
    tmp_path: Path,
    whole_ahead: End,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        at_call(patch, loop, "build_batch", 3, twice)
        interrupt = partial(signal.raise_signal, signal.SIGINT)
        at_call(patch, Prefetcher, "in_flight", 1, interrupt)
        assert run(*AHEAD) == 130
    assert steps(tmp_path) == []
    printed = capfd.readouterr().err
    assert "debates that were begun ahead have to end first" in printed
    assert "no checkpoint of step 2: the debates that were begun ahead" in printed
    assert run("--resume", *AHEAD) == 0
    assert end_of(tmp_path / "run") == whole_ahead


def hang_up() -> None:
    signal.raise_signal(signal.SIGHUP)


def twice() -> None:
    signal.raise_signal(signal.SIGINT)
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    "case",
    [
        ((loop, "build_batch"), 1, hang_up, 1, "stopping after this step"),
        ((loop, "build_batch"), 2, twice, 1, "press again to stop at once, without this step"),
        # An update that has begun ends, and counts.
        ((TorchTrainerSession, "_update"), 2, twice, 2, "press again to stop without it"),
        ((run_context, "step_metrics"), 2, twice, 2, "press again to stop without it"),
        ((loop, "evaluate"), 1, hang_up, 2, "stopping now, with a checkpoint"),
        ((run_context, "evaluate"), 1, hang_up, None, "stopping now"),
        ((run_context, "save_random_states"), 1, twice, 3, "press again to stop without it"),
    ],
)
def test_run_that_is_interrupted_leaves_its_last_complete_step(
    run: Run,
    tmp_path: Path,
    whole: End,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    case: Any,
) -> None:
    place, number, act, saved, said = case
    with monkeypatch.context() as patch:
        at_call(patch, *place, number, act)
        assert run() == 130
    assert steps(tmp_path) == ([] if saved is None else [saved])
    printed = capfd.readouterr().err
    assert said in printed and "Traceback" not in printed
    assert run("--resume") == 0
    assert end_of(tmp_path / "run") == whole


def test_no_step_is_begun_when_an_interrupt_came_before_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    at_call(monkeypatch, phases, "open_phase", 1, hang_up)
    monkeypatch.setattr(Rollouts, "take", pytest.fail)
    assert run() == 130
    assert steps(tmp_path) == []
    assert "before the first step was complete" in capfd.readouterr().err
