"""Runs that fail or are stopped between two updates lose nothing but the step under way."""

import errno
import json
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from debate_rollout.errors import EngineFailure
from debate_train import (
    keeper,
    loop,
    metrics_file,
    phases,
    records,
    run_directory,
    saving,
    tracking,
)
from debate_train.cli import main
from debate_train.playing import playing_ahead
from debate_train.playing.lookahead import read_lookahead
from debate_train.playing.playing_ahead import PlayerAhead
from debate_train.playing.rollouts import Rollouts
from debate_train.progress import Progress
from debate_train.trainers.torch_session import TorchTrainerSession

RECIPE = """\
name: small
steps: 3
model: {type: scratch, hidden_size: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn_size: 8}
data: {type: signs_puzzle, batch_size: 1, num_digits: 3, largest_digit: 4}
debate: {type: simultaneous, num_agents: 2, max_rounds: 1, style: compact, personas: none}
rollout: {max_tokens: 4}
reward: {type: v2}
advantage: {center: none}
loss: {type: ppo_clip}
trainer: {type: torch, learning_rate: 1.0e-2}
evaluation: {questions: 1, direct_samples: 1, every: 2}
recording: {debates: 0}
tracking: {wandb: false}
"""
_CLOCKS = ("time_s", "time/", "tokens_per_s", "memory/")
Run = Callable[..., int]
End = tuple[list[dict[str, Any]], bytes, bytes]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE)
    return lambda *more: main([str(path), "--output", str(tmp_path / "run"), *more])


def end_of(folder: Path) -> End:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in row.items() if not k.startswith(_CLOCKS)} for row in rows]
    last = max((folder / "checkpoints").glob("step-*"))
    files = [last / name for name in ("model.safetensors", "optimizer-00000.safetensors")]
    return timeless, files[0].read_bytes(), files[1].read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> End:
    """What the run ends with that nothing stops."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "small.yaml").write_text(RECIPE)
    assert main([str(folder / "small.yaml"), "--output", str(folder / "run")]) == 0
    return end_of(folder / "run")


def steps(folder: Path) -> list[int]:
    return sorted(int(p.name[5:]) for p in (folder / "run/checkpoints").glob("step-*"))


def at_call(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int, act: Callable[[], object]
) -> None:
    """Act when a function is called for the n-th time, before it does anything."""
    inner, calls = getattr(owner, name), iter(range(1, 10_000))

    def outer(*arguments: Any, **named: Any) -> Any:
        if next(calls) == number:
            act()
        return inner(*arguments, **named)

    monkeypatch.setattr(owner, name, outer)


def fail() -> None:
    raise RuntimeError("a bug")


def no_room() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def no_engine() -> None:
    raise EngineFailure("the engine failed twice")


@pytest.mark.parametrize(
    "case",
    [
        ((loop, "build_batch"), 3, fail, 2),
        ((Rollouts, "take"), 3, no_engine, 2),
        ((Rollouts, "refresh"), 2, no_engine, 2),  # trained, though no engine has its weights
        ((phases, "evaluate"), 2, no_engine, 2),  # the look at the dev split after step 2
        ((keeper, "step_metrics"), 2, fail, 2),  # trained, though not recorded
        ((metrics_file, "open_plain"), 2, no_room, 2),  # its row is in the checkpoint
        ((metrics_file, "open_plain"), 3, no_room, 2),  # and so is that of the look after it
        ((tracking.NoTracking, "log"), 2, fail, 2),
        ((Progress, "step"), 2, fail, 2),
    ],
)
def test_run_that_fails_leaves_its_last_complete_step(
    run: Run, tmp_path: Path, whole: End, monkeypatch: pytest.MonkeyPatch, case: Any
) -> None:
    place, number, act, saved = case
    with monkeypatch.context() as patch:
        at_call(patch, *place, number, act)
        assert run() == 1
    assert steps(tmp_path) == ([] if saved is None else [saved])
    assert run("--resume") == 0
    assert end_of(tmp_path / "run") == whole


def files_of(folder: Path) -> dict[str, bytes]:
    found = [*(folder / "transcripts").iterdir(), *(folder / "tokens").iterdir()]
    return {path.name: path.read_bytes() for path in found}


@pytest.mark.parametrize(
    ("place", "number", "saved"),
    [
        ((run_directory, "write_transcripts"), 2, 1),
        ((run_directory.RunDirectory, "write_tokens"), 2, 1),
        ((run_directory.RunDirectory, "note_record"), 4, 1),  # of the tokens, which are written
        ((metrics_file, "open_plain"), 2, 2),
    ],
)
def test_step_whose_records_cannot_be_written_has_them_after_a_resume(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, number: int, saved: int
) -> None:
    recording = ("recording={debates: 1, every: 1}", "evaluation.questions=0")
    assert run(*recording) == 0
    whole, files = end_of(tmp_path / "run"), files_of(tmp_path / "run")
    assert len(files) == 6
    shutil.rmtree(tmp_path / "run")
    with monkeypatch.context() as patch:
        at_call(patch, *place, number, no_room)
        assert run(*recording) == 1
    assert steps(tmp_path) == [saved]
    assert run("--resume", *recording) == 0
    assert (end_of(tmp_path / "run"), files_of(tmp_path / "run")) == (whole, files)


AHEAD = ("pipeline.depth=1", "evaluation.questions=0", "steps=4")


@pytest.fixture(scope="module")
def whole_ahead(tmp_path_factory: pytest.TempPathFactory) -> End:
    """What a run with rollouts ahead ends with that nothing stops."""
    folder = tmp_path_factory.mktemp("ahead")
    (folder / "small.yaml").write_text(RECIPE)
    assert main([str(folder / "small.yaml"), "--output", str(folder / "run"), *AHEAD]) == 0
    return end_of(folder / "run")


def test_step_counts_when_its_weights_cannot_be_copied_for_rollouts_ahead(
    run: Run, tmp_path: Path, whole_ahead: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint holds the debates that older weights played, and not those of the step."""
    with monkeypatch.context() as patch:
        at_call(patch, playing_ahead, "copied", 3, no_room)  # those after step 2
        assert run(*AHEAD) == 1
    assert steps(tmp_path) == [2]
    assert set(read_lookahead(tmp_path / "run/checkpoints/step-000002")) == {2}
    assert run("--resume", *AHEAD) == 0
    assert end_of(tmp_path / "run") == whole_ahead


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
        at_call(patch, PlayerAhead, "with_old_weights", 1, interrupt)
        assert run(*AHEAD) == 130
    assert steps(tmp_path) == []
    told = capfd.readouterr().err
    assert "as soon as the debates that were begun ahead have ended" in told
    assert "no checkpoint of step 2: the debates that were begun ahead" in told
    assert run("--resume", *AHEAD) == 0
    assert end_of(tmp_path / "run") == whole_ahead


