"""Runs that fail lose nothing but the step under way."""

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

from debate_rollout.engine import EndpointError, EngineFailure, RolloutError
from debate_rollout.engines.transformers_sampler import TransformersSampler
from debate_train.checkpoints import run_directory
from debate_train.monitoring.progress import Progress
from debate_train.monitoring.tracking import Tracker
from debate_train.playing import rollouts as playing_ahead
from debate_train.playing.lookahead import read_lookahead
from debate_train.playing.rollouts import Rollouts
from debate_train.running import loop, run_context, step_metrics
from debate_train.trainers.torch_session import TorchTrainerSession
from train.small_runs import AHEAD, End, Run, at_call, end_of, steps


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
        ((loop, "evaluate"), 1, no_engine, 2),  # the look at the dev split after step 2
        ((run_context, "step_metrics"), 2, fail, 2),  # trained, though not recorded
        ((Tracker, "log"), 2, fail, 2),
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


def test_row_that_cannot_be_written_is_lost_alone(
    run: Run, tmp_path: Path, whole: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        at_call(patch, run_directory, "cut_torn_line", 3, no_room)
        assert run() == 1
    assert steps(tmp_path) == [2]
    assert run("--resume") == 0
    rows, *others = end_of(tmp_path / "run")
    assert rows == [row for place, row in enumerate(whole[0]) if place != 1]
    assert others == list(whole[1:])


def files_of(folder: Path) -> dict[str, bytes]:
    found = [*(folder / "transcripts").iterdir(), *(folder / "tokens").iterdir()]
    return {path.name: path.read_bytes() for path in found}


@pytest.mark.parametrize(
    ("place", "number", "saved"),
    [
        ((run_directory, "write_transcripts"), 2, 1),
        ((run_directory.RunDirectory, "write_tokens"), 2, 1),
        ((run_directory.RunDirectory, "note_record"), 4, 1),  # of the tokens, which are written
    ],
)
def test_step_whose_records_cannot_be_written_has_them_after_a_resume(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: Any, number: int, saved: int
) -> None:
    recording = ("recording={debates: 1, every: 1}", "evaluation.questions=0")
    assert run(*recording) == 0
    whole, files = end_of(tmp_path / "run"), files_of(tmp_path / "run")
    assert len(files) == 9
    shutil.rmtree(tmp_path / "run")
    with monkeypatch.context() as patch:
        at_call(patch, *place, number, no_room)
        assert run(*recording) == 1
    assert steps(tmp_path) == [saved]
    assert run("--resume", *recording) == 0
    assert (end_of(tmp_path / "run"), files_of(tmp_path / "run")) == (whole, files)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize(
    "case",
    [
        ("generate", RolloutError("vLLM has died: EngineDeadError")),
        ("generate", EndpointError("http://host: cannot be reached")),
        ("load", EndpointError("the vLLM server has ended")),
        ("load", TimeoutError("refreshing weights")),
    ],
)
def test_run_saves_its_last_complete_step_when_the_engine_dies(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], depth: int, case: tuple[str, Exception],
) -> None:  # fmt: skip
    call, error = case
    load, called, loads = TransformersSampler.load, getattr(TransformersSampler, call), [0]

    def counts(sampler: Any, weights: Any) -> None:
        loads[0] += 1
        load(sampler, weights)

    def dies(sampler: Any, *arguments: Any) -> Any:
        if loads[0] >= 3:  # The weights of the phase's start, and those of two steps.
            raise error
        return (counts if call == "load" else called)(sampler, *arguments)

    four_steps = ("steps=4", "evaluation.questions=0", f"pipeline.max_staleness={depth}")
    with monkeypatch.context() as patch:
        patch.setattr(TransformersSampler, "load", counts)
        patch.setattr(TransformersSampler, call, dies)
        assert run(*four_steps) == 1
    assert str(error) in capsys.readouterr().err
    assert steps(tmp_path) in ([2], [3])
    assert run(*four_steps, "--resume") == 0
    assert 4 in steps(tmp_path)


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


def test_run_goes_on_when_a_metric_cannot_be_taken(
    run: Run, tmp_path: Path, whole: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_call(monkeypatch, step_metrics, "debate_metrics", 2, fail)
    assert run() == 0
    rows, weights, _ = end_of(tmp_path / "run")
    assert weights == whole[1]
    assert [row["step"] for row in rows if "failures/metrics" in row] == [2]


def test_checkpoints_are_written_by_the_clock_and_change_nothing(
    run: Run, tmp_path: Path, whole: End
) -> None:
    assert run("checkpoint.every_minutes=1e-9", "checkpoint.keep_last=9") == 0
    assert steps(tmp_path) == [1, 2, 3]
    assert end_of(tmp_path / "run") == whole


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
