"""Commands: help, subcommands, closed and full streams, interrupts, and what a terminal gets."""

import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from debate_protocol import cli
from debate_protocol.subcommands import SUBCOMMANDS
from debate_rewards import cli as rewards_cli

# Each acts on a terminal or turns its writing direction.
ACTING = "\x07\x1b[31m\x7f\x9b31m\x85\u061c\u200e\u2028\u202e\u2066"
DEBATE: dict[str, Any] = {
    "id": f"d{ACTING}",
    "question": {"text": f"6?{ACTING}", "answer": f"6{ACTING}", "meta": {"kind": "text"}},
    "protocol": {"num_agents": 1},
    "turns": [{"agent": 0, "round": 0, "text": f"<solution>{ACTING}42</solution>", ACTING: ACTING}],
    "meta": {ACTING: ACTING},
}
RAW = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
COMMANDS = {
    "validate": (cli.main, ["validate"]),
    "show": (cli.main, ["show"]),
    "jsonl": (cli.main, ["export", "--to", "jsonl"]),
    "xml": (cli.main, ["export", "--to", "xml"]),
    "score": (rewards_cli.main, ["score", "--reward", "verifiable"]),
    "stats": (rewards_cli.main, ["stats"]),
}
RUNS = (
    [sys.executable, "-m", "debate_protocol.cli", "export", "--to", "jsonl"],
    [sys.executable, "-m", "debate_rewards", "score", "--reward", "verifiable"],
)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def debates(tmp_path: Path) -> str:
    path = tmp_path / "debates.jsonl"
    path.write_text(json.dumps(DEBATE) + "\n")
    return str(path)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("broken", [False, True])
def test_a_terminal_is_sent_no_character_that_acts_on_it(
    name: str, broken: bool, debates: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if broken:
        odd = DEBATE | {"protocol": {"num_agents": 1, "topology": ACTING, "contract": ACTING}}
        Path(debates).write_text(json.dumps(odd) + "\n")
    main, options = COMMANDS[name]
    assert main([options[0], debates, *options[1:]]) in ((0, 1, 2) if broken else (0,))
    printed = capsys.readouterr()
    assert printed.out + printed.err
    assert not RAW.search(printed.out + printed.err)


def shell(command: str, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command, "bash", *arguments], capture_output=True, text=True
    )


def test_commands_end_without_a_traceback_when_their_streams_are_closed_or_full(
    tmp_path: Path,
) -> None:
    many = tmp_path / "many.jsonl"
    many.write_text((json.dumps(DEBATE) + "\n") * 500)
    # One process a line: code, and a part of what standard error holds; nothing for nothing.
    cases = {
        '"$@" >&-': (1, "standard output is closed"),
        '"$@" >/dev/full': (1, "No space left on device"),
        '"$@" 2>&- >/dev/null': (0, ""),
        '"$@" | head -c 9 >/dev/null; exit ${PIPESTATUS[0]}': (0, ""),
    }
    for command, (code, message) in cases.items():
        completed = shell(command, [*RUNS[0], str(many)])
        assert (completed.returncode, bool(completed.stderr)) == (code, bool(message)), (
            completed.stderr
        )
        assert message in completed.stderr
        assert "Traceback" not in completed.stderr


@pytest.mark.parametrize("run", RUNS, ids=["protocol", "rewards"])
def test_commands_exit_with_130_when_they_are_interrupted(run: list[str]) -> None:
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [*run, "-"], stdin=reading, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    os.close(reading)
    try:
        # The command has read these lines once the pipe, which holds fewer, has taken them.
        os.write(writing, (json.dumps(DEBATE) + "\n").encode() * 400)
        process.send_signal(signal.SIGINT)
        _, complaint = process.communicate()
    finally:
        os.close(writing)
        process.kill()
    assert (process.returncode, complaint) == (130, "")


@pytest.fixture(autouse=True)
def argv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put `sys.argv` back, which a subcommand replaces."""
    monkeypatch.setattr(sys, "argv", sys.argv)


def test_each_program_of_the_packages_is_a_subcommand() -> None:
    programs = {}
    for file in ROOT.glob("packages/*/pyproject.toml"):
        programs |= tomllib.loads(file.read_text())["project"].get("scripts", {})
    assert programs.pop("debate") == "debate_protocol.subcommands:main"
    assert programs == {
        f"debate-{name}": f"{command.module}:{command.function}"
        for name, command in SUBCOMMANDS.items()
    }


@pytest.mark.parametrize(
    "arguments", [[], ["--help"], ["--version"], ["report", "--help"], ["report", "--version"]]
)
def test_help_and_version_import_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys; from debate_protocol.subcommands import main\n"
        "try:\n    code = main(sys.argv[1:])\n"
        "except SystemExit as end:\n    code = end.code\n"
        "heavy = {'debate_train.recipe', 'debate_train.__main__', 'torch', 'pydantic', 'yaml'}\n"
        "sys.exit(code or ', '.join(heavy & sys.modules.keys()) or 0)"
    )
    completed = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True
    )
    assert completed.returncode == 0, completed.stderr
    lines = [line.strip() for line in completed.stdout.splitlines()]
    if arguments == ["--version"]:
        assert "debate-train 0.1.0" in lines
    elif not arguments or arguments == ["--help"]:
        assert {f"{name:10}{command.summary}" for name, command in SUBCOMMANDS.items()} <= {*lines}


WINDOWS = """
import os, signal, sys
sys.modules["fcntl"] = sys.modules["resource"] = None
for name in ("SIGHUP", "SIGCHLD", "SIGALRM", "pthread_sigmask"):
    delattr(signal, name)
for name in ("fork", "register_at_fork", "getuid"):
    delattr(os, name)
"""
MODULES = """
import importlib, pkgutil
for package in {packages}:
    top = importlib.import_module(package)
    for found in pkgutil.walk_packages(top.__path__, package + "."):
        # Programs of their own, and what imports an extra.
        if not found.name.endswith(("__main__", "math_worker")):
            try:
                importlib.import_module(found.name)
            except ModuleNotFoundError as error:
                if error.name in ("fcntl", "resource"):
                    raise
"""
REFUSED = """
from pathlib import Path
from debate_train.checkpoints.whole_files import DirectoryLock
from debate_train.errors import UsageError
try:
    DirectoryLock(Path("."))
except UsageError as error:
    print(error)
"""


def run(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", WINDOWS + code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_light_packages_import_without_what_windows_lacks(tmp_path: Path) -> None:
    completed = run(MODULES.format(packages=("debate_protocol", "debate_rewards")), tmp_path)
    assert completed.returncode == 0, completed.stderr


def test_training_says_in_one_sentence_that_windows_needs_wsl(tmp_path: Path) -> None:
    completed = run(REFUSED, tmp_path)
    assert completed.returncode == 0, completed.stderr
    assert "on Windows in WSL" in completed.stdout
    assert list(tmp_path.iterdir()) == []
