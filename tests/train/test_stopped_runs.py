"""Runs that fail or are interrupted lose nothing but the step under way."""

import errno
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from debate_rollout.engine import EndpointError, EngineFailure, RolloutError
from debate_rollout.engines.transformers_sampler import TransformersSampler
from debate_train.checkpoints import run_directory
from debate_train.playing.rollouts import Prefetcher, Rollouts
from debate_train.running import loop, run_context
from debate_train.trainers.torch_session import TorchTrainerSession
from train.small_runs import AHEAD, End, Run, at_call, end_of, steps


def fail() -> None:
    raise RuntimeError("a bug")


def no_room() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def no_engine() -> None:
    raise EngineFailure("the engine failed twice")


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def interrupt_twice() -> None:
    interrupt()
    interrupt()


def hang_up() -> None:
    signal.raise_signal(signal.SIGHUP)


@pytest.mark.parametrize(
    ("owner", "name", "call", "act", "last_step"),
    [
        (loop, "build_batch", 3, fail, 2),
        (Rollouts, "refresh", 2, no_engine, 2),  # trained, though no engine has its weights
        (run_context, "step_metrics", 2, fail, 2),  # trained, though not recorded
    ],
)
def test_run_that_fails_leaves_its_last_complete_step(
    run: Run,
    tmp_path: Path,
    whole: End,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    call: int,
    act: Any,
    last_step: int,
) -> None:
    with monkeypatch.context() as patch:
        at_call(patch, owner, name, call, act)
        assert run() == 1
    assert steps(tmp_path) == [last_step]
    assert run("--resume") == 0
    assert end_of(tmp_path / "run") == whole


@pytest.mark.parametrize(
    ("owner", "name", "call", "act", "saved_steps", "message"),
    [
        (loop, "build_batch", 1, hang_up, [1], "stopping after this step"),
        # An update that has begun ends, and counts.
        (TorchTrainerSession, "_update", 2, interrupt_twice, [2], "again to stop without it"),
        (loop, "evaluate", 1, hang_up, [2], "stopping now, with a checkpoint"),
        (run_context, "save_random_states", 1, interrupt_twice, [3], "again to stop without it"),
    ],
)
def test_run_that_is_interrupted_leaves_its_last_complete_step(
    run: Run,
    tmp_path: Path,
    whole: End,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    owner: Any,
    name: str,
    call: int,
    act: Any,
    saved_steps: list[int],
    message: str,
) -> None:
    with monkeypatch.context() as patch:
        at_call(patch, owner, name, call, act)
        assert run() == 130
    assert steps(tmp_path) == saved_steps
    printed = capfd.readouterr().err
    assert message in printed
    assert "Traceback" not in printed
    assert run("--resume") == 0
    assert end_of(tmp_path / "run") == whole


def test_no_checkpoint_is_written_without_the_debates_that_nobody_waited_for(
    run: Run,
    tmp_path: Path,
    whole_ahead: End,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    with monkeypatch.context() as patch:
        at_call(patch, loop, "build_batch", 3, interrupt_twice)
        at_call(patch, Prefetcher, "in_flight", 1, interrupt)
        assert run(*AHEAD) == 130
    assert steps(tmp_path) == []
    printed = capfd.readouterr().err
    assert "debates that were begun ahead have to end first" in printed
    assert "no checkpoint of step 2: the debates that were begun ahead" in printed
    assert run("--resume", *AHEAD) == 0
    assert end_of(tmp_path / "run") == whole_ahead


def recorded_files(run_folder: Path) -> dict[str, bytes]:
    paths = [*(run_folder / "transcripts").iterdir(), *(run_folder / "tokens").iterdir()]
    return {path.name: path.read_bytes() for path in paths}


def test_step_whose_records_cannot_be_written_has_them_after_a_resume(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = ("recording={debates: 1, every: 1}", "evaluation.questions=0")
    folder = tmp_path / "run"
    assert run(*recording) == 0
    complete = end_of(folder)
    files = recorded_files(folder)
    assert len(files) == 9
    for owner, name, call in (
        (run_directory, "write_transcripts", 2),
        (run_directory.RunDirectory, "write_tokens", 2),
        (run_directory.RunDirectory, "note_record", 4),  # of the tokens, which are written
    ):
        shutil.rmtree(folder)
        with monkeypatch.context() as patch:
            at_call(patch, owner, name, call, no_room)
            assert run(*recording) == 1
        assert steps(tmp_path) == [1], name
        assert run("--resume", *recording) == 0
        assert end_of(folder) == complete, name
        assert recorded_files(folder) == files, name


@pytest.mark.parametrize(
    ("call", "error", "max_staleness"),
    [
        ("generate", RolloutError("vLLM has died: EngineDeadError"), 0),
        ("load", EndpointError("the vLLM server has ended"), 1),
    ],
)
def test_run_saves_its_last_complete_step_when_the_engine_dies(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    call: str,
    error: Exception,
    max_staleness: int,
) -> None:
    load, generate = TransformersSampler.load, TransformersSampler.generate
    num_loads = 0

    def die_if_trained_twice() -> None:
        # The weights of the phase's start, and those of two steps, have been loaded.
        if num_loads >= 3:
            raise error

    def loading(sampler: Any, weights: Any) -> None:
        nonlocal num_loads
        if call == "load":
            die_if_trained_twice()
        num_loads += 1
        load(sampler, weights)

    def generating(sampler: Any, requests: Any) -> Any:
        if call == "generate":
            die_if_trained_twice()
        return generate(sampler, requests)

    arguments = ("steps=4", "evaluation.questions=0", f"pipeline.max_staleness={max_staleness}")
    with monkeypatch.context() as patch:
        patch.setattr(TransformersSampler, "load", loading)
        patch.setattr(TransformersSampler, "generate", generating)
        assert run(*arguments) == 1
    assert str(error) in capsys.readouterr().err
    assert steps(tmp_path) in ([2], [3])
    assert run(*arguments, "--resume") == 0
    assert 4 in steps(tmp_path)


@pytest.mark.parametrize(
    ("has_updated", "saved_steps"),
    # Out of memory in the backward pass leaves the weights as they were, in the update not.
    [(False, [2]), (True, [])],
)
def test_step_that_fails_before_its_update_is_not_the_last_complete_one(
    run: Run,
    tmp_path: Path,
    whole: End,
    monkeypatch: pytest.MonkeyPatch,
    has_updated: bool,
    saved_steps: list[int],
) -> None:
    update = TorchTrainerSession._update
    num_calls = 0

    def exhaust_memory(session: TorchTrainerSession) -> Any:
        nonlocal num_calls
        num_calls += 1
        if num_calls < 3:
            return update(session)
        session._has_updated = has_updated
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(TorchTrainerSession, "_update", exhaust_memory)
        assert run() == 1
    assert steps(tmp_path) == saved_steps
    assert run("--resume") == 0
    assert end_of(tmp_path / "run") == whole