def test_step_that_fails_before_its_update_is_not_the_last_complete_one(
    run: Run, tmp_path: Path, whole: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of memory in the backward pass leaves the weights as they were, in the update not."""
    inside = iter([False, True])

    def exhausted(session: TorchTrainerSession) -> Any:
        session._has_updated = next(inside)
        raise MemoryError

    for left in ([2], []):
        with monkeypatch.context() as patch:
            calls = iter(range(1, 99))
            update = TorchTrainerSession._update
            patch.setattr(
                TorchTrainerSession,
                "_update",
                lambda session: exhausted(session) if next(calls) == 3 else update(session),  # noqa: B023
            )
            assert run() == 1
        assert steps(tmp_path) == left
        assert run("--resume") == 0
        assert end_of(tmp_path / "run") == whole
        shutil.rmtree(tmp_path / "run")


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
        ((keeper, "step_metrics"), 2, twice, 2, "press again to stop without it"),
        ((phases, "evaluate"), 2, hang_up, 2, "stopping now, with a checkpoint"),
        ((phases, "evaluate"), 1, hang_up, None, "stopping now"),
        ((saving, "save_random_states"), 1, twice, 3, "press again to stop without it"),
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
    told = capfd.readouterr().err
    assert said in told and "Traceback" not in told
    assert run("--resume") == 0
    assert end_of(tmp_path / "run") == whole


def test_no_step_is_begun_when_an_interrupt_came_before_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    at_call(monkeypatch, phases, "rollouts_of", 1, hang_up)
    monkeypatch.setattr(Rollouts, "take", pytest.fail)
    assert run() == 130
    assert steps(tmp_path) == []
    assert "before the first step was complete" in capfd.readouterr().err


def test_checkpoints_are_written_by_the_clock_and_change_nothing(
    run: Run, tmp_path: Path, whole: End
) -> None:
    assert run("checkpoint.every_minutes=1e-9", "checkpoint.keep_last=9") == 0
    assert steps(tmp_path) == [1, 2, 3]
    assert end_of(tmp_path / "run") == whole


def test_run_goes_on_when_a_metric_cannot_be_taken(
    run: Run, tmp_path: Path, whole: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_call(monkeypatch, records, "debate_metrics", 2, fail)
    assert run() == 0
    rows, weights, _ = end_of(tmp_path / "run")
    assert weights == whole[1]
    assert [row["step"] for row in rows if "failures/metrics" in row] == [2]
