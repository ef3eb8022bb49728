"""Workers that compare mathematical answers: hostile input, threads, forks, lost processes."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from debate_protocol.types import Question
from debate_rewards import math_pool
from debate_rewards.answer_checking import check
from debate_rewards.math_pool import MathPool, shared_pool

TOWER = "9^{9^{9^{9}}}"
HOSTILE = {
    "power tower": TOWER,
    "tall tower": "9^{9^{9^{9^{9}}}}",
    "factorial": "((9!)!)!",
    "large factorial": "(10^{9})!",
    "large power": "2^{10^{10}}",
    "long product": r"\prod_{k=1}^{10^8} k",
    "integral": r"\int_0^1 \frac{\sin(x^x)}{x^{x^x}} dx",
    "brackets": "(" * 1500 + "1" + ")" * 1500,
    "fractions": r"\frac{1}{" * 400 + "2" + "}" * 400,
    "functions": r"\sin(" * 100 + "x" + ")" * 100,
    "unclosed": r"\frac{" * 500,
    "signs": "-" * 4000 + "1",
    "matrix": r"\begin{pmatrix}" + "1&" * 1000 + r"1\end{pmatrix}",
    "sum": "1+" * 2000 + "1",
    "digits": "9" * 4000,
    "long": "x+" * 500_000 + "1",
    "surrogates": "\x00\ud800\udfff",
    "emoji": "\U0001f600" * 2000,
    "no LaTeX": r"\newcommand{\x}{\x\x}\x \input{/etc/passwd} \write18{ls}",
}


@pytest.fixture(scope="module")
def pool() -> Iterator[MathPool]:
    pool = MathPool(size=2)
    pool.compare("1", "1", 60)
    yield pool
    pool.close()


def zombies() -> list[str]:
    """Processes of ours, or of our children, that nobody has reaped."""
    states = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent, *_ = entry.read_text().rpartition(")")[2].split()
            states[int(entry.parent.name)] = (state, int(parent))
    ours = {os.getpid()} | {pid for pid, (_, parent) in states.items() if parent == os.getpid()}
    unreaped = [pid for pid, (state, parent) in states.items() if state == "Z" and parent in ours]
    return [str(pid) for pid in unreaped]


@pytest.mark.parametrize("name", HOSTILE)
def test_pool_is_back_within_the_limit_and_intact(pool: MathPool, name: str) -> None:
    started = time.monotonic()
    for sides in ((HOSTILE[name], r"\pi"), (r"\pi", HOSTILE[name])):
        result = pool.compare(*sides, 0.5)
        assert result.outcome not in ("equal", "crashed", "gold_crashed")
    # The rest is killing and replacing; generous, because other work may share the cores.
    assert time.monotonic() - started < 2 * (0.5 + 5)
    assert pool.compare("x+1", "1+x", 20).outcome == "equal"
    assert zombies() == []


def test_pool_serves_many_threads_while_some_answers_hang(pool: MathPool) -> None:
    def ask(number: int) -> str:
        if number % 8 == 0:
            return pool.compare("5", f"{number}+{TOWER}", 1.0).outcome
        return pool.compare(f"{number}x", f"{number - 1}x+x", 20).outcome

    with ThreadPoolExecutor(16) as executor:
        outcomes = list(executor.map(ask, range(48)))
    assert outcomes == ["timeout" if number % 8 == 0 else "equal" for number in range(48)]
    assert len(pool._workers) <= 2
    assert zombies() == []


def test_pool_replaces_killed_workers_and_leaves_nothing_behind() -> None:
    pool = MathPool(size=1)
    assert pool.compare("1+x", "x+1", 20).outcome == "equal"
    (worker,) = pool._workers
    worker._process.kill()
    worker._process.wait()
    assert pool.compare("1+x", "x+1", 20).outcome == "equal"
    (other,) = pool._workers
    assert other is not worker
    pool.close()
    with pytest.raises(ProcessLookupError):
        os.killpg(other._process.pid, 0)  # neither the supervisor nor its child
    with pytest.raises(RuntimeError, match="closed"):
        pool.compare("x", "x", 5)


def test_pool_tries_again_when_a_child_is_killed_in_the_middle(pool: MathPool) -> None:
    def children(pid: int) -> list[int]:
        children_file = Path(f"/proc/{pid}/task/{pid}/children")
        return [int(child) for child in children_file.read_text().split()]

    outcomes = []
    slow = threading.Thread(target=lambda: outcomes.append(pool.compare("5", TOWER, 2)))
    slow.start()
    time.sleep(0.5)
    for worker in list(pool._workers):
        for child in children(worker._process.pid):
            os.kill(child, signal.SIGKILL)
    slow.join()
    # Killed once, it had the rest of its time with a second child.
    assert outcomes[0].outcome == "timeout"
    assert pool.compare("5", "4+1", 20).outcome == "equal"
    assert zombies() == []


def test_pool_works_in_a_process_that_was_forked_while_it_was_busy() -> None:
    pool = shared_pool()
    assert pool.compare("1+m", "m+1", 20).outcome == "equal"
    busy = threading.Thread(target=pool.compare, args=("5", TOWER, 1))
    busy.start()
    time.sleep(0.2)
    child = os.fork()
    if child == 0:
        right = check(Question("q", "?", "m+7"), r"\boxed{7+m}", limit_s=60).verdict == "right"
        shared_pool().close()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    busy.join()
    assert pool.compare("1+m", "m+2", 20).outcome == "different"
    assert zombies() == []


def test_workers_end_with_their_process() -> None:
    code = (
        "import os, sys\n"
        "from debate_rewards.math_pool import shared_pool\n"
        "p = shared_pool(); p.compare('x', 'x', 60)\n"
        "print(next(iter(p._workers))._process.pid, flush=True)\n"
        "if 'killed' in sys.argv: os.kill(os.getpid(), 9)"
    )
    running = {
        how: subprocess.Popen([sys.executable, "-c", code, how], stdout=subprocess.PIPE, text=True)
        for how in ("ended", "killed")
    }
    groups = {how: int(process.communicate()[0]) for how, process in running.items()}
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and any(map(is_running, groups.values())):
        time.sleep(0.05)
    assert [how for how, group in groups.items() if is_running(group)] == []


def is_running(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    states = [path.read_text() for path in Path("/proc").glob(f"{group}/stat")]
    return not all(") Z " in state for state in states)


STARTER = """
import os, threading
from debate_rewards.math_pool import shared_pool
threading.Thread(target=shared_pool().compare, args=("x", "x", 60)).start()
print(flush=True)
"""


def workers_of(parent: int) -> list[int]:
    """Processes of the workers that a process has started, whether or not it is still there."""
    processes = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            arguments = entry.read_bytes().decode(errors="replace").split("\0")
            if "-P" in arguments and str(parent) in arguments:
                processes.append(int(entry.parent.name))
    return processes


def left_after_a_kill(delay_s: float) -> list[int]:
    """Kill a process that has begun to start a worker; return what remains of the worker."""
    starter = subprocess.Popen([sys.executable, "-c", STARTER], stdout=subprocess.PIPE)
    assert starter.stdout is not None and starter.stdout.readline() == b"\n"
    time.sleep(delay_s)
    starter.kill()
    starter.communicate()
    deadline = time.monotonic() + 30
    while (left := workers_of(starter.pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in left:
        os.kill(process, signal.SIGKILL)
    return left


@pytest.mark.parametrize(
    "delays_s",
    [
        pytest.param((0.0, 0.3, 0.6, 1.0), id="few"),
        pytest.param([n / 20 for n in range(40)], id="many", marks=pytest.mark.slow),
    ],
)
def test_no_worker_outlives_a_parent_that_is_killed_while_it_starts(
    delays_s: Sequence[float],
) -> None:
    with ThreadPoolExecutor(4) as executor:
        assert [left for left in executor.map(left_after_a_kill, delays_s) if left] == []


def test_a_child_that_nobody_reads_ends_its_supervisor() -> None:
    # The pool's end of the pipe is closed before the child can say that it is ready.
    arguments = [str(Path(math_pool.__file__).parents[1]), str(os.getpid()), "60"]
    worker = subprocess.Popen(
        [sys.executable, "-P", "-c", math_pool._PROGRAM, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert worker.stdout is not None and worker.stdin is not None
    worker.stdout.close()
    assert worker.wait(60) == 0
    worker.stdin.close()


PROBES = {
    "environment": ("'SECRET_KEY' in os.environ", "False"),
    "evaluation": ("eval('1' + '+1')", "ConfinementError"),
    "writing": ("open('/tmp/answer-worker', 'w')", "ConfinementError"),
    "reading": ("open('/etc/hostname')", "ConfinementError"),
    "network": ("__import__('socket').socket()", "ConfinementError"),
    "program": ("os.system('true')", "ConfinementError"),
    "process": ("os.fork()", "ConfinementError"),
    "module": ("open(os.__file__).close()", "None"),
    "lazy import": ("__import__('this_is_no_module', level=0)", "ModuleNotFoundError"),
}


def test_a_worker_has_no_secrets_files_network_or_evaluators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # In place of comparing, the worker does what a library could do, and answers what came of it.
    actions = [f"{name!r}: lambda: {action}" for name, (action, _) in PROBES.items()]
    program = (
        "import os, debate_rewards.math_worker as worker\n"
        f"    actions = {{{', '.join(actions)}}}\n"
        "    def probe(job, say):\n"
        "        try: return repr(actions[job['gold']]())\n"
        "        except Exception as error: return type(error).__name__\n"
        "    worker._compare = probe\n"
    )
    replaced = math_pool._PROGRAM.replace("else:\n", f"else:\n    {program}")
    monkeypatch.setattr(math_pool, "_PROGRAM", replaced)
    monkeypatch.setenv("SECRET_KEY", "a secret")
    pool = MathPool(size=1)
    outcomes = {name: pool.compare(name, "1", 60).outcome for name in PROBES}
    pool.close()
    assert outcomes == {name: outcome for name, (_, outcome) in PROBES.items()}


def test_pool_says_what_to_install_when_math_verify_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sympy.py").write_text("raise ImportError('it is not there')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    pool = MathPool(size=1)
    with pytest.raises(RuntimeError, match=r"it is not there.*pip install 'math-verify"):
        pool.compare("x", "x", 5)
