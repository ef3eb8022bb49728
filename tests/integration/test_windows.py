"""Packages as they are on Windows: no fcntl, resource, fork or SIGHUP."""

import subprocess
import sys
from pathlib import Path

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
