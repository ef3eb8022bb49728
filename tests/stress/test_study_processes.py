"""Runs of a study beside each other: order, devices, failures, interrupts and kills."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from debate_studies.lines import Lines
from debate_studies.runs import Task, TrainProcesses, work
from debate_train.checkpoints.whole_files import DirectoryInUseError, DirectoryLock
from debate_train.errors import RunFailure
from studies.miniature import MINIATURE, RECIPE

pytestmark = pytest.mark.slow
DEVICES = "CUDA_VISIBLE_DEVICES"
CODE = """
import os, signal, sys, time
names = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "A_RUN")
print(*sys.argv[1:], *(f"{name}={os.environ.get(name)}" for name in names), flush=True)
if sys.argv[1] == "wait":
    signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
    print("ready", flush=True)
    time.sleep(60)
sys.exit(int(sys.argv[1] == "fail"))
"""
ARM = {"recipe": RECIPE, "settings": ["phases.reinforce.steps=3000"]}
LONG = MINIATURE | {"seeds": [0], "starts": {}, "arms": {"grpo": ARM}, "compared": [], "plot": []}


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Have a package of that name in the place of ours."""
    (tmp_path / "debate_train.py").write_text(CODE)
    return {"PYTHONPATH": str(tmp_path), "A_RUN": "plain"}


def test_runs_at_once_have_devices_of_their_own(tmp_path: Path, variables: dict[str, str]) -> None:
    run = TrainProcesses(variables, [{DEVICES: "0"}, {DEVICES: "1"}])
    tasks = {f"{n}": Task(lambda n=n: run([f"{n}"], tmp_path / f"{n}.log")) for n in range(4)}
    assert work(tasks, 2, run.stop) == ({}, [])
    used = [(tmp_path / f"{n}.log").read_text().split("CUDA_VISIBLE_DEVICES=")[1][0] for n in tasks]
    assert {*used} == {"0", "1"}
    # What two runs gave back is there again.
    assert {run._free.get_nowait()[DEVICES] for _ in range(2)} == {"0", "1"}


def until(holds: Callable[[], bool]) -> None:
    for _ in range(1500):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("not within 30 s")


def test_each_task_comes_after_what_it_needs_and_few_at_once() -> None:
    finished = list[str]()
    running = set[str]()
    most_at_once = 0
    lock = threading.Lock()

    def act(name: str) -> None:
        nonlocal most_at_once
        with lock:
            running.add(name)
            most_at_once = max(most_at_once, len(running))
        time.sleep(0.01)
        with lock:
            running.discard(name)
            finished.append(name)

    needs = {"start": None, "later": "start", "a": "start", "b": "later", "c": None}
    tasks = {name: Task(lambda name=name: act(name), need) for name, need in needs.items()}
    assert work(tasks, 2, lambda: None) == ({}, [])
    assert sorted(finished) == sorted(needs)
    assert most_at_once == 2
    assert finished.index("start") < finished.index("later") < finished.index("b")
    assert finished.index("start") < finished.index("a")


def test_what_needs_a_failed_task_is_left_out_and_all_else_done() -> None:
    finished: list[str] = []

    def fail() -> None:
        raise RunFailure("out of memory")

    tasks = {
        "start": Task(fail),
        "later": Task(lambda: finished.append("later"), "start"),
        "arm": Task(lambda: finished.append("arm"), "later"),
        "other": Task(lambda: finished.append("other")),
    }
    failed, lost = work(tasks, 1, lambda: None)
    assert lost == ["later", "arm"]
    assert {name: str(error) for name, error in failed.items()} == {"start": "out of memory"}
    assert finished == ["other"]


def test_interrupt_stops_what_runs_and_is_raised_once_it_has_ended() -> None:
    stopped = threading.Event()
    ended = list[str]()
    calls = list[str]()

    def act() -> None:
        time.sleep(0.2)  # The pool has taken its thread in by then.
        os.kill(os.getpid(), signal.SIGINT)
        assert stopped.wait(30)
        time.sleep(0.05)
        ended.append("first")

    def stop() -> None:
        calls.append("stop")
        stopped.set()

    tasks = {"first": Task(act), "second": Task(lambda: ended.append("second"))}
    with pytest.raises(KeyboardInterrupt):
        work(tasks, 1, stop)
    assert (ended, calls) == (["first"], ["stop"])


def test_fault_of_ours_ends_what_is_under_way_and_is_raised() -> None:
    stopped = threading.Event()
    tasks = {"a": Task(lambda: stopped.wait(30)), "b": Task(lambda: 1 // 0)}
    with pytest.raises(ZeroDivisionError):
        work(tasks, 2, stopped.set)
    assert stopped.is_set()


def begun(folder: Path) -> subprocess.Popen[str]:
    """Start a study in a process, and wait until its run has made a step of reinforcement."""
    command = [sys.executable, "-m", "debate_studies.command", "study.yaml", "--output", "runs"]
    study = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    rows = folder / "runs/grpo-0/metrics.jsonl"
    steps = steps_of(folder)
    for _ in range(3000):
        assert study.poll() is None
        if rows.is_file() and '"reinforce"' in rows.read_text() and steps_of(folder) > steps:
            return study
        time.sleep(0.02)
    raise AssertionError("no step within 60 s")


def steps_of(folder: Path) -> int:
    rows = folder / "runs/grpo-0/metrics.jsonl"
    return len(rows.read_text().splitlines()) if rows.is_file() else 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_run_of_a_study_that_ends_keeps_its_steps(tmp_path: Path, number: signal.Signals) -> None:
    file = tmp_path / "study.yaml"
    run = tmp_path / "runs/grpo-0"
    file.write_text(yaml.safe_dump(LONG | {"results": "lines.jsonl"}))
    with begun(tmp_path) as study:
        os.kill(study.pid, number)
        assert study.wait(60) == (-signal.SIGKILL if number == signal.SIGKILL else 130)
    until_free(run)
    first = steps_of(tmp_path)
    assert f"step-{first:06d}" in {
        checkpoint.name for checkpoint in (run / "checkpoints").iterdir()
    }
    assert not (run / "results.json").exists()
    assert not Lines(tmp_path / "lines.jsonl").read()
    if number == signal.SIGKILL:
        with begun(tmp_path) as study:  # The next call goes on from there.
            study.terminate()
        assert steps_of(tmp_path) > first


def until_free(run: Path) -> None:
    """Wait until nobody holds the run's lock."""
    for _ in range(3000):
        try:
            return DirectoryLock(run).release()
        except DirectoryInUseError:
            time.sleep(0.02)
    raise AssertionError("still in use after 60 s")
