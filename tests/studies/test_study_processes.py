"""Runs of a study beside each other: order, devices, failures and interrupts."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import debate_train
from debate_studies.runs import STOPPED, Task, TrainProcesses, work
from debate_train.errors import RunFailure

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


@pytest.fixture
def variables(tmp_path: Path) -> dict[str, str]:
    """Have a package of that name in the place of ours."""
    (tmp_path / "debate_train.py").write_text(CODE)
    return {"PYTHONPATH": str(tmp_path), "A_RUN": "plain"}


def test_run_has_one_thread_its_device_and_the_variables(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    run, log = TrainProcesses(variables, [{DEVICES: "2,3"}], ["--nproc", "2"]), tmp_path / "log"
    assert (run(["ok"], log), run(["fail"], log)) == (0, 1)
    of_both = "--nproc 2 OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES=2,3 A_RUN=plain"
    assert log.read_text().splitlines() == [f"ok {of_both}", f"fail {of_both}"]


def test_runs_at_once_have_devices_of_their_own(tmp_path: Path, variables: dict[str, str]) -> None:
    run = TrainProcesses(variables, [{DEVICES: "0"}, {DEVICES: "1"}])
    tasks = {f"{n}": Task(lambda n=n: run([f"{n}"], tmp_path / f"{n}.log")) for n in range(4)}
    assert work(tasks, 2, run.stop) == ({}, [])
    used = [(tmp_path / f"{n}.log").read_text().split("CUDA_VISIBLE_DEVICES=")[1][0] for n in tasks]
    assert {*used} == {"0", "1"}
    # What two runs gave back is there again.
    assert {run._free.get_nowait()[DEVICES] for _ in range(2)} == {"0", "1"}


def test_stop_ends_what_runs_and_begins_nothing(tmp_path: Path, variables: dict[str, str]) -> None:
    run, log = TrainProcesses(variables), tmp_path / "log"
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(run(["wait"], log)))
    thread.start()
    until(lambda: log.is_file() and "ready" in log.read_text())
    run.stop()
    thread.join(30)
    assert codes == [130]
    assert run(["ok"], log) == STOPPED
    assert "ok" not in log.read_text()


def until(holds: Callable[[], bool]) -> None:
    for _ in range(1500):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("not within 30 s")


def test_each_task_comes_after_what_it_needs_and_few_at_once() -> None:
    done, running, most = list[str](), set[str](), 0
    lock = threading.Lock()

    def act(name: str) -> None:
        nonlocal most
        with lock:
            running.add(name)
            most = max(most, len(running))
        time.sleep(0.01)
        with lock:
            running.discard(name)
            done.append(name)

    needs = {"start": None, "later": "start", "a": "start", "b": "later", "c": None}
    tasks = {name: Task(lambda name=name: act(name), need) for name, need in needs.items()}
    assert work(tasks, 2, lambda: None) == ({}, [])
    assert sorted(done) == sorted(needs) and most == 2
    assert done.index("start") < done.index("later") < done.index("b")
    assert done.index("start") < done.index("a")


def test_what_needs_a_failed_task_is_left_out_and_all_else_done() -> None:
    done: list[str] = []

    def fail() -> None:
        raise RunFailure("out of memory")

    tasks = {
        "start": Task(fail),
        "later": Task(lambda: done.append("later"), "start"),
        "arm": Task(lambda: done.append("arm"), "later"),
        "other": Task(lambda: done.append("other")),
    }
    failed, lost = work(tasks, 1, lambda: None)
    assert lost == ["later", "arm"]
    assert {name: str(error) for name, error in failed.items()} == {"start": "out of memory"}
    assert done == ["other"]


def test_interrupt_stops_what_runs_and_is_raised_once_it_has_ended() -> None:
    stopped, ended = threading.Event(), list[str]()
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


def test_many_interrupts_at_once_lose_none_and_raise_once_all_has_ended() -> None:
    told, ended = threading.Event(), list[str]()

    def act() -> None:
        for number in [signal.SIGTERM, signal.SIGHUP, signal.SIGINT] * 5:
            os.kill(os.getpid(), number)
        assert told.wait(30)
        ended.append("act")

    def stop() -> None:
        time.sleep(0.01)  # Others come meanwhile.
        told.set()

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    with pytest.raises(KeyboardInterrupt):
        work({"a": Task(act), "b": Task(lambda: ended.append("b"), "a")}, 2, stop)
    assert ended == ["act"]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before


def test_fault_of_ours_ends_what_is_under_way_and_is_raised() -> None:
    stopped = threading.Event()
    tasks = {"a": Task(lambda: stopped.wait(30)), "b": Task(lambda: 1 // 0)}
    with pytest.raises(ZeroDivisionError):
        work(tasks, 2, stopped.set)
    assert stopped.is_set()


LOADING = """
import sys, time
from pathlib import Path
from debate_train.trainers.launching import heed_interrupts
(pipe,) = (a.partition("=")[2] for a in sys.argv if a.startswith("--interrupts="))
print("loading", flush=True)
time.sleep(0.5)  # As what it imports takes.
heed_interrupts(Path(pipe))
try:
    print("ready", flush=True)
    time.sleep(10)
    print("went on", flush=True)
except KeyboardInterrupt:
    print("told", flush=True)
    raise SystemExit(130)
"""
STUDY = """
import sys
from pathlib import Path
from debate_studies.runs import TrainProcesses, Task, work
run = TrainProcesses({})
work({"a": Task(lambda: run([], Path(sys.argv[1])))}, 1, run.stop)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("word", ["loading", "ready"])
def test_run_ends_with_its_study_even_while_it_loads(
    tmp_path: Path, number: signal.Signals, word: str
) -> None:
    package, log = tmp_path / "debate_train", tmp_path / "log"
    shutil.copytree(Path(debate_train.__file__).parent, package)
    (package / "__main__.py").write_text(LOADING)
    variables = {**os.environ, "PYTHONPATH": str(tmp_path)}
    # In a script `&` begins what ignores SIGINT.
    script = f"exec {sys.executable} -c '{STUDY}' {log} &\necho $!\nwait"
    command = ["sh", "-c", script]
    with subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True) as shell:
        assert shell.stdout is not None
        study = int(shell.stdout.readline())
        until(lambda: log.is_file() and word in log.read_text())
        os.kill(study, number)
        ends = ("told", "KeyboardInterrupt", "went on")
        until(lambda: any(end in log.read_text() for end in ends))
    assert "went on" not in log.read_text()
