"""Phases that learn from examples: files, phases of two adapters, stops at any place, refusals."""

import os
import shutil
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from debate_protocol.types import Transcript
from debate_train.commands.cli import main
from debate_train.offline import AnswerPairs, ExampleSet
from debate_train.running import offline_phase
from train.offline_runs import back_to, lines, patch_sets, write_recipe
from train.small_runs import end_of


@pytest.fixture(scope="module", autouse=True)
def patched() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch_sets(patch)
        yield


@pytest.fixture(scope="module")
def recipe(base: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_recipe(base, tmp_path_factory.mktemp("recipe"))


@pytest.fixture(scope="module")
def whole(recipe: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody stopped."""
    run = tmp_path_factory.mktemp("whole") / "run"
    assert main([recipe, "--output", str(run)]) == 0
    return run


def differences(one: Path, other: Path) -> list[str]:
    names = [
        f"offline/{n}"
        for n in (
            "prefer-000000.jsonl",
            "imitate-000004.jsonl",
            "prefer-000000.debates.jsonl",
            "prefer-000000.held_out.jsonl",
        )
    ]
    names += ["checkpoints/step-000007/first/adapter_model.safetensors"]
    names += ["checkpoints/step-000007/second/adapter_model.safetensors"]
    found = [name for name in names if (one / name).read_bytes() != (other / name).read_bytes()]
    ends = [end_of(run, "optimizer-00000.safetensors") for run in (one, other)]
    return found + (["optimizer"] if ends[0] != ends[1] else [])


def test_phases_learn_from_the_examples_in_their_files(whole: Path) -> None:
    rows = lines(whole / "offline/prefer-000000.jsonl")
    assert len(rows) == 5
    # What preference trainers read, and what only this one needs, under names of their own.
    names = {"meta", "sampled", "made_from", "prompt"}
    assert set(rows[0]) == names | {"chosen", "rejected"}
    assert rows[0]["chosen"][0]["role"] == "assistant"
    imitated = lines(whole / "offline/imitate-000004.jsonl")
    assert len(imitated) == 4
    assert set(imitated[0]) == names | {"completion"}
    # The second set was made with what the first phase had trained.
    assert rows[0]["sampled"]["weight_version"] == 0
    assert imitated[0]["sampled"]["weight_version"] == 4
    metrics = lines(whole / "metrics.jsonl")
    at_end = metrics.pop(4)
    assert [row["phase"] for row in metrics] == ["prefer"] * 4 + ["imitate"] * 2 + ["on_policy"]
    assert (at_end["phase"], at_end["step"], at_end["held_out/pairs"]) == ("prefer", 4, 3)
    assert metrics[0]["offline/debates"] == 8
    assert metrics[0]["offline/held_out"] == 3
    assert metrics[0]["offline/kept/majority"] == 5
    assert metrics[0]["optim/preference_accuracy"] == 0  # The policy is its own reference still.
    assert metrics[3]["optim/preference_reward_chosen"] > 0
    # Nothing is played in its steps, so nothing is said of debates.
    said = {name for name in metrics[0] if name.startswith(("env/", "rollout/"))}
    assert said == {"env/all/sampled_tokens"}
    sampled = [row["env/all/sampled_tokens"] for row in metrics[:4]]
    assert sampled == [metrics[0]["offline/sampled_tokens"], 0, 0, 0] and sampled[0] > 0
    assert "optim/grad_norm/second" in metrics[0]
    assert "optim/grad_norm/first" not in metrics[0]
    assert "optim/grad_norm/first" in metrics[4]
    assert "optim/grad_norm/second" not in metrics[4]
    assert metrics[4]["offline/left_out/other_answer"] == 4
    assert metrics[1]["offline/epoch"] == pytest.approx(6 / 5)


@pytest.mark.parametrize("kept", [1, 2])
def test_set_that_was_begun_is_ended(recipe: str, whole: Path, tmp_path: Path, kept: int) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    back_to(run, 0)
    chunks = (whole / "offline/prefer-000000.chunks").read_bytes().splitlines(keepends=True)
    (run / "offline").mkdir()
    unfinished = run / "offline/prefer-000000.unfinished"
    # The last line was being written.
    unfinished.write_bytes(b"".join(chunks[:kept]) + chunks[kept][:40])
    assert main([recipe, "--resume", "--output", str(run)]) == 0
    assert differences(whole, run) == []
    assert not unfinished.exists()


@pytest.mark.parametrize("step", [2, 4, 5])
def test_run_goes_on_within_and_between_such_phases(
    recipe: str, whole: Path, tmp_path: Path, step: int
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    back_to(run, step)
    if step == 4:
        (run / "offline/imitate-000004.jsonl").unlink()
    assert main([recipe, "--resume", "--output", str(run)]) == 0
    assert differences(whole, run) == []


def test_set_that_was_changed_or_lost_is_not_trained_on(
    recipe: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    back_to(run, 2)
    path = run / "offline" / "prefer-000000.jsonl"
    kept = path.read_bytes()
    for content in (kept.replace(b'"weight_version": 0', b'"weight_version": 1', 1), None):
        path.unlink()
        if content is not None:
            path.write_bytes(content)
        assert main([recipe, "--resume", "--output", str(run)]) == 2
        assert "offline/prefer-000000.jsonl is" in capsys.readouterr().err
        for refused in (run / "checkpoints").glob("refused-*"):
            refused.rename(run / "checkpoints" / refused.name.replace("refused-", "step-"))
        path.write_bytes(kept)
    assert main([recipe, "--resume", "--output", str(run)]) == 0


def test_set_of_a_later_phase_is_dropped_where_the_run_goes_back_before_it(
    recipe: str, whole: Path, tmp_path: Path
) -> None:
    run, path = tmp_path / "run", "offline/imitate-000004.debates.jsonl"
    shutil.copytree(whole, run)
    back_to(run, 2)
    # Other weights will have made it: those of the second agent.
    faster = "phases.prefer.trainer.learning_rate=0.5"
    assert main([recipe, faster, "--resume", "--changed", "--output", str(run)]) == 0
    before, after = (lines(folder / path)[0]["turns"] for folder in (whole, run))
    assert before[0]["text"] == after[0]["text"]
    assert before[1]["text"] != after[1]["text"]


def test_damaged_chunks_are_made_again_and_a_damaged_set_is_named(
    recipe: str, whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.copytree(run / "offline", tmp_path / "offline")
    back_to(run, 0)
    (run / "offline").mkdir()
    (run / "offline/prefer-000000.unfinished").write_text('{"made_from": 1}\nnothing\n')
    assert main([recipe, "--resume", "--output", str(run)]) == 0
    assert differences(whole, run) == []
    back_to(run, 0)
    shutil.copytree(tmp_path / "offline", run / "offline")
    path = run / "offline/prefer-000000.jsonl"
    path.write_bytes(path.read_bytes().split(b"\n", 1)[1])
    assert main([recipe, "--resume", "--output", str(run)]) == 1
    assert "prefer-000000.jsonl: is not as it was written" in capsys.readouterr().err
    path.unlink()
    assert main([recipe, "--resume", "--output", str(run)]) == 0
    assert differences(whole, run) == []


def test_other_settings_make_another_set_before_training_begins(
    recipe: str, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    shutil.copytree(run / "offline", tmp_path / "offline")
    back_to(run, 0)
    shutil.copytree(tmp_path / "offline", run / "offline")
    key = "phases.prefer.offline.questions=3"
    assert main([recipe, key, "--resume", "--changed", "--output", str(run)]) == 0
    assert len(lines(run / "offline/prefer-000000.jsonl")) == 2


def test_interrupt_while_a_set_is_made_keeps_what_was_played(
    recipe: str, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    made = offline_phase._Maker._chunk
    stopped = []

    def chunk(self: Any, number: int) -> dict[str, Any]:
        if number == 1 and not stopped:
            stopped.append(number)
            os.kill(os.getpid(), signal.SIGINT)
        return made(self, number)

    monkeypatch.setattr(offline_phase._Maker, "_chunk", chunk)
    assert main([recipe, "--output", str(run)]) == 130
    assert len(lines(run / "offline" / "prefer-000000.unfinished")) == 1
    assert main([recipe, "--resume", "--output", str(run)]) == 0
    assert differences(whole, run) == []


def test_phase_without_an_example_ends_with_one_message(
    recipe: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def none(self: AnswerPairs, transcripts: Sequence[Transcript]) -> ExampleSet:
        taken = ExampleSet()
        taken.leave_out("all_agree", len(transcripts))
        return taken

    monkeypatch.setattr(AnswerPairs, "take", none)
    assert main([recipe, "--output", str(tmp_path / "run")]) == 1
    message = capsys.readouterr().err.splitlines()[-1]
    assert message.startswith("debate-train: prefer: found no example to learn from (offline/")
    assert "left_out/all_agree: 5" in message


def test_phase_without_steps_makes_no_examples(recipe: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main([recipe, "phases.prefer.steps=0", "--output", str(run)]) == 0
    made = {one.name.partition("-")[0] for one in (run / "offline").iterdir()}
    assert made == {"imitate"}
