"""Launching and interrupts without processes, which `integration/test_processes.py` has."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from debate_train.commands.cli import main
from debate_train.errors import RecipeError, UsageError
from debate_train.interrupts import Interrupts
from debate_train.trainers import launching
from debate_train.trainers.launching import command_line, launch, visible_devices
from debate_train.trainers.processes import Place, own_device, own_place, slurm_place


@pytest.mark.slow
def test_launcher_is_quiet_about_what_it_runs_on_when_there_is_no_gpu() -> None:
    alone = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    command = command_line(1, [])
    done = subprocess.run(
        [*command[:3], "--help"], env=alone, capture_output=True, text=True, check=True
    )
    assert "usage:" in done.stdout
    assert "accelerator to" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [0, 1]),
        ("4,5,6,7", [4, 5]),
        (" 6 , GPU-8932f937,1", [6, "GPU-8932f937"]),
        ("", [-1, -1]),  # every GPU is hidden, and must stay so: two processes on the CPU
        ("-1", [-1, -1]),
    ],
)
def test_visible_devices_are_the_first_that_the_environment_names(
    visible: str | None, expected: list[int | str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_devices(2) == expected


@pytest.mark.parametrize("visible", ["3", "3,-1,4", "3,,4"])
def test_launch_refuses_more_processes_than_visible_gpus(
    visible: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert main(["quickstart", "--nproc", "2"]) == 2
    error = capsys.readouterr().err
    assert f"--nproc: found 2, but CUDA_VISIBLE_DEVICES={visible} names 1" in error


@pytest.mark.slow
def test_ranks_see_the_visible_gpus_when_deepspeed_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # DeepSpeed's own launcher and its CUDA accelerator; only what it starts is another program.
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    command = ["seen" if part == "debate_train" else part for part in command_line(2, [])]
    # One write each: two processes share the output.
    said = 'f\'rank {os.environ["RANK"]} {os.environ["CUDA_VISIBLE_DEVICES"]}\\n\''
    program = f"import os; os.write(1, {said}.encode())"
    (tmp_path / "seen.py").write_text(program)
    environment = {**os.environ, "DS_ACCELERATOR": "cuda", "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.startswith("rank")]
    assert sorted(lines) == ["rank 0 4,5", "rank 1 4,5"]


def test_own_device_is_the_only_one_when_a_scheduler_shows_one_to_each_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert own_device(Place(3, 16, 3, 8), visible=8) == 3
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert own_device(Place(3, 8, 3, 4), visible=1) == 0
    assert own_device(Place(3, 8, 3, 1), visible=1) == 0  # srun does not say how many are here
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert own_device(Place(3, 8, 3, 1), visible=1) == 0
    for place, visible in ((Place(1, 2, 1, 2), 1), (Place(0, 4, 0, 4), 2), (Place(3, 8, 3, 1), 2)):
        with pytest.raises(RecipeError, match=r"processes: found \d on a machine with \d visible"):
            own_device(place, visible)


def test_launch_refuses_to_start_more_when_a_launcher_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="found a launcher's WORLD_SIZE already"):
        launch(2, [])


def test_own_place_is_that_of_the_task_when_srun_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.setenv(name, "")  # So that it is gone again after the test.
        monkeypatch.delenv(name)
    monkeypatch.setenv("MASTER_PORT", "1234")
    batch = {"JOB_ID": "70123", "NTASKS": "5", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}
    for name, value in batch.items():  # The script that calls srun is none of its tasks.
        monkeypatch.setenv(f"SLURM_{name}", value)
    assert own_place() == Place(0, 1, 0, 1)
    step = {
        "STEP_ID": "2", "STEP_NUM_TASKS": "5", "STEP_NODELIST": "gpu[03-04,09],login1",
        "STEP_TASKS_PER_NODE": "2(x2),1", "PROCID": "4", "LOCALID": "0", "NODEID": "2",
    }  # fmt: skip
    for name, value in step.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    with pytest.raises(UsageError, match="several tasks of srun; expected either"):
        launch(2, ["recipe.yaml"])
    assert slurm_place(os.environ)["MASTER_PORT"] == "20125"  # 20000 + (70123 + 2) % 10000
    assert own_place() == Place(rank=4, size=5, local_rank=0, local_size=1)
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("gpu03", "1234")
    one = {"SLURM_STEP_NODELIST": "node1,node2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
    alike = {**{f"SLURM_{k}": v for k, v in step.items()}, "SLURM_JOB_ID": "1"}
    assert slurm_place(alike | one | {"SLURM_NODEID": "1"})["MASTER_ADDR"] == "node1"
    arbitrary = alike | {"SLURM_DISTRIBUTION": "arbitrary"}
    with pytest.raises(UsageError, match="MASTER_ADDR set to the node of rank 0"):
        slurm_place(arbitrary)
    assert slurm_place(arbitrary | {"MASTER_ADDR": "node2"})["RANK"] == "4"


def test_own_place_is_that_of_the_launcher_when_there_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for left in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):  # By one of DeepSpeed.
        monkeypatch.delenv(left, raising=False)
    assert own_place() == Place(0, 1, 0, 1)
    monkeypatch.setenv("WORLD_SIZE", "16")
    with pytest.raises(RecipeError, match="found WORLD_SIZE=16 without RANK"):
        own_place()
    named = {"RANK": "9", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "8"}
    for name, value in (named | {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}).items():
        monkeypatch.setenv(name, value)
    assert own_place() == Place(rank=9, size=16, local_rank=1, local_size=8)


@pytest.mark.parametrize("echo_s", [0.0, 60.0])
def test_interrupts_take_an_echo_for_the_first_when_a_launcher_repeats_it(echo_s: float) -> None:
    with Interrupts(echo_s) as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.asked
        if echo_s:
            signal.raise_signal(signal.SIGINT)
        else:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


def test_hang_up_that_is_ignored_does_not_reach_the_processes() -> None:
    hang_up = "import os, signal; os.kill(os.getppid(), signal.SIGHUP)"
    read, write = os.pipe()
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert launching._run([sys.executable, "-c", hang_up], write) == 0
    finally:
        signal.signal(signal.SIGHUP, before)
        os.close(write)
    with os.fdopen(read, "rb") as heard:
        assert heard.read() == b""
