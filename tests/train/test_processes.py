"""Launching and interrupts without processes, which `integration/test_processes.py` has."""

import os
import signal
import subprocess
import sys

import pytest

from debate_train.commands.cli import main
from debate_train.errors import RecipeError, UsageError
from debate_train.interrupts import Interrupts
from debate_train.trainers import launching
from debate_train.trainers.launching import command_line, launch, visible_devices
from debate_train.trainers.processes import Place, own_device, own_place, slurm_place

LAUNCHER = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@pytest.fixture
def no_launcher(monkeypatch):
    for name in LAUNCHER:
        monkeypatch.setenv(name, "")  # So that it is removed again after the test.
        monkeypatch.delenv(name)


# Visible devices


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
def test_visible_devices_are_the_first_that_the_environment_names(visible, expected, monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_devices(2) == expected


@pytest.mark.parametrize("visible", ["3", "3,-1,4", "3,,4"])
def test_launch_refuses_more_processes_than_visible_gpus(visible, monkeypatch, capsys):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert main(["quickstart", "trainer.type=deepspeed", "--nproc", "2"]) == 2
    error = capsys.readouterr().err
    assert f"--nproc: found 2, but CUDA_VISIBLE_DEVICES={visible} names 1" in error


@pytest.mark.parametrize(
    ("place", "num_visible", "expected"),
    [
        (Place(3, 16, 3, 8), 8, 3),
        # A scheduler shows one device to each process; srun does not say how many are here.
        (Place(3, 8, 3, 4), 1, 0),
        (Place(3, 8, 3, 1), 1, 0),
    ],
)
def test_device_is_the_only_one_when_a_scheduler_shows_one_to_each_process(
    place, num_visible, expected, monkeypatch
):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert own_device(place, visible=num_visible) == expected


@pytest.mark.parametrize(
    ("place", "num_visible"),
    [(Place(1, 2, 1, 2), 1), (Place(0, 4, 0, 4), 2), (Place(3, 8, 3, 1), 2)],
)
def test_more_processes_than_devices_are_refused(place, num_visible, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(RecipeError, match=r"processes: found \d on a machine with \d visible"):
        own_device(place, num_visible)


# Places of processes


def test_launch_refuses_to_start_more_when_a_launcher_has(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="found a launcher's WORLD_SIZE already"):
        launch(2, [])


def test_place_is_that_of_the_launcher_when_there_is_one(no_launcher, monkeypatch):
    assert own_place() == Place(0, 1, 0, 1)
    monkeypatch.setenv("WORLD_SIZE", "16")
    with pytest.raises(RecipeError, match="found WORLD_SIZE=16 without RANK"):
        own_place()
    for name, value in zip(LAUNCHER[1:], ("9", "1", "8", "node1", "29500"), strict=True):
        monkeypatch.setenv(name, value)
    assert own_place() == Place(rank=9, size=16, local_rank=1, local_size=8)


BATCH_SCRIPT = {
    "SLURM_JOB_ID": "70123",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "0",
}
TASK = BATCH_SCRIPT | {
    "SLURM_STEP_ID": "2",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_NODELIST": "gpu[03-04,09],login1",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_PROCID": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "2",
}


def test_place_is_that_of_the_task_when_srun_started_it(no_launcher, monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "1234")
    for name, value in BATCH_SCRIPT.items():  # The script that calls srun is none of its tasks.
        monkeypatch.setenv(name, value)
    assert own_place() == Place(0, 1, 0, 1)
    for name, value in TASK.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="several tasks of srun; expected either"):
        launch(2, ["recipe.yaml"])
    assert own_place() == Place(rank=4, size=5, local_rank=0, local_size=1)
    assert (os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"]) == ("gpu03", "1234")


def test_tasks_of_srun_meet_at_the_node_of_rank_0():
    assert slurm_place(TASK)["MASTER_PORT"] == "20125"  # 20000 + (70123 + 2) % 10000
    two_nodes = {
        "SLURM_STEP_NODELIST": "node1,node2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
        "SLURM_NODEID": "1",
    }
    assert slurm_place(TASK | two_nodes)["MASTER_ADDR"] == "node1"
    arbitrary = TASK | {"SLURM_DISTRIBUTION": "arbitrary"}
    with pytest.raises(UsageError, match="MASTER_ADDR set to the node of rank 0"):
        slurm_place(arbitrary)
    assert slurm_place(arbitrary | {"MASTER_ADDR": "node2"})["RANK"] == "4"


# Interrupts


@pytest.mark.parametrize("echo_s", [0.0, 60.0])
def test_interrupts_take_an_echo_for_the_first_when_a_launcher_repeats_it(echo_s):
    with Interrupts(echo_s) as interrupts:
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.asked
        if echo_s:
            signal.raise_signal(signal.SIGINT)
        else:
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)


def test_hang_up_that_is_ignored_does_not_reach_the_processes():
    hang_up = "import os, signal; os.kill(os.getppid(), signal.SIGHUP)"
    reader, writer = os.pipe()
    previous = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert launching._run([sys.executable, "-c", hang_up], writer) == 0
    finally:
        signal.signal(signal.SIGHUP, previous)
        os.close(writer)
    with os.fdopen(reader, "rb") as signals:
        assert signals.read() == b""


# DeepSpeed's launcher


@pytest.mark.slow
def test_launcher_is_quiet_about_what_it_runs_on_when_there_is_no_gpu(monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    command = [*command_line(1, [])[:3], "--help"]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "usage:" in process.stdout
    assert "accelerator to" not in process.stdout + process.stderr


@pytest.mark.slow
def test_ranks_see_the_visible_gpus_when_deepspeed_starts_them(tmp_path, monkeypatch):
    # DeepSpeed's launcher and its CUDA accelerator; only what it starts is another program.
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    command = ["show_rank" if word == "debate_train" else word for word in command_line(2, [])]
    (tmp_path / "show_rank.py").write_text(
        "import os\n"
        "text = 'rank {RANK} {CUDA_VISIBLE_DEVICES}\\n'.format(**os.environ)\n"
        "os.write(1, text.encode())\n"  # One write each: two processes share the output.
    )
    environment = {**os.environ, "DS_ACCELERATOR": "cuda", "PYTHONPATH": str(tmp_path)}
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    lines = [line for line in process.stdout.splitlines() if line.startswith("rank")]
    assert sorted(lines) == ["rank 0 4,5", "rank 1 4,5"]
