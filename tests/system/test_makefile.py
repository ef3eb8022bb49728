"""What make passes on to uv, and what it says at its end."""

import os
import subprocess
from pathlib import Path

import pytest

SHOW = 'show: ; @echo "backend=$$UV_TORCH_BACKEND"'


def backend(repository: Path, environment: dict[str, str], *variables: str) -> str:
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_", "MAKE", "MFL"))
    }
    command = ["make", "--no-print-directory", "--eval", SHOW, "show", *variables]
    found = subprocess.run(
        command, cwd=repository, env=clean | environment, capture_output=True, text=True, check=True
    )
    return found.stdout.strip().removeprefix("backend=")


def test_torch_comes_without_cuda_when_there_is_no_gpu(repository: Path, tmp_path: Path) -> None:
    none, gpu = f"GPU_DEVICES={tmp_path}/none", f"GPU_DEVICES={tmp_path}"
    assert backend(repository, {}, none) == "cpu"
    assert backend(repository, {}, gpu) == ""
    assert backend(repository, {"UV_TORCH_BACKEND": "auto"}, none) == "auto"
    assert backend(repository, {}, none, "VLLM=vllm") == ""
    assert backend(repository, {"PIP_FIND_LINKS": str(tmp_path)}, none) == "cpu"
    (tmp_path / "torch-2.13.0-cp311-cp311-linux_x86_64.whl").touch()
    assert backend(repository, {"PIP_FIND_LINKS": str(tmp_path)}, none) == ""
    assert backend(repository, {"UV_FIND_LINKS": f"{tmp_path}"}, none) == ""


@pytest.mark.parametrize("target", ["setup", "quickstart"])
def test_make_ends_with_how_to_type_commands(repository: Path, target: str) -> None:
    command = ["make", "--dry-run", "--always-make", "--no-print-directory", target]
    printed = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    assert ". .venv/bin/activate" in printed.stdout.splitlines()[-1]
    assert "\n. .venv/bin/activate " in (repository / "README.md").read_text()
