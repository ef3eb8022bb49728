"""Launching and interrupts without processes, which `integration/test_processes.py` has."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

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
        (" 6 , GPU-8932f937,1", [6, "GPU-8932f937"]),
        ("-1", [-1, -1]),
    ],
)
def test_visible_devices_are_the_first_that_the_environment_names(visible, expected, monkeypatch):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_devices(2) == expected


@pytest.mark.parametrize("visible", ["3", "3,,4"])
def test_launch_refuses_more_processes_than_visible_gpus(visible, monkeypatch, capsys):
    monkeypatch.delenv("DS_ACCELERATOR", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert main(["quickstart", "trainer.type=deepspeed", "--nproc", "2"]) == 2
    error = capsys.readouterr().err
    assert f"--nproc: found 2, but CUDA_VISIBLE_DEVICES={visible} names 1" in error


@pytest.mark.parametrize(
    ("place", "num_visible"),
    [(Place(1, 2, 1, 2), 1), (Place(0, 4, 0, 4), 2), (Place(3, 8, 3, 1), 2)],
)
def test_more_processes_than_devices_are_refused(place, num_visible, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(RecipeError, match=r"processes: found \d on a machine with \d visible"):
        own_device(place, num_visible)


# Places of processes


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


@pytest.fixture
def hung_up_is_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


def test_hang_up_stays_ignored_when_the_run_was_started_so(hung_up_is_ignored: None) -> None:
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGHUP)
        assert not interrupts.asked


def never() -> None:
    pytest.fail("what can be stopped was begun")


def test_interrupt_ends_what_can_be_stopped_and_nothing_after_it() -> None:
    def ends() -> int:
        signal.raise_signal(signal.SIGINT)
        return 1

    with Interrupts(say=lambda _: None) as interrupts:
        assert interrupts.stoppable(lambda: 1) == 1
        assert interrupts.stoppable(ends) is None
        assert interrupts.asked
        assert interrupts.stoppable(never) is None
    with Interrupts(say=lambda _: None) as interrupts:
        assert ends() == 1
        assert interrupts.asked


def test_interrupt_between_two_lines_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that comes right after the look whether one has come."""
    looks = iter([True, *[False] * 9])
    asked = Interrupts.asked.fget
    assert asked is not None

    def look(interrupts: Interrupts) -> bool:
        found = asked(interrupts)
        if next(looks):
            signal.raise_signal(signal.SIGINT)
        return found

    with Interrupts(say=lambda _: None) as interrupts:
        monkeypatch.setattr(Interrupts, "asked", property(look))
        assert interrupts.stoppable(never) is None
